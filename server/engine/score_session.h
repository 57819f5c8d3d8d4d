// SPDX-License-Identifier: Apache-2.0
// A Score while it holds a slot: feeds each window's tokens with the token that follows as target,
// the slot zeroed between windows, and sums what the backend says of the targets.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/engine/session.h"

namespace rivulet {

class ScoreRequest final : public Request {
 public:
  using Done = std::function<void(absl::StatusOr<ScoreResult>)>;
  // REQUIRES: `spec_in` is valid (validate.h).
  ScoreRequest(ScoreSpec spec_in, const ModelView& model_view, Done done_in);

  void CreateSessions() override;
  void OnReady() override {}
  void OnEnd() override;

  ScoreSpec spec;
  const int output_size;
  const Done done;
  int64_t num_scored = 0;
  int64_t window = 0;                // scored tokens between zeroings; at least 1
  std::vector<int32_t> feed;         // [num_scored] feed[k] is fed right before token k is scored
  std::span<const int32_t> targets;  // [num_scored] into spec.tokens
  std::vector<std::pair<int64_t, size_t>>
      wanted;  // (scored token, index into result.outputs), sorted
  ScoreResult result;
};

class ScoreSession final : public Session {
 public:
  explicit ScoreSession(ScoreRequest* owner) : Session(owner), score_(owner) {}

  SessionView View() const override;
  void FillRow(int tokens, int num_steps, TokenBuffer* buffer, RunRow* run_row) override;
  void OnRecord(Record* record) override;
  Next OnRunDone() override;

 private:
  void Fail(int64_t scored_token, absl::string_view what);

  ScoreRequest* const score_;
  int64_t cursor_ = 0;                  // next of feed
  int64_t scored_ = 0;                  // records so far
  size_t wanted_ = 0;                   // next of wanted
  std::vector<OutputRequest> outputs_;  // of the outstanding run
};

}  // namespace rivulet
