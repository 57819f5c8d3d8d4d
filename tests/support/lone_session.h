// SPDX-License-Identifier: Apache-2.0
// LoneSession: the tokens that a session draws without other sessions. Every answer is computed
// from an empty slot and the first token on, directly with a Backend of its own: no engine, no
// batch, no kept state.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/backend.h"
#include "model/config.h"
#include "server/engine/request.h"

namespace rivulet {

// Tokens and their log-probabilities: the bits of a log-probability show a difference in the state
// that the token hides.
struct DrawnTokens {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;  // [tokens]; NaN if not requested
};

// The sampler of a slot for `spec`, without a history.
SlotSampler SamplerFor(const GenerateSpec& spec, const ModelConfig& config,
                       uint32_t sample_index = 0);

// Thread: one.
class LoneSession {
 public:
  // `config` is borrowed. Uses slot 1 of `backend`.
  LoneSession(std::unique_ptr<Backend> backend, const ModelConfig& config);

  // The tokens drawn after `tokens` (the implied bos comes first): at most `max_new`, fewer if a
  // stop id is drawn, which is not returned. `generated`: [tokens]; empty: none was.
  DrawnTokens Draw(std::span<const int32_t> tokens, const std::vector<bool>& generated,
                   const SlotSampler& sampler, int64_t max_new);
  // The state after the first `fed` of the implied bos and `tokens`.
  std::vector<float> StateAfter(std::span<const int32_t> tokens, int64_t fed);

 private:
  void Zero();
  // Feeds `tokens`, which are all given or all generated; draws `samples` tokens after them.
  std::vector<Record> Feed(std::span<const int32_t> tokens, int64_t position, bool as_output,
                           int samples);

  const std::unique_ptr<Backend> backend_;
  const ModelConfig& config_;
};

}  // namespace rivulet
