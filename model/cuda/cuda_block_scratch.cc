// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_block_scratch.h"

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/gemm/product_rows_cuda.h"
#include "kernels/gemm.h"

namespace rivulet {

using kernels::PaddedColumns;

std::vector<std::pair<CudaBlockScratch::Array*, int>> CudaBlockScratch::Arrays(
    const ModelConfig& c, const BlockColumns& columns, int low_columns) {
  const bool rwkv7 = c.block().kind->mixer == Mixer::kRwkv7;
  const int hidden = PaddedColumns(c.hidden_size), keys = PaddedColumns(c.keys()),
            decays = PaddedColumns(std::max(c.keys(), c.num_heads)),
            values = PaddedColumns(c.values()), expanded = PaddedColumns(c.ffn_size);
  return {{&x, hidden},
          {&y, hidden},
          {&h, hidden},
          {&in, rwkv7 ? 3 * hidden : PaddedColumns(columns.n)},
          {&conv, PaddedColumns(c.block().conv_channels)},
          {&decay, decays},
          {&gate, rwkv7 || c.block().kind->low_rank_gate ? values : 0},
          {&o, values},
          {&mix, rwkv7 ? 6 * hidden : 0},
          {&ffn, rwkv7 ? expanded : 2 * expanded},
          {&low, low_columns},
          {&rate, rwkv7 ? keys : 0},
          {&value, rwkv7 ? values : 0},
          {&first, rwkv7 ? values : 0},
          {&kk, rwkv7 ? keys : 0},
          {&minus, rwkv7 ? keys : 0}};
}

void CudaBlockScratch::SizeHalf(const ModelConfig& c, const CudaProductReads& reads) {
  if (!reads.halves) return;
  half_columns = PaddedColumns(std::max({c.hidden_size, c.values(), c.ffn_size}));
  // A row ends with a line that begins the next one: half of it is the prefix.
  ld_half = half_columns + (reads.for_library ? PaddedColumns(kernels::kProductPrefix) : 0);
}

size_t CudaBlockScratch::Bytes(const ModelConfig& config, const BlockColumns& columns,
                               int low_columns, const CudaProductReads& reads,
                               const BackendLimits& limits) {
  CudaBlockScratch scratch;
  scratch.SizeHalf(config, reads);
  size_t bytes = size_t(scratch.ld_half) * sizeof(uint16_t);
  for (const auto& [array, ld] : scratch.Arrays(config, columns, low_columns)) {
    bytes += size_t(ld) * sizeof(float);
  }
  return bytes * size_t(limits.max_tokens);
}

absl::StatusOr<CudaBlockScratch> CudaBlockScratch::Create(
    const ModelConfig& config, const BlockColumns& columns, int low_columns,
    const CudaProductReads& reads, const BackendLimits& limits, const kernels::CudaLaunch& launch) {
  CudaBlockScratch scratch;
  const auto place = [&](int ld, auto** data) -> absl::Status {
    RIVULET_ASSIGN_OR_RETURN(CudaMemory memory, CudaMemory::OnDevice(size_t(limits.max_tokens) *
                                                                     size_t(ld) * sizeof(**data)));
    // Rows of nobody are computed, too: with numbers, not with what was there before.
    RIVULET_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(memory.data(), 0, memory.bytes(), launch.stream));
    *data = static_cast<std::remove_reference_t<decltype(*data)>>(memory.data());
    scratch.memory_.push_back(std::move(memory));
    return absl::OkStatus();
  };
  for (const auto& [array, ld] : scratch.Arrays(config, columns, low_columns)) {
    if (ld == 0) continue;
    array->ld = ld;
    RIVULET_RETURN_IF_ERROR(place(ld, &array->data));
  }
  scratch.SizeHalf(config, reads);
  if (scratch.ld_half == 0) return scratch;
  RIVULET_RETURN_IF_ERROR(place(scratch.ld_half, &scratch.half));
  if (!reads.for_library) return scratch;
  scratch.half += kernels::kProductPrefix;
  const kernels::CudaProductRows rows = {scratch.half, true, scratch.ld_half, limits.max_tokens};
  RIVULET_RETURN_IF_ERROR(CudaStatus(kernels::MarkProductRowsCuda(launch, rows), "marking rows"));
  return scratch;
}

}  // namespace rivulet
