// SPDX-License-Identifier: Apache-2.0
#include "model/cpu/cpu_replay.h"

#include <algorithm>
#include <cstring>
#include <variant>

#include "kernels/state_layout.h"
#include "model/cpu/cpu_pass.h"

namespace rivulet {
namespace {

using kernels::TokenVectors;

// Every array begins on a cache line.
size_t RoundUp(size_t floats) { return kernels::StateLayout::RoundUp(floats, 16); }

void Copy(const float* from, size_t count, float* to) {
  std::memcpy(to, from, count * sizeof(float));
}

// A copy of `tokens` vectors of `n` floats at *next, which advances. A vector that all tokens share
// is one of the model's weights, and stays.
TokenVectors Copied(const TokenVectors& from, int tokens, int n, float** next) {
  if (from.data == nullptr || from.stride == 0) return from;
  const TokenVectors copy = {*next, size_t(n)};
  for (int t = 0; t < tokens; ++t, *next += n) {
    Copy(from.data + size_t(t) * from.stride, size_t(n), *next);
  }
  return copy;
}

bool IsBlock(const ModelConfig& config) {
  return std::holds_alternative<BlockConfig>(config.network);
}

}  // namespace

CpuReplay::Layout::Layout(const ModelConfig& config, const StateParts& parts, int max_tokens)
    : saved(parts.kept_from), layers(config.num_layers), heads(config.num_heads) {
  const auto tokens = size_t(max_tokens);
  const auto key = size_t(config.key_dim), value = size_t(config.value_dim);
  scratch = RoundUp(tokens * value);
  if (!IsBlock(config)) scratch += kernels::LinearAttentionScratch(config.key_features());
  // Of a layer: k, w and v of each head, beta or a gate; a and b where there are shifts (RWKV-7).
  const bool shifts = parts.Find("mixer_shift") != nullptr;
  size_t recurrent = size_t(heads) * RoundUp(tokens * (key * (shifts ? 4 : 2) + value + 1));
  for (const char* name : {"conv", "mixer_shift", "ffn_shift"}) {
    const StatePart* const part = parts.Find(name);
    if (part != nullptr) recurrent += RoundUp(tokens * part->shape.back());
  }
  if (parts.floats_per_layer > 0) kept = saved / parts.floats_per_layer * recurrent;
  if (const auto& cache = parts.attention) {
    kept_heads = cache->heads;
    const size_t places = RoundUp(tokens * kernels::PlaceFloats(cache->key_dim, cache->value_dim));
    const size_t attending =
        cache->window == 0
            ? parts.block_floats / cache->floats_per_block()
            : (parts.fixed_floats - saved) / (cache->floats_per_block() * size_t(cache->ring()));
    kept += attending * size_t(kept_heads) * places;
  }
}

size_t CpuReplay::Bytes(const ModelConfig& config, const StateParts& parts, int max_tokens,
                        int threads) {
  return Layout(config, parts, max_tokens).all(threads) * sizeof(float);
}

CpuReplay::CpuReplay(const ModelConfig& config, const StateParts& parts, int max_tokens,
                     int threads)
    : layout_(config, parts, max_tokens),
      memory_(Bytes(config, parts, max_tokens, threads)),
      saved_(memory_.floats()),
      scratch_(saved_ + layout_.saved),
      kept_(scratch_ + size_t(threads) * layout_.scratch),
      caches_(size_t(layout_.layers) * size_t(layout_.kept_heads)),
      places_(caches_.size()) {
  const size_t heads = size_t(layout_.layers) * size_t(layout_.heads);
  recurrences_.resize(IsBlock(config) ? heads : 0);
  linear_.resize(IsBlock(config) ? 0 : heads);
  kept_inputs_.resize(IsBlock(config) ? size_t(layout_.layers) * kInputParts : 0);
}

float* CpuReplay::Take(size_t floats) {
  return kept_ + taken_.fetch_add(RoundUp(floats), std::memory_order_relaxed);
}

void CpuReplay::Begin(float* state) {
  state_ = state;
  taken_ = 0;
  for (auto& args : recurrences_) args.tokens = 0;
  for (auto& args : linear_) args.tokens = 0;
  for (auto& args : caches_) args.tokens = 0;
  for (auto& inputs : kept_inputs_) inputs.tokens = 0;
}

void CpuReplay::Keep(int layer, int head, const kernels::RecurrenceArgs& args) {
  kernels::RecurrenceArgs& kept = recurrences_[size_t(layer * layout_.heads + head)] = args;
  const auto floats_of = [](const TokenVectors& vectors, int n) {
    return vectors.data == nullptr || vectors.stride == 0 ? 0 : n;
  };
  const int floats = args.key_dim + args.value_dim + floats_of(args.w, args.w_dim) +
                     floats_of(args.beta, 1) + floats_of(args.a, args.key_dim) +
                     floats_of(args.b, args.key_dim);
  float* next = Take(size_t(args.tokens) * size_t(floats));
  kept.k = kept.q = Copied(args.k, args.tokens, args.key_dim, &next);  // nobody reads y
  kept.v = Copied(args.v, args.tokens, args.value_dim, &next);
  kept.w = Copied(args.w, args.tokens, args.w_dim, &next);
  kept.beta = Copied(args.beta, args.tokens, 1, &next);
  kept.a = Copied(args.a, args.tokens, args.key_dim, &next);
  kept.b = Copied(args.b, args.tokens, args.key_dim, &next);
  Copy(args.s, size_t(args.key_dim) * size_t(args.value_dim), SavedAt(args.s));
}

void CpuReplay::Keep(int layer, int head, const kernels::LinearAttentionArgs& args) {
  kernels::LinearAttentionArgs& kept = linear_[size_t(layer * layout_.heads + head)] = args;
  const int keys = args.map.key_dim;
  // One stride for all: the vectors of a token side by side.
  kept.ld = size_t(keys + args.value_dim + 1);
  float* next = Take(size_t(args.tokens) * kept.ld);
  kept.query = kept.key = next;  // nobody reads the output
  kept.value = next + keys;
  if (args.gate != nullptr) kept.gate = next + keys + args.value_dim;
  for (int t = 0; t < args.tokens; ++t, next += kept.ld) {
    const size_t from = size_t(t) * args.ld;
    Copy(args.key + from, size_t(keys), next);
    Copy(args.value + from, size_t(args.value_dim), next + keys);
    if (args.gate != nullptr) next[keys + args.value_dim] = args.gate[from];
  }
  Copy(args.s, size_t(args.features) * size_t(args.value_dim), SavedAt(args.s));
  Copy(args.z, size_t(args.features), SavedAt(args.z));
}

void CpuReplay::Keep(int layer, int head, const kernels::SoftmaxAttentionArgs& args) {
  const size_t index = size_t(layer * layout_.kept_heads + head);
  caches_[index] = args;
  places_[index] = Take(size_t(args.tokens) * kernels::PlaceFloats(args.key_dim, args.value_dim));
  kernels::KeepPlaces(args, places_[index]);
}

void CpuReplay::Keep(int layer, InputPart part, const KeptInputs& inputs) {
  const size_t index = size_t(layer) * kInputParts + size_t(part);
  float* next = Take(size_t(inputs.tokens) * size_t(inputs.n));
  KeptInputs& kept = kept_inputs_[index] = inputs;
  const TokenVectors copy = Copied({inputs.x, inputs.stride}, inputs.tokens, inputs.n, &next);
  kept.x = copy.data;
  kept.stride = copy.stride;
  Copy(inputs.state, size_t(inputs.rows) * size_t(inputs.n), SavedAt(inputs.state));
}

void CpuReplay::RewindHead(size_t index, int tokens, float* scratch) {
  if (!linear_.empty() && linear_[index].tokens > 0) {
    kernels::LinearAttentionArgs args = linear_[index];
    Copy(SavedAt(args.s), size_t(args.features) * size_t(args.value_dim), args.s);
    Copy(SavedAt(args.z), size_t(args.features), args.z);
    args.tokens = tokens;
    args.scratch = scratch;
    args.out = scratch + kernels::LinearAttentionScratch(args.features);
    args.ld_out = size_t(args.value_dim);
    args.next_s = nullptr;
    kernels::LinearAttentionCpu(args);
  }
  if (!recurrences_.empty() && recurrences_[index].tokens > 0) {
    kernels::RecurrenceArgs args = recurrences_[index];
    Copy(SavedAt(args.s), size_t(args.key_dim) * size_t(args.value_dim), args.s);
    args.tokens = tokens;
    args.y = scratch;
    args.y_stride = size_t(args.value_dim);
    kernels::RecurrenceCpu(args);
  }
}

void CpuReplay::RewindInputs(size_t index, int tokens) const {
  const KeptInputs& kept = kept_inputs_[index];
  if (kept.tokens == 0) return;
  for (int row = 0; row < kept.rows; ++row) {
    // Counted from the oldest input that the state held before the pass.
    const int from = row + tokens;
    const float* const input = from < kept.rows
                                   ? SavedAt(kept.state) + size_t(from) * size_t(kept.n)
                                   : kept.x + size_t(from - kept.rows) * kept.stride;
    Copy(input, size_t(kept.n), kept.state + size_t(row) * size_t(kept.n));
  }
}

void CpuReplay::Rewind(int tokens, int thread, int threads) {
  const auto share = [&](size_t count) { return ShareOf(int(count), thread, threads); };
  const IndexRange heads = share(std::max(recurrences_.size(), linear_.size()));
  for (int i = heads.begin; i < heads.end; ++i) {
    RewindHead(size_t(i), tokens, scratch_ + size_t(thread) * layout_.scratch);
  }
  const IndexRange inputs = share(kept_inputs_.size());
  for (int i = inputs.begin; i < inputs.end; ++i) RewindInputs(size_t(i), tokens);
  const IndexRange caches = share(caches_.size());
  for (int i = caches.begin; i < caches.end; ++i) {
    if (caches_[size_t(i)].tokens == 0) continue;
    kernels::PutBackPlaces(caches_[size_t(i)], tokens, places_[size_t(i)]);
  }
}

}  // namespace rivulet
