// SPDX-License-Identifier: Apache-2.0
#include "model/cpu/cpu_predictor.h"

#include <algorithm>

namespace rivulet {

CpuPredictor::CpuPredictor(const CpuNetwork& network, const ModelConfig& config)
    : network_(network),
      hidden_size_(size_t(config.hidden_size)),
      outputs_(config.num_output_tokens()),
      most_tokens_(TokensOf(config)),
      state_(network.predictor_parts()->size().At(most_tokens_)) {}

void CpuPredictor::Forget(Slot slot) {
  if (slot_ == slot) slot_ = kGuardSlot;
}

void CpuPredictor::Take(Slot slot, int guesses, std::span<const int32_t> tokens,
                        const CpuArray& hidden, int first) {
  if (slot_ != slot) kept_ = 0;
  slot_ = slot;
  wanted_ = guesses;
  tokens_.assign(tokens.begin(), tokens.end());
  hidden_.clear();
  for (size_t i = 0; i < tokens.size(); ++i) {
    const float* const row = hidden.row(first + int(i));
    hidden_.insert(hidden_.end(), row, row + hidden_size_);
  }
}

std::vector<int32_t> CpuPredictor::Guess(ThreadTeam* team, CpuActivations* activations) {
  std::vector<int32_t> guesses;
  if (tokens_.empty()) return guesses;
  if (kept_ + std::ssize(tokens_) + wanted_ > most_tokens_) kept_ = 0;
  int64_t position = kept_;
  kept_ += std::ssize(tokens_);  // the keys of guesses lie behind, until the next call
  while (std::ssize(guesses) < wanted_) {
    const CpuSegment segment = {
        .state = state_.floats(), .position = position, .tokens = tokens_, .outputs = 1};
    team->Run([&](int thread, SpinBarrier& barrier) {
      network_.Predict({&segment, 1}, hidden_.data(), *activations, thread, barrier.threads(),
                       barrier);
    });
    position += std::ssize(tokens_);
    const float* const outputs = activations->output(0);
    guesses.push_back(int32_t(std::max_element(outputs, outputs + outputs_) - outputs));
    const float* const own = activations->scratch.head_rows.row(0);
    tokens_.assign(1, guesses.back());
    hidden_.assign(own, own + hidden_size_);
  }
  tokens_.clear();
  return guesses;
}

}  // namespace rivulet
