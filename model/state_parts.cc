// SPDX-License-Identifier: Apache-2.0
#include "model/state_parts.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "kernels/state_layout.h"

namespace rivulet {
namespace {

using kernels::StateLayout;

LayerMix AllRecurrent(int layers) {
  return {std::vector<bool>(size_t(layers), true), std::vector<bool>(size_t(layers), false)};
}

}  // namespace

size_t AttentionPart::floats_per_block() const {
  return StateLayout::RoundUp(size_t(heads) * kernels::CacheFloats(key_dim, value_dim, type), 16);
}

int64_t AttentionPart::ring() const { return window == 0 ? 0 : kernels::RingBlocks(window); }

size_t StateSize::At(int64_t positions) const {
  return fixed + per_block * size_t((positions + block_tokens - 1) / block_tokens);
}

size_t StateSize::per_token() const { return per_block / size_t(block_tokens); }

int64_t StateSize::Segments(int64_t positions) const {
  return per_block == 0 ? 0 : positions / segment_tokens;
}

size_t StateSize::segment_bytes() const {
  return per_block * size_t(segment_tokens / block_tokens);
}

static_assert(kernels::kCacheBlock == StateSize().block_tokens);

bool StateSize::Fits(size_t bytes, int64_t most) const {
  if (per_block == 0 || bytes <= fixed) return bytes == fixed;
  return (bytes - fixed) % per_block == 0 && bytes <= At(most);
}

bool StateSize::AllFinite(std::span<const float> values, size_t begin) const {
  const bool halves = kept_type != kernels::CacheType::kF32;
  const size_t before = (cache_begin_bytes - std::min(begin, cache_begin_bytes)) / sizeof(float);
  const size_t floats = halves ? std::min(values.size(), before) : values.size();
  const auto finite = [](float x) { return std::isfinite(x); };
  if (!std::all_of(values.begin(), values.begin() + std::ptrdiff_t(floats), finite)) return false;
  const uint32_t infinity = kept_type == kernels::CacheType::kF16 ? 0x7c00 : 0x7f80;
  const auto halves_finite = [infinity](float pair) {
    const auto bits = std::bit_cast<uint32_t>(pair);
    return (bits & infinity) != infinity && (bits >> 16 & infinity) != infinity;
  };
  return std::all_of(values.begin() + std::ptrdiff_t(floats), values.end(), halves_finite);
}

StateParts::StateParts(int layers, std::vector<StatePart> list)
    : StateParts(AllRecurrent(layers), std::move(list), AttentionPart()) {}

StateParts::StateParts(const LayerMix& mix, std::vector<StatePart> list, const AttentionPart& kept)
    : parts(std::move(list)) {
  constexpr size_t kAlignment = 16, kFloat = sizeof(float);
  for (StatePart& part : parts) {
    part.offset = floats_per_layer;
    size_t bytes = kFloat;
    for (const size_t n : part.shape) bytes *= n;
    part.floats = StateLayout::RoundUp(bytes, kAlignment) / kFloat;
    floats_per_layer += part.floats;
  }
  for (const bool recurrent : mix.recurrent) {
    recurrent_at.push_back(recurrent ? fixed_floats : 0);
    if (recurrent) fixed_floats += floats_per_layer;
  }
  fixed_floats = kept_from = StateLayout::RoundUp(fixed_floats, 16);
  for (const bool attends : mix.attends) {
    size_t& place = kept.window == 0 ? block_floats : fixed_floats;
    cache_offset.push_back(attends ? place : 0);
    if (!attends) continue;
    attention = kept;
    place += kept.floats_per_block() * size_t(std::max<int64_t>(kept.ring(), 1));
  }
  // An empty list of values means that there is no state.
  if (fixed_floats == 0) fixed_floats = 16;
}

StateSize StateParts::size() const {
  StateSize size = {.fixed = fixed_floats * sizeof(float),
                    .per_block = block_floats * sizeof(float)};
  if (attention) {
    size.kept_type = attention->type;
    size.cache_begin_bytes = kept_from * sizeof(float);
  }
  return size;
}

const StatePart* StateParts::Find(absl::string_view name) const {
  const auto found =
      std::find_if(parts.begin(), parts.end(), [&](const auto& part) { return part.name == name; });
  return found == parts.end() ? nullptr : &*found;
}

}  // namespace rivulet
