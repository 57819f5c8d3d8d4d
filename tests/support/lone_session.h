// SPDX-License-Identifier: Apache-2.0
// LoneSession: what a session draws when nobody else is there. Every answer is computed from an
// empty slot and the first token on, straight through a Backend of its own: no engine, no batch, no
// kept state.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/backend.h"
#include "model/config.h"
#include "server/engine/request.h"

namespace rivulet {

// Tokens, and how likely each was: the bits of a log-probability tell of a difference in the state
// that the token hides.
struct DrawnTokens {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;  // [tokens]; NaN where the sampler asked for none
};

// How a slot samples for `spec`, without a history.
SlotSampler SamplerFor(const GenerateSpec& spec, const ModelConfig& config,
                       uint32_t sample_index = 0);

// Thread: one.
class LoneSession {
 public:
  // `config` is borrowed. Uses slot 1 of `backend`.
  LoneSession(std::unique_ptr<Backend> backend, const ModelConfig& config);

  // What is drawn after `tokens` (the implied bos comes before them): at most `max_new`, fewer
  // before a stop id, which is not among them. `generated`: [tokens], or empty where none was.
  DrawnTokens Draw(std::span<const int32_t> tokens, const std::vector<bool>& generated,
                   const SlotSampler& sampler, int64_t max_new);
  // The state after the first `fed` of the implied bos and `tokens`.
  std::vector<float> StateAfter(std::span<const int32_t> tokens, int64_t fed);

 private:
  void Zero();
  // Feeds `tokens`, which are of one kind; draws `samples` tokens after them.
  std::vector<Record> Feed(std::span<const int32_t> tokens, int64_t position, bool as_output,
                           int samples);

  const std::unique_ptr<Backend> backend_;
  const ModelConfig& config_;
};

}  // namespace rivulet
