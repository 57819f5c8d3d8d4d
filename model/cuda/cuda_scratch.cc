// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_scratch.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "kernels/cuda/attention/linear_attention_cuda.h"
#include "kernels/cuda/gemm/product_rows_cuda.h"
#include "kernels/gemm.h"
#include "model/base/error.h"
#include "model/cuda/cuda_run_plan.h"
#include "model/cuda/cuda_softmax_attention.h"

namespace rivulet {

using kernels::PaddedColumns;

// One of `floats` and `halves` is not null.
struct CudaScratch::Spec {
  Array* floats;
  Halves* halves;
  size_t rows;
  int ld;
  bool prefix = false;
  size_t parts = 1;  // parts side by side in a row, `ld` columns each
  size_t bytes() const {
    return rows * parts * size_t(ld) * (floats != nullptr ? sizeof(float) : sizeof(uint16_t));
  }
};

// A row with a prefix ends with the first line of the next row: half of that line is the prefix.
static int PrefixColumns(const CudaProductReads& reads) {
  return reads.for_library ? PaddedColumns(kernels::kProductPrefix) : 0;
}

std::vector<CudaScratch::Spec> CudaScratch::EncoderSpecs(const ModelConfig& c,
                                                         const InputColumns& columns,
                                                         const CudaProductReads& reads,
                                                         size_t tokens) {
  const bool prefix = reads.for_library;
  const int more = PrefixColumns(reads);
  width_x = PaddedColumns(c.hidden_size);
  const int ld_x = width_x + more, ld_o = PaddedColumns(c.values()) + more,
            ld_ffn = PaddedColumns(c.ffn_size) + more;
  std::vector<Spec> specs = {{&x, nullptr, tokens, ld_x, prefix},
                             {&y, nullptr, tokens, ld_x},
                             {&in, nullptr, tokens, PaddedColumns(columns.n)},
                             {&o, nullptr, tokens, ld_o, prefix},
                             {&ffn, nullptr, tokens, ld_ffn, prefix},
                             {nullptr, &half.x, tokens, ld_x, prefix}};
  if (!c.encoder().softmax) {
    specs.push_back({&attention.features, nullptr, tokens + tokens / size_t(kCudaLongSegment),
                     kernels::AttentionFeatureFloats(c.state_layout())});
  }
  // Else F16 and float32 share memory: a pass uses one of them. But float32 would overwrite
  // prefixes.
  if (prefix && reads.halves) {
    specs.push_back({nullptr, &half.o, tokens, ld_o, true});
    specs.push_back({nullptr, &half.ffn, tokens, ld_ffn, true});
  }
  return specs;
}

std::vector<CudaScratch::Spec> CudaScratch::BlockSpecs(const ModelConfig& c,
                                                       const InputColumns& columns,
                                                       const CudaProductReads& reads,
                                                       size_t tokens) {
  const bool is_rwkv7 = c.block().kind->mixer == Mixer::kRwkv7;
  // Of softmax attention: the columns of its input product, and the longest row of o.
  const SoftmaxConfig softmax = c.block().softmax.value_or(SoftmaxConfig());
  const int attended = (softmax.gate ? 2 : 1) * softmax.queries() + 2 * softmax.keys();
  const bool conv_alone = c.block().kind->mixer == Mixer::kShortConv;
  const int widest = std::max({c.values(), softmax.queries(), conv_alone ? c.hidden_size : 0});
  const int hidden = PaddedColumns(c.hidden_size), keys = PaddedColumns(c.keys()),
            decays = PaddedColumns(std::max(c.keys(), c.num_heads)),
            values = PaddedColumns(c.values()), expanded = PaddedColumns(c.ffn_size);
  const std::pair<Array*, int> arrays[] = {
      {&x, hidden},
      {&y, hidden},
      {&h, hidden},
      {&in, is_rwkv7 ? 3 * hidden : PaddedColumns(std::max(columns.n, attended))},
      {&conv, PaddedColumns(c.block().conv_channels)},
      {&decay, decays},
      {&gate, is_rwkv7 || c.block().kind->low_rank_gate ? values : 0},
      {&o, PaddedColumns(widest)},
      {&mix, is_rwkv7 ? kMixes * hidden : 0},
      {&ffn, is_rwkv7 ? expanded : 2 * expanded},
      {&low, columns.low_rank},
      {&rwkv7.rate, is_rwkv7 ? keys : 0},
      {&rwkv7.value, is_rwkv7 ? values : 0},
      {&rwkv7.first, is_rwkv7 ? values : 0},
      {&rwkv7.kk, is_rwkv7 ? keys : 0},
      {&rwkv7.minus, is_rwkv7 ? keys : 0}};
  std::vector<Spec> specs;
  for (const auto& [array, ld] : arrays) specs.push_back({array, nullptr, tokens, ld});
  if (!reads.halves) return specs;
  const int more = PrefixColumns(reads);
  half.columns = PaddedColumns(std::max({c.hidden_size, widest, is_rwkv7 ? 0 : c.ffn_size}));
  specs.push_back({nullptr, &half.x, tokens, half.columns + more, reads.for_library});
  // Else F16 and float share memory: a pass uses one of the two. But float would overwrite
  // prefixes.
  if (is_rwkv7 && reads.for_library) {
    specs.push_back({nullptr, &half.mix, tokens, hidden + more, true, kMixes});
    specs.push_back({nullptr, &half.ffn, tokens, expanded + more, true});
  }
  return specs;
}

std::vector<CudaScratch::Spec> CudaScratch::Specs(const ModelConfig& config,
                                                  const InputColumns& columns,
                                                  const CudaProductReads& reads,
                                                  const BackendLimits& limits) {
  const auto tokens = size_t(limits.max_tokens);
  std::vector<Spec> specs = std::holds_alternative<EncoderConfig>(config.network)
                                ? EncoderSpecs(config, columns, reads, tokens)
                                : BlockSpecs(config, columns, reads, tokens);
  if (config.state().attention) specs.push_back(PartialSpec(config, limits));
  return specs;
}

// For all rows that are worth spreading, within 64 MiB, at least for one row.
CudaScratch::Spec CudaScratch::PartialSpec(const ModelConfig& config, const BackendLimits& limits) {
  constexpr size_t kMost = (size_t{64} << 20) / sizeof(float), kLine = 32;
  const AttentionPart kept = *config.state().attention;
  attention.max_blocks = kept.window > 0 ? kept.ring() : kernels::CacheBlocks(limits.context);
  const size_t row =
      kernels::SoftmaxPartialFloats(QueryHeads(config), kept.value_dim, attention.max_blocks);
  const int worth = std::clamp(kernels::kSoftmaxSpreadUnits / kept.heads, 1, limits.max_rows);
  const size_t rows = std::clamp<size_t>(kMost / row, 1, size_t(worth));
  const size_t lines = (rows * row + kLine - 1) / kLine;
  attention.partial_floats = lines * kLine;
  return {&attention.partials, nullptr, lines, int(kLine)};
}

size_t CudaScratch::Bytes(const ModelConfig& config, const InputColumns& columns,
                          const CudaProductReads& reads, const BackendLimits& limits) {
  CudaScratch scratch;
  size_t bytes = 0;
  for (const Spec& spec : scratch.Specs(config, columns, reads, limits)) bytes += spec.bytes();
  return bytes;
}

// Sets the pointer to column 0, and writes the prefixes before it.
absl::Status CudaScratch::Place(const Spec& spec, const kernels::CudaLaunch& launch) {
  RIVULET_ASSIGN_OR_RETURN(CudaMemory memory, CudaMemory::OnDevice(spec.bytes()));
  // Padding rows are computed, too: from zeros, not from old values.
  RIVULET_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(memory.data(), 0, memory.bytes(), launch.stream));
  void* const at = memory.data();
  memory_.push_back(std::move(memory));
  const int skip = spec.prefix ? kernels::kProductPrefix : 0;
  const bool is_half = spec.floats == nullptr;
  if (is_half) *spec.halves = {static_cast<uint16_t*>(at) + skip, spec.ld};
  if (!is_half) *spec.floats = {static_cast<float*>(at) + skip, spec.ld};
  if (is_half) spec.halves->ld *= int(spec.parts);
  if (!spec.prefix) return absl::OkStatus();
  void* const column = is_half ? static_cast<void*>(spec.halves->data) : spec.floats->data;
  return CudaStatus(
      kernels::MarkProductRowsCuda(launch, {column, is_half, spec.ld, int(spec.rows * spec.parts)}),
      "marking rows");
}

absl::StatusOr<CudaScratch> CudaScratch::Create(const ModelConfig& config,
                                                const InputColumns& columns,
                                                const CudaProductReads& reads,
                                                const BackendLimits& limits,
                                                const kernels::CudaLaunch& launch) {
  CudaScratch scratch;
  for (const Spec& spec : scratch.Specs(config, columns, reads, limits)) {
    if (spec.ld > 0) RIVULET_RETURN_IF_ERROR(scratch.Place(spec, launch));
  }
  const auto share = [](const Array& floats, Halves* halves) {
    if (halves->data != nullptr) return;
    *halves = {reinterpret_cast<uint16_t*>(floats.data), floats.ld};
  };
  share(scratch.o, &scratch.half.o);
  share(scratch.ffn, &scratch.half.ffn);
  share(scratch.mix, &scratch.half.mix);
  share(scratch.low, &scratch.half.low);
  return scratch;
}

}  // namespace rivulet
