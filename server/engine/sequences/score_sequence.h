// SPDX-License-Identifier: Apache-2.0
// A Score, or an Append to a session, while it holds a slot: feeds each window's tokens with
// the token that follows as target, the slot zeroed between windows, and sums the log-likelihoods
// of the targets.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/engine/options.h"
#include "server/engine/sequences/live_request.h"

namespace rivulet {

class Scoring : public LiveRequest {
 public:
  using Done = std::function<void(absl::StatusOr<ScoreResult>)>;
  // REQUIRES: `spec_in` is valid (validate.h).
  Scoring(ScoreSpec spec_in, const ModelView& model_view, Done done_in);

  void CreateSequences() override;
  void OnReady() override {}
  void OnEnd() override;

  const int output_size;
  const Done done;
  int64_t window = 0;            // tokens fed between zeroings; at least 1
  std::vector<int32_t> feed;     // feed[k] is fed right before targets[k] is scored
  std::vector<int32_t> targets;  // [feed]; empty: nothing is scored
  int64_t first_scored = 0;      // index into feed; earlier scores were not asked for
  std::vector<std::pair<int64_t, size_t>>
      wanted;  // (index into feed, index into result.outputs), sorted
  bool want_logprobs = false;
  ScoreResult result;

 protected:
  Scoring(const ModelView& model_view, Done done_in);
  // Fills `wanted` and makes room for the outputs. `positions`: indexes of scored tokens; 0 is the
  // first token that was asked for.
  void Want(std::span<const int64_t> positions);
};

// An Append: as a Score, but without windows and from a session's state.
class Appending final : public Scoring {
 public:
  // REQUIRES: `spec_in` is valid (validate.h).
  Appending(AppendSpec spec_in, const ModelView& model_view, const EngineOptions& options,
            Done done_in);

  absl::Status Begin(SessionTable* table, absl::Time now) override;
  KeptCheckpoint BestState(PrefixCache* cache) override;
  absl::Status StartFrom(Checkpoint state, SessionTable* table, absl::Time now) override;
  std::span<const int32_t> sequence_tokens() const override { return session->history.tokens(); }
  void Settle(const absl::Status& end) override;

 private:
  // All tokens but the last are fed; the next request begins with the last one.
  int64_t end() const { return std::max<int64_t>(0, session->total() - 1); }

  AppendSpec spec_;
  const ModelConfig& config_;
  const EngineOptions& options_;
  int64_t num_scored_ = 0;
  int64_t score_from_ = 0;  // tokens fed before the first scored token
  int64_t appended_ = 0;    // tokens that the session did not hold already
};

class ScoreSequence final : public Sequence {
 public:
  explicit ScoreSequence(Scoring* owner) : Sequence(owner), score_(owner) {}

  SequenceView View() const override;
  void FillRow(const RowShare& share, TokenBuffer* buffer, RunRow* run_row) override;
  void OnRecord(Record* record) override;
  Next OnRunDone() override;
  Checkpoint start() const override { return score_->start; }
  int64_t fed() const override;

 private:
  void Fail(int64_t scored_token, absl::string_view what);

  Scoring* const score_;
  int64_t cursor_ = 0;                  // index into feed of the next token
  int64_t scored_ = 0;                  // records so far
  size_t wanted_ = 0;                   // index into wanted of the next output
  std::vector<OutputRequest> outputs_;  // of the outstanding run
};

}  // namespace rivulet
