// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_slots.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"

namespace rivulet {

using kernels::CudaLogitBias;
using kernels::CudaSampler;
using kernels::CudaSlotPart;

size_t CudaSlots::BytesPerSlot(const ModelConfig& config, size_t state_bytes) {
  const bool categorical = config.output.type == OutputType::kCategorical;
  const size_t per_token =
      sizeof(int32_t) + (categorical ? sizeof(uint32_t) + sizeof(CudaLogitBias) : 0);
  const size_t mask = categorical ? MaskWords(config.num_output_tokens()) * sizeof(uint32_t) : 0;
  return state_bytes + sizeof(CudaSampler) + per_token * size_t(config.num_output_tokens()) + mask;
}

absl::StatusOr<CudaSlots> CudaSlots::Create(const ModelConfig& config, const BackendLimits& limits,
                                            const float* initial_state, const CudaQueue& queue) {
  CudaSlots slots;
  slots.initial_ = initial_state;
  const size_t count = size_t(limits.num_slots) + 1;
  slots.floats_ = limits.bytes_per_slot / sizeof(float);
  slots.state_size_ = limits.state;
  slots.num_tokens_ = config.num_output_tokens();
  slots.categorical_ = config.output.type == OutputType::kCategorical;
  slots.banned_ = config.bos_token_id.value_or(-1);
  const size_t tokens = count * size_t(slots.num_tokens_);
  RIVULET_ASSIGN_OR_RETURN(slots.states_,
                           CudaMemory::OnDevice(count * slots.floats_ * sizeof(float)));
  RIVULET_ASSIGN_OR_RETURN(slots.samplers_, CudaMemory::OnDevice(count * sizeof(CudaSampler)));
  RIVULET_ASSIGN_OR_RETURN(slots.stop_ids_, CudaMemory::OnDevice(tokens * sizeof(int32_t)));
  if (slots.categorical_) {
    RIVULET_ASSIGN_OR_RETURN(slots.seen_, CudaMemory::OnDevice(tokens * sizeof(uint32_t)));
    RIVULET_ASSIGN_OR_RETURN(slots.bias_, CudaMemory::OnDevice(tokens * sizeof(CudaLogitBias)));
    RIVULET_ASSIGN_OR_RETURN(
        slots.masks_,
        CudaMemory::OnDevice(count * MaskWords(slots.num_tokens_) * sizeof(uint32_t)));
  }
  RIVULET_CUDA_RETURN_IF_ERROR(
      cudaMemsetAsync(slots.states_.data(), 0, slots.states_.bytes(), queue.stream()));
  RIVULET_CUDA_RETURN_IF_ERROR(
      cudaMemsetAsync(slots.samplers_.data(), 0, slots.samplers_.bytes(), queue.stream()));
  const size_t empty = slots.FloatsAt(0);
  slots.mine_.assign(count, {slots.Default(), false, empty, empty});
  slots.parts_.reserve(count);
  slots.stops_.reserve(size_t(slots.num_tokens_));
  slots.biases_.reserve(size_t(slots.num_tokens_));
  return slots;
}

uint32_t* CudaSlots::seen(Slot slot) const {
  return static_cast<uint32_t*>(seen_.data()) + size_t(slot) * size_t(num_tokens_);
}
CudaLogitBias* CudaSlots::bias(Slot slot) const {
  return static_cast<CudaLogitBias*>(bias_.data()) + size_t(slot) * size_t(num_tokens_);
}
int32_t* CudaSlots::stop_ids(Slot slot) const {
  return static_cast<int32_t*>(stop_ids_.data()) + size_t(slot) * size_t(num_tokens_);
}

CudaSampler CudaSlots::Default() const {
  CudaSampler sampler;
  sampler.params.banned = banned_;
  return sampler;
}

absl::Status CudaSlots::Zero(std::span<const Slot> slots, CudaQueue& queue) {
  const size_t empty = FloatsAt(0);
  parts_.clear();
  for (const Slot slot : slots) {
    parts_.push_back({0, int64_t(mine_[size_t(slot)].dirty), slot});
    mine_[size_t(slot)] = {Default(), false, empty, empty};
    if (initial_ == nullptr) continue;
    RIVULET_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(states() + size_t(slot) * floats_, initial_,
                                                 floats_ * sizeof(float), cudaMemcpyDeviceToDevice,
                                                 queue.stream()));
  }
  return initial_ != nullptr ? absl::OkStatus() : ZeroParts(parts_, queue);
}

absl::Status CudaSlots::ZeroParts(std::span<const CudaSlotPart> parts, CudaQueue& queue) {
  // The number that fits into one Stage.
  constexpr size_t kAtOnce = 1024;
  for (size_t at = 0; at < parts.size(); at += kAtOnce) {
    const auto some = parts.subspan(at, std::min(kAtOnce, parts.size() - at));
    size_t most = 0;
    for (const CudaSlotPart& part : some) most = std::max(most, size_t(part.floats));
    RIVULET_ASSIGN_OR_RETURN(void* const list, queue.Stage(some.size_bytes()));
    std::memcpy(list, some.data(), some.size_bytes());
    RIVULET_CUDA_RETURN_IF_ERROR(kernels::ZeroSlotsCuda(queue.launch(), states(), floats_,
                                                        static_cast<const CudaSlotPart*>(list),
                                                        int(some.size()), most));
  }
  return absl::OkStatus();
}

absl::Status CudaSlots::Shorten(Slot slot, size_t floats, CudaQueue& queue) {
  Mine& mine = mine_[size_t(slot)];
  const size_t dirty = mine.dirty;
  mine.used = mine.dirty = floats;
  if (dirty <= floats) return absl::OkStatus();
  const CudaSlotPart rest = {int64_t(floats), int64_t(dirty - floats), slot};
  return ZeroParts({&rest, 1}, queue);
}

void CudaSlots::Feed(Slot slot, int64_t sure, int64_t most) {
  Mine& mine = mine_[size_t(slot)];
  mine.used = std::max(mine.used, FloatsAt(sure));
  mine.dirty = std::max(mine.dirty, FloatsAt(most));
}

absl::Status CudaSlots::Copy(Slot from, Slot to, CudaQueue& queue) {
  if (from == to) return absl::OkStatus();
  const size_t used = StateFloats(from);
  RIVULET_CUDA_RETURN_IF_ERROR(
      kernels::CopySlotCuda(queue.launch(), states(), floats_, used, from, to));
  RIVULET_RETURN_IF_ERROR(Shorten(to, used, queue));
  const bool counted = counts(from);
  Mine& mine = mine_[size_t(to)];
  mine.sampler.seen = counted ? seen(to) : nullptr;
  mine.ready = false;
  if (!counted) return absl::OkStatus();
  return CudaStatus(cudaMemcpyAsync(seen(to), seen(from), size_t(num_tokens_) * sizeof(uint32_t),
                                    cudaMemcpyDeviceToDevice, queue.stream()),
                    "copying the counts of a slot");
}

absl::Status CudaSlots::SetSampler(Slot slot, const SlotSampler& sampler, CudaQueue& queue) {
  const int top = sampler.want_logprobs ? std::min(sampler.num_top_logprobs, num_tokens_) : 0;
  if (top > kCudaMaxTop) {
    return InvalidField("INVALID_SAMPLING", "num_top_logprobs",
                        absl::StrCat("num_top_logprobs is ", sampler.num_top_logprobs,
                                     "; allowed on CUDA: 0 to ", kCudaMaxTop));
  }
  const SamplingParams& p = sampler.params;
  Mine& mine = mine_[size_t(slot)];
  CudaSampler& device = mine.sampler;
  device.params = {
      p.temperature,      p.top_k, p.top_p, p.min_p, p.repetition_penalty, p.frequency_penalty,
      p.presence_penalty, banned_};
  device.sample_index = sampler.sample_index;
  device.seed = p.seed;
  device.want_logprobs = sampler.want_logprobs ? 1 : 0;
  device.num_top = top;
  mine.ready = false;
  if (p.has_penalties() && categorical_ && device.seen == nullptr) {
    device.seen = seen(slot);
    RIVULET_CUDA_RETURN_IF_ERROR(
        cudaMemsetAsync(device.seen, 0, size_t(num_tokens_) * sizeof(uint32_t), queue.stream()));
    RIVULET_RETURN_IF_ERROR(SetHistory(slot, sampler.history, queue));
  }
  return SetLists(slot, sampler, queue);
}

// The slot has counted nothing yet, so `history` is all that it has seen.
absl::Status CudaSlots::SetHistory(Slot slot, std::span<const TokenCount> history,
                                   CudaQueue& queue) {
  if (history.empty()) return absl::OkStatus();
  history_.assign(size_t(num_tokens_), 0);
  for (const TokenCount& count : history) {
    if (count.token < 0 || count.token >= num_tokens_) continue;
    history_[size_t(count.token)] =
        uint32_t(count.output_count) | (count.in_prompt ? kernels::kSeenInPrompt : 0);
  }
  return queue.CopyIn(seen(slot), history_.data(), history_.size() * sizeof(uint32_t));
}

absl::Status CudaSlots::SetLists(Slot slot, const SlotSampler& sampler, CudaQueue& queue) {
  CudaSampler& device = mine_[size_t(slot)].sampler;
  // Ids that cannot be drawn are left out; the others, without repetitions, fit the slot's array.
  stops_.clear();
  for (const int32_t id : sampler.stop_ids) {
    const bool known = std::find(stops_.begin(), stops_.end(), id) != stops_.end();
    if (id >= 0 && id < num_tokens_ && !known) stops_.push_back(id);
  }
  device.num_stop_ids = int32_t(stops_.size());
  device.stop_ids = stop_ids(slot);
  biases_.clear();
  for (const auto& [token, bias] : sampler.params.logit_bias) {
    if (categorical_ && token >= 0 && token < num_tokens_ && biases_.size() < size_t(num_tokens_)) {
      biases_.push_back({token, bias});
    }
  }
  device.num_bias = int32_t(biases_.size());
  device.bias = biases_.empty() ? nullptr : bias(slot);
  RIVULET_RETURN_IF_ERROR(
      queue.CopyIn(stop_ids(slot), stops_.data(), stops_.size() * sizeof(int32_t)));
  if (biases_.empty()) return absl::OkStatus();
  return queue.CopyIn(bias(slot), biases_.data(), biases_.size() * sizeof(CudaLogitBias));
}

absl::Status CudaSlots::SetMask(Slot slot, std::span<const uint32_t> bits, CudaQueue& queue) {
  Mine& mine = mine_[size_t(slot)];
  uint32_t* const own =
      static_cast<uint32_t*>(masks_.data()) + size_t(slot) * MaskWords(num_tokens_);
  const uint32_t* const mask = bits.empty() ? nullptr : own;
  mine.ready = mine.ready && mine.sampler.mask == mask;
  mine.sampler.mask = mask;
  return bits.empty() ? absl::OkStatus() : queue.CopyIn(own, bits.data(), bits.size_bytes());
}

absl::Status CudaSlots::Ready(Slot slot, CudaQueue& queue) {
  Mine& mine = mine_[size_t(slot)];
  if (mine.ready) return absl::OkStatus();
  CudaSampler* const device = static_cast<CudaSampler*>(samplers_.data()) + slot;
  RIVULET_RETURN_IF_ERROR(queue.CopyIn(device, &mine.sampler, sizeof mine.sampler));
  mine.ready = true;
  return absl::OkStatus();
}

absl::Status CudaSlots::Read(Slot slot, size_t from, std::span<float> out, CudaQueue& queue) const {
  // In pieces, so that a state of any size fits the readback.
  constexpr size_t kPiece = 4096;
  const float* const state = states() + size_t(slot) * floats_ + from;
  for (size_t at = 0; at < out.size(); at += kPiece) {
    float* const to = out.data() + at;
    const size_t count = std::min(kPiece, out.size() - at);
    RIVULET_RETURN_IF_ERROR(queue.CopyOut(state + at, count, count, {&to, 1}));
  }
  return queue.Flush();
}

absl::Status CudaSlots::Write(Slot slot, std::span<const std::span<const float>> parts,
                              CudaQueue& queue) {
  float* const state = states() + size_t(slot) * floats_;
  size_t floats = 0;
  for (const auto& part : parts) {
    RIVULET_RETURN_IF_ERROR(queue.CopyIn(state + floats, part.data(), part.size_bytes()));
    floats += part.size();
  }
  return Shorten(slot, floats, queue);
}

}  // namespace rivulet
