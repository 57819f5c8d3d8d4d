// SPDX-License-Identifier: Apache-2.0
// CudaFused: the steps of a run of many rows as one launch (kernels/fused_cuda.h), where it was
// asked for. The bits are those of the graphs, so each run may take either.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/fused_cuda.h"
#include "model/config.h"
#include "model/cuda_backend.h"
#include "model/cuda_device.h"
#include "model/cuda_queue.h"
#include "model/cuda_run_block.h"
#include "model/cuda_step_model.h"

namespace rivulet {

// Thread: one.
class CudaFused {
 public:
  CudaFused() = default;  // takes no run

  // Device memory that Create takes. Errors: as Create's first.
  static absl::StatusOr<size_t> Bytes(const ModelConfig& config, const BackendLimits& limits,
                                      const CudaDevice& device, const CudaBackendOptions& options);

  // Where options.plan is not kFused, a result that takes no run. Else plans for every number of
  // rows a block that runs of options.fused_rows rows and more need, each run once with rows of
  // nobody in `block`, where runs arrive. `outputs`: rows whose head outputs `sample` has room for.
  // Errors: INVALID_ARGUMENT (model, precision, limits or device do not allow it, naming which),
  // RESOURCE_EXHAUSTED, UNAVAILABLE. References must outlive the result.
  static absl::StatusOr<CudaFused> Create(const ModelConfig& config, const CudaStepModel& model,
                                          const kernels::CudaSampleArgs& sample, int outputs,
                                          const CudaMemory& block, const BackendLimits& limits,
                                          const CudaDevice& device,
                                          const CudaBackendOptions& options, CudaQueue& queue);

  // Whether it takes runs of so many rows.
  bool Takes(int rows) const {
    return !plans_.empty() && rows >= least_rows_ && rows <= most_rows_;
  }
  // In words, for the log; empty where it takes no run.
  const std::string& description() const { return description_; }

  // Queues `steps` steps of `rows` rows from what `step` says, which is used up. REQUIRES:
  // Takes(rows); steps >= 1.
  absl::Status Run(const CudaQueue& queue, const kernels::CudaStepRows& step, int rows, int steps);

 private:
  absl::Status Upload(const CudaStepModel& model, CudaQueue& queue);
  absl::Status WarmUp(const CudaMemory& block, CudaQueue& queue);
  int LargestCluster() const;
  absl::Status Launch(const CudaQueue& queue, size_t plan, int cluster,
                      const kernels::CudaStepRows& step, int rows, int steps);

  std::string description_;
  int least_rows_ = 0, most_rows_ = 0;
  kernels::FusedResident resident_;
  kernels::FusedArgs args_;                // but for plan, pieces, cluster, rows, steps
  std::vector<kernels::FusedPlan> plans_;  // rising rows a block
  std::vector<size_t> first_piece_;        // of each plan, in pieces_
  CudaMemory pieces_;
};

}  // namespace rivulet
