// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_library_weights.h"

#include <utility>

#include "kernels/cuda/gemm/product_rows_cuda.h"
#include "kernels/half.h"

namespace rivulet {
namespace {

// Whether rows of F16 hold `bias` exactly.
bool SplitsExactly(std::span<const float> bias) {
  for (const float b : bias) {
    uint16_t parts[3];
    kernels::SplitBias(b, parts);
    double sum = 0;
    for (int i = 2; i >= 0; --i) sum = sum / 2048 + double(kernels::F16ToF32(parts[i]));
    if (sum != double(b)) return false;
  }
  return true;
}

}  // namespace

size_t CudaLibraryWeights::Bytes(kernels::WeightType type, int k, int n) {
  return kernels::WeightBytes(type) * size_t(n) * size_t(kernels::ProductK(k));
}

absl::Status CudaLibraryWeights::Add(CudaProduct which, const kernels::CudaMatrix& own,
                                     std::span<const char> rows, std::span<const float> bias,
                                     CudaQueue& queue) {
  Entry& entry = entries_[size_t(which)];
  RIVULET_ASSIGN_OR_RETURN(CudaMemory memory, CudaMemory::OnDevice(rows.size()));
  RIVULET_RETURN_IF_ERROR(queue.CopyIn(memory.data(), rows.data(), rows.size()));
  entry.matrices.push_back({own, memory.data()});
  entry.memory.push_back(std::move(memory));
  if (own.type == kernels::WeightType::kF16 && !SplitsExactly(bias)) entry.exact = false;
  return absl::OkStatus();
}

size_t CudaLibraryWeights::Free(CudaProduct which) {
  size_t bytes = 0;
  for (const CudaMemory& memory : std::exchange(entries_[size_t(which)], {}).memory) {
    bytes += memory.bytes();
  }
  return bytes;
}

}  // namespace rivulet
