// SPDX-License-Identifier: Apache-2.0
// Which states of a request are kept while it runs, and its use of the prefix cache.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "server/engine/request.h"
#include "server/sessions/session.h"
#include "server/sessions/store/prefix_cache.h"

namespace rivulet {

// The numbers of fed tokens after which the state of a request's slot is kept. Thread: one.
class KeepPlan {
 public:
  KeepPlan() = default;
  // From `start` fed tokens on: at each of `points` (ascending), and when `every` tokens were fed
  // since the last kept state (0: not for that reason).
  KeepPlan(int64_t start, std::vector<int64_t> points, int64_t every)
      : points_(std::move(points)), every_(every), last_(start) {}

  bool HasPoint(int64_t fed) const;
  // Whether to keep the state after `fed` tokens. DistanceToNextPoint makes sure that points are
  // met exactly.
  bool Due(int64_t fed) const { return HasPoint(fed) || (every_ > 0 && fed - last_ >= every_); }
  void NoteKept(int64_t fed) { last_ = fed; }
  // The most tokens to feed at once after `fed` without passing a state to keep; at least 1.
  int64_t DistanceToNextPoint(int64_t fed) const;

 private:
  std::vector<int64_t> points_;
  int64_t every_ = 0;
  int64_t last_ = 0;
};

// A prompt, or the tokens of a session, in the prefix cache. Thread: one.
class CachedPrompt {
 public:
  // `bos`: 1 where the model implies one, which is not among the tokens but is fed.
  CachedPrompt(const PromptCacheSpec& spec, absl::string_view tenant, int64_t bos);

  // The deepest state that has seen at most `most_fed` tokens, the bos counted; `state` null: none.
  KeptCheckpoint Find(PrefixCache* cache, std::span<const int32_t> tokens, int64_t most_fed);
  // The fed counts at which to keep states, above `start` and at most `end`, ascending: the end,
  // the positions asked for, the place where the prompt parts from an earlier one (found by the
  // last Find), and at most kStatesOnTheWay more, at least `spacing` apart.
  std::vector<int64_t> Points(int64_t start, int64_t end, int64_t spacing,
                              int64_t least_gain) const;
  void Keep(PrefixCache* cache, std::span<const int32_t> tokens, int64_t fed, StatePtr state) const;

  // With these states, to continue at any token of a prompt feeds at most an eighth of the prompt,
  // or `spacing` tokens.
  static constexpr int64_t kStatesOnTheWay = 8;

 private:
  const std::string scope_;
  const std::vector<int64_t> positions_;
  const int64_t bos_;
  int64_t shared_fed_ = 0;  // fed tokens in common with an earlier prompt
};

}  // namespace rivulet
