// SPDX-License-Identifier: Apache-2.0
// CudaSlots: the data of sequences in device memory: states, samplers, tokens seen. All of it is
// reserved at start, so that no sequence can run out of memory later. The unfilled part of a state
// is zeros, which are neither copied nor cleared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/common/slot_cuda.h"
#include "kernels/cuda/sample/sample_cuda.h"
#include "model/backend.h"
#include "model/config.h"
#include "model/cuda/cuda_device.h"
#include "model/cuda/cuda_queue.h"

namespace rivulet {

// Most top log-probabilities of a record.
inline constexpr int kCudaMaxTop = 20;

// All calls take effect in stream order. REQUIRES, for all calls: slots within 1..num_slots.
// Thread: one.
class CudaSlots {
 public:
  // Device memory of one slot: the state of `state_bytes`, and for every token a stop id and
  // (categorical heads) a count, a bias and a bit.
  static size_t BytesPerSlot(const ModelConfig& config, size_t state_bytes);

  // Slots 0 (the guard) to limits.num_slots, states zero. `initial_state`: the state that Zero
  // sets, in device memory that outlives the slots; null: zeros.
  static absl::StatusOr<CudaSlots> Create(const ModelConfig& config, const BackendLimits& limits,
                                          const float* initial_state, const CudaQueue& queue);

  absl::Status Zero(std::span<const Slot> slots, CudaQueue& queue);
  absl::Status Copy(Slot from, Slot to, CudaQueue& queue);
  // Errors: INVALID_ARGUMENT if the sampler asks for more than kCudaMaxTop.
  absl::Status SetSampler(Slot slot, const SlotSampler& sampler, CudaQueue& queue);
  // Floats of the state that the sequence has filled.
  size_t StateFloats(Slot slot) const { return mine_[size_t(slot)].used; }
  // A run feeds the slot up to position `sure`, and perhaps up to position `most`.
  void Feed(Slot slot, int64_t sure, int64_t most);
  // Reads the part of the state that begins at float `from`; it ends within StateFloats().
  absl::Status Read(Slot slot, size_t from, std::span<float> out, CudaQueue& queue) const;
  absl::Status Write(Slot slot, std::span<const std::span<const float>> parts, CudaQueue& queue);

  // Of the next run alone: the tokens that the slot may draw, as in RunRow; empty: all.
  absl::Status SetMask(Slot slot, std::span<const uint32_t> bits, CudaQueue& queue);
  // Copies the sampler that the calls above have set to the device, before a run uses `slot`.
  absl::Status Ready(Slot slot, CudaQueue& queue);
  // Whether fed tokens are counted.
  bool counts(Slot slot) const { return mine_[size_t(slot)].sampler.seen != nullptr; }

  float* states() const { return static_cast<float*>(states_.data()); }
  size_t floats_per_slot() const { return floats_; }
  const kernels::CudaSampler* samplers() const {
    return static_cast<const kernels::CudaSampler*>(samplers_.data());
  }

 private:
  struct Mine {
    kernels::CudaSampler sampler;  // the sampler that the device should have
    bool ready = false;            // the device has it
    size_t used = 0, dirty = 0;    // floats: filled by the sequence; zeros from `dirty` on
  };
  // Arrays of one slot, in device memory.
  uint32_t* seen(Slot slot) const;
  kernels::CudaLogitBias* bias(Slot slot) const;
  int32_t* stop_ids(Slot slot) const;
  kernels::CudaSampler Default() const;
  size_t FloatsAt(int64_t positions) const { return state_size_.At(positions) / sizeof(float); }
  // Keeps the first `floats` of the state, with zeros behind them.
  absl::Status Shorten(Slot slot, size_t floats, CudaQueue& queue);
  absl::Status ZeroParts(std::span<const kernels::CudaSlotPart> parts, CudaQueue& queue);
  absl::Status SetHistory(Slot slot, std::span<const TokenCount> history, CudaQueue& queue);
  absl::Status SetLists(Slot slot, const SlotSampler& sampler, CudaQueue& queue);

  size_t floats_ = 0;  // of a slot's state, with room for the context
  StateSize state_size_;
  const float* initial_ = nullptr;
  int num_tokens_ = 0;
  bool categorical_ = false;
  int32_t banned_ = -1;
  CudaMemory states_, samplers_, seen_, bias_, stop_ids_, masks_;
  std::vector<Mine> mine_;  // [num_slots + 1]
  std::vector<kernels::CudaSlotPart> parts_;
  std::vector<int32_t> stops_;
  std::vector<uint32_t> history_;
  std::vector<kernels::CudaLogitBias> biases_;
};

}  // namespace rivulet
