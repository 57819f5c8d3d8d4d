// SPDX-License-Identifier: Apache-2.0
#include "model/cpu/cpu_predictor.h"

#include <algorithm>

namespace rivulet {

CpuPredictor::CpuPredictor(const CpuNetwork& network, const ModelConfig& config, int slots)
    : network_(network),
      hidden_size_(size_t(config.hidden_size)),
      outputs_(config.num_output_tokens()),
      state_floats_(network.predictor_parts()->size().At(TokensOf(config)) / sizeof(float)),
      most_tokens_(TokensOf(config)),
      states_(size_t(slots) * state_floats_ * sizeof(float)),
      caches_(size_t(slots)) {}

void CpuPredictor::Forget(Slot slot) {
  for (Cache& cache : caches_) {
    if (cache.slot == slot) cache = {};
  }
}

int CpuPredictor::Add(Slot slot, int guesses) {
  const auto is = [slot](const Cache& cache) { return cache.slot == slot; };
  auto cache = std::ranges::find_if(caches_, is);
  if (cache == caches_.end()) {
    cache = std::ranges::min_element(caches_, {}, &Cache::used);
    *cache = {.slot = slot};
  }
  cache->used = ++time_;
  Row& row = rows_.emplace_back();
  row.cache = size_t(cache - caches_.begin());
  row.wanted = guesses;
  return int(rows_.size()) - 1;
}

void CpuPredictor::Take(int index, std::span<const int32_t> tokens, const CpuArray& hidden,
                        int first) {
  Row& row = rows_[size_t(index)];
  row.tokens.assign(tokens.begin(), tokens.end());
  row.hidden.resize(tokens.size() * hidden_size_);
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::copy_n(hidden.row(first + int(i)), hidden_size_, &row.hidden[i * hidden_size_]);
  }
}

void CpuPredictor::Guess(ThreadTeam* team, CpuActivations* activations, int max_rows) {
  const auto feeds = [](const Row& row) {
    return int(row.tokens.size()) * (row.wanted > std::ssize(row.guesses) ? 1 : 0);
  };
  while (std::ranges::any_of(rows_, [&](const Row& row) { return feeds(row) > 0; })) {
    for (size_t begin = 0, end = 0; begin < rows_.size(); begin = end) {
      for (int fed = 0; end < rows_.size() && fed + feeds(rows_[end]) <= max_rows; ++end) {
        fed += feeds(rows_[end]);
      }
      Pass(team, activations, begin, end);
    }
  }
}

void CpuPredictor::Pass(ThreadTeam* team, CpuActivations* activations, size_t begin, size_t end) {
  segments_.clear();
  hidden_.clear();
  std::vector<Row*> fed;
  for (size_t i = begin; i < end; ++i) {
    Row& row = rows_[i];
    if (row.tokens.empty() || row.wanted <= std::ssize(row.guesses)) continue;
    Cache& cache = caches_[row.cache];
    const int64_t needed = cache.tokens + std::ssize(row.tokens) + row.wanted;
    if (row.guesses.empty() && needed > most_tokens_) cache.tokens = 0;
    // The keys of guesses lie behind those of the row's tokens, until the next call.
    const int64_t position = cache.tokens + std::max<int64_t>(0, std::ssize(row.guesses) - 1);
    segments_.push_back({.state = states_.floats() + row.cache * state_floats_,
                         .position = position,
                         .tokens = row.tokens,
                         .outputs = 1});
    hidden_.insert(hidden_.end(), row.hidden.begin(), row.hidden.end());
    fed.push_back(&row);
  }
  if (fed.empty()) return;
  team->Run([&](int thread, SpinBarrier& barrier) {
    network_.Predict(segments_, hidden_.data(), *activations, thread, barrier.threads(), barrier);
  });
  for (size_t i = 0; i < fed.size(); ++i) {
    Row& row = *fed[i];
    if (row.guesses.empty()) caches_[row.cache].tokens += std::ssize(row.tokens);
    const float* const outputs = activations->output(int(i));
    const float* const best = std::max_element(outputs, outputs + outputs_);
    row.guesses.push_back(int32_t(best - outputs));
    const float* const own = activations->scratch.head_rows.row(int(i));
    row.tokens.assign(1, row.guesses.back());
    row.hidden.assign(own, own + hidden_size_);
  }
}

}  // namespace rivulet
