// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_outputs.h"

#include <algorithm>
#include <utility>

#include "kernels/gemm.h"
#include "model/base/error.h"

namespace rivulet {

CudaOutputs CudaOutputs::Sized(const ModelConfig& config, int head_rows) {
  CudaOutputs out;
  out.ld_outputs = kernels::PaddedColumns(config.output_size());
  out.ld_adjusted = kernels::PaddedColumns(config.num_output_tokens());
  out.head_rows = head_rows;
  return out;
}

int CudaOutputs::HeadRows(const ModelConfig& config, const BackendLimits& limits, size_t bytes) {
  constexpr size_t kLeastFloats = size_t{8} << 20, kLeastRows = 128;
  const CudaOutputs row = Sized(config, 1);
  const auto widest = size_t(std::max(row.ld_outputs, row.ld_adjusted));
  const size_t fit = std::min(size_t(limits.max_rows), bytes / Bytes(config, 1));
  const size_t rows = std::max({kLeastRows, kLeastFloats / widest, fit});
  return int(std::min(size_t(limits.max_tokens), rows));
}

size_t CudaOutputs::Bytes(const ModelConfig& config, int head_rows) {
  const CudaOutputs out = Sized(config, head_rows);
  return size_t(out.head_rows) * size_t(out.ld_outputs + out.ld_adjusted) * sizeof(float);
}

absl::StatusOr<CudaOutputs> CudaOutputs::Create(const ModelConfig& config, int head_rows,
                                                const kernels::CudaLaunch& launch) {
  CudaOutputs out = Sized(config, head_rows);
  const auto place = [&](int ld, float** data) -> absl::Status {
    RIVULET_ASSIGN_OR_RETURN(CudaMemory memory, CudaMemory::OnDevice(size_t(out.head_rows) *
                                                                     size_t(ld) * sizeof(float)));
    RIVULET_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(memory.data(), 0, memory.bytes(), launch.stream));
    *data = static_cast<float*>(memory.data());
    out.memory_.push_back(std::move(memory));
    return absl::OkStatus();
  };
  RIVULET_RETURN_IF_ERROR(place(out.ld_outputs, &out.outputs));
  RIVULET_RETURN_IF_ERROR(place(out.ld_adjusted, &out.adjusted));
  return out;
}

}  // namespace rivulet
