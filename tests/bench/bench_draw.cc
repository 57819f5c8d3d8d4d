// SPDX-License-Identifier: Apache-2.0
// One draw on the CPU from head outputs of large vocabularies, by what the request asks for, and
// the memory that a slot takes for it.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/philox.h"
#include "model/cpu/cpu_sampling.h"

namespace rivulet {
namespace {

// Logits as trained models have them: most tokens unlikely, few likely.
std::vector<float> Logits(int vocab) {
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (size_t i = 0; i < logits.size(); ++i) {
    const kernels::PhiloxWords words = kernels::DrawWords(1, i, 0, 0);
    const double uniform = (words.word[0] + 0.5) / 4294967296.0;
    logits[i] = static_cast<float>(-2 * std::log(-std::log(uniform)));
  }
  return logits;
}

enum class Asks : uint8_t { kGreedy, kPlain, kTopK, kTopP, kMinP, kPenalties, kLogprobs };

SlotSampler SamplerOf(Asks asks) {
  SlotSampler sampler;
  sampler.params.seed = 3;
  if (asks == Asks::kGreedy) sampler.params.temperature = 0;
  if (asks == Asks::kTopK) sampler.params.top_k = 50;
  if (asks == Asks::kTopP) sampler.params.top_p = 0.9f;
  if (asks == Asks::kMinP) sampler.params.min_p = 0.05f;
  if (asks == Asks::kPenalties) sampler.params.frequency_penalty = 0.5f;
  sampler.want_logprobs = asks == Asks::kLogprobs;
  sampler.num_top_logprobs = sampler.want_logprobs ? 5 : 0;
  return sampler;
}

void BM_Draw(benchmark::State& state, Asks asks) {
  ModelConfig config;
  config.vocab_size = static_cast<int>(state.range(0));
  const CpuSampling sampling(config);
  CpuSlotSampler slot;
  slot.SetSampler(SamplerOf(asks), config.vocab_size);
  const std::vector<float> logits = Logits(config.vocab_size);
  std::vector<float> adjusted;
  Record record;
  int64_t position = 0;
  for (auto _ : state) {
    record.position = ++position;
    bool finite = sampling.Finite(logits.data());
    benchmark::DoNotOptimize(finite);
    sampling.Sample(slot, logits.data(), &adjusted, &record);
    slot.Count(record.token, /*as_output=*/true);
  }
  state.counters["slot bytes"] = static_cast<double>(slot.in_prompt.size() * sizeof(uint8_t) +
                                                     slot.output_count.size() * sizeof(int32_t));
}

#define RIVULET_DRAW(name, asks) \
  BENCHMARK_CAPTURE(BM_Draw, name, asks)->Arg(65536)->Arg(250000)->Unit(benchmark::kMicrosecond)
RIVULET_DRAW(greedy, Asks::kGreedy);
RIVULET_DRAW(plain, Asks::kPlain);
RIVULET_DRAW(top_k_50, Asks::kTopK);
RIVULET_DRAW(top_p_0_9, Asks::kTopP);
RIVULET_DRAW(min_p_0_05, Asks::kMinP);
RIVULET_DRAW(penalties, Asks::kPenalties);
RIVULET_DRAW(five_logprobs, Asks::kLogprobs);

}  // namespace
}  // namespace rivulet

BENCHMARK_MAIN();
