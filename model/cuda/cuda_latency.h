// SPDX-License-Identifier: Apache-2.0
// CudaLatency: the steps of a run of few rows as one launch (kernels/cuda/latency/latency_cuda.h),
// if model and device allow it. The bits are the same as with graphs, so each run may use either.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/cuda/latency/latency_cuda.h"
#include "model/backend.h"
#include "model/backend_options.h"
#include "model/config.h"
#include "model/cuda/cuda_device.h"
#include "model/cuda/cuda_queue.h"
#include "model/cuda/cuda_step_model.h"

namespace rivulet {

// Thread: one.
class CudaLatency {
 public:
  CudaLatency() = default;  // takes no run
  ~CudaLatency();
  CudaLatency(CudaLatency&& other) noexcept { *this = std::move(other); }
  CudaLatency& operator=(CudaLatency&& other) noexcept;

  // The most device memory that Create takes.
  static size_t Bytes(const ModelConfig& config, const BackendLimits& limits,
                      const CudaBackendOptions& options);

  // Makes plans for 1, 2, 4, ... up to options.latency_rows rows, and runs each once with padding
  // rows in `block`, where runs arrive. If device, model or options do not allow it, the result
  // takes no run and its description says why. Errors: INVALID_ARGUMENT (options.plan is kLatency,
  // which is impossible), RESOURCE_EXHAUSTED, UNAVAILABLE. References must outlive the result.
  static absl::StatusOr<CudaLatency> Create(const CudaStepModel& model,
                                            const kernels::CudaSampleArgs& sample,
                                            const CudaMemory& block, const BackendLimits& limits,
                                            const CudaDevice& device,
                                            const CudaBackendOptions& options, CudaQueue& queue);

  // The most rows of a run that this takes; 0: none.
  int rows() const { return plans_.empty() ? 0 : plans_.back().rows; }
  // For the log: how runs of few rows are launched, or why not in one launch.
  const std::string& description() const { return description_; }

  // Queues `steps` steps of `rows` rows from `block.step`, which they overwrite.
  // REQUIRES: 1 <= rows <= rows(); steps >= 1.
  absl::Status Run(const CudaQueue& queue, const kernels::CudaStepRows& step, int rows, int steps);

 private:
  absl::Status Prepare(const CudaDevice& device, int most_rows);
  absl::Status WarmUp(const CudaMemory& block, CudaQueue& queue);

  int device_ = 0;
  std::string description_;
  kernels::LatencyArgs args_;                // except plan, rows, steps
  std::vector<kernels::LatencyPlan> plans_;  // rising rows
  CudaMemory exchange_, abort_;
  CudaEvent end_;           // of the last launch
  uint64_t next_flag_ = 1;  // fresh words hold 0
};

}  // namespace rivulet
