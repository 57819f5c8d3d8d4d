// SPDX-License-Identifier: Apache-2.0
#include "server/engine/loop/slots.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <utility>

#include "model/base/error.h"

namespace rivulet {
namespace {

// A slot given to two sequences at once would mix their states: no answer is better than a wrong
// one.
void CheckOrDie(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "Slots: %s\n", what);
  std::abort();
}

}  // namespace

Slots::Slots(Backend* backend)
    : backend_(backend),
      is_free_(static_cast<size_t>(backend->limits().num_slots) + 1, true),
      free_(static_cast<size_t>(backend->limits().num_slots)) {
  std::iota(free_.rbegin(), free_.rend(), kGuardSlot + 1);
}

int64_t Slots::used_bytes() const {
  const StateSize size = backend_->limits().state_size();
  if (size.per_block == 0) return used() * static_cast<int64_t>(size.fixed);
  int64_t bytes = 0;
  for (const Sequence* sequence : holders_) bytes += static_cast<int64_t>(size.At(sequence->fed()));
  return bytes;
}

void Slots::Give(Sequence* sequence) {
  CheckOrDie(!free_.empty(), "a slot is asked for while none is free");
  sequence->slot = free_.back();
  free_.pop_back();
  is_free_[static_cast<size_t>(sequence->slot)] = false;
  to_zero_.push_back(sequence->slot);
  given_.push_back(sequence);
  holders_.push_back(sequence);
}

absl::Status Slots::Prepare() {
  if (given_.empty()) return absl::OkStatus();
  RIVULET_RETURN_IF_ERROR(backend_->ZeroSlots(to_zero_));
  to_zero_.clear();
  for (Sequence* const sequence : given_) {
    const Checkpoint start = sequence->start();
    if (!sequence->host_state.empty()) {
      RIVULET_RETURN_IF_ERROR(backend_->WriteSlot(sequence->slot, sequence->host_state));
    } else if (const Sequence* const first_sample = sequence->copies_from()) {
      RIVULET_RETURN_IF_ERROR(backend_->CopySlot(first_sample->slot, sequence->slot));
      sequence->segments = first_sample->segments;
    } else if (start.state != nullptr) {
      RIVULET_RETURN_IF_ERROR(backend_->WriteParts(sequence->slot, start.state->spans()));
    }
    const std::optional<SlotSampler> sampler = sequence->Sampler();
    if (sampler) RIVULET_RETURN_IF_ERROR(backend_->SetSampler(sequence->slot, *sampler));
    TakeHostState(sequence);
  }
  given_.clear();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> Slots::Read(Slot slot) {
  std::vector<float> values(backend_->StateFloats(slot));
  RIVULET_RETURN_IF_ERROR(backend_->ReadSlot(slot, values));
  return values;
}

absl::StatusOr<StatePtr> Slots::Keep(LeftState left, int64_t fed, StateStore* store) {
  // Reads the state from float `from` on.
  const auto read = [&](size_t from, std::span<float> out) -> absl::Status {
    if (out.empty()) return absl::OkStatus();
    if (left.values.empty()) return backend_->ReadPart(left.slot, from, out);
    std::copy_n(left.values.begin() + static_cast<std::ptrdiff_t>(from), out.size(), out.begin());
    return absl::OkStatus();
  };
  const StateSize& size = store->size();
  const size_t front = size.fixed / sizeof(float), each = size.segment_bytes() / sizeof(float);
  left.segments.resize(static_cast<size_t>(size.Segments(fed)));
  size_t at = front;
  for (StatePtr& segment : left.segments) {
    if (segment == nullptr || segment->forgotten()) {
      std::vector<float> values(each);
      RIVULET_RETURN_IF_ERROR(read(at, values));
      segment = store->KeepSegment(std::move(values));
    }
    at += each;
  }
  std::vector<float> own(size.At(fed) / sizeof(float) - (at - front));
  RIVULET_RETURN_IF_ERROR(read(0, std::span(own).first(front)));
  RIVULET_RETURN_IF_ERROR(read(at, std::span(own).subspan(front)));
  return store->Keep(std::move(own), std::move(left.segments));
}

absl::Status Slots::Fork(const Sequence& first) {
  for (const auto& sequence : first.request->sequences) {
    if (sequence.get() == &first) continue;
    RIVULET_RETURN_IF_ERROR(backend_->CopySlot(first.slot, sequence->slot));
    sequence->segments = first.segments;
  }
  return absl::OkStatus();
}

void Slots::ZeroSoon(Sequence* sequence) {
  to_zero_.push_back(sequence->slot);
  sequence->segments.clear();
}

int64_t Slots::BytesOf(const LiveRequest& request) const {
  const StateSize size = backend_->limits().state_size();
  int64_t bytes = 0;
  for (const auto& sequence : request.sequences) {
    if (!sequence->ended) bytes += static_cast<int64_t>(size.At(sequence->fed()));
  }
  return bytes;
}

std::vector<float> Slots::TakeHostState(Sequence* sequence) {
  if (sequence->host_state.empty()) return {};
  --in_host_memory_;
  if (std::exchange(sequence->parked, false)) {
    parked_bytes_ -= static_cast<int64_t>(sequence->host_state.size() * sizeof(float));
  }
  return std::exchange(sequence->host_state, {});
}

absl::Status Slots::MoveToHost(const LiveRequest& request, bool parked) {
  std::vector<std::vector<float>> states;
  for (const auto& sequence : request.sequences) {
    if (sequence->ended) continue;
    RIVULET_ASSIGN_OR_RETURN(states.emplace_back(), Read(sequence->slot));
  }
  auto state = states.begin();
  for (const auto& sequence : request.sequences) {
    if (sequence->ended) continue;
    sequence->host_state = std::move(*state++);
    ++in_host_memory_;
    sequence->parked = parked;
    if (parked) {
      parked_bytes_ += static_cast<int64_t>(sequence->host_state.size() * sizeof(float));
    }
    freed_.push_back(std::exchange(sequence->slot, kGuardSlot));
  }
  std::erase_if(holders_, [&](const Sequence* sequence) { return sequence->request == &request; });
  return absl::OkStatus();
}

LeftState Slots::TakeBack(Sequence* sequence) {
  LeftState left = {std::exchange(sequence->slot, kGuardSlot), TakeHostState(sequence),
                    std::exchange(sequence->segments, {})};
  if (left.slot != kGuardSlot) freed_.push_back(left.slot);
  sequence->ended = true;
  some_ended_ = true;
  return left;
}

void Slots::ForgetEnded() {
  if (!some_ended_) return;
  std::erase_if(holders_, [](const Sequence* sequence) { return sequence->ended; });
  some_ended_ = false;
}

absl::Status Slots::ZeroFreed() {
  to_zero_.insert(to_zero_.end(), freed_.begin(), freed_.end());
  if (to_zero_.empty()) return absl::OkStatus();
  RIVULET_RETURN_IF_ERROR(backend_->ZeroSlots(to_zero_));
  to_zero_.clear();
  Recycle();
  return absl::OkStatus();
}

void Slots::Abandon() {
  Recycle();
  to_zero_.clear();
  given_.clear();
}

void Slots::Recycle() {
  for (const Slot slot : freed_) {
    CheckOrDie(!is_free_.at(static_cast<size_t>(slot)), "a free slot is given back");
    is_free_[static_cast<size_t>(slot)] = true;
    free_.push_back(slot);
  }
  freed_.clear();
}

}  // namespace rivulet
