// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_softmax_attention.h"

#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/cache_type.h"

namespace rivulet {

absl::Status CheckCudaSoftmax(const ModelConfig& config, kernels::CacheType cache) {
  const std::optional<AttentionPart> attention = config.state().attention;
  if (!attention) return absl::OkStatus();
  if (cache != kernels::CacheType::kF32) {
    return InvalidField(
        "OPTION_OUT_OF_RANGE", "kv-cache",
        absl::StrCat("kv-cache is \"", CacheTypeName(cache), "\"; allowed on a GPU: f32"));
  }
  for (const auto& [name, size] :
       {std::pair{"key_dim", attention->key_dim}, {"value_dim", attention->value_dim}}) {
    if (size <= kernels::kMaxCudaSoftmaxDim) continue;
    return MakeError(
        absl::StatusCode::kUnimplemented,
        absl::StrCat("backend \"cuda\" cannot run this model: ", name, " of softmax attention is ",
                     size, "; allowed: 1 to ", kernels::kMaxCudaSoftmaxDim),
        {"MODEL_UNSUPPORTED", "backend", {}});
  }
  return absl::OkStatus();
}

int QueryHeads(const ModelConfig& config) {
  const auto* const block = std::get_if<BlockConfig>(&config.network);
  return block == nullptr ? config.num_heads : block->softmax->num_heads;
}

kernels::CudaSoftmaxAttentionArgs CudaSoftmaxAttention(const ModelConfig& config,
                                                       const StateParts& parts, float* states,
                                                       size_t floats_per_slot,
                                                       const CudaScratch& scratch,
                                                       const CudaPass& pass, int layer) {
  const AttentionPart& kept = *parts.attention;
  const bool ring = kept.window > 0;
  kernels::CudaSoftmaxAttentionArgs args;
  args.segments = pass.segments;
  args.num_segments = pass.num_segments;
  args.rows = pass.rows;
  args.positions = pass.positions;
  args.in = scratch.in.data;
  args.ld_in = scratch.in.ld;
  args.ld_out = scratch.o.ld;
  args.heads = kept.heads;
  args.queries = QueryHeads(config) / kept.heads;
  args.key_dim = kept.key_dim;
  args.value_dim = kept.value_dim;
  args.window = kept.window;
  args.ring = kept.ring();
  args.states = states;
  args.floats_per_slot = floats_per_slot;
  args.kept = parts.cache_offset[size_t(layer)] + (ring ? 0 : parts.fixed_floats);
  args.block_stride = ring ? kept.floats_per_block() : parts.block_floats;
  args.partials = scratch.attention.partials.data;
  args.partial_floats = scratch.attention.partial_floats;
  args.max_blocks = scratch.attention.max_blocks;
  return args;
}

}  // namespace rivulet
