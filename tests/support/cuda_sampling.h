// SPDX-License-Identifier: Apache-2.0
// Shared helpers for tests of kernels/cuda/sample/sample_cuda.h: slots and heads as host data, and
// the host's results.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cuda/sample/sample_cuda.h"
#include "tests/support/cuda_arrays.h"

namespace rivulet::kernels {

inline constexpr int kTopStride = 5;

// The sampling options of one slot, as host data.
struct SampledSlot {
  CategoricalParams params;
  uint64_t seed = 0;
  uint32_t sample_index = 0;
  std::vector<int32_t> stop_ids;
  std::vector<std::pair<int32_t, float>> bias;
  bool penalties = false;
  bool want_logprobs = false;
  int num_top = 0;
  std::vector<uint32_t> seen;  // [vocab], as CudaSampler::seen
};

struct ExpectedDraw {
  int32_t token = 0;
  uint32_t flags = 0;  // without kRecordLogprob, which `logprob` sets
  float logprob = std::nanf("");
  int32_t num_top = 0;
  std::vector<CudaTopLogprob> top;
};

// Whether a draw filters the weights of `tokens` tokens.
inline bool Filters(const CategoricalParams& p, int tokens) {
  return p.temperature != 0 && ((p.top_k > 0 && p.top_k < tokens) || p.top_p < 1 || p.min_p > 0);
}

// The head of a model, and its computation on the CPU.
struct SampledHead {
  int num_outputs = 0;
  MixtureHead mixture;
  int tokens() const { return mixture.mixtures > 0 ? mixture.levels : num_outputs; }

  float LogProb(const float* outputs, int32_t token) const {
    if (mixture.mixtures > 0) return MixtureLogProb(mixture, outputs, token);
    return float(double{outputs[token]} - LogSumExp(outputs, num_outputs));
  }
  // weights: [num_outputs], which the device left of a row with filters. The host filters these,
  // because one unit in the last place of a weight can move what a filter keeps. Null: its own.
  ExpectedDraw Draw(const SampledSlot& slot, const float* outputs, const CudaOutputWork& work,
                    const float* weights = nullptr) const {
    ExpectedDraw e;
    if (!std::all_of(outputs, outputs + num_outputs, [](float v) { return std::isfinite(v); })) {
      e.flags = kRecordNonFinite;
      return e;
    }
    const PhiloxWords random = DrawWords(slot.seed, uint64_t(work.position), slot.sample_index, 0);
    if (mixture.mixtures > 0) {
      e.token = SampleMixture(mixture, outputs, slot.params.temperature, random);
    } else {
      std::vector<float> logits = Adjusted(slot, outputs);
      if (weights != nullptr && Filters(slot.params, num_outputs)) {
        const int32_t likeliest = ArgMax(logits.data(), num_outputs, slot.params.banned);
        logits.assign(weights, weights + num_outputs);
        e.token =
            SampleWeights(slot.params, logits.data(), num_outputs, likeliest, random, &KeepLargest);
      } else {
        e.token = SampleCategorical(slot.params, logits.data(), num_outputs, random);
      }
    }
    if (std::count(slot.stop_ids.begin(), slot.stop_ids.end(), e.token) > 0) {
      e.flags |= kRecordStopped;
    }
    if (slot.want_logprobs) FillLogprobs(slot, outputs, &e);
    return e;
  }
  // The logits with penalties and bias.
  std::vector<float> Adjusted(const SampledSlot& slot, const float* outputs) const {
    std::vector<float> logits(outputs, outputs + num_outputs);
    for (size_t i = 0; i < logits.size() && slot.penalties; ++i) {
      logits[i] = AdjustLogit(slot.params, logits[i], (slot.seen[i] & kSeenInPrompt) != 0,
                              int32_t(slot.seen[i] & ~kSeenInPrompt));
    }
    for (const auto& [token, bias] : slot.bias) logits[size_t(token)] += bias;
    return logits;
  }
  // The weights before filters.
  std::vector<float> Weights(const SampledSlot& slot, const float* outputs) const {
    std::vector<float> row = Adjusted(slot, outputs);
    const float max = row[size_t(ArgMax(row.data(), num_outputs, slot.params.banned))];
    for (float& v : row) v = std::exp((v - max) / slot.params.temperature);
    if (slot.params.banned >= 0) row[size_t(slot.params.banned)] = 0;
    return row;
  }
  void FillLogprobs(const SampledSlot& slot, const float* outputs, ExpectedDraw* e) const {
    e->logprob = LogProb(outputs, e->token);
    std::vector<CudaTopLogprob> all;
    const double normalizer = mixture.mixtures > 0 ? 0 : LogSumExp(outputs, num_outputs);
    for (int32_t i = 0; i < tokens() && slot.num_top > 0; ++i) {
      all.push_back(
          {i, mixture.mixtures > 0 ? LogProb(outputs, i) : float(double{outputs[i]} - normalizer)});
    }
    std::sort(all.begin(), all.end(), [](const CudaTopLogprob& a, const CudaTopLogprob& b) {
      return a.logprob != b.logprob ? a.logprob > b.logprob : a.token < b.token;
    });
    all.resize(std::min(all.size(), size_t(slot.num_top)));
    e->num_top = int32_t(all.size());
    e->top = all;
  }
};

// Slots on the device.
class DeviceSlots {
 public:
  DeviceSlots(const std::vector<SampledSlot>& slots, int vocab) : samplers_(slots.size()) {
    std::vector<CudaSampler> samplers;
    for (const SampledSlot& s : slots) {
      CudaSampler d;
      d.params = s.params;
      d.seed = s.seed;
      d.sample_index = s.sample_index;
      d.want_logprobs = s.want_logprobs ? 1 : 0;
      d.num_top = s.num_top;
      stops_.push_back(std::make_unique<DeviceArray<int32_t>>(s.stop_ids));
      d.stop_ids = stops_.back()->data();
      d.num_stop_ids = int32_t(s.stop_ids.size());
      std::vector<CudaLogitBias> bias;
      for (const auto& [token, value] : s.bias) bias.push_back({token, value});
      bias_.push_back(std::make_unique<DeviceArray<CudaLogitBias>>(bias));
      d.bias = bias_.back()->data();
      d.num_bias = int32_t(bias.size());
      seen_.push_back(std::make_unique<DeviceArray<uint32_t>>(
          s.penalties ? s.seen : std::vector<uint32_t>(size_t(vocab))));
      d.seen = s.penalties ? seen_.back()->data() : nullptr;
      samplers.push_back(d);
    }
    samplers_.Set(samplers);
  }
  const CudaSampler* data() const { return samplers_.data(); }
  std::vector<uint32_t> Seen(size_t slot) const { return seen_[slot]->Copy(); }

 private:
  DeviceArray<CudaSampler> samplers_;
  std::vector<std::unique_ptr<DeviceArray<int32_t>>> stops_;
  std::vector<std::unique_ptr<DeviceArray<CudaLogitBias>>> bias_;
  std::vector<std::unique_ptr<DeviceArray<uint32_t>>> seen_;
};

// The host's expf and the device's differ by an ulp, which moves a few draws over an edge.
#if defined(RIVULET_CUDA_EMULATED)
inline int AllowedDifferences(int) { return 0; }
inline constexpr double kLogprobTolerance = 1e-5;
inline constexpr float kWeightTolerance = 0;
#else
inline int AllowedDifferences(int draws) { return 1 + draws / 500; }
inline constexpr double kLogprobTolerance = 1e-3;
inline constexpr float kWeightTolerance = 5e-7f;  // of a weight
#endif

inline std::vector<SampledSlot> SlotsFor(int vocab) {
  std::vector<SampledSlot> slots(14);
  for (size_t i = 0; i < slots.size(); ++i) {
    slots[i].seed = 77 + i;
    slots[i].sample_index = uint32_t(i % 3);
    slots[i].want_logprobs = i % 2 == 1;
    slots[i].num_top = i % 4 == 1 ? int(i % 5) + 1 : 0;
    slots[i].seen.resize(size_t(vocab));
  }
  slots[1].params.temperature = 0;
  slots[2].params.temperature = 0.7f;
  slots[3].params.top_k = 3;
  slots[4].params.top_p = 0.8f;
  slots[5].params.min_p = 0.2f;
  slots[6].params = {.temperature = 1.4f, .top_k = 20, .top_p = 0.9f, .min_p = 0.02f, .banned = 0};
  slots[7].params.banned = vocab - 1;
  slots[8].bias = {{0, 4.0f}, {vocab - 1, -100.0f}};
  if (vocab == 1) slots[8].bias.resize(1);
  slots[9].stop_ids = {vocab / 2, 0, vocab - 1};
  slots[10].penalties = true;
  slots[10].params.repetition_penalty = 1.7f;
  slots[11].penalties = true;
  slots[11].params.frequency_penalty = 0.6f;
  slots[11].params.presence_penalty = 0.9f;
  slots[12].params.top_p = 1e-6f;
  slots[13].params = {.top_k = 1};
  for (const size_t i : {size_t{10}, size_t{11}}) {
    for (int t = 0; t < vocab; t += 3) slots[i].seen[size_t(t)] = kSeenInPrompt | uint32_t(t % 4);
  }
  return slots;
}

}  // namespace rivulet::kernels
