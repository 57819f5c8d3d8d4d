// SPDX-License-Identifier: Apache-2.0
#include "model/cuda_fused.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "model/cuda_limits.h"

namespace rivulet {
namespace {

using kernels::FusedPiece;
using kernels::FusedPlan;
using kernels::FusedResident;
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

int RoundUpDivide(int a, int b) { return (a + b - 1) / b; }

// What a device allows for a model.
struct Device {
  size_t shared = 0;  // bytes of a block
  FusedResident resident;
};
absl::StatusOr<Device> Look(const StepModel& shapes, const CudaDevice& device,
                            const CudaBackendOptions& options) {
  Device found;
  RIVULET_ASSIGN_OR_RETURN(const int shared,
                           device.Attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  found.shared = size_t(shared);
  RIVULET_CUDA_RETURN_IF_ERROR(kernels::FindFusedResident(shapes, device.multiprocessors, device.sm,
                                                          found.shared, &found.resident));
  for (int i = 1; i < kernels::kFusedClusterSizes; ++i) {
    if (1 << i > options.fused_cluster) found.resident.blocks[i] = 0;
  }
  return found;
}

// A plan for every number of rows a block that runs can need; rising.
absl::StatusOr<std::vector<FusedPlan>> MakePlans(const ModelConfig& config,
                                                 const BackendLimits& limits,
                                                 const CudaDevice& device,
                                                 const CudaBackendOptions& options) {
  const StepModel shapes = CudaStepModel::Shapes(config, options.precision);
  RIVULET_RETURN_IF_ERROR(Check(config, shapes, limits, options));
  RIVULET_ASSIGN_OR_RETURN(const Device found, Look(shapes, device, options));
  constexpr int kMost = kernels::kFusedMaxRows;
  int first = kMost, last = 1;
  for (const int blocks : found.resident.blocks) {
    if (blocks == 0) continue;
    first = std::min(first, RoundUpDivide(options.fused_rows, blocks));
    last = std::max(last, std::min(RoundUpDivide(limits.max_rows, blocks), kMost));
  }
  std::vector<FusedPlan> plans;
  for (int each = first; each <= last; ++each) {
    const FusedPlan plan = kernels::PlanFused(shapes, each, found.shared);
    if (plan.rows == 0) {
      return CannotBe(absl::StrCat("a row takes ", kernels::LeastFusedBytes(shapes),
                                   " bytes of shared memory, and a block of this device has ",
                                   found.shared));
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
  if (fused.most_rows_ < fused.least_rows_) {
    return CannotBe(absl::StrCat("head outputs of ", outputs, " rows are there at once (head_rows)",
                                 ", and it takes runs of ", options.fused_rows, " rows and more"));
  }
  fused.args_.model = model.model();
  fused.args_.sample = sample;
  RIVULET_RETURN_IF_ERROR(fused.Upload(model, queue));
  RIVULET_ASSIGN_OR_RETURN(const Device found, Look(fused.args_.model, device, options));
  fused.resident_ = found.resident;
  const bool clusters = fused.LargestCluster() > 1;
  for (const FusedPlan& plan : fused.plans_) {
    RIVULET_CUDA_RETURN_IF_ERROR(
        kernels::PrepareFusedCuda(fused.args_.model, plan, clusters, found.shared));
  }
  RIVULET_RETURN_IF_ERROR(fused.WarmUp(block, queue));
  const FusedPlan& most = fused.plans_.back();
  fused.description_ = absl::StrCat(
      "runs of ", fused.least_rows_, " to ", fused.most_rows_, " rows: one launch, up to ",
      most.rows, " rows a block, heads a round x depth ", most.round_heads, " x ", most.depth,
      ", clusters of up to ", fused.LargestCluster());
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
    RIVULET_RETURN_IF_ERROR(Launch(queue, i, /*cluster=*/1, idle.step, 1, 1));
  }
  // In clusters a step of nobody takes its time: one for each kernel.
  if (LargestCluster() == 1) return absl::OkStatus();
  RIVULET_RETURN_IF_ERROR(Launch(queue, 0, LargestCluster(), idle.step, 1, 1));
  return Launch(queue, plans_.size() - 1, LargestCluster(), idle.step, 1, 1);
}

int CudaFused::LargestCluster() const {
  int size = 1;
  for (int i = 1; i < kernels::kFusedClusterSizes; ++i) {
    if (resident_.blocks[i] > 0) size = 1 << i;
  }
  return size;
}

absl::Status CudaFused::Launch(const CudaQueue& queue, size_t plan, int cluster,
                               const kernels::CudaStepRows& step, int rows, int steps) {
  args_.cluster = cluster;
  args_.plan = plans_[plan];
  args_.pieces = static_cast<const FusedPiece*>(pieces_.data()) + first_piece_[plan];
  args_.step = step;
  args_.rows = rows;
  args_.steps = steps;
  return CudaStatus(kernels::FusedCuda(queue.launch(), args_), "launching steps of many rows");
}

absl::Status CudaFused::Run(const CudaQueue& queue, const kernels::CudaStepRows& step, int rows,
                            int steps) {
  const kernels::FusedSpread spread = kernels::SpreadFused(rows, plans_.back().rows, resident_);
  size_t plan = 0;
  while (plan + 1 < plans_.size() && plans_[plan].rows < spread.rows) ++plan;
  return Launch(queue, plan, spread.cluster, step, rows, steps);
}

}  // namespace rivulet
