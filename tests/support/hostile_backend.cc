// SPDX-License-Identifier: Apache-2.0
#include "tests/support/hostile_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace rivulet {
namespace {

// A sampler that shows wherever a trace of it is left.
SlotSampler SomebodysSampler() {
  SlotSampler sampler;
  sampler.params.seed = 0xdeadbeef;
  sampler.params.temperature = 0.01f;
  sampler.params.repetition_penalty = 3;
  sampler.params.frequency_penalty = 2;
  sampler.params.presence_penalty = 2;
  sampler.params.logit_bias = {{1, 90.0f}};
  sampler.sample_index = 77;
  sampler.want_logprobs = true;
  sampler.num_top_logprobs = 3;
  for (int32_t token = 0; token < 8; ++token) {
    sampler.stop_ids.push_back(token);
    sampler.history.push_back({token, /*in_prompt=*/true, /*output_count=*/9});
  }
  return sampler;
}

uint64_t Digest(const std::vector<float>& values) {
  uint64_t digest = 14695981039346656037u;
  for (const float value : values) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    digest = (digest ^ bits) * 1099511628211u;
    digest ^= digest >> 29;
  }
  return digest;
}

}  // namespace

std::vector<std::string> HostileProbe::violations() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return violations_;
}

int HostileProbe::used_slots() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int>(std::count(used_.begin(), used_.end(), true));
}

std::vector<uint64_t> HostileProbe::Digests() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<uint64_t> digests;
  if (backend_ == nullptr) return digests;
  for (Slot slot = 1; slot <= backend_->limits().num_slots; ++slot) {
    digests.push_back(Digest(backend_->State(slot)));
  }
  return digests;
}

HostileBackend::HostileBackend(std::unique_ptr<Backend> backend, HostileOptions options,
                               std::shared_ptr<HostileProbe> probe)
    : backend_(std::move(backend)),
      options_(std::move(options)),
      limits_(backend_->limits()),
      probe_(std::move(probe)),
      random_(options_.seed),
      scored_(static_cast<size_t>(backend_->limits().num_slots) + 1) {
  if (options_.narrow) options_.narrow(&limits_);
  const Lock lock(probe_->mutex_);
  probe_->backend_ = this;
  probe_->used_.assign(scored_.size(), false);
  for (Slot slot = 1; slot <= limits().num_slots && options_.poison; ++slot) Poison(slot);
}

HostileBackend::~HostileBackend() {
  const Lock lock(probe_->mutex_);
  probe_->backend_ = nullptr;
}

std::vector<float> HostileBackend::State(Slot slot) {
  std::vector<float> state(backend_->StateFloats(slot));
  if (const absl::Status read = backend_->ReadSlot(slot, state); !read.ok()) {
    probe_->violations_.push_back(absl::StrCat("slot ", slot, ": ", read.ToString()));
  }
  return state;
}

void HostileBackend::CheckZero(Slot slot) {
  const std::vector<float> state = State(slot);
  for (size_t i = 0; i < state.size(); ++i) {
    if (state[i] == 0 && !std::signbit(state[i])) continue;
    probe_->violations_.push_back(absl::StrCat("slot ", slot, " was zeroed, but float ", i, " of ",
                                               state.size(), " is ", state[i]));
    return;
  }
}

void HostileBackend::Poison(Slot slot) {
  const std::vector<float> nothing(limits().bytes_per_slot / sizeof(float), std::nanf(""));
  for (const absl::Status& status :
       {backend_->WriteSlot(slot, nothing), backend_->SetSampler(slot, SomebodysSampler())}) {
    if (!status.ok()) probe_->violations_.push_back(status.ToString());
  }
}

void HostileBackend::Use(Slot slot) {
  if (IsSessionSlot(slot)) probe_->used_[static_cast<size_t>(slot)] = true;
}

bool HostileBackend::IsSessionSlot(Slot slot) {
  if (slot > kGuardSlot && slot <= limits().num_slots) return true;
  probe_->violations_.push_back(absl::StrCat("slot ", slot, " is the guard or does not exist"));
  return false;
}

absl::Status HostileBackend::ZeroSlots(std::span<const Slot> slots) {
  Before(BackendCall::kZero);
  const Lock lock(probe_->mutex_);
  if (absl::Status zeroed = backend_->ZeroSlots(slots); !zeroed.ok()) return zeroed;
  for (const Slot slot : slots) {
    if (!IsSessionSlot(slot)) continue;
    const auto i = static_cast<size_t>(slot);
    if (options_.poison) CheckZero(slot);
    // A slot that was used is taken back, so whoever gets it next must zero it; but a score zeroes
    // a slot that it keeps.
    if (probe_->used_[i] && !scored_[i] && options_.poison) Poison(slot);
    probe_->used_[i] = scored_[i] = false;
  }
  return absl::OkStatus();
}

absl::Status HostileBackend::SetSampler(Slot slot, const SlotSampler& sampler) {
  Before(BackendCall::kSetSampler);
  const Lock lock(probe_->mutex_);
  Use(slot);
  return backend_->SetSampler(slot, sampler);
}

absl::Status HostileBackend::CopySlot(Slot from, Slot to) {
  Before(BackendCall::kCopy);
  const Lock lock(probe_->mutex_);
  Use(to);
  return backend_->CopySlot(from, to);
}

absl::Status HostileBackend::ReadPart(Slot slot, size_t from, std::span<float> out) {
  Before(BackendCall::kRead);
  const Lock lock(probe_->mutex_);
  return backend_->ReadPart(slot, from, out);
}

absl::Status HostileBackend::WriteParts(Slot slot, std::span<const std::span<const float>> parts) {
  Before(BackendCall::kWrite);
  const Lock lock(probe_->mutex_);
  Use(slot);
  return backend_->WriteParts(slot, parts);
}

absl::Status HostileBackend::Submit(const Run& run) {
  Before(BackendCall::kSubmit);
  const Lock lock(probe_->mutex_);
  row_of_.resize(run.rows.size());
  std::iota(row_of_.begin(), row_of_.end(), 0);
  if (options_.shuffle) std::shuffle(row_of_.begin(), row_of_.end(), random_);
  Run submitted;
  submitted.num_steps = run.num_steps;
  for (const int row : row_of_) {
    submitted.rows.push_back(run.rows[static_cast<size_t>(row)]);
    const RunRow& moved = submitted.rows.back();
    Use(moved.slot);
    if (!moved.targets.empty()) scored_[static_cast<size_t>(moved.slot)] = true;
  }
  return backend_->Submit(submitted);
}

absl::StatusOr<bool> HostileBackend::Poll(std::vector<Record>* records) {
  Before(BackendCall::kPoll);
  const Lock lock(probe_->mutex_);
  const size_t first = records->size();
  const absl::StatusOr<bool> complete = backend_->Poll(records);
  // Back to the caller's rows. Within a step the rows rise, so a step ends where they fall.
  for (size_t begin = first; begin < records->size();) {
    size_t end = begin + 1;
    while (end < records->size() && (*records)[end].row >= (*records)[end - 1].row) ++end;
    const auto from = records->begin() + static_cast<std::ptrdiff_t>(begin);
    const auto to = records->begin() + static_cast<std::ptrdiff_t>(end);
    for (auto record = from; record != to; ++record) {
      record->row = row_of_[static_cast<size_t>(record->row)];
    }
    std::stable_sort(from, to, [](const Record& a, const Record& b) { return a.row < b.row; });
    begin = end;
  }
  return complete;
}

}  // namespace rivulet
