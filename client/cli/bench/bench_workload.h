// SPDX-License-Identifier: Apache-2.0
// The requests of a run of `rivulet bench`, each a function of the options and its number alone.
#pragma once

#include <cstdint>

#include "client/cli/options/options.h"
#include "rivulet/v1/inference.pb.h"

namespace rivulet {

// Constant after construction. Thread: any.
class Workload {
 public:
  // REQUIRES: options come from ParseCommandLine().
  Workload(const BenchOptions& options, const v1::GetModelReply& model);

  // Request `index` samples with seed + index. If a prompt length n is given, its prompt is n
  // tokens of the model's vocabulary, drawn with that seed.
  v1::GenerateRequest Generate(int64_t index) const;
  v1::ScoreRequest Score(int64_t index) const;

 private:
  uint64_t SeedOf(int64_t index) const { return seed_ + static_cast<uint64_t>(index); }
  void DrawPrompt(int64_t index, v1::TokenSequence* tokens) const;

  const int64_t prompt_length_;
  const uint64_t seed_;
  const int32_t num_tokens_;
  v1::GenerateRequest generate_;
  v1::ScoreRequest score_;
};

}  // namespace rivulet
