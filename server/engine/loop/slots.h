// SPDX-License-Identifier: Apache-2.0
// Slots: which sequence holds which slot of the backend, and what comes into and out of it.
//
//   Give ── Prepare ──> holders ── Park, TakeBack ──> freed ── ZeroFreed ──> free
//
// Invariants: a slot is either free or used, and slot 0, the guard that padding rows use, is never
// given out. A slot is zeroed when it is given out (Prepare) and when it is taken back (ZeroFreed).
// Between TakeBack and ZeroFreed the state that a sequence left in its slot can still be read.
//
// Errors are those of the backend, which is of no use after one: then Abandon takes what was freed.
#pragma once

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/backend.h"
#include "server/engine/sequences/request.h"

namespace rivulet {

// The state that a sequence leaves behind.
struct LeftState {
  Slot slot = kGuardSlot;     // that holds it until ZeroFreed
  std::vector<float> values;  // [bytes_per_slot / 4], where it was parked; else empty
};

// Thread: the loop. Sequences are borrowed: TakeBack and then ForgetEnded come before their end.
class Slots {
 public:
  // `backend` is borrowed and outlives it.
  explicit Slots(Backend* backend);

  int free() const { return static_cast<int>(free_.size()); }
  // ... and those that ZeroFreed makes free.
  int free_soon() const { return free() + static_cast<int>(freed_.size()); }
  int used() const { return static_cast<int>(is_free_.size()) - 1 - free(); }
  // Sequences whose states are in host memory because their slots were taken from them.
  int parked() const { return parked_; }
  // The sequences that hold slots, in the order in which they got them. Those that TakeBack ended
  // are among them until ForgetEnded.
  std::span<Sequence* const> holders() const { return holders_; }

  // Gives `sequence` a slot, which it can use after Prepare: the one that was freed last, so that
  // few requests at a time touch few slots, in the caches and in memory. REQUIRES: it holds none,
  // free() > 0.
  void Give(Sequence* sequence);
  // Zeroes the slots that were given since, then writes the state and the sampler with which each
  // sequence begins or goes on.
  absl::Status Prepare();

  // The values of a slot that is held, or freed and not yet zeroed: [bytes_per_slot / 4]. Waits for
  // submitted runs.
  absl::StatusOr<std::vector<float>> Read(Slot slot);
  // What TakeBack returned; before the next ZeroFreed.
  absl::StatusOr<std::vector<float>> Read(LeftState left);
  // Copies the slot of `first` to the other sequences of its request.
  absl::Status Fork(const Sequence& first);
  // The slot of `sequence`, which keeps it, is zeroed with the next ZeroFreed.
  void ZeroSoon(const Sequence& sequence) { to_zero_.push_back(sequence.slot); }

  // Takes the slots of all sequences of `request` that have not ended; their states go to host
  // memory, and Prepare writes them when they are given slots again. An error has taken nothing.
  absl::Status Park(const Request& request);
  // `sequence` has ended: takes its slot, or what was parked of it.
  LeftState TakeBack(Sequence* sequence);
  // No sequence that has ended is in holders() any more.
  void ForgetEnded();
  // Zeroes the slots that were freed and makes them free.
  absl::Status ZeroFreed();
  // Instead of ZeroFreed once the backend has failed, which zeroes nothing and serves nobody: the
  // freed slots become free as they are.
  void Abandon();

 private:
  // Makes the freed slots free.
  void Recycle();

  Backend* const backend_;
  std::vector<bool> is_free_;  // [slots + 1]; the guard counts as free, so it cannot be given back
  std::vector<Slot> free_;     // a stack: the last is given out next
  std::vector<Sequence*> holders_;
  std::vector<Sequence*> given_;  // since the last Prepare
  bool some_ended_ = false;       // holders_ has ended sequences
  int parked_ = 0;
  std::vector<Slot> freed_;    // to be zeroed and made free
  std::vector<Slot> to_zero_;  // to be zeroed and kept
};

}  // namespace rivulet
