// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_queue.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"

namespace rivulet {
namespace {

constexpr char kHangReason[] = "CUDA_HANG";
constexpr size_t kAlignment = 16;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

absl::Status CudaHangStatus(absl::string_view what, absl::Duration patience) {
  return MakeError(absl::StatusCode::kUnavailable,
                   absl::StrCat("the CUDA device hangs: ", what, " did not come for ",
                                absl::FormatDuration(patience)),
                   {kHangReason, "", {}});
}

bool IsCudaHang(const absl::Status& status) { return GetErrorDetail(status).reason == kHangReason; }

// Polls until `done` returns true. Spins at first, then yields the core to others.
template <typename Done>
absl::Status CudaQueue::AwaitTrue(const Done& done) const {
  constexpr int kSpins = 1000;
  constexpr std::chrono::microseconds kSleep(20);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0;; ++i) {
    RIVULET_ASSIGN_OR_RETURN(const bool is_done, done());
    if (is_done) return absl::OkStatus();
    if (std::chrono::steady_clock::now() - begin > absl::ToChronoNanoseconds(patience_)) {
      return CudaHangStatus("the end of queued work", patience_);
    }
    if (i >= kSpins) std::this_thread::sleep_for(kSleep);
  }
}

absl::StatusOr<CudaQueue> CudaQueue::Create(const CudaDevice& device, size_t staging_bytes,
                                            size_t readback_bytes, absl::Duration patience) {
  CudaQueue queue;
  RIVULET_ASSIGN_OR_RETURN(queue.stream_, CudaStream::Create());
  queue.launch_ = {queue.stream_.get(), device.overlap, device.multiprocessors};
  queue.graphs_ = device.graphs;
  queue.patience_ = patience;
  queue.half_bytes_ = Aligned(staging_bytes);
  RIVULET_ASSIGN_OR_RETURN(queue.staging_, CudaMemory::OnHost(2 * queue.half_bytes_));
  for (CudaEvent& event : queue.left_) {
    RIVULET_ASSIGN_OR_RETURN(event, CudaEvent::Create());
  }
  RIVULET_ASSIGN_OR_RETURN(queue.readback_, CudaMemory::OnHost(readback_bytes));
  return queue;
}

absl::StatusOr<void*> CudaQueue::Stage(size_t bytes) {
  const size_t taken = Aligned(bytes);
  if (taken > half_bytes_) {
    return absl::InternalError(absl::StrCat("staging of ", bytes, " bytes; at most ", half_bytes_));
  }
  if (staged_ + taken > half_bytes_) {
    const auto leaving = size_t(half_), entering = size_t(1 - half_);
    RIVULET_RETURN_IF_ERROR(left_[leaving].Record(stream()));
    was_left_[leaving] = true;
    if (was_left_[entering]) RIVULET_RETURN_IF_ERROR(Await(left_[entering]));
    half_ = 1 - half_;
    staged_ = 0;
  }
  char* room = static_cast<char*>(staging_.data()) + size_t(half_) * half_bytes_ + staged_;
  staged_ += taken;
  return room;
}

absl::Status CudaQueue::CopyIn(void* to, const void* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += half_bytes_) {
    const size_t count = std::min(half_bytes_, bytes - at);
    RIVULET_ASSIGN_OR_RETURN(void* const room, Stage(count));
    std::memcpy(room, static_cast<const char*>(from) + at, count);
    RIVULET_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(static_cast<char*>(to) + at, room, count,
                                                 cudaMemcpyHostToDevice, stream()));
  }
  return absl::OkStatus();
}

absl::Status CudaQueue::CopyOut(const float* from, size_t pitch, size_t width,
                                std::span<float* const> destinations) {
  const size_t room = readback_.bytes() / sizeof(float);
  for (size_t row = 0; row < destinations.size();) {
    if (readback_used_ + width > room) RIVULET_RETURN_IF_ERROR(Flush());
    const size_t rows = std::min(destinations.size() - row, (room - readback_used_) / width);
    if (rows == 0) return absl::InternalError(absl::StrCat("readback of ", width, " floats"));
    float* const to = static_cast<float*>(readback_.data()) + readback_used_;
    RIVULET_CUDA_RETURN_IF_ERROR(cudaMemcpy2DAsync(to, width * sizeof(float), from + row * pitch,
                                                   pitch * sizeof(float), width * sizeof(float),
                                                   rows, cudaMemcpyDeviceToHost, stream()));
    for (size_t i = 0; i < rows; ++i) {
      deliveries_.push_back({readback_used_ + i * width, width, destinations[row + i]});
    }
    readback_used_ += rows * width;
    row += rows;
  }
  return absl::OkStatus();
}

void CudaQueue::Deliver() {
  const float* const floats = static_cast<const float*>(readback_.data());
  for (const Delivery& d : deliveries_) {
    std::memcpy(d.destination, floats + d.offset, d.count * sizeof(float));
  }
  deliveries_.clear();
  readback_used_ = 0;
}

absl::Status CudaQueue::Flush() {
  RIVULET_RETURN_IF_ERROR(AwaitAll());
  Deliver();
  return absl::OkStatus();
}

absl::Status CudaQueue::Await(const CudaEvent& event) const {
  return AwaitTrue([&] { return event.Passed(); });
}

absl::Status CudaQueue::AwaitAll() const {
  if (stream() == nullptr) return absl::OkStatus();  // never created: nothing was queued
  return AwaitTrue([&]() -> absl::StatusOr<bool> {
    const cudaError_t error = cudaStreamQuery(stream());
    if (error == cudaErrorNotReady) return false;
    RIVULET_RETURN_IF_ERROR(CudaStatus(error, "work on the device"));
    return true;
  });
}

}  // namespace rivulet
