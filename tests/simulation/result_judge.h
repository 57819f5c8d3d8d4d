// SPDX-License-Identifier: Apache-2.0
// ResultJudge: compares the results of Generate, Score and Append with the reference model, and
// checks their waiting times and their hits in the prefix cache.
#pragma once

#include <cstdint>

#include "tests/simulation/shared_prompts.h"
#include "tests/simulation/status_judge.h"
#include "tests/simulation/turns.h"

namespace rivulet::simulated {

// Thread: one.
class ResultJudge {
 public:
  // All are borrowed.
  ResultJudge(const World& world, const TurnClock& clock, StatusJudge* status, Requests* requests,
              Clients* clients, Journal* journal);

  // `asked` has ended, and is removed.
  void Generate(Asked* asked, const GenerateSpec& spec, const SeenReply& seen, const Usage& usage);
  void Append(Asked* asked, const AppendSpec& spec, const absl::StatusOr<ScoreResult>& seen);
  void Score(Asked* asked, const ScoreSpec& spec, const absl::StatusOr<ScoreResult>& seen);
  // Checks that need the ends of all requests.
  void AllEnded();
  int64_t tokens_seen() const { return tokens_seen_; }

 private:
  void JudgeUsage(const Asked& asked, const GenerateSpec& spec, const SeenReply& seen,
                  const Usage& usage);
  void JudgeWait(const Asked& asked, absl::Time admitted);
  // Judges the states that the request took from other requests, and notes the states that it may
  // leave for others. `given`: the session before the reply, of which `appended` tokens were the
  // request's own. It reports that `cached` of these were not fed; at most `most` can be.
  void JudgeReplicated(const Asked& asked, const PromptCacheSpec& cache, const SessionState& given,
                       int64_t appended, int64_t cached, int64_t most);

  const World& world_;
  const Truth truth_{world_};
  const TurnClock& clock_;
  StatusJudge* const status_;
  Requests* const requests_;
  Clients* const clients_;
  Journal* const journal_;
  SharedPrompts shared_;
  Turns turns_;
  int64_t tokens_seen_ = 0;
};

}  // namespace rivulet::simulated
