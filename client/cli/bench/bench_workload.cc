// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/bench_workload.h"

#include <random>
#include <vector>

#include "client/cli/input/request_fields.h"

namespace rivulet {
namespace {

// Number of tokens that a prompt may use: for an image model, its levels.
int32_t NumTokens(const v1::ModelArchitecture& architecture) {
  return architecture.has_mixture_of_logistics() ? architecture.mixture_of_logistics().num_levels()
                                                 : architecture.vocab_size();
}

}  // namespace

Workload::Workload(const BenchOptions& options, const v1::GetModelReply& model)
    : prompt_length_(options.prompt_length),
      seed_(*options.sampling.seed),
      num_tokens_(NumTokens(model.architecture())) {
  generate_.set_model(model.summary().name());
  score_.set_model(model.summary().name());
  if (options.prompt.has_value()) {
    generate_.set_text(*options.prompt);
    score_.set_text(*options.prompt);
  } else {
    const std::vector<int32_t> ids = options.tokens.value_or(std::vector<int32_t>());
    generate_.mutable_tokens()->mutable_ids()->Add(ids.begin(), ids.end());
    score_.mutable_tokens()->mutable_ids()->Add(ids.begin(), ids.end());
  }
  SetSampling(options.sampling, generate_.mutable_sampling());
  if (options.max_tokens.has_value()) generate_.set_max_tokens(*options.max_tokens);
  generate_.mutable_stop()->set_ignore_eos(options.ignore_eos);
}

v1::GenerateRequest Workload::Generate(int64_t index) const {
  v1::GenerateRequest request = generate_;
  request.mutable_sampling()->set_seed(SeedOf(index));
  if (prompt_length_ > 0) DrawPrompt(index, request.mutable_tokens());
  return request;
}

v1::ScoreRequest Workload::Score(int64_t index) const {
  v1::ScoreRequest request = score_;
  if (prompt_length_ > 0) DrawPrompt(index, request.mutable_tokens());
  return request;
}

void Workload::DrawPrompt(int64_t index, v1::TokenSequence* tokens) const {
  std::mt19937_64 random(SeedOf(index));
  tokens->mutable_ids()->Reserve(static_cast<int>(prompt_length_));
  for (int64_t i = 0; i < prompt_length_; ++i) {
    const double uniform = static_cast<double>(random() >> 11) * 0x1p-53;  // [0, 1)
    tokens->add_ids(static_cast<int32_t>(uniform * num_tokens_));
  }
}

}  // namespace rivulet
