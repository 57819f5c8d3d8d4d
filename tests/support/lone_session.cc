// SPDX-License-Identifier: Apache-2.0
#include "tests/support/lone_session.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace rivulet {
namespace {

constexpr Slot kSlot = 1;

void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "LoneSession: %s\n", status.ToString().c_str());
  std::abort();
}

}  // namespace

SlotSampler SamplerFor(const GenerateSpec& spec, const ModelConfig& config, uint32_t sample_index) {
  SlotSampler sampler;
  sampler.params = spec.sampling;
  sampler.sample_index = sample_index;
  sampler.stop_ids = spec.stop_ids;
  sampler.want_logprobs = spec.want_logprobs;
  if (config.eos_token_id && !spec.ignore_eos) sampler.stop_ids.push_back(*config.eos_token_id);
  return sampler;
}

LoneSession::LoneSession(std::unique_ptr<Backend> backend, const ModelConfig& config)
    : backend_(std::move(backend)), config_(config) {}

void LoneSession::Zero() { Must(backend_->ZeroSlots({&kSlot, 1})); }

std::vector<Record> LoneSession::Feed(std::span<const int32_t> tokens, int64_t position,
                                      bool as_output, int samples) {
  Run run;
  run.num_steps = std::max(1, samples);
  run.rows.resize(1);
  RunRow& row = run.rows[0];
  row.slot = kSlot;
  row.position = position;
  row.tokens = tokens;
  row.count_as_output = as_output;
  row.sample = samples > 0;
  row.max_samples = samples;
  Must(backend_->Submit(run));
  std::vector<Record> records;
  while (true) {
    const absl::StatusOr<bool> complete = backend_->Poll(&records);
    Must(complete.status());
    if (*complete) return records;
  }
}

DrawnTokens LoneSession::Draw(std::span<const int32_t> tokens, const std::vector<bool>& generated,
                              const SlotSampler& sampler, int64_t max_new) {
  std::vector<int32_t> feed(config_.has_bos() ? 1 : 0, config_.bos_token_id.value_or(0));
  std::vector<bool> as_output(feed.size(), false);
  feed.insert(feed.end(), tokens.begin(), tokens.end());
  as_output.insert(as_output.end(), generated.begin(), generated.end());
  as_output.resize(feed.size(), false);
  Zero();
  Must(backend_->SetSampler(kSlot, sampler));
  const BackendLimits& limits = backend_->limits();
  DrawnTokens drawn;
  int32_t last = 0;
  for (size_t begin = 0; static_cast<int64_t>(drawn.tokens.size()) < max_new;) {
    const bool prefill = begin < feed.size();
    size_t end = begin + 1;
    while (prefill && end < feed.size() && as_output[end] == as_output[begin] &&
           end - begin < static_cast<size_t>(limits.max_tokens)) {
      ++end;
    }
    const bool draws = !prefill || end == feed.size();
    const int samples =
        draws ? static_cast<int>(std::min<int64_t>(
                    limits.max_steps, max_new - static_cast<int64_t>(drawn.tokens.size())))
              : 0;
    const std::span<const int32_t> fed =
        prefill ? std::span<const int32_t>(feed).subspan(begin, end - begin)
                : std::span<const int32_t>(&last, 1);
    const auto position =
        static_cast<int64_t>(prefill ? begin : feed.size() + drawn.tokens.size() - 1);
    for (const Record& record : Feed(fed, position, !prefill || as_output[begin], samples)) {
      if (record.stopped) return drawn;
      drawn.tokens.push_back(record.token);
      drawn.logprobs.push_back(record.logprob);
    }
    if (!drawn.tokens.empty()) last = drawn.tokens.back();
    begin = prefill ? end : begin;
  }
  return drawn;
}

std::vector<float> LoneSession::StateAfter(std::span<const int32_t> tokens, int64_t fed) {
  std::vector<int32_t> feed(config_.has_bos() ? 1 : 0, config_.bos_token_id.value_or(0));
  feed.insert(feed.end(), tokens.begin(), tokens.end());
  Zero();
  for (int64_t at = 0; at < fed; ++at) {
    Feed({&feed[static_cast<size_t>(at)], 1}, at, false, 0);
  }
  std::vector<float> state(backend_->StateFloats(kSlot));
  Must(backend_->ReadSlot(kSlot, state));
  return state;
}

}  // namespace rivulet
