// SPDX-License-Identifier: Apache-2.0
// EngineUnderTest: the engine of a schedule, with its backend and its disk, and whether it was
// drained or stopped, or its backend failed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "server/engine/engine_parts.h"
#include "tests/simulation/turn_clock.h"
#include "tests/simulation/watched_backend.h"
#include "tests/simulation/world.h"

namespace rivulet::simulated {

// Thread: one.
class EngineUnderTest {
 public:
  // `world`, `clock` and `choices` are borrowed. `on_call` comes before each call of the backend
  // takes effect.
  EngineUnderTest(const World& world, const TurnClock& clock, Choices* choices, Mutant mutant,
                  std::function<void()> on_call)
      : world_(world) {
    if (world.disk) disk_.emplace(choices, *world.disk);
    engine_ = CreateSteppedEngine(
        world.config, world.tokenizer.get(),
        std::make_unique<WatchedBackend>(world.config, world.fake, probe_, mutant,
                                         std::move(on_call)),
        world.options, [&clock] { return clock.now(); }, disk_ ? disk_->Tier() : DiskTier(),
        world.warm);
  }

  const World& world() const { return world_; }
  SteppedEngine* get() { return engine_.get(); }  // null: the engine was stopped
  EngineLoad load() const { return engine_->GetLoad(); }
  const FakeProbe& probe() const { return *probe_; }
  const FaultyDisk* disk() const { return disk_ ? &*disk_ : nullptr; }  // null: none

  // Called before each turn; `turn`: its number.
  void BeginTurn(int turn) {
    if (BackendFailed() && !failed_at_turn_) failed_at_turn_ = turn;
  }
  // Does up to the given number of the disk's work items; false: there was none.
  bool WorkOnDisk(int pieces) {
    int done = 0;
    while (disk_ && done < pieces && disk_->DoOne()) ++done;
    return done > 0;
  }
  // As SteppedEngine::Drain.
  bool Drain(absl::Time deadline) {
    draining_ = true;
    ended_rest_ |= deadline == absl::InfinitePast();
    return engine_->Drain(deadline);
  }
  // Destroys the engine, which ends all requests.
  void Stop() {
    stopping_ = true;
    engine_.reset();
  }

  bool draining() const { return draining_; }
  bool ended_rest() const { return ended_rest_; }  // there was a drain with a deadline in the past
  bool stopping() const { return stopping_; }
  bool BackendFailed() const {
    return world_.fake.fail_at_call >= 0 && probe_->calls() > world_.fake.fail_at_call;
  }
  // Whether the backend had failed when this turn began.
  std::optional<int> failed_at_turn() const { return failed_at_turn_; }

 private:
  const World& world_;
  const std::shared_ptr<FakeProbe> probe_ = std::make_shared<FakeProbe>();
  std::optional<FaultyDisk> disk_;
  bool draining_ = false, ended_rest_ = false, stopping_ = false;
  std::optional<int> failed_at_turn_;
  std::unique_ptr<SteppedEngine> engine_;
};

}  // namespace rivulet::simulated
