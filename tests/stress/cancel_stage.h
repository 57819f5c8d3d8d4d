// SPDX-License-Identifier: Apache-2.0
// CancelStage: an engine without threads. One request (the victim) is cancelled at a chosen point
// while other requests run; afterwards all requests are checked.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/engine/engine_parts.h"
#include "server/engine/session_calls.h"
#include "tests/support/fake_backend.h"
#include "tests/support/hostile_backend.h"

namespace rivulet {

// A reply that is read at once, or only in Take(); `on_ready` is called first.
class StageReply final : public ReplyListener {
 public:
  void OnReady() override;
  void Take();

  GenerateSpec spec;
  std::vector<int32_t> after;  // the sequence that it continues; its prompt follows
  RequestId id = 0;
  std::shared_ptr<Reply> reply;
  std::function<void()> on_ready;
  bool reads = true;
  std::vector<std::vector<int32_t>> tokens;  // [sample]
  std::optional<Reply::End> end;
  int calls_after_end = 0;
};

class CancelStage {
 public:
  static constexpr int kSlots = 4;

  explicit CancelStage(uint32_t seed);
  ~CancelStage();

  // Begins a trial with new sessions: one with five tokens of its own, one in the middle of a
  // reply, one at rest.
  void Begin();

  // Starts the victim: one of these, and one cancellation:
  void Generate(GenerateSpec spec);  // `spec.session` and `spec.sampling.seed` are filled in
  void Score(int64_t tokens, int64_t window);
  void Append(int64_t tokens);
  void Snapshot();
  void Fork();
  void Restore();
  // Cancels right before the backend's n-th call of this kind from now on; n = 1 is the next.
  void CancelAt(BackendCall call, int n);
  void Cancel() { engine_->Cancel(victim_id_); }

  // Runs until nothing is left to do; or runs one turn of the loop; or notifies the listeners.
  void Settle();
  void Turn() { engine_->Turn(); }
  void Emit() { engine_->Emit(); }
  // Runs until the victim has ended, and no other request waits.
  void SettleVictim();
  // Starts replies that take every free slot, and `more` replies that wait.
  void FillSlots(int more);
  // Starts a reply on the victim's session before the victim.
  void OccupySession();
  void CloseSession();
  void Drain() { engine_->Drain(absl::InfiniteFuture()); }
  void PassDeadline() { now_ += absl::Seconds(10); }

  StageReply& victim() { return victim_; }
  bool hit() const { return hit_; }  // the armed point was reached

  // The expected end of the victim. Check() compares the engine's state with it.
  struct Outcome {
    absl::StatusCode code = absl::StatusCode::kCancelled;
    int64_t min_tokens = 0, max_tokens = 1 << 30;  // of a reply
    bool session_lives = true;
    bool drained = false;
    int sessions_made = 0;
  };
  void Check(const Outcome& outcome);

 private:
  struct Spectator {
    SessionRef session;
    StageReply reply;  // in the middle
  };
  void Start(StageReply* reply);
  SessionRef Open(std::vector<int32_t> tokens);
  SessionInfo InfoOf(const SessionRef& session);
  std::vector<int32_t> Alone(std::vector<int32_t> tokens, const GenerateSpec& spec, uint32_t sample,
                             int64_t count) const;
  void CheckReply(const StageReply& reply);
  void CheckVictimsSession(const Outcome& outcome);
  int Below(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  // A callback for the end of a victim that is not a reply.
  std::function<void(absl::Status)> Ender();

  const ModelConfig config_ = FakeConfig(50, /*with_bos=*/true);
  std::mt19937 random_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::shared_ptr<FakeProbe> fake_ = std::make_shared<FakeProbe>();
  std::shared_ptr<HostileProbe> probe_ = std::make_shared<HostileProbe>();
  std::unique_ptr<SteppedEngine> engine_;

  // State of this trial.
  std::vector<std::unique_ptr<Spectator>> spectators_;
  std::vector<std::unique_ptr<StageReply>> crowd_;
  SessionRef session_;           // the victim's
  std::vector<int32_t> tokens_;  // its sequence
  std::vector<int32_t> given_;   // what the victim appends
  bool on_session_ = false;
  StageReply victim_;
  RequestId victim_id_ = 0;
  int ends_ = 0;  // calls of the callback of Ender()
  absl::Status end_;
  size_t sessions_before_ = 0;
  BackendCall armed_ = BackendCall::kPoll;
  int countdown_ = 0;
  bool hit_ = false;
};

}  // namespace rivulet
