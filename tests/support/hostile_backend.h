// SPDX-License-Identifier: Apache-2.0
// HostileBackend: wraps a Backend and does everything that the contract does not forbid. Slots that
// were not zeroed hold NaN and another sequence's sampler, the rows of every run come in another
// order, and a test may act right before any call. It checks that slots are zero when the caller
// expects it, and that no run uses the guard slot.
//
// The backend belongs to the engine; a test talks to it through a HostileProbe that both share.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "model/backend.h"

namespace rivulet {

enum class BackendCall : uint8_t { kZero, kSetSampler, kCopy, kRead, kWrite, kSubmit, kPoll };

struct HostileOptions {
  uint32_t seed = 1;
  // Slots hold NaN from the start, and again after they are freed; in between, zeroed slots must
  // hold zeros. Not for a FakeBackend, whose states are not floats.
  bool poison = true;
  bool shuffle = true;  // rows
  // Before each call, on the caller's thread; may block it.
  std::function<void(BackendCall)> before;
  // Reduces the limits that the backend reports.
  std::function<void(BackendLimits*)> narrow;
};

class HostileBackend;

// Thread: any.
class HostileProbe {
 public:
  std::vector<std::string> violations() const;
  int used_slots() const;  // fed, written or given a sampler, and not zeroed since
  // Of every slot's state, poison included: [num_slots]. Empty if the backend is gone.
  std::vector<uint64_t> Digests() const;

 private:
  friend class HostileBackend;
  mutable std::mutex mutex_;  // held while the backend is in a call
  HostileBackend* backend_ = nullptr;
  std::vector<std::string> violations_;
  std::vector<bool> used_;  // [num_slots + 1]
};

class HostileBackend final : public Backend {
 public:
  HostileBackend(std::unique_ptr<Backend> backend, HostileOptions options,
                 std::shared_ptr<HostileProbe> probe);
  ~HostileBackend() override;

  const BackendLimits& limits() const override { return limits_; }
  absl::Status ZeroSlots(std::span<const Slot> slots) override;
  absl::Status SetSampler(Slot slot, const SlotSampler& sampler) override;
  absl::Status CopySlot(Slot from, Slot to) override;
  size_t StateFloats(Slot slot) const override { return backend_->StateFloats(slot); }
  absl::Status ReadPart(Slot slot, size_t from, std::span<float> out) override;
  absl::Status WriteParts(Slot slot, std::span<const std::span<const float>> parts) override;
  absl::Status Submit(const Run& run) override;
  absl::StatusOr<bool> Poll(std::vector<Record>* records) override;

 private:
  friend class HostileProbe;
  using Lock = std::lock_guard<std::mutex>;
  void Before(BackendCall call) {
    if (options_.before) options_.before(call);
  }
  std::vector<float> State(Slot slot);
  void CheckZero(Slot slot);
  void Poison(Slot slot);
  void Use(Slot slot);
  bool IsSessionSlot(Slot slot);

  const std::unique_ptr<Backend> backend_;
  const HostileOptions options_;
  BackendLimits limits_;
  const std::shared_ptr<HostileProbe> probe_;
  std::mt19937 random_;
  std::vector<bool> scored_;  // [num_slots + 1] may be zeroed by the one who keeps it
  std::vector<int> row_of_;   // [rows as submitted] the caller's row
};

}  // namespace rivulet
