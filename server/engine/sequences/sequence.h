// SPDX-License-Identifier: Apache-2.0
// Sequence: one sample of a Generate (sample_session.h), or a Score (score_session.h), while it
// holds a slot. Request: the RPC that its sequences belong to. The loop asks a sequence what it can
// feed, lets it fill its row of a run, and gives it the run's records.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "model/backend.h"
#include "model/base/error.h"
#include "model/config.h"
#include "model/tokenizer.h"
#include "server/engine/loop/emitter.h"
#include "server/engine/policy/scheduler.h"
#include "server/engine/request.h"
#include "server/engine/sequences/cached_prompt.h"
#include "server/sessions/session.h"

namespace rivulet {

class Sequence;
class SessionTable;

// Thread: built by the caller of the engine, then the loop's; handed to the emitter with its end.
class Request : public Outlet {
 public:
  RequestId id = 0;
  std::string tenant;       // on whose account
  uint64_t tenant_key = 0;  // stands for it, once the request has waited for slots
  Priority priority = Priority::kNormal;
  absl::Time arrival, deadline;
  absl::Time resumed = absl::InfinitePast();  // when it last began to wait for slots again
  std::optional<absl::Time> admitted, first_token;
  int num_slots = 1;                      // 0: it is carried out as soon as its turn comes
  int places = 1;                         // in the queue, from Submit on
  int64_t num_tokens = 0;                 // given tokens: what it costs to keep
  std::optional<SessionRef> session_ref;  // the session that it goes on with
  bool closes_session = false;            // it does not wait for its turn
  bool while_draining = false;            // SessionCall
  Session* session = nullptr;             // set when it is found
  bool waits_for_slots = false, begun = false;
  int open_sequences = 0;                            // sequences that have not ended
  std::vector<std::unique_ptr<Sequence>> sequences;  // [num_slots] from admission on
  std::optional<CachedPrompt> cached;                // absent: it does without the prefix cache
  bool looks_again = false;  // for a better state there, when it gets its slots
  Checkpoint start;          // what it goes on from, once that is known
  KeepPlan keep;             // which of its states are kept on the way
  absl::Status status;       // how it ended; set before the end is handed over
  Usage usage;               // likewise

  // Its turn has come: what it needs to know of its session is known. May set num_slots to 0
  // where nothing has to be fed. An error ends it, and has changed nothing.
  virtual absl::Status Begin(SessionTable* /*table*/, absl::Time /*now*/) {
    return absl::OkStatus();
  }
  // After Begin: the kept state from which it has the least to feed; none: it begins with nothing.
  virtual KeptCheckpoint BestState(PrefixCache* /*cache*/) { return {}; }
  // It goes on from `state`, which BestState named and which is in memory now: what has to be fed
  // is known. May set num_slots to 0. An error ends it. Comes again where it looks_again.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): those that need it keep it
  virtual absl::Status GoOnFrom(Checkpoint /*state*/, SessionTable* /*table*/, absl::Time /*now*/) {
    return absl::OkStatus();
  }
  // The tokens whose states it keeps: its prompt, or all of its session.
  virtual std::span<const int32_t> sequence_tokens() const { return {}; }
  // The kept state that has seen the most of them, at most `most`, the implied bos counted.
  KeptCheckpoint DeepestState(PrefixCache* cache, int64_t most);
  // `state` has seen the first `fed` of them, the implied bos counted, as `keep` wanted.
  void KeepState(int64_t fed, StatePtr state, PrefixCache* cache);
  // Fills `sequences`.
  virtual void CreateSequences() = 0;
  // It ends so after a Begin that was OK; the session is still its own.
  virtual void Settle(const absl::Status& /*end*/) {}
  // Its reader is slow: no rows until it has taken what waits.
  virtual bool reader_slow() { return false; }
  std::optional<absl::Time> paused_since;  // as the loop knows it, between runs
  bool parked = false;                     // its samples hold no slots, see Sequence::parked

  // Adds to an error that ends it where a client can go on.
  virtual void DescribeProgress(ErrorDetail* /*detail*/) const {}
};

// Memory that the rows of a run point into. Lives until the run is complete.
using TokenBuffer = std::vector<int32_t>;

// Thread: the loop.
class Sequence {
 public:
  explicit Sequence(Request* owner) : request(owner) {}
  virtual ~Sequence() = default;

  Request* const request;
  Slot slot = kGuardSlot;
  bool ended = false;  // has given its slot back
  // Kept by CurrentRun: its row of the outstanding run, or -1; the number of the last run that it had
  // a row in; whether it is noted already as one that got records.
  int row = -1;
  uint64_t last_served = 0;
  bool got_records = false;
  // What was in its slot when that was taken from it; empty: it was not.
  std::vector<float> parked;

  // False while it can feed nothing (its prompt is being fed by sample 0).
  virtual bool runnable() const { return true; }
  virtual SequenceView View() const = 0;
  // Null: this sequence never samples.
  virtual std::optional<SlotSampler> Sampler() const { return std::nullopt; }
  // Fills `row` to feed `tokens` tokens. `buffer` has room for them without reallocation.
  virtual void FillRow(int tokens, int num_steps, TokenBuffer* buffer, RunRow* run_row) = 0;
  // The state that its slot begins with; `state` null: the empty one, or that of copies_from.
  virtual Checkpoint start() const { return {}; }
  // Its slot begins as that of this sequence, which has been prepared before it; null: of none.
  virtual const Sequence* copies_from() const { return nullptr; }
  // Tokens fed to its slot, those of `start` included, once the outstanding run is complete.
  virtual int64_t fed() const { return 0; }
  // One record of its row. May take things from `record`.
  virtual void OnRecord(Record* record) = 0;
  // Hands what the records brought to the reply; false if that is nothing.
  virtual bool Flush() { return false; }

  // What must happen after a run in which it had a row. kFork: copy its slot to the request's other
  // sequences, then tell all of them; kZero: zero its slot.
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

}  // namespace rivulet
