// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_block_scratch.h"

#include <algorithm>

#include "kernels/gemm.h"

namespace rivulet {

using kernels::PaddedColumns;

std::vector<std::pair<CudaBlockScratch::Array*, int>> CudaBlockScratch::Arrays(
    const BlockConfig& c, const BlockColumns& columns, int low_columns) {
  const bool rwkv7 = c.kind == BlockKind::kRwkv7;
  const int hidden = PaddedColumns(c.hidden_size), keys = PaddedColumns(c.keys()),
            decays = PaddedColumns(std::max(c.keys(), c.num_heads)),
            values = PaddedColumns(c.values()), expanded = PaddedColumns(c.ffn_size);
  return {{&x, hidden},
          {&y, hidden},
          {&h, hidden},
          {&in, rwkv7 ? 3 * hidden : PaddedColumns(columns.n)},
          {&conv, PaddedColumns(c.conv_channels())},
          {&decay, decays},
          {&gate, rwkv7 || c.kind == BlockKind::kKda ? values : 0},
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

size_t CudaBlockScratch::Bytes(const BlockConfig& config, const BlockColumns& columns,
                               int low_columns, const BackendLimits& limits) {
  CudaBlockScratch scratch;
  size_t floats = 0;
  for (const auto& [array, ld] : scratch.Arrays(config, columns, low_columns)) floats += size_t(ld);
  return floats * size_t(limits.max_tokens) * sizeof(float);
}

absl::StatusOr<CudaBlockScratch> CudaBlockScratch::Create(const BlockConfig& config,
                                                          const BlockColumns& columns,
                                                          int low_columns,
                                                          const BackendLimits& limits,
                                                          cudaStream_t stream) {
  CudaBlockScratch scratch;
  for (const auto& [array, ld] : scratch.Arrays(config, columns, low_columns)) {
    if (ld == 0) continue;
    RIVULET_ASSIGN_OR_RETURN(CudaMemory memory, CudaMemory::OnDevice(size_t(limits.max_tokens) *
                                                                     size_t(ld) * sizeof(float)));
    // Rows of nobody are computed, too: with numbers, not with what was there before.
    RIVULET_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(memory.data(), 0, memory.bytes(), stream));
    *array = {static_cast<float*>(memory.data()), ld};
    scratch.memory_.push_back(std::move(memory));
  }
  return scratch;
}

}  // namespace rivulet
