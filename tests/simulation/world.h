// SPDX-License-Identifier: Apache-2.0
// World: the configuration of a schedule's engine, and the tokens that its clients know.
#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <vector>

#include "model/config.h"
#include "model/text/char_tokenizer.h"
#include "server/engine/engine.h"
#include "server/engine/loop/host_memory.h"
#include "tests/simulation/choices.h"
#include "tests/simulation/faulty_disk.h"
#include "tests/support/fake_backend.h"

namespace rivulet {

struct World {
  ModelConfig config;
  std::unique_ptr<const TextTokenizer> tokenizer;
  FakeBackendOptions fake;
  EngineOptions options;
  std::optional<FaultyDisk::Faults> disk;      // absent: no disk tier
  int letters = 26;                            // tokens that clients give: 0 to letters - 1
  std::array<std::vector<int32_t>, 2> common;  // with which prompts begin
  std::vector<WarmState> warm;                 // loaded for all tenants

  static constexpr int kTenants = 3;
  int64_t bos() const { return config.has_bos() ? 1 : 0; }
  int64_t warm_bytes() const;
  // Maximum size of a state.
  int64_t state_bytes() const { return static_cast<int64_t>(fake.limits.bytes_per_slot); }
  StateSize state_size() const { return fake.limits.state_size(); }
  bool grows() const { return fake.limits.state.per_block > 0; }
  StateMemory state_memory() const { return StateMemoryOf(options.max_host_bytes, fake.limits); }
  // Whether every tenant has memory to begin a request in each slot.
  bool room_for_all() const {
    return state_memory().begun >= kTenants * int64_t{fake.limits.num_slots};
  }
};

// Draws small limits, so that all of them are reached. The world borrows `choices`.
World DrawWorld(Choices* choices);

}  // namespace rivulet
