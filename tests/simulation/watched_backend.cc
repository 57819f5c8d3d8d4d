// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/watched_backend.h"

#include <algorithm>
#include <utility>

namespace rivulet {

std::string MutantName(Mutant mutant) {
  static constexpr const char* kNames[] = {
      "None",         "SkipsZeroing",   "SwapsRows",    "PaddingAdvances",
      "LosesRecords", "DoublesRecords", "EndsEarly",    "CopiesNeighbour",
      "WritesDamage", "ReadsStale",     "KeepsSampler", "ForgetsHistory",
      "HidesFailure", "AcceptsDraft",   "CountsDraft",  "KeepsDraftState",
      "LosesDraw"};
  return kNames[static_cast<size_t>(mutant)];
}

namespace {

FakeBackendOptions With(FakeBackendOptions options, Mutant mutant) {
  if (mutant >= Mutant::kAcceptsDraft) {
    options.draft_fault = static_cast<FakeBackendOptions::DraftFault>(
        1 + static_cast<int>(mutant) - static_cast<int>(Mutant::kAcceptsDraft));
  }
  return options;
}

}  // namespace

WatchedBackend::WatchedBackend(const ModelConfig& config, const FakeBackendOptions& options,
                               std::shared_ptr<FakeProbe> probe, Mutant mutant,
                               std::function<void()> on_call)
    : fake_(config, With(options, mutant), std::move(probe)),
      mutant_(mutant),
      on_call_(std::move(on_call)) {}

bool WatchedBackend::Strikes(Mutant mutant, int every) {
  return mutant_ == mutant && ++occasions_ % every == 0;
}

absl::Status WatchedBackend::ZeroSlots(std::span<const Slot> slots) {
  on_call_();
  if (Strikes(Mutant::kSkipsZeroing, 10)) return absl::OkStatus();
  return fake_.ZeroSlots(slots);
}

absl::Status WatchedBackend::SetSampler(Slot slot, const SlotSampler& sampler) {
  on_call_();
  SlotSampler changed = sampler;
  const auto [seed, first] = seeds_.try_emplace(slot, sampler.params.seed);
  if (!first && Strikes(Mutant::kKeepsSampler, 1)) changed.params.seed = seed->second;
  seed->second = sampler.params.seed;
  if (Strikes(Mutant::kForgetsHistory, 1)) changed.history.clear();
  return fake_.SetSampler(slot, changed);
}

absl::Status WatchedBackend::CopySlot(Slot from, Slot to) {
  on_call_();
  if (from > 1 && from - 1 != to && Strikes(Mutant::kCopiesNeighbour, 1)) --from;
  return fake_.CopySlot(from, to);
}

absl::Status WatchedBackend::ReadPart(Slot slot, size_t from, std::span<float> out) {
  on_call_();
  const absl::Status status = fake_.ReadPart(slot, from, out);
  std::vector<float>& before = read_before_[{slot, from}];
  std::vector<float> now(out.begin(), out.end());
  if (before.size() == out.size() && Strikes(Mutant::kReadsStale, 1)) {
    std::copy(before.begin(), before.end(), out.begin());
  }
  before = std::move(now);
  return status;
}

absl::Status WatchedBackend::WriteParts(Slot slot, std::span<const std::span<const float>> parts) {
  on_call_();
  std::vector<float> values;
  for (const auto& part : parts) values.insert(values.end(), part.begin(), part.end());
  if (Strikes(Mutant::kWritesDamage, 3)) values[0] += values[0] > 0 ? -1.0f : 1.0f;
  return fake_.WriteSlot(slot, values);
}

absl::Status WatchedBackend::Submit(const Run& run) {
  on_call_();
  swap_rows_ = run.rows.size() > 1 && Strikes(Mutant::kSwapsRows, 10);
  Run changed = run;
  for (RunRow& row : changed.rows) {
    const bool odd = row.tokens.size() > 1 && row.tokens.size() % 2 == 1 && row.targets.empty();
    if (!odd || !padded_.empty() || !Strikes(Mutant::kPaddingAdvances, 1)) continue;
    padded_.assign(row.tokens.begin(), row.tokens.end());
    padded_.push_back(0);
    row.tokens = padded_;
  }
  const absl::Status status = fake_.Submit(changed);
  return mutant_ == Mutant::kHidesFailure ? absl::OkStatus() : status;
}

absl::StatusOr<bool> WatchedBackend::Poll(std::vector<Record>* records) {
  on_call_();
  std::vector<Record> fresh;
  absl::StatusOr<bool> complete = fake_.Poll(&fresh);
  if (!complete.ok() && mutant_ == Mutant::kHidesFailure) return true;
  for (Record& record : fresh) {
    if (Strikes(Mutant::kLosesRecords, 40)) continue;
    if (swap_rows_ && record.row < 2) record.row = 1 - record.row;
    if (Strikes(Mutant::kDoublesRecords, 40)) records->push_back(record);
    records->push_back(std::move(record));
  }
  if (complete.ok() && *complete) padded_.clear();
  if (complete.ok() && !*complete && Strikes(Mutant::kEndsEarly, 3)) return true;
  return complete;
}

}  // namespace rivulet
