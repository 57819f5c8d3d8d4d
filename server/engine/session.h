// SPDX-License-Identifier: Apache-2.0
// Session: one sample of a Generate, or a Score, while it holds a slot. Request: the RPC that its
// sessions belong to. The loop asks a session what it can feed, lets it fill its row of a run, and
// gives it the run's records.
//
// Life of a sample: prefill (feeds the prompt, the implied bos first, and draws at its end), then
// decode (feeds what it drew). With several samples, sample 0 feeds all but the last prompt token,
// its state is copied to the others, and then every sample feeds that last token itself and draws
// with its own sample index.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "model/backend.h"
#include "model/config.h"
#include "model/tokenizer.h"
#include "server/engine/client_session.h"
#include "server/engine/emitter.h"
#include "server/engine/reply.h"
#include "server/engine/request.h"
#include "server/engine/scheduler.h"
#include "server/engine/stop_matcher.h"

namespace rivulet {

class Session;
class SessionTable;
struct EngineOptions;

// Thread: built by the caller of the engine, then the loop's; handed to the emitter with its end.
class Request : public Outlet {
 public:
  RequestId id = 0;
  absl::Time arrival, deadline;
  std::optional<absl::Time> admitted, first_token;
  int num_slots = 1;                      // 0: it is carried out as soon as its turn comes
  int places = 1;                         // in the queue, from Submit on
  int64_t num_tokens = 0;                 // given tokens: what it costs to keep
  std::optional<SessionRef> session_ref;  // the client session that it goes on with
  bool closes_session = false;            // it does not wait for its turn
  ClientSession* session = nullptr;       // set when it is found
  bool waits_for_slots = false, begun = false;
  int open_sessions = 0;                           // sessions that have not ended
  std::vector<std::unique_ptr<Session>> sessions;  // [num_slots] from admission on
  absl::Status status;  // how it ended; set before the end is handed over
  Usage usage;          // likewise

  // Its turn has come: what it needs to know of its client session is known. May set num_slots to 0
  // where nothing has to be fed. An error ends it, and has changed nothing.
  virtual absl::Status Begin(SessionTable* /*table*/, absl::Time /*now*/) {
    return absl::OkStatus();
  }
  // Fills `sessions`.
  virtual void CreateSessions() = 0;
  // It ends so after a Begin that was OK; the client session is still its own.
  virtual void Settle(const absl::Status& /*end*/) {}
  // Its reader is slow: no rows until it has taken what waits.
  virtual bool paused() { return false; }
};

// Memory that the rows of a run point into. Lives until the run is complete.
using TokenBuffer = std::vector<int32_t>;

// Thread: the loop.
class Session {
 public:
  explicit Session(Request* owner) : request(owner) {}
  virtual ~Session() = default;

  Request* const request;
  Slot slot = kGuardSlot;
  int row = -1;              // its row of the outstanding run
  uint64_t last_served = 0;  // number of the last run it had a row in
  bool ended = false;        // has given its slot back
  bool touched = false;      // has records that are not flushed

  // False while it can feed nothing (its prompt is being fed by sample 0).
  virtual bool runnable() const { return true; }
  virtual SessionView View() const = 0;
  // Null: this session never samples.
  virtual std::optional<SlotSampler> Sampler() const { return std::nullopt; }
  // Fills `row` to feed `tokens` tokens. `buffer` has room for them without reallocation.
  virtual void FillRow(int tokens, int num_steps, TokenBuffer* buffer, RunRow* run_row) = 0;
  // The state that its slot begins with.
  virtual Checkpoint start() const { return {}; }
  // Tokens fed to its slot, those of `start` included, once the outstanding run is complete.
  virtual int64_t fed() const { return 0; }
  // One record of its row. May take things from `record`.
  virtual void OnRecord(Record* record) = 0;
  // Hands what the records brought to the reply; false if that is nothing.
  virtual bool Flush() { return false; }

  // What must happen after a run in which it had a row. kFork: copy its slot to the request's other
  // sessions, then tell all of them; kZero: zero its slot.
  enum class Next : uint8_t { kContinue, kFork, kZero };
  virtual Next OnRunDone() = 0;
  // Its slot now holds the state of all but the last prompt token.
  virtual void OnForked() {}

  // True once it has finished or failed; then `status` says how.
  bool finished = false;
  absl::Status status;
};

// DATA_LOSS for what the backend computed but nobody can use.
absl::Status NonFiniteError(absl::string_view message);

// What the engine knows about the model; borrowed.
struct ModelView {
  const ModelConfig* config = nullptr;
  const Tokenizer* tokenizer = nullptr;  // null: no text
};

class GenerateRequest final : public Request {
 public:
  // REQUIRES: `spec_in` is valid (validate.h); max_new >= 1 tokens to draw at most, per sample.
  // With a client session max_new is known only in Begin.
  GenerateRequest(GenerateSpec spec_in, int64_t max_new_tokens, const ModelView& model_view,
                  const EngineOptions& engine_options, ReplyListener* reply_listener);

  absl::Status Begin(SessionTable* table, absl::Time now) override;
  void CreateSessions() override;
  void Settle(const absl::Status& end) override;
  bool paused() override;
  void OnReady() override { listener->OnReady(); }
  void OnEnd() override;

  const ModelView model;
  const EngineOptions& options;
  GenerateSpec spec;
  int64_t max_new;
  const StopStrings stop_strings;
  Checkpoint start;  // what `feed` goes on from
  std::vector<int32_t>
      feed;  // the implied bos, then the prompt; of a client session: what follows `start`
  std::vector<bool> feed_output;    // [feed] was generated; empty: none was
  std::vector<TokenCount> history;  // of what was fed before `feed`
  const std::shared_ptr<Reply> reply = std::make_shared<Reply>();
  ReplyListener* const listener;
  bool reader_slow = false;

 private:
  friend class SampleSession;
  std::optional<SessionProgress> Progress() const;

  int64_t appended_ = 0;    // tokens of the prompt that the client session did not hold already
  int64_t prompt_end_ = 0;  // position of the client session after the prompt
};

class SampleSession final : public Session {
 public:
  SampleSession(GenerateRequest* owner, int index);

  bool runnable() const override { return phase_ != Phase::kWaitForFork; }
  SessionView View() const override;
  std::optional<SlotSampler> Sampler() const override;
  void FillRow(int tokens, int num_steps, TokenBuffer* buffer, RunRow* run_row) override;
  void OnRecord(Record* record) override;
  bool Flush() override;
  Next OnRunDone() override;
  void OnForked() override { StartDecoding(); }
  Checkpoint start() const override { return generate_->start; }
  int64_t fed() const override { return position_; }

 private:
  struct HeldToken {
    int32_t token;
    float logprob;
    std::vector<TokenLogprob> top;
  };
  void StartDecoding();
  bool FedAsOutput(int64_t i) const;
  void Keep(HeldToken token);
  void Release(int count);
  void Deliver(HeldToken* token);
  void End(FinishReason reason);

  GenerateRequest* const generate_;
  const int index_;
  enum class Phase : uint8_t { kPrefill, kWaitForFork, kDecode } phase_ = Phase::kPrefill;
  const int64_t prefill_end_;    // feed[0, prefill_end_) is fed by prefill
  int64_t cursor_ = 0;           // next of feed
  int64_t position_ = 0;         // tokens fed to the slot, once the outstanding run is complete
  int32_t next_token_ = 0;       // decode: to feed next ...
  bool next_is_output_ = false;  // ... and whether it was drawn (else it is the last prompt token)
  int drawn_in_run_ = 0;
  int64_t drawn_ = 0;
  int64_t delivered_ = 0;
  StopMatcher matcher_;
  std::vector<HeldToken> held_;  // kept from the reply by matcher_
  ReplyDelta out_;               // to go to the reply with the next Flush
};

}  // namespace rivulet
