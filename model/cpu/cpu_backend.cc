// SPDX-License-Identifier: Apache-2.0
#include "model/cpu/cpu_backend.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_target.h"
#include "kernels/linear_attention.h"
#include "model/base/error.h"
#include "model/base/memory.h"
#include "model/base/thread_team.h"
#include "model/cache_type.h"
#include "model/cpu/cpu_network.h"
#include "model/cpu/cpu_predictor.h"
#include "model/cpu/cpu_replay.h"
#include "model/cpu/cpu_sampling.h"
#include "model/cpu/cpu_step_plan.h"
#include "model/cpu/memory_plan.h"
#include "model/loading/aligned_buffer.h"
#include "model/loading/tensor_packer.h"
#include "model/slot_choice.h"

namespace rivulet {
namespace {

Record NewRecord(int row, int64_t position) {
  Record record;
  record.row = row;
  record.position = position;
  record.logprob = std::nanf("");
  return record;
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(std::shared_ptr<const Model> model, std::unique_ptr<const CpuNetwork> network,
             AlignedBuffer slots, const BackendLimits& limits, int threads)
      : model_(std::move(model)),
        config_(model_->config()),
        network_(std::move(network)),
        slots_(std::move(slots)),
        samplers_(size_t(limits.num_slots) + 1),
        used_(size_t(limits.num_slots) + 1, limits.state.fixed),
        kept_outputs_(size_t(limits.num_slots) + 1),
        limits_(limits),
        sampling_(config_),
        team_(threads),
        plan_(config_.experts() != nullptr),
        shared_(network_->NewActivations(plan_.shared_rows(), threads)),
        adjusted_(size_t(threads)) {
    for (int i = 0; i < threads && config_.experts() == nullptr; ++i) {
      solo_.push_back(network_->NewActivations(kSoloRows + kSoloTokens - 1, 1));
    }
    for (int i = 0; i < limits_.drafts.rows; ++i) {
      replays_.push_back(network_->NewReplay(1 + limits_.drafts.most, threads));
    }
    if (limits_.drafts.guesses > 0) predictor_.emplace(*network_, config_);
  }

  const BackendLimits& limits() const override { return limits_; }

  absl::Status ZeroSlots(std::span<const Slot> slots) override {
    const std::span<const float> initial = network_->initial_state();
    for (const Slot slot : slots) {
      RIVULET_RETURN_IF_ERROR(CheckSlot(slot));
      if (initial.empty()) {
        std::memset(State(slot), 0, Used(slot));
      } else {
        std::memcpy(State(slot), initial.data(), limits_.bytes_per_slot);
      }
      used_[size_t(slot)] = limits_.state.fixed;
      samplers_[size_t(slot)] = {};
      kept_outputs_[size_t(slot)].clear();
      if (predictor_) predictor_->Forget(slot);
    }
    return absl::OkStatus();
  }

  absl::Status SetSampler(Slot slot, const SlotSampler& sampler) override {
    RIVULET_RETURN_IF_ERROR(CheckSlot(slot));
    samplers_[size_t(slot)].SetSampler(sampler, config_.vocab_size);
    return absl::OkStatus();
  }

  absl::Status CopySlot(Slot from, Slot to) override {
    RIVULET_RETURN_IF_ERROR(CheckSlot(from));
    RIVULET_RETURN_IF_ERROR(CheckSlot(to));
    const std::span<const float> whole(State(from), Used(from) / sizeof(float));
    Fill(to, {&whole, 1});
    samplers_[size_t(to)].in_prompt = samplers_[size_t(from)].in_prompt;
    samplers_[size_t(to)].output_count = samplers_[size_t(from)].output_count;
    return absl::OkStatus();
  }

  size_t StateFloats(Slot slot) const override { return Used(slot) / sizeof(float); }

  absl::Status ReadPart(Slot slot, size_t from, std::span<float> out) override {
    RIVULET_RETURN_IF_ERROR(CheckSlot(slot));
    if (from * sizeof(float) + out.size_bytes() > Used(slot))
      return absl::InternalError("ReadPart: wrong size");
    std::memcpy(out.data(), State(slot) + from, out.size_bytes());
    return absl::OkStatus();
  }

  absl::Status WriteParts(Slot slot, std::span<const std::span<const float>> parts) override {
    RIVULET_RETURN_IF_ERROR(CheckSlot(slot));
    size_t bytes = 0;
    for (const auto& part : parts) bytes += part.size_bytes();
    if (!limits_.state.Fits(bytes, limits_.context))
      return absl::InternalError("WriteParts: wrong size");
    Fill(slot, parts);
    return absl::OkStatus();
  }

  absl::Status Submit(const Run& run) override {
    RIVULET_RETURN_IF_ERROR(CheckRun(run));
    progress_.assign(run.rows.size(), Progress{});
    DrawLate(run);
    for (int step = 0; step < run.num_steps; ++step) {
      PlanStep(run, step);
      if (plan_.empty()) break;
      RunStep(run);
      Advance(run);
      GuessNext(run);
      TakeBackRejected(run);
    }
    return absl::OkStatus();
  }

  size_t matrix_bytes() const {
    size_t bytes = shared_->scratch.matrix_bytes;
    for (const auto& own : solo_) bytes += own->scratch.matrix_bytes;
    return bytes;
  }

  absl::StatusOr<bool> Poll(std::vector<Record>* records) override {
    for (Record& record : records_) records->push_back(std::move(record));
    records_.clear();
    return true;
  }

 private:
  // The progress of a row in the current run.
  struct Progress {
    int samples = 0;
    bool ended = false;
    int32_t next_token = 0;       // sampled, to be fed by the next step
    int record = -1;              // of this step's last draw, index into records_; -1: none
    CpuReplay* replay = nullptr;  // of a row with drafts
    int rejected = 0;             // drafts
  };
  // Bytes of the slot that its sequence has filled; bytes behind are zeros.
  size_t Used(Slot slot) const { return used_[size_t(slot)]; }
  void Fill(Slot slot, std::span<const std::span<const float>> parts) {
    float* at = State(slot);
    for (const auto& part : parts) at = std::copy(part.begin(), part.end(), at);
    const size_t bytes = size_t(at - State(slot)) * sizeof(float);
    size_t& used = used_[size_t(slot)];
    if (used > bytes) std::memset(at, 0, used - bytes);
    used = bytes;
    if (predictor_) predictor_->Forget(slot);
  }

  float* State(Slot slot) const {
    return slots_.floats() + size_t(slot) * (limits_.bytes_per_slot / sizeof(float));
  }

  absl::Status CheckSlot(Slot slot) const {
    if (slot > kGuardSlot && slot <= limits_.num_slots) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("slot ", slot, " is not in 1..", limits_.num_slots));
  }
  absl::Status CheckRun(const Run& run) const;
  void PlanStep(const Run& run, int step);
  void RunStep(const Run& run);
  void Finish(const Run& run, const CpuPiece& piece, const CpuActivations& activations, int part,
              int parts, int thread);
  void FinishOutput(const Run& run, int index, int offset, const float* outputs);
  void DrawRow(const Run& run, int index, const CpuActivations& activations, int thread);
  void Draw(Slot slot, const TokenMask* mask, const float* outputs, int thread, Record* record);
  void DrawLate(const Run& run);
  void Advance(const Run& run);
  void GuessNext(const Run& run);
  void TakeBackRejected(const Run& run);

  const std::shared_ptr<const Model> model_;
  const ModelConfig& config_;
  const std::unique_ptr<const CpuNetwork> network_;
  const AlignedBuffer slots_;
  std::vector<CpuSlotSampler> samplers_;  // [num_slots + 1]
  std::vector<size_t> used_;              // [num_slots + 1]
  // [num_slots + 1]: the outputs of a slot whose last row did not draw, as its mask had no bits.
  std::vector<std::vector<float>> kept_outputs_;
  const BackendLimits limits_;
  const CpuSampling sampling_;
  ThreadTeam team_;
  CpuStepPlan plan_;  // of the current step
  const std::unique_ptr<CpuActivations> shared_;
  std::vector<std::unique_ptr<CpuActivations>> solo_;  // [threads]
  std::vector<std::unique_ptr<CpuReplay>> replays_;    // [limits_.drafts.rows]
  std::optional<CpuPredictor> predictor_;
  std::vector<std::vector<float>> adjusted_;  // [threads][2 vocab]

  // The current run and step; these are members so that a step allocates nothing.
  std::vector<Progress> progress_;  // [rows]
  std::vector<Record> records_;
};

absl::Status CpuBackend::CheckRun(const Run& run) const {
  if (int(run.rows.size()) > limits_.max_rows || run.num_steps < 1 ||
      run.num_steps > limits_.max_steps) {
    return absl::InternalError("run exceeds the backend's limits");
  }
  int speculating = 0, guessing = 0;
  for (const RunRow& row : run.rows) {
    RIVULET_RETURN_IF_ERROR(CheckSlot(row.slot));
    const bool fits = row.drafts <= limits_.drafts.most && std::ssize(row.tokens) == 1 + row.drafts;
    if (row.drafts != 0 && (!fits || !row.sample || row.max_samples <= row.drafts ||
                            run.num_steps != 1 || ++speculating > limits_.drafts.rows)) {
      return absl::InternalError("the drafts of a row exceed the backend's limits");
    }
    if (row.guesses != 0 && (row.guesses < 0 || row.guesses > limits_.drafts.guesses ||
                             run.num_steps != 1 || ++guessing > 1)) {
      return absl::InternalError("the guesses of a row exceed the backend's limits");
    }
    const bool draws_late = row.sample && !kept_outputs_[size_t(row.slot)].empty();
    if ((row.tokens.empty() && !draws_late) ||
        (!row.targets.empty() && row.targets.size() != row.tokens.size())) {
      return absl::InternalError("a row feeds at least one token, and has all targets or none");
    }
    const int64_t end = row.position + std::ssize(row.tokens) +
                        (row.sample ? std::min(row.max_samples, run.num_steps) - 1 : 0);
    if (limits_.context > 0 && end > limits_.context) {
      return absl::InternalError(
          absl::StrCat("position ", end, " is beyond the context of ", limits_.context));
    }
    for (const int32_t token : row.tokens) {
      if (token < 0 || token >= config_.vocab_size)
        return absl::InternalError(absl::StrCat("token ", token));
    }
    for (const int32_t target : row.targets) {
      if (target < 0 || target >= config_.num_output_tokens()) {
        return absl::InternalError(absl::StrCat("target ", target));
      }
    }
  }
  return absl::OkStatus();
}

// Lists what this step feeds: the rows' tokens in the first step, the sampled ones later.
void CpuBackend::PlanStep(const Run& run, int step) {
  plan_.Clear();
  const auto add = [&](const RunRow& row, int index, std::span<const int32_t> tokens,
                       int64_t position, int* num_records) {
    size_t& used = used_[size_t(row.slot)];
    used = std::max(used, limits_.state.At(position + std::ssize(tokens)));
    CpuReplay* const replay = progress_[size_t(index)].replay;
    if (replay != nullptr) replay->Begin(State(row.slot));
    plan_.Add(row, index, State(row.slot), tokens, position, row.sample, replay, num_records);
  };
  auto replay = replays_.begin();
  int num_records = int(records_.size());
  for (int i = 0; i < int(run.rows.size()); ++i) {
    const RunRow& row = run.rows[size_t(i)];
    Progress& progress = progress_[size_t(i)];
    CpuSlotSampler& sampler = samplers_[size_t(row.slot)];
    progress.record = -1;
    if (row.tokens.empty()) continue;
    if (step == 0) {
      kept_outputs_[size_t(row.slot)].clear();
      const size_t certain = row.tokens.size() - size_t(row.drafts);
      for (const int32_t token : row.tokens.first(certain)) {
        sampler.Count(token, row.count_as_output);
      }
      if (row.drafts > 0) progress.replay = (replay++)->get();
      add(row, i, row.tokens, row.position, &num_records);
      if (row.sample) progress.record = num_records - 1 - row.drafts;
    } else if (row.sample && !progress.ended && progress.samples < row.max_samples) {
      sampler.Count(progress.next_token, /*as_output=*/true);
      const int64_t position = row.position + int64_t(row.tokens.size()) + step - 1;
      RunRow next = row;  // later steps score nothing
      next.targets = {};
      next.outputs = {};
      add(next, i, {&progress.next_token, 1}, position, &num_records);
      progress.record = num_records - 1;
    }
  }
  records_.resize(size_t(num_records));
  const WeightFacts& weights = network_->weights();
  plan_.CutPieces(team_.size(), weights.multiply_adds, weights.short_weights);
}

void CpuBackend::RunStep(const Run& run) {
  using Mode = CpuStepPlan::Mode;
  SpinBarrier alone(1);
  if (plan_.mode == Mode::kAlone) {
    for (const CpuPiece& piece : plan_.pieces) {
      network_->Pass(plan_.segments_of(piece), *shared_, 0, 1, alone);
      Finish(run, piece, *shared_, 0, 1, 0);
    }
    return;
  }
  std::atomic<size_t> next{0};  // any free thread takes the next Solo piece
  team_.Run([&](int thread, SpinBarrier& barrier) {
    if (plan_.mode == Mode::kSolo) {
      CpuActivations& own = *solo_[size_t(thread)];
      for (size_t i = next.fetch_add(1); i < plan_.pieces.size(); i = next.fetch_add(1)) {
        network_->Pass(plan_.segments_of(plan_.pieces[i]), own, 0, 1, alone);
        Finish(run, plan_.pieces[i], own, 0, 1, thread);
      }
      return;
    }
    for (const CpuPiece& piece : plan_.pieces) {
      network_->Pass(plan_.segments_of(piece), *shared_, thread, barrier.threads(), barrier);
      Finish(run, piece, *shared_, thread, barrier.threads(), thread);
      barrier.Wait();
    }
  });
}

// Records of one piece: part `part` of `parts` of its output rows, on thread `thread`.
void CpuBackend::Finish(const Run& run, const CpuPiece& piece, const CpuActivations& activations,
                        int part, int parts, int thread) {
  const int begin = int(int64_t{piece.output_rows} * part / parts);
  const int end = int(int64_t{piece.output_rows} * (part + 1) / parts);
  for (int i = piece.begin; i < piece.end; ++i) {
    const CpuSegment& segment = plan_.segments[size_t(i)];
    const int first_row = plan_.work[size_t(i)].output_row;
    const int rows = OutputRows({&segment, 1});
    for (int j = std::max(begin - first_row, 0); j < std::min(end - first_row, rows); ++j) {
      const int offset = int(segment.tokens.size()) - rows + j;
      const CpuWork& work = plan_.work[size_t(i)];
      if (work.tells) FinishOutput(run, i, offset, activations.output(first_row + j));
      if (work.sample && j == rows - 1 - work.drafts) DrawRow(run, i, activations, thread);
    }
  }
}

// Uses the outputs after one token, token `offset` of segment `index`: raw outputs, target.
void CpuBackend::FinishOutput(const Run& run, int index, int offset, const float* outputs) {
  const CpuSegment& segment = plan_.segments[size_t(index)];
  const CpuWork& work = plan_.work[size_t(index)];
  const RunRow& row = run.rows[size_t(work.row)];
  const int token = work.first_token + offset;
  for (const OutputRequest& request : row.outputs) {
    if (request.token_index == token) {
      std::memcpy(request.destination, outputs, size_t(config_.output_size()) * sizeof(float));
    }
  }
  if (row.targets.empty()) return;
  Record& scored = records_[size_t(work.record + offset)];
  scored = NewRecord(work.row, segment.position + offset + 1);
  scored.token = row.targets[size_t(token)];
  scored.non_finite = !sampling_.Finite(outputs);
  if (!scored.non_finite) sampling_.Score(outputs, scored.token, &scored);
}

// The draws of segment `index`: after the last token that is no draft, and after each draft that
// equals the draw before it. One thread makes them in order, because penalties count these drafts.
void CpuBackend::DrawRow(const Run& run, int index, const CpuActivations& activations, int thread) {
  const CpuSegment& segment = plan_.segments[size_t(index)];
  const CpuWork& work = plan_.work[size_t(index)];
  const RunRow& row = run.rows[size_t(work.row)];
  Progress& progress = progress_[size_t(work.row)];
  const int draws = 1 + work.drafts, first_output = work.output_row + segment.outputs - draws;
  Record* const records = &records_[size_t(progress.record)];
  const std::span<const int32_t> drafts = segment.tokens.last(size_t(work.drafts));
  const int64_t end = segment.position + std::ssize(segment.tokens);
  for (int i = 0; i < draws; ++i) {
    const float* const outputs = activations.output(first_output + i);
    const TokenMask* const mask = i == 0                    ? row.mask
                                  : row.draft_masks.empty() ? nullptr
                                                            : row.draft_masks[size_t(i - 1)];
    Record& record = records[i] = NewRecord(work.row, end - work.drafts + i);
    record.non_finite = !sampling_.Finite(outputs);
    if (!record.non_finite) Draw(row.slot, mask, outputs, thread, &record);
    const bool ends = record.non_finite || record.late || record.stopped;
    if (ends || i == work.drafts || record.token != drafts[size_t(i)]) {
      progress.rejected = work.drafts - i;
      progress.record += i;
      break;
    }
    samplers_[size_t(row.slot)].Count(record.token, /*as_output=*/true);
  }
  for (int i = draws - progress.rejected; i < draws; ++i) records[i].row = -1;  // not made
  const int right = work.drafts - progress.rejected;
  const Record& last = records[right];
  if (row.guesses == 0 || last.non_finite || last.late || last.stopped) return;
  std::vector<int32_t> drawn(drafts.begin(), drafts.begin() + right);
  drawn.push_back(last.token);
  predictor_->Take(row.slot, row.guesses, drawn, activations.scratch.head_rows, first_output);
}

// Draws, or keeps the outputs if the mask has no bits.
void CpuBackend::Draw(Slot slot, const TokenMask* mask, const float* outputs, int thread,
                      Record* record) {
  const std::span<const uint32_t> bits =
      mask == nullptr ? std::span<const uint32_t>() : mask->Bits();
  std::vector<float>& kept = kept_outputs_[size_t(slot)];
  record->late = mask != nullptr && bits.empty();
  if (!record->late) {
    sampling_.Sample(samplers_[size_t(slot)], outputs, bits, &adjusted_[size_t(thread)], record);
    kept.clear();
  } else if (kept.empty()) {
    kept.assign(outputs, outputs + config_.output_size());
  }
}

// The rows that draw from kept outputs.
void CpuBackend::DrawLate(const Run& run) {
  for (size_t i = 0; i < run.rows.size(); ++i) {
    const RunRow& row = run.rows[i];
    if (!row.tokens.empty()) continue;
    Record record = NewRecord(int(i), row.position);
    const std::vector<float> outputs = std::move(kept_outputs_[size_t(row.slot)]);
    Draw(row.slot, row.mask, outputs.data(), 0, &record);
    records_.push_back(std::move(record));
  }
}

void CpuBackend::Advance(const Run& run) {
  for (size_t i = 0; i < run.rows.size(); ++i) {
    Progress& progress = progress_[i];
    if (progress.record < 0) continue;
    const Record& record = records_[size_t(progress.record)];
    ++progress.samples;
    progress.next_token = record.token;
    progress.ended = record.stopped || record.non_finite;
  }
}

void CpuBackend::GuessNext(const Run& run) {
  if (!predictor_) return;
  const auto wants =
      std::ranges::find_if(run.rows, [](const RunRow& row) { return row.guesses > 0; });
  std::vector<int32_t> guesses = predictor_->Guess(&team_, shared_.get());
  if (wants == run.rows.end()) return;
  const int record = progress_[size_t(wants - run.rows.begin())].record;
  if (record >= 0) records_[size_t(record)].guesses = std::move(guesses);
}

// What rejected drafts have changed in the slots, and the records for draws that were not made.
void CpuBackend::TakeBackRejected(const Run& run) {
  const auto has_rejected = [](const Progress& progress) { return progress.rejected > 0; };
  if (std::ranges::none_of(progress_, has_rejected)) return;
  for (size_t i = 0; i < run.rows.size(); ++i) {
    const RunRow& row = run.rows[i];
    const int64_t end = row.position + std::ssize(row.tokens) - progress_[i].rejected;
    if (has_rejected(progress_[i])) used_[size_t(row.slot)] = limits_.state.At(end);
  }
  const auto rewind = [&](int thread, int threads) {
    for (size_t i = 0; i < run.rows.size(); ++i) {
      const int right = int(run.rows[i].tokens.size()) - progress_[i].rejected;
      if (has_rejected(progress_[i])) progress_[i].replay->Rewind(right, thread, threads);
    }
  };
  if (plan_.mode == CpuStepPlan::Mode::kAlone) {
    rewind(0, 1);
  } else {
    team_.Run([&](int thread, SpinBarrier& barrier) { rewind(thread, barrier.threads()); });
  }
  std::erase_if(records_, [](const Record& record) { return record.row < 0; });
}

absl::Status CheckOptions(const CpuBackendOptions& options) {
  const auto check = [](absl::string_view field, int value, int low, int high) {
    if (value >= low && value <= high) return absl::OkStatus();
    return InvalidField("OPTION_OUT_OF_RANGE", field,
                        absl::StrCat(field, " is ", value, "; allowed: ", low, " to ", high));
  };
  RIVULET_RETURN_IF_ERROR(check("num_slots", options.num_slots.value_or(1), 1, 1 << 24));
  RIVULET_RETURN_IF_ERROR(CheckContextChoice(options.max_context));
  RIVULET_RETURN_IF_ERROR(check("threads", options.threads, 0, 1024));
  RIVULET_RETURN_IF_ERROR(check("max_rows", options.max_rows, 1, 1 << 20));
  RIVULET_RETURN_IF_ERROR(check("max_drafts", options.max_drafts, 0, kMostDrafts));
  RIVULET_RETURN_IF_ERROR(check("speculating_rows", options.speculating_rows, 1, 1 << 20));
  return check("max_tokens", options.max_tokens, options.max_rows, 1 << 24);
}

// Increased by each change of the code that changes bits.
constexpr int kNumericsVersion = 1;

std::string NumericsId(const WeightFacts& weights, const WeightChoice& asked, const Model& model,
                       kernels::CacheType cache) {
  const WeightChoice choice = ResolveHead(asked, model.config());
  const bool blocks = HasBlocks(model.tensors());
  // The type of lossless numbers changes no bit. Blocks of integers that stay packed are multiplied
  // with activations of 8 bits, decoded blocks are not: each choice has its own id.
  std::string type = !weights.lossless || blocks ? WeightNumerics(choice) : "exact";
  if (blocks && weights.widest_quantized > 0) absl::StrAppend(&type, "-a8");
  return absl::StrCat("cpu-f32-", type, kernels::CpuTargetFuses() ? "-fma-" : "-nofma-",
                      kNumericsVersion,
                      model.config().state().attention ? CacheNumerics(cache) : "");
}

// The most guesses of a row: each reads the head's weights.
constexpr int kMostGuesses = 4;

// 0: the model has no predictor, or drafts do not pay for it, as rows read experts of their own.
int MostGuesses(const Model& model, const CpuBackendOptions& options) {
  const auto* const block = std::get_if<BlockConfig>(&model.config().network);
  const bool has = block != nullptr && block->kind->mixer == Mixer::kDelta && block->softmax &&
                   model.config().state().attention &&
                   model.tensors().Find("mtp.fc.weight") != nullptr;
  return has && !block->experts ? std::min(options.max_drafts, kMostGuesses) : 0;
}

}  // namespace

size_t CpuMatrixBytes(const Backend& backend) {
  return static_cast<const CpuBackend&>(backend).matrix_bytes();
}

absl::StatusOr<BackendLimits> PlanCpuBackend(const Model& model, const CpuBackendOptions& options) {
  RIVULET_RETURN_IF_ERROR(CheckOptions(options));
  BackendLimits limits;
  limits.drafts.guesses = MostGuesses(model, options);
  RIVULET_ASSIGN_OR_RETURN(const WeightPlan plan,
                           PackedWeights::Plan(model, options.weights, limits.drafts.guesses > 0));
  limits.weight_bytes = plan.facts.bytes;
  HostMemory memory = ReadHostMemory();
  memory.available -= static_cast<int64_t>(plan.facts.bytes);  // which a start has loaded by now
  RIVULET_RETURN_IF_ERROR(
      PlanCpuMemory(options, model.config().WithCache(options.cache), memory, &limits));
  return limits;
}

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(std::shared_ptr<const Model> model,
                                                          const CpuBackendOptions& options) {
  RIVULET_RETURN_IF_ERROR(CheckOptions(options));
  // Scalar code would be many times slower, and its bits differ from those of all other machines.
  if (!kernels::CpuFuses()) {
    return MakeError(absl::StatusCode::kUnavailable,
                     "backend cpu needs a CPU with AVX2 and FMA, which this one lacks",
                     {"BACKEND_ABSENT", "backend", {}});
  }
  BackendLimits limits;
  limits.drafts.guesses = MostGuesses(*model, options);
  RIVULET_ASSIGN_OR_RETURN(
      std::unique_ptr<CpuNetwork> network,
      CpuNetwork::Load(*model, options.weights, options.cache, limits.drafts.guesses > 0));
  limits.weight_bytes = network->weights().bytes;
  RIVULET_RETURN_IF_ERROR(
      PlanCpuMemory(options, model->config().WithCache(options.cache), ReadHostMemory(), &limits));
  AlignedBuffer slots(limits.bytes_per_slot * (size_t(limits.num_slots) + 1));
  if (slots.empty()) {
    return CpuOutOfMemory(absl::StrCat("the system refuses memory for ", limits.num_slots,
                                       " slots of ", limits.bytes_per_slot, " bytes"));
  }
  if (limits.drafts.bytes > 0 && AlignedBuffer(limits.drafts.bytes).empty()) {
    return CpuOutOfMemory(absl::StrCat("the system refuses ", limits.drafts.bytes,
                                       " bytes for rows with drafts; speculation off needs none"));
  }
  limits.max_rows = std::min(options.max_rows, limits.num_slots);
  limits.max_tokens = options.max_tokens;
  limits.max_steps = 64;
  limits.drafts.most = options.max_drafts;
  limits.drafts.rows = options.max_drafts > 0 ? SpeculatingRows(options) : 0;
  limits.late_masks = true;
  if (const ExpertsConfig* experts = model->config().experts(); experts != nullptr) {
    limits.preferred_prefill_tokens = kExpertRows;
    if (options.count_experts) {
      const auto load =
          std::make_shared<ExpertLoad>(model->config().num_layers, experts->router.experts);
      network->CountExperts(load);
      limits.expert_load = load;
    }
  }
  limits.preferred_steps =
      1;  // a Submit costs nothing here, and a new request waits for no run to end
  limits.numerics_id = NumericsId(network->weights(), options.weights, *model, options.cache);
  limits.plan = "one step a run";
  const int threads = options.threads > 0 ? options.threads : UsableCores();
  return std::make_unique<CpuBackend>(std::move(model), std::move(network), std::move(slots),
                                      limits, threads);
}

}  // namespace rivulet
