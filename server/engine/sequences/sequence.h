// SPDX-License-Identifier: Apache-2.0
// Sequence: one sample of a Generate (sample_sequence.h), or a Score (score_sequence.h), while it
// holds a slot. The loop asks it what it can feed, lets it fill its row of a run, and gives it the
// run's records.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "model/backend.h"
#include "server/engine/policy/scheduler.h"
#include "server/sessions/session.h"

namespace rivulet {

class LiveRequest;

// Memory that the rows of a run point into. Lives until the run is complete.
using TokenBuffer = std::vector<int32_t>;

// What penalties know about a sequence, one entry per token id.
class TokenCounts {
 public:
  TokenCounts() = default;
  explicit TokenCounts(std::span<const TokenCount> counts) {
    for (const TokenCount& count : counts) counts_[count.token] = count;
  }

  // `as_output`: it was generated; else it was given.
  void Add(int32_t token, bool as_output) {
    TokenCount& count = counts_[token];
    count.token = token;
    if (as_output) {
      ++count.output_count;
    } else {
      count.in_prompt = true;
    }
  }

  std::vector<TokenCount> All() const {
    std::vector<TokenCount> all;
    all.reserve(counts_.size());
    for (const auto& [token, count] : counts_) all.push_back(count);
    return all;
  }

 private:
  absl::flat_hash_map<int32_t, TokenCount> counts_;
};

// What a row does in a run.
struct RowShare {
  int tokens = 0;         // to feed
  int drafts = 0;         // the most behind them
  int guesses = 0;        // RunRow::guesses
  int steps = 1;          // Run::num_steps
  bool few_rows = false;  // the run has at most kFewRows
};

// Thread: the loop.
class Sequence {
 public:
  explicit Sequence(LiveRequest* owner) : request(owner) {}
  virtual ~Sequence() = default;

  LiveRequest* const request;
  Slot slot = kGuardSlot;
  bool ended = false;  // its slot was given back
  // For CurrentRun: its row of the outstanding run, or -1; the number of the last run in which it
  // had a row; whether CurrentRun already knows that it got records.
  int row = -1;
  uint64_t last_served = 0;
  bool got_records = false;
  // The state of its slot from when the slot was taken away; empty: it has its slot.
  std::vector<float> host_state;
  // The kept segments of its state, from the first segment on. Some may be forgotten.
  std::vector<StatePtr> segments;
  bool parked = false;  // host_state holds it because nobody reads the reply

  // False while it can feed nothing (its prompt is being fed by sample 0).
  virtual bool runnable() const { return true; }
  virtual SequenceView View() const = 0;
  // Null: this sequence never samples.
  virtual std::optional<SlotSampler> Sampler() const { return std::nullopt; }
  // `buffer` has room for tokens and drafts without reallocation.
  virtual void FillRow(const RowShare& share, TokenBuffer* buffer, RunRow* run_row) = 0;
  // The state that its slot begins with; `state` null: the empty state, or the state of
  // copies_from.
  virtual Checkpoint start() const { return {}; }
  // The sequence, prepared first, whose slot is copied to the slot of this sequence; null: none.
  virtual const Sequence* copies_from() const { return nullptr; }
  // Tokens fed to its slot, including those of `start`, once the outstanding run is complete.
  virtual int64_t fed() const { return 0; }
  // It has ended because a sequence of this model can have no more tokens.
  virtual bool ended_at_limit() const { return false; }
  // Gets one record of its row; may move parts out of it.
  virtual void OnRecord(Record* record) = 0;
  // Takes in what is known without a run, and adds to `forced` the tokens among it. True: it has
  // content for Flush.
  virtual bool TakeKnown(int64_t* /*forced*/) { return false; }
  // Its slot holds more than its state: outputs that it will draw from. So the slot is not taken.
  virtual bool keeps_slot() const { return false; }
  // Passes the content of the records to the reply; false if there is none.
  virtual bool Flush() { return false; }

  // What to do after a run in which it had a row. kFork: copy its slot to the request's other
  // sequences, then call OnForked of all of them; kZero: zero its slot.
  enum class Next : uint8_t { kContinue, kFork, kZero };
  virtual Next OnRunDone() = 0;
  // Its slot now holds the state of all but the last prompt token.
  virtual void OnForked() {}

  // True once it has finished or failed; then `status` says how.
  bool finished = false;
  absl::Status status;
};

// DATA_LOSS: the backend has computed numbers that are not finite.
absl::Status NonFiniteError(absl::string_view message);

}  // namespace rivulet
