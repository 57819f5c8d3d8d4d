// SPDX-License-Identifier: Apache-2.0
// Slots: which sequence holds which slot of the backend, and the states that go in and out.
//
//   Give ── Prepare ──> holders ── MoveToHost, TakeBack ──> freed ── ZeroFreed ──> free
//
// Invariants: a slot is either free or used, and slot 0, the guard that padding rows use, is never
// given out. A slot is zeroed when it is given out (Prepare) and when it is taken back (ZeroFreed).
// Between TakeBack and ZeroFreed the state that a sequence left in its slot can still be read.
//
// Errors are those of the backend, which cannot be used after one: then Abandon frees the slots.
#pragma once

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/backend.h"
#include "server/engine/sequences/live_request.h"
#include "server/sessions/store/state_store.h"

namespace rivulet {

// The state that a sequence leaves behind.
struct LeftState {
  Slot slot = kGuardSlot;               // holds the state until ZeroFreed
  std::vector<float> values = {};       // the whole state, if it was in host memory; else empty
  std::vector<StatePtr> segments = {};  // Sequence::segments
};

// Thread: the loop. Sequences are borrowed: TakeBack and then ForgetEnded come before their end.
class Slots {
 public:
  // `backend` is borrowed and outlives it.
  explicit Slots(Backend* backend);

  int free() const { return static_cast<int>(free_.size()); }
  // The free slots and those that ZeroFreed will make free.
  int free_soon() const { return free() + static_cast<int>(freed_.size()); }
  int used() const { return static_cast<int>(is_free_.size()) - 1 - free(); }
  // Bytes of the states in the used slots, as far as their sequences have filled them.
  int64_t used_bytes() const;
  // The sequences of parked and preempted requests, whose states are in host memory.
  int in_host_memory() const { return in_host_memory_; }
  // Bytes of the states of the parked sequences among them.
  int64_t parked_bytes() const { return parked_bytes_; }
  // Bytes, in the slots of `request`, of the states of its sequences that have not ended.
  int64_t BytesOf(const LiveRequest& request) const;
  // The sequences that hold slots, in the order in which they got them. After TakeBack a sequence
  // stays in the list until ForgetEnded.
  std::span<Sequence* const> holders() const { return holders_; }

  // Gives `sequence` the slot that was freed last; the sequence can use it after Prepare. So with
  // few requests only a few slots are in use, which helps caches and memory. REQUIRES: `sequence`
  // holds no slot, free() > 0.
  void Give(Sequence* sequence);
  // Zeroes the slots that were given since the last call, then writes the state and the sampler
  // with which each sequence begins or continues.
  absl::Status Prepare();

  // Keeps the state of a slot that is held, or freed and not yet zeroed. `left`: from TakeBack, or
  // the slot and segments of a sequence. Copies only the parts that are not kept yet. REQUIRES: the
  // state has seen `fed` tokens. Waits for submitted runs.
  absl::StatusOr<StatePtr> Keep(LeftState left, int64_t fed, StateStore* store);
  // Copies the slot of `first` to the other sequences of its request.
  absl::Status Fork(const Sequence& first);
  // The next ZeroFreed zeroes the slot of `sequence`, which keeps the slot.
  void ZeroSoon(Sequence* sequence);

  // Takes the slots of all sequences of `request` that have not ended. Their states go to host
  // memory; Prepare writes them back when they get slots again. `parked`: until then the states
  // count in parked_bytes. After an error no slot was taken.
  absl::Status MoveToHost(const LiveRequest& request, bool parked);
  // `sequence` has ended: takes its slot, or its state in host memory.
  LeftState TakeBack(Sequence* sequence);
  // Removes the ended sequences from holders().
  void ForgetEnded();
  // Zeroes the slots that were freed and makes them free.
  absl::Status ZeroFreed();
  // Replaces ZeroFreed once the backend has failed: the freed slots become free without being
  // zeroed, because they will not be used.
  void Abandon();

 private:
  absl::StatusOr<std::vector<float>> Read(Slot slot);
  // Empties the state of `sequence` in host memory.
  std::vector<float> TakeHostState(Sequence* sequence);
  // Makes the freed slots free.
  void Recycle();

  Backend* const backend_;
  std::vector<bool> is_free_;  // [slots + 1]; the guard counts as free, so it cannot be given back
  std::vector<Slot> free_;     // a stack: the last is given out next
  std::vector<Sequence*> holders_;
  std::vector<Sequence*> given_;  // since the last Prepare
  bool some_ended_ = false;       // holders_ has ended sequences
  int in_host_memory_ = 0;
  int64_t parked_bytes_ = 0;
  std::vector<Slot> freed_;    // to be zeroed and made free
  std::vector<Slot> to_zero_;  // to be zeroed and kept
};

}  // namespace rivulet
