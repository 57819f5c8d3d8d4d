// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_latency.h"

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/cuda/cuda_limits.h"
#include "model/cuda/cuda_run_block.h"

namespace rivulet {
namespace {

using kernels::LatencyPlan;

// Two launches whose blocks wait for each other would wait for ever if each had a part of the
// device. CUDA promises that a cooperative launch begins as a whole. Within a process we do not
// rely on it: every such launch waits for the last one on its device, of any backend.
class Turns {
 public:
  static Turns& Get() {
    static auto* turns = new Turns;
    return *turns;
  }
  template <typename Launch>
  absl::Status Take(int device, const CudaEvent& end, cudaStream_t stream, const Launch& launch) {
    const std::lock_guard lock(mutex_);
    const CudaEvent*& last = last_[device];
    if (last != nullptr && last != &end) RIVULET_RETURN_IF_ERROR(last->MakeWait(stream));
    RIVULET_RETURN_IF_ERROR(launch());
    last = &end;
    return end.Record(stream);
  }
  // `end` will be destroyed.
  void Forget(int device, const CudaEvent* end) {
    const std::lock_guard lock(mutex_);
    const auto found = last_.find(device);
    if (found != last_.end() && found->second == end) found->second = nullptr;
  }

 private:
  std::mutex mutex_;
  std::map<int, const CudaEvent*> last_;
};

int Rows(const CudaBackendOptions& options) {
  constexpr int kDefault = 8;
  const bool unset = options.plan == CudaPlan::kLatency && options.latency_rows == 0;
  return unset ? kDefault : options.latency_rows;
}

// Why no run can be one launch, on any device; empty: runs of few rows can. The kernel reads F16.
std::string WhyNone(const CudaBackendOptions& options) {
  if (options.plan == CudaPlan::kThroughput) return "chosen by option";
  if (Rows(options) == 0) return "one launch for few rows was not requested";
  if (options.weights.quantized()) return "weights have 8 bits";
  return options.precision == CudaPrecision::kFloat32 ? "precision is \"float32\"" : "";
}

// A launch stores the head outputs of all its rows at once, in the memory of a piece (CudaOutputs).
int MostRows(const BackendLimits& limits, const CudaBackendOptions& options) {
  const int rows = std::min(Rows(options), limits.max_rows);
  return options.head_rows > 0 ? std::min(rows, options.head_rows) : rows;
}

}  // namespace

CudaLatency::~CudaLatency() { Turns::Get().Forget(device_, &end_); }

CudaLatency& CudaLatency::operator=(CudaLatency&& other) noexcept {
  Turns::Get().Forget(device_, &end_);
  Turns::Get().Forget(other.device_, &other.end_);
  device_ = other.device_;
  description_ = std::move(other.description_);
  args_ = other.args_;
  plans_ = std::exchange(other.plans_, {});
  exchange_ = std::move(other.exchange_);
  abort_ = std::move(other.abort_);
  end_ = std::move(other.end_);
  next_flag_ = other.next_flag_;
  return *this;
}

size_t CudaLatency::Bytes(const ModelConfig& config, const BackendLimits& limits,
                          const CudaBackendOptions& options) {
  if (!WhyNone(options).empty()) return 0;
  const LatencyPlan plan =
      kernels::PlanLatency(CudaStepModel::Shapes(config), MostRows(limits, options),
                           /*multiprocessors=*/1, std::numeric_limits<size_t>::max());
  return plan.words * sizeof(uint64_t) + sizeof(uint32_t);
}

// Makes the plans, and describes the result in `description_`.
absl::Status CudaLatency::Prepare(const CudaDevice& device, int most_rows) {
  RIVULET_ASSIGN_OR_RETURN(const int cooperative, device.Attribute(cudaDevAttrCooperativeLaunch));
  RIVULET_ASSIGN_OR_RETURN(const int shared,
                           device.Attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  if (cooperative == 0) {
    description_ = "the device has no cooperative launches";
    return absl::OkStatus();
  }
  for (int rows = 1; rows <= most_rows;
       rows = rows < most_rows ? std::min(2 * rows, most_rows) : rows + 1) {
    const LatencyPlan plan =
        kernels::PlanLatency(args_.model, rows, device.multiprocessors, size_t(shared));
    bool fits = false;
    if (plan.rows > 0) {
      RIVULET_CUDA_RETURN_IF_ERROR(
          kernels::PrepareLatencyCuda(plan, device.multiprocessors, size_t(shared), &fits));
    }
    if (!fits) break;
    plans_.push_back(plan);
  }
  if (plans_.empty()) {
    description_ = absl::StrCat("weights exceed the shared memory of ", device.multiprocessors,
                                " multiprocessors with ", shared, " bytes each");
    return absl::OkStatus();
  }
  const LatencyPlan& plan = plans_.back();
  description_ =
      absl::StrCat("runs of up to ", plan.rows, " rows: one launch, weights ",
                   plan.states_stay ? "and states " : "", "in shared memory; stages x blocks ",
                   plan.stages, " x ", plan.stage_blocks);
  return absl::OkStatus();
}

absl::StatusOr<CudaLatency> CudaLatency::Create(
    const CudaStepModel& model, const kernels::CudaSampleArgs& sample, const CudaMemory& block,
    const BackendLimits& limits, const CudaDevice& device, const CudaBackendOptions& options,
    CudaQueue& queue) {
  CudaLatency latency;
  latency.device_ = device.index;
  kernels::LatencyArgs& args = latency.args_;
  args.model = model.model();
  args.sample = sample;
  args.patience_nanoseconds = uint64_t(absl::ToInt64Nanoseconds(options.patience));
  latency.description_ = WhyNone(options);
  if (latency.description_.empty()) {
    RIVULET_RETURN_IF_ERROR(latency.Prepare(device, MostRows(limits, options)));
  }
  if (latency.plans_.empty()) {
    if (options.plan == CudaPlan::kLatency)
      return CudaPlanUnsupported("latency", latency.description_);
    return latency;
  }
  const size_t bytes = latency.plans_.back().words * sizeof(uint64_t);
  RIVULET_ASSIGN_OR_RETURN(latency.exchange_, CudaMemory::OnDevice(bytes));
  RIVULET_ASSIGN_OR_RETURN(latency.abort_, CudaMemory::OnDevice(sizeof(uint32_t)));
  RIVULET_ASSIGN_OR_RETURN(latency.end_, CudaEvent::Create());
  args.exchange = static_cast<uint64_t*>(latency.exchange_.data());
  args.abort = static_cast<uint32_t*>(latency.abort_.data());
  RIVULET_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(args.exchange, 0, bytes, queue.stream()));
  RIVULET_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(args.abort, 0, sizeof(uint32_t), queue.stream()));
  RIVULET_RETURN_IF_ERROR(latency.WarmUp(block, queue));
  return latency;
}

absl::Status CudaLatency::WarmUp(const CudaMemory& block, CudaQueue& queue) {
  const CudaRunBlock idle = CudaRunBlock::PlacePlain(block.data(), rows());
  RIVULET_ASSIGN_OR_RETURN(void* const room, queue.Stage(idle.bytes));
  FillIdleCudaRunBlock(rows(), CudaRunBlock::PlacePlain(room, rows()));
  RIVULET_CUDA_RETURN_IF_ERROR(
      cudaMemcpyAsync(block.data(), room, idle.bytes, cudaMemcpyHostToDevice, queue.stream()));
  for (const LatencyPlan& plan : plans_) {
    RIVULET_RETURN_IF_ERROR(Run(queue, idle.step, plan.rows, 1));
  }
  return absl::OkStatus();
}

absl::Status CudaLatency::Run(const CudaQueue& queue, const kernels::CudaStepRows& step, int rows,
                              int steps) {
  // No flag is used twice: before they repeat, the words are cleared.
  if (next_flag_ + uint64_t(steps) > std::numeric_limits<uint32_t>::max()) {
    RIVULET_CUDA_RETURN_IF_ERROR(
        cudaMemsetAsync(exchange_.data(), 0, exchange_.bytes(), queue.stream()));
    next_flag_ = 1;
  }
  args_.step = step;
  args_.rows = rows;
  args_.steps = steps;
  args_.first_flag = uint32_t(next_flag_);
  args_.plan = *std::find_if(plans_.begin(), plans_.end(),
                             [&](const LatencyPlan& plan) { return plan.rows >= rows; });
  next_flag_ += uint64_t(steps);
  return Turns::Get().Take(device_, end_, queue.stream(), [&] {
    return CudaStatus(kernels::LatencyCuda(queue.launch(), args_), "launching steps of few rows");
  });
}

}  // namespace rivulet
