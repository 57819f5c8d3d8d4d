// SPDX-License-Identifier: Apache-2.0
#include "model/cpu/cpu_sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/categorical.h"
#include "kernels/mixture_of_logistics.h"
#include "kernels/philox.h"

namespace rivulet {
namespace {

kernels::MixtureHead Mixture(const ModelConfig& config) {
  return {config.output.num_mixtures, config.output.num_levels,
          config.output.scale == MixtureScale::kElu, config.bos_token_id.value_or(-1)};
}

kernels::CategoricalParams Categorical(const SamplingParams& p, const ModelConfig& config) {
  return {p.temperature,
          p.top_k,
          p.top_p,
          p.min_p,
          p.repetition_penalty,
          p.frequency_penalty,
          p.presence_penalty,
          config.bos_token_id.value_or(-1)};
}

// Most words of a mask allow all of their tokens or none.
void ApplyMask(std::span<const uint32_t> mask, std::span<float> logits) {
  for (size_t word = 0; word < mask.size(); ++word) {
    const std::span<float> some =
        logits.subspan(32 * word).first(std::min<size_t>(32, logits.size() - 32 * word));
    uint32_t refused = ~mask[word];
    if (refused == ~uint32_t{0}) {
      std::ranges::fill(some, -INFINITY);
      continue;
    }
    for (; refused != 0; refused &= refused - 1) {
      const auto i = static_cast<size_t>(std::countr_zero(refused));
      if (i < some.size()) some[i] = -INFINITY;
    }
  }
}

}  // namespace

void CpuSlotSampler::SetSampler(const SlotSampler& given, int vocab_size) {
  sampler = given;
  if (sampler.params.has_penalties() && !tracks()) {
    in_prompt.resize(size_t(vocab_size));
    output_count.resize(size_t(vocab_size));
  }
  Add(sampler.history);
}

void CpuSlotSampler::Count(int32_t token, bool as_output) {
  if (!tracks()) return;
  if (as_output) {
    ++output_count[size_t(token)];
  } else {
    in_prompt[size_t(token)] = 1;
  }
}

void CpuSlotSampler::Add(std::span<const TokenCount> history) {
  if (!tracks()) return;
  for (const TokenCount& count : history) {
    if (count.in_prompt) in_prompt[size_t(count.token)] = 1;
    output_count[size_t(count.token)] += count.output_count;
  }
}

CpuSampling::CpuSampling(const ModelConfig& config) : config_(config) {}

bool CpuSampling::Finite(const float* outputs) const {
  return kernels::AllFiniteCpu(outputs, config_.output_size());
}

void CpuSampling::Sample(const CpuSlotSampler& slot, const float* outputs,
                         std::span<const uint32_t> mask, std::vector<float>* adjusted,
                         Record* record) const {
  const SlotSampler& sampler = slot.sampler;
  const SamplingParams& params = sampler.params;
  const kernels::PhiloxWords random =
      kernels::DrawWords(params.seed, uint64_t(record->position), sampler.sample_index, /*draw=*/0);
  if (config_.output.type == OutputType::kMixtureOfLogistics) {
    record->token = kernels::SampleMixture(Mixture(config_), outputs, params.temperature, random);
  } else {
    const int n = config_.vocab_size;
    const kernels::CategoricalParams p = Categorical(params, config_);
    adjusted->resize(2 * size_t(n));  // the logits, and scratch for the filters
    std::copy_n(outputs, n, adjusted->begin());
    ApplyMask(mask, std::span(*adjusted).first(size_t(n)));
    if (params.has_penalties() && slot.tracks()) {
      for (size_t i = 0; i < size_t(n); ++i) {
        (*adjusted)[i] =
            kernels::AdjustLogit(p, (*adjusted)[i], slot.in_prompt[i] != 0, slot.output_count[i]);
      }
    }
    for (const auto& [token, bias] : params.logit_bias) (*adjusted)[size_t(token)] += bias;
    record->token =
        kernels::SampleCategoricalCpu(p, adjusted->data(), n, random, adjusted->data() + n);
  }
  record->stopped = std::find(sampler.stop_ids.begin(), sampler.stop_ids.end(), record->token) !=
                    sampler.stop_ids.end();
  if (!sampler.want_logprobs) return;
  const double normalizer = Normalizer(outputs);
  record->logprob = LogProb(outputs, normalizer, record->token);
  if (sampler.num_top_logprobs > 0) {
    FillTop(outputs, normalizer, sampler.num_top_logprobs, record);
  }
}

void CpuSampling::Score(const float* outputs, int32_t target, Record* record) const {
  record->token = target;
  record->logprob = LogProb(outputs, Normalizer(outputs), target);
}

double CpuSampling::Normalizer(const float* outputs) const {
  if (config_.output.type == OutputType::kMixtureOfLogistics) return 0;
  return kernels::LogSumExpCpu(outputs, config_.vocab_size);
}

float CpuSampling::LogProb(const float* outputs, double normalizer, int32_t token) const {
  if (config_.output.type == OutputType::kMixtureOfLogistics) {
    return kernels::MixtureLogProb(Mixture(config_), outputs, token);
  }
  return float(double{outputs[token]} - normalizer);
}

void CpuSampling::FillTop(const float* outputs, double normalizer, int n, Record* record) const {
  const auto before = [](const TokenLogprob& a, const TokenLogprob& b) {
    return a.logprob != b.logprob ? a.logprob > b.logprob : a.token < b.token;
  };
  std::vector<TokenLogprob>& top = record->top;  // the best so far, in order
  top.clear();
  const int32_t num_tokens = config_.num_output_tokens();
  for (int32_t token = 0; token < num_tokens; ++token) {
    const TokenLogprob one = {token, LogProb(outputs, normalizer, token)};
    if (top.size() == size_t(n) && !before(one, top.back())) continue;
    if (top.size() == size_t(n)) top.pop_back();
    top.insert(std::upper_bound(top.begin(), top.end(), one, before), one);
  }
}

}  // namespace rivulet
