// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_backend.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/cuda/cuda_device.h"
#include "model/cuda/cuda_limits.h"
#include "model/cuda/cuda_model_args.h"
#include "model/cuda/cuda_need.h"
#include "model/cuda/cuda_network.h"
#include "model/cuda/cuda_outputs.h"
#include "model/cuda/cuda_products.h"
#include "model/cuda/cuda_prompts.h"
#include "model/cuda/cuda_queue.h"
#include "model/cuda/cuda_records.h"
#include "model/cuda/cuda_run_block.h"
#include "model/cuda/cuda_run_plan.h"
#include "model/cuda/cuda_slots.h"
#include "model/cuda/cuda_steps.h"

namespace rivulet {
namespace {

// All resources on the device. If the device hangs, all of it is abandoned.
struct OnDevice {
  CudaQueue queue;
  std::unique_ptr<CudaNetwork> network;
  CudaSlots slots;
  CudaRecords records;
  CudaOutputs outputs;
  CudaProducts products;          // products of a library
  CudaMemory block;               // holds the arrays of a run
  std::vector<CudaGraph> graphs;  // one step, by bucket
  CudaPrompts prompts;            // first steps of a single prompt
  CudaEvent end;                  // of the outstanding run
};

// Waits for work in flight and frees everything; after a hang it frees nothing, because that would
// wait for ever.
void GiveBack(std::unique_ptr<OnDevice> state, absl::Status status) {
  if (!IsCudaHang(status)) status = state->queue.AwaitAll();
  if (IsCudaHang(status)) (void)state.release();
}

class CudaBackend final : public Backend {
 public:
  // `state` holds only the network yet.
  CudaBackend(std::shared_ptr<const Model> model, std::unique_ptr<OnDevice> state,
              const CudaDevice& device, const BackendLimits& limits, CudaLibrary library)
      : model_(std::move(model)),
        config_(model_->config()),
        device_(device),
        limits_(limits),
        library_(std::move(library)),
        buckets_(CudaBuckets(limits.max_rows)),
        state_(std::move(state)),
        steps_(config_, *state_->network, state_->slots, state_->records, state_->outputs),
        plan_(limits),
        order_(limits.max_rows) {
    run_.rows.reserve(size_t(limits.max_rows));
  }
  ~CudaBackend() override {
    (void)device_.MakeCurrent();
    GiveBack(std::move(state_), poison_);
  }

  // Everything before the first run.
  absl::Status Start(const CudaBackendOptions& options) {
    const absl::Status status = Prepare(options);
    return Poisoning(status);
  }

  const BackendLimits& limits() const override { return limits_; }

  absl::Status ZeroSlots(std::span<const Slot> slots) override {
    RIVULET_RETURN_IF_ERROR(Enter());
    for (const Slot slot : slots) RIVULET_RETURN_IF_ERROR(CheckSlot(slot));
    return Poisoning(state_->slots.Zero(slots, state_->queue));
  }

  absl::Status SetSampler(Slot slot, const SlotSampler& sampler) override {
    RIVULET_RETURN_IF_ERROR(Enter());
    RIVULET_RETURN_IF_ERROR(CheckSlot(slot));
    return Poisoning(state_->slots.SetSampler(slot, sampler, state_->queue));
  }

  absl::Status CopySlot(Slot from, Slot to) override {
    RIVULET_RETURN_IF_ERROR(Enter());
    RIVULET_RETURN_IF_ERROR(CheckSlot(from));
    RIVULET_RETURN_IF_ERROR(CheckSlot(to));
    return Poisoning(state_->slots.Copy(from, to, state_->queue));
  }

  size_t StateFloats(Slot slot) const override { return state_->slots.StateFloats(slot); }

  absl::Status ReadPart(Slot slot, size_t from, std::span<float> out) override {
    RIVULET_RETURN_IF_ERROR(Enter());
    RIVULET_RETURN_IF_ERROR(CheckSlot(slot));
    if (from + out.size() > StateFloats(slot)) return absl::InternalError("ReadPart: wrong size");
    return Poisoning(state_->slots.Read(slot, from, out, state_->queue));
  }

  absl::Status WriteParts(Slot slot, std::span<const std::span<const float>> parts) override {
    RIVULET_RETURN_IF_ERROR(Enter());
    RIVULET_RETURN_IF_ERROR(CheckSlot(slot));
    size_t bytes = 0;
    for (const auto& part : parts) bytes += part.size_bytes();
    if (!limits_.state.Fits(bytes, limits_.context))
      return absl::InternalError("WriteParts: wrong size");
    return Poisoning(state_->slots.Write(slot, parts, state_->queue));
  }

  absl::Status Submit(const Run& run) override {
    RIVULET_RETURN_IF_ERROR(Enter());
    if (outstanding_) return absl::InternalError("Submit while a run is outstanding");
    RIVULET_RETURN_IF_ERROR(CheckCudaRun(run, limits_, config_));
    return Poisoning(QueueRun(run));
  }

  absl::StatusOr<bool> Poll(std::vector<Record>* records) override {
    RIVULET_RETURN_IF_ERROR(Enter());
    if (!outstanding_) return true;
    std::move(late_.begin(), late_.end(), std::back_inserter(*records));
    late_.clear();
    absl::StatusOr<bool> complete = TakeRecords(records);
    if (!complete.ok()) return Poisoning(complete.status());
    outstanding_ = !*complete;
    return complete;
  }

 private:
  using Clock = std::chrono::steady_clock;

  // The beginning of every call: returns the poison, or sets the device of the calling thread.
  absl::Status Enter() {
    RIVULET_RETURN_IF_ERROR(poison_);
    return Poisoning(device_.MakeCurrent());
  }
  // An error of the device is permanent; a refused argument is not.
  absl::Status Poisoning(const absl::Status& status) {
    if (!status.ok() && !absl::IsInvalidArgument(status)) poison_ = status;
    return status;
  }
  absl::Status CheckSlot(Slot slot) const {
    if (slot > kGuardSlot && slot <= limits_.num_slots) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("slot ", slot, " is not in 1..", limits_.num_slots));
  }

  absl::Status Prepare(const CudaBackendOptions& options);
  absl::Status PlanProducts(const CudaBackendOptions& options);
  absl::Status CaptureSteps();
  absl::Status WarmUp(int num_tokens);
  absl::Status QueueRun(const Run& run);
  absl::StatusOr<bool> TakeRecords(std::vector<Record>* records);
  bool TakeArrived(std::vector<Record>* records);

  const std::shared_ptr<const Model> model_;
  const ModelConfig& config_;
  const CudaDevice device_;
  BackendLimits limits_;  // constant once started
  const CudaLibrary library_;
  const std::vector<int> buckets_;
  std::unique_ptr<OnDevice> state_;
  const CudaSteps steps_;
  absl::Status poison_;

  // The outstanding run.
  bool outstanding_ = false;
  Run run_;
  CudaRunPlan plan_;
  CudaRecordOrder order_;
  std::vector<Record> late_;  // of rows whose mask has no bits
  Clock::time_point last_progress_;
};

absl::Status CudaBackend::Prepare(const CudaBackendOptions& options) {
  OnDevice& d = *state_;
  // A piece of readback holds a row of outputs, or many rows of a small head.
  constexpr size_t kReadbackBytes = size_t{4} << 20, kStagingBytes = size_t{1} << 20;
  const size_t readback = std::max(kReadbackBytes, size_t(config_.output_size()) * sizeof(float));
  RIVULET_ASSIGN_OR_RETURN(
      d.queue, CudaQueue::Create(device_, std::max(kStagingBytes, CudaRunBlock::MaxBytes(limits_)),
                                 readback, options.patience));
  RIVULET_RETURN_IF_ERROR(CudaSteps::Prepare());
  RIVULET_RETURN_IF_ERROR(d.network->Load(limits_, library_, d.queue));
  RIVULET_ASSIGN_OR_RETURN(
      d.slots, CudaSlots::Create(config_, limits_, d.network->initial_state(), d.queue));
  RIVULET_ASSIGN_OR_RETURN(d.records, CudaRecords::Create(limits_, kCudaMaxTop));
  RIVULET_ASSIGN_OR_RETURN(d.outputs,
                           CudaOutputs::Create(config_, limits_.head_rows, d.queue.launch()));
  RIVULET_RETURN_IF_ERROR(PlanProducts(options));
  RIVULET_ASSIGN_OR_RETURN(d.block, CudaMemory::OnDevice(CudaRunBlock::MaxBytes(limits_)));
  RIVULET_ASSIGN_OR_RETURN(d.end, CudaEvent::Create());
  RIVULET_RETURN_IF_ERROR(WarmUp(options.library_rows));
  RIVULET_RETURN_IF_ERROR(CaptureSteps());
  RIVULET_ASSIGN_OR_RETURN(d.prompts,
                           CudaPrompts::Capture(steps_, d.queue, d.block.data(), limits_));
  return d.queue.AwaitAll();
}

// Chooses the products that a library runs, before the first launch of a step.
absl::Status CudaBackend::PlanProducts(const CudaBackendOptions& options) {
  OnDevice& d = *state_;
  RIVULET_ASSIGN_OR_RETURN(
      d.products, CudaProducts::Create(options, library_, d.network->Places(limits_.max_tokens),
                                       d.network->library_weights(), d.queue));
  limits_.products = d.products.description();
  limits_.weight_bytes -= d.products.bytes_freed();
  return absl::OkStatus();
}

// Captures a step for every bucket and runs it once, with padding rows, so that the device reserves
// its memory now.
absl::Status CudaBackend::CaptureSteps() {
  OnDevice& d = *state_;
  for (const int bucket : buckets_) {
    const CudaRunBlock block = CudaRunBlock::PlacePlain(d.block.data(), bucket);
    RIVULET_ASSIGN_OR_RETURN(CudaGraph graph,
                             CudaGraph::Capture(d.queue.stream(), d.queue.graphs(), [=, this, &d] {
                               return steps_.Step(d.queue.launch(), block, bucket);
                             }));
    d.graphs.push_back(std::move(graph));
    RIVULET_ASSIGN_OR_RETURN(void* const room, d.queue.Stage(block.bytes));
    FillIdleCudaRunBlock(bucket, CudaRunBlock::PlacePlain(room, bucket));
    RIVULET_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(d.block.data(), room, block.bytes,
                                                 cudaMemcpyHostToDevice, d.queue.stream()));
    RIVULET_RETURN_IF_ERROR(d.graphs.back().Launch(d.queue.stream()));
  }
  return absl::OkStatus();
}

// Runs a first step with so many padding tokens that products use their large tiles, so that most
// kernels are loaded now.
absl::Status CudaBackend::WarmUp(int num_tokens) {
  OnDevice& d = *state_;
  const std::vector<int32_t> tokens(size_t(std::min(num_tokens, limits_.max_tokens)));
  Run run;
  run.rows.resize(1);
  run.rows[0].tokens = tokens;
  run.rows[0].sample = true;
  run.rows[0].max_samples = 1;
  plan_.Build(run);
  plan_.plain = false;
  RIVULET_RETURN_IF_ERROR(d.slots.Ready(kGuardSlot, d.queue));
  CudaRunBlock block = CudaRunBlock::Place(d.block.data(), buckets_[0], plan_);
  RIVULET_ASSIGN_OR_RETURN(void* const room, d.queue.Stage(block.bytes));
  const CudaRunBlock host = CudaRunBlock::Place(room, buckets_[0], plan_);
  FillCudaRunBlock(run, plan_, buckets_[0], d.records.NextSequence(), host);
  host.segments[0].num_rows = 0;  // no state moves
  std::fill_n(host.positions, plan_.token_rows(), int64_t{0});
  RIVULET_CUDA_RETURN_IF_ERROR(
      cudaMemcpyAsync(d.block.data(), room, block.bytes, cudaMemcpyHostToDevice, d.queue.stream()));
  return steps_.First(d.queue, block, plan_, /*count=*/true);
}

absl::Status CudaBackend::QueueRun(const Run& run) {
  OnDevice& d = *state_;
  run_ = run;
  late_.clear();
  for (size_t i = 0; i < run_.rows.size(); ++i) {
    RunRow& row = run_.rows[i];
    const std::span<const uint32_t> mask =
        row.mask == nullptr ? std::span<const uint32_t>() : row.mask->Bits();
    RIVULET_RETURN_IF_ERROR(d.slots.SetMask(row.slot, mask, d.queue));
    if (row.mask == nullptr || !mask.empty()) continue;
    row.sample = false;  // nothing may be drawn
    Record& record = late_.emplace_back();
    record.row = int(i);
    record.position = row.position + std::ssize(row.tokens);
    record.late = true;
  }
  plan_.Build(run_);
  bool count = false;
  int draws = 0;
  for (const RunRow& row : run_.rows) {
    RIVULET_RETURN_IF_ERROR(d.slots.Ready(row.slot, d.queue));
    const bool counts = d.slots.counts(row.slot);
    count |= counts;
    // A step counts the tokens that it feeds as output.
    if (counts && !row.count_as_output) plan_.plain = false;
    const int row_draws = row.sample ? std::min(row.max_samples, run_.num_steps) : 0;
    draws = std::max(draws, row_draws);
    const int64_t fed = row.position + std::ssize(row.tokens);
    d.slots.Feed(row.slot, fed, fed + std::max(0, row_draws - 1));
  }
  const auto bucket = size_t(CudaBucketFor(buckets_, plan_.rows));
  const int prompt = d.prompts.RowsFor(plan_);
  const auto place = [&](void* base) {
    return prompt > 0 ? CudaRunBlock::PlacePrompt(base, buckets_[bucket], prompt)
                      : CudaRunBlock::Place(base, buckets_[bucket], plan_);
  };
  const CudaRunBlock block = place(d.block.data());
  RIVULET_ASSIGN_OR_RETURN(void* const room, d.queue.Stage(block.bytes));
  const CudaRunBlock host = place(room);
  FillCudaRunBlock(run_, plan_, buckets_[bucket], d.records.NextSequence(), host);
  if (prompt > 0) PadCudaPrompt(plan_.token_rows(), int(plan_.outputs.size()), prompt, host);
  RIVULET_CUDA_RETURN_IF_ERROR(
      cudaMemcpyAsync(d.block.data(), room, block.bytes, cudaMemcpyHostToDevice, d.queue.stream()));
  const bool direct = prompt == 0 && !plan_.plain;
  if (direct) RIVULET_RETURN_IF_ERROR(steps_.First(d.queue, block, plan_, count));
  if (prompt > 0 && count) RIVULET_RETURN_IF_ERROR(steps_.Count(d.queue.launch(), block, 1));
  if (prompt > 0) RIVULET_RETURN_IF_ERROR(d.prompts.Launch(prompt, d.queue.stream()));
  const int steps = draws - (plan_.plain ? 0 : 1);  // equal steps
  for (int step = 0; step < steps; ++step) {
    RIVULET_RETURN_IF_ERROR(d.graphs[bucket].Launch(d.queue.stream()));
  }
  RIVULET_RETURN_IF_ERROR(d.end.Record(d.queue.stream()));
  order_.Start(run_, plan_);
  outstanding_ = true;
  last_progress_ = Clock::now();
  return absl::OkStatus();
}

// Appends the records that have arrived, in their order. Returns whether there was one.
bool CudaBackend::TakeArrived(std::vector<Record>* records) {
  bool any = false;
  for (Record record; !order_.done() && state_->records.Take(order_.next(), &record); any = true) {
    // A token is drawn once all tokens before it were fed.
    state_->slots.Feed(run_.rows[size_t(record.row)].slot, record.position, record.position);
    order_.Take(record.stopped || record.non_finite);
    records->push_back(std::move(record));
  }
  return any;
}

absl::StatusOr<bool> CudaBackend::TakeRecords(std::vector<Record>* records) {
  OnDevice& d = *state_;
  if (TakeArrived(records)) {
    // All records have arrived; there is no need to query the device.
    if (order_.done() && !d.queue.copies_wait()) return true;
    last_progress_ = Clock::now();
    return false;
  }
  RIVULET_ASSIGN_OR_RETURN(const bool passed, d.end.Passed());
  if (!passed) {
    if (Clock::now() - last_progress_ > absl::ToChronoNanoseconds(d.queue.patience())) {
      return CudaHangStatus("the next record of a run", d.queue.patience());
    }
    return false;
  }
  TakeArrived(records);  // that arrived before the query's answer
  if (!order_.done()) {
    return MakeError(absl::StatusCode::kUnavailable, "a CUDA run ended without its records",
                     {"CUDA_ERROR", "", {}});
  }
  d.queue.Deliver();
  return true;
}

CudaLibrary OpenLibrary(const CudaNetwork& network, const CudaBackendOptions& options,
                        const BackendLimits& limits) {
  std::string why_not = network.WhyNoLibrary();
  if (!why_not.empty()) return {nullptr, std::move(why_not)};
  return OpenCudaLibrary(options, limits);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(std::shared_ptr<const Model> model,
                                                           const CudaBackendOptions& options) {
  RIVULET_RETURN_IF_ERROR(CheckCudaOptions(options));
  RIVULET_ASSIGN_OR_RETURN(CudaDevice device, CudaDevice::Open(options.device));
  // After the device is opened: without one these may be options for the CPU.
  RIVULET_RETURN_IF_ERROR(
      CheckCudaWeights(options.weights, options.precision == CudaPrecision::kFloat32));
  device.overlap = device.overlap && options.overlap;
  device.graphs = options.graphs;
  const ModelConfig& config = model->config();
  auto state = std::make_unique<OnDevice>();
  RIVULET_ASSIGN_OR_RETURN(
      state->network,
      NewCudaNetwork(*model, options, {state->slots, state->outputs, state->products}));
  BackendLimits limits = CudaLimits(config, options, device, state->network->numerics_version());
  CudaLibrary library = OpenLibrary(*state->network, options, limits);
  const auto measure = [&] {
    return MeasureCudaNeed(config, *state->network, limits, options, library);
  };
  RIVULET_ASSIGN_OR_RETURN(CudaNeed need, measure());
  if (options.max_context.slots) {  // a longer context needs more work space
    limits.context = need.context;
    RIVULET_ASSIGN_OR_RETURN(need, measure());
  }
  if (!need.Fit(options) && library.library != nullptr) {
    library = {nullptr, "no memory for a second copy of the weights"};
    RIVULET_ASSIGN_OR_RETURN(need, measure());
  }
  if (!need.Fit(options)) return need.OutOfMemory();
  limits.context = need.context;
  limits.bytes_per_slot = limits.state.At(need.context);
  limits.num_slots = need.num_slots;
  limits.slots_choice = need.slots_choice;
  limits.contexts = SlotsByContext(need.Room(config));
  limits.head_rows = need.head_rows;
  limits.max_rows = std::min(limits.max_rows, limits.num_slots);
  limits.weight_bytes = need.weights;
  auto backend = std::make_unique<CudaBackend>(std::move(model), std::move(state), device, limits,
                                               std::move(library));
  const absl::Status started = backend->Start(options);
  // Allocation rounds sizes up, and other processes on the device take memory, too.
  if (absl::IsResourceExhausted(started)) return need.OutOfMemory();
  if (!started.ok()) return started;
  return backend;
}

absl::Status CheckCudaDevice(int index) { return CudaDevice::Open(index).status(); }

}  // namespace rivulet
