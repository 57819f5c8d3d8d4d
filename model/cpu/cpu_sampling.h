// SPDX-License-Identifier: Apache-2.0
// From raw head outputs to records on the CPU: drawing, scoring, log-probabilities. The mathematics
// is in kernels/.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/backend.h"
#include "model/config.h"

namespace rivulet {

// A slot's sampler and its penalty counts. The counts exist once a sampler with penalties was set.
struct CpuSlotSampler {
  SlotSampler sampler;
  std::vector<uint8_t> in_prompt;     // [vocab]
  std::vector<int32_t> output_count;  // [vocab]

  bool tracks() const { return !in_prompt.empty(); }
  // Allocates counts only if `given` has penalties.
  void SetSampler(const SlotSampler& given, int vocab_size);
  // Counts a token that is fed.
  void Count(int32_t token, bool as_output);
  // Counts tokens that were fed before.
  void Add(std::span<const TokenCount> history);
};

// Thread: const members from any thread; one `adjusted` buffer a thread, of any size.
class CpuSampling {
 public:
  explicit CpuSampling(const ModelConfig& config);

  // True if all `output_size` outputs are finite.
  bool Finite(const float* outputs) const;

  // Draws the token that follows `record->position` fed tokens and fills the record (the caller
  // sets row and position). `mask`: of RunRow; empty: every token may be drawn.
  void Sample(const CpuSlotSampler& slot, const float* outputs, std::span<const uint32_t> mask,
              std::vector<float>* adjusted, Record* record) const;

  // Fills the record for a given token: log-likelihood, and top if the slot asks for it.
  void Score(const float* outputs, int32_t target, Record* record) const;

 private:
  // An argument of LogProb and FillTop: ln sum e^output; 0 for a mixture.
  double Normalizer(const float* outputs) const;
  float LogProb(const float* outputs, double normalizer, int32_t token) const;
  void FillTop(const float* outputs, double normalizer, int n, Record* record) const;

  const ModelConfig& config_;
};

}  // namespace rivulet
