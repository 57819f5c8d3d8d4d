// SPDX-License-Identifier: Apache-2.0
// WatchedBackend: a FakeBackend during each of whose calls other threads may act. It can break its
// contract as real backends did: the simulation must detect each such fault.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tests/support/fake_backend.h"

namespace rivulet {

enum class Mutant : uint8_t {
  kNone,
  kSkipsZeroing,     // every tenth ZeroSlots does nothing
  kSwapsRows,        // the first two rows of every tenth run get each other's records
  kPaddingAdvances,  // a prompt of odd length is padded, and the padding is fed
  kLosesRecords,     // every 40th record is not reported
  kDoublesRecords,   // every 40th record is reported twice
  kEndsEarly,        // a run counts as complete before its last records
  kCopiesNeighbour,  // CopySlot takes the state of the slot before
  kWritesDamage,     // every third WriteParts has one wrong value
  kReadsStale,       // ReadPart returns the slot's content at the previous ReadPart
  kKeepsSampler,     // SetSampler leaves the seed of the slot's last user
  kForgetsHistory,   // SetSampler drops the counts of tokens fed before
  kHidesFailure,     // Submit and Poll say OK after a device error
  kAcceptsDraft,     // a wrong draft is taken as right
  kCountsDraft,      // penalties count a wrong draft
  kKeepsDraftState,  // the state after a wrong draft stays
  kLosesDraw,        // the draw after the right drafts is not reported
};
std::string MutantName(Mutant mutant);

// Thread: as Backend.
class WatchedBackend final : public Backend {
 public:
  // `on_call` runs before each call takes effect.
  WatchedBackend(const ModelConfig& config, const FakeBackendOptions& options,
                 std::shared_ptr<FakeProbe> probe, Mutant mutant, std::function<void()> on_call);

  const BackendLimits& limits() const override { return fake_.limits(); }
  absl::Status ZeroSlots(std::span<const Slot> slots) override;
  absl::Status SetSampler(Slot slot, const SlotSampler& sampler) override;
  absl::Status CopySlot(Slot from, Slot to) override;
  size_t StateFloats(Slot slot) const override { return fake_.StateFloats(slot); }
  absl::Status ReadPart(Slot slot, size_t from, std::span<float> out) override;
  absl::Status WriteParts(Slot slot, std::span<const std::span<const float>> parts) override;
  absl::Status Submit(const Run& run) override;
  absl::StatusOr<bool> Poll(std::vector<Record>* records) override;

 private:
  // Reports a call; returns true if `mutant` acts, which it does at each `every`th call.
  bool Strikes(Mutant mutant, int every);

  FakeBackend fake_;
  const Mutant mutant_;
  const std::function<void()> on_call_;
  int occasions_ = 0;
  bool swap_rows_ = false;
  std::map<std::pair<Slot, size_t>, std::vector<float>> read_before_;
  std::map<Slot, uint64_t> seeds_;
  std::vector<int32_t> padded_;
};

}  // namespace rivulet
