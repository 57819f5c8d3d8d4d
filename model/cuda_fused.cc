// SPDX-License-Identifier: Apache-2.0
#include "model/cuda_fused.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "model/cuda_limits.h"

namespace rivulet {
namespace {

using kernels::FusedPiece;
using kernels::FusedPlan;
using kernels::StepModel;

absl::Status CannotBe(absl::string_view why) { return CudaPlanUnsupported("fused", why); }

absl::Status Check(const ModelConfig& config, const StepModel& shapes, const BackendLimits& limits,
                   const CudaBackendOptions& options) {
  if (const char* const reason = kernels::CheckFusedCuda(shapes); reason != nullptr) {
    const kernels::StateLayout layout = config.state_layout();
    return CannotBe(
        absl::StrCat(reason, "; here precision is \"",
                     options.precision == CudaPrecision::kFloat32 ? "float32" : "default",
                     "\" and states are ", layout.features, " x ", layout.value_dim));
  }
  if (limits.max_rows >= options.fused_rows) return absl::OkStatus();
  return CannotBe(absl::StrCat("runs have at most ", limits.max_rows,
                               " rows (max_sessions), and it takes those of ", options.fused_rows,
                               " and more"));
}

// A plan for every number of rows a block that runs can need; rising.
absl::StatusOr<std::vector<FusedPlan>> MakePlans(const ModelConfig& config,
                                                 const BackendLimits& limits,
                                                 const CudaDevice& device,
                                                 const CudaBackendOptions& options) {
  const StepModel shapes = CudaStepModel::Shapes(config, options.precision);
  RIVULET_RETURN_IF_ERROR(Check(config, shapes, limits, options));
  RIVULET_ASSIGN_OR_RETURN(const int shared,
                           device.Attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  const int all = device.multiprocessors;
  const int first = std::min((options.fused_rows + all - 1) / all, kernels::kFusedMaxRows);
  const int last = std::min((limits.max_rows + all - 1) / all, kernels::kFusedMaxRows);
  std::vector<FusedPlan> plans;
  for (int each = first; each <= last; ++each) {
    const FusedPlan plan = kernels::PlanFused(shapes, each * all, all, size_t(shared));
    if (plan.rows == 0) {
      return CannotBe(absl::StrCat("a row takes ", kernels::LeastFusedBytes(shapes),
                                   " bytes of shared memory, and a block of this device has ",
                                   shared));
    }
    if (plans.empty() || plan.rows > plans.back().rows) plans.push_back(plan);
    if (plan.rows < each) break;  // no more fit
  }
  return plans;
}

size_t CountPieces(const std::vector<FusedPlan>& plans) {
  size_t pieces = 0;
  for (const FusedPlan& plan : plans) pieces += size_t(plan.pieces());
  return pieces;
}

}  // namespace

absl::StatusOr<size_t> CudaFused::Bytes(const ModelConfig& config, const BackendLimits& limits,
                                        const CudaDevice& device,
                                        const CudaBackendOptions& options) {
  if (options.plan != CudaPlan::kFused) return 0;
  RIVULET_ASSIGN_OR_RETURN(const auto plans, MakePlans(config, limits, device, options));
  return CountPieces(plans) * sizeof(FusedPiece);
}

absl::StatusOr<CudaFused> CudaFused::Create(const ModelConfig& config, const CudaStepModel& model,
                                            const kernels::CudaSampleArgs& sample, int outputs,
                                            const CudaMemory& block, const BackendLimits& limits,
                                            const CudaDevice& device,
                                            const CudaBackendOptions& options, CudaQueue& queue) {
  CudaFused fused;
  if (options.plan != CudaPlan::kFused) return fused;
  RIVULET_ASSIGN_OR_RETURN(fused.plans_, MakePlans(config, limits, device, options));
  fused.least_rows_ = options.fused_rows;
  fused.most_rows_ = std::min(limits.max_rows, outputs);
  fused.multiprocessors_ = device.multiprocessors;
  if (fused.most_rows_ < fused.least_rows_) {
    return CannotBe(absl::StrCat("head outputs of ", outputs, " rows are there at once (head_rows)",
                                 ", and it takes runs of ", options.fused_rows, " rows and more"));
  }
  fused.args_.model = model.model();
  fused.args_.sample = sample;
  RIVULET_RETURN_IF_ERROR(fused.Upload(model, queue));
  RIVULET_ASSIGN_OR_RETURN(const int shared,
                           device.Attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  for (const FusedPlan& plan : fused.plans_) {
    RIVULET_CUDA_RETURN_IF_ERROR(
        kernels::PrepareFusedCuda(fused.args_.model, plan, size_t(shared)));
  }
  RIVULET_RETURN_IF_ERROR(fused.WarmUp(block, queue));
  const FusedPlan& most = fused.plans_.back();
  fused.description_ = absl::StrCat(
      "runs of ", fused.least_rows_, " to ", fused.most_rows_, " rows: one launch, up to ",
      most.rows, " rows a block, heads a round x depth ", most.round_heads, " x ", most.depth);
  return fused;
}

absl::Status CudaFused::Upload(const CudaStepModel& model, CudaQueue& queue) {
  std::vector<FusedPiece> pieces(CountPieces(plans_));
  size_t first = 0;
  for (const FusedPlan& plan : plans_) {
    kernels::ListFusedPieces(model.model(), model.layers().data(), plan, pieces.data() + first);
    first_piece_.push_back(first);
    first += size_t(plan.pieces());
  }
  const size_t bytes = pieces.size() * sizeof(FusedPiece);
  RIVULET_ASSIGN_OR_RETURN(pieces_, CudaMemory::OnDevice(bytes));
  return queue.CopyIn(pieces_.data(), pieces.data(), bytes);
}

absl::Status CudaFused::WarmUp(const CudaMemory& block, CudaQueue& queue) {
  const CudaRunBlock idle = CudaRunBlock::PlacePlain(block.data(), 1);
  RIVULET_ASSIGN_OR_RETURN(void* const room, queue.Stage(idle.bytes));
  FillIdleCudaRunBlock(1, CudaRunBlock::PlacePlain(room, 1));
  RIVULET_CUDA_RETURN_IF_ERROR(
      cudaMemcpyAsync(block.data(), room, idle.bytes, cudaMemcpyHostToDevice, queue.stream()));
  for (size_t i = 0; i < plans_.size(); ++i) {
    RIVULET_RETURN_IF_ERROR(Launch(queue, i, idle.step, 1, 1));
  }
  return absl::OkStatus();
}

absl::Status CudaFused::Launch(const CudaQueue& queue, size_t plan,
                               const kernels::CudaStepRows& step, int rows, int steps) {
  args_.plan = plans_[plan];
  args_.pieces = static_cast<const FusedPiece*>(pieces_.data()) + first_piece_[plan];
  args_.step = step;
  args_.rows = rows;
  args_.steps = steps;
  return CudaStatus(kernels::FusedCuda(queue.launch(), args_), "launching steps of many rows");
}

absl::Status CudaFused::Run(const CudaQueue& queue, const kernels::CudaStepRows& step, int rows,
                            int steps) {
  // So many rows a block that every multiprocessor has one, if there is such a plan.
  const int even = (rows + multiprocessors_ - 1) / multiprocessors_;
  size_t plan = 0;
  while (plan + 1 < plans_.size() && plans_[plan].rows < even) ++plan;
  return Launch(queue, plan, step, rows, steps);
}

}  // namespace rivulet
