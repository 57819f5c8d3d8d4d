// SPDX-License-Identifier: Apache-2.0
// The one stream of a backend, and how host memory and device memory reach each other in its order:
// staging on the way in, readback on the way out. Waiting for the device is never for ever.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/cuda/common/launch_cuda.h"
#include "model/cuda/cuda_device.h"

namespace rivulet {

// UNAVAILABLE with reason CUDA_HANG: `what` did not come for `patience`.
absl::Status CudaHangStatus(absl::string_view what, absl::Duration patience);
bool IsCudaHang(const absl::Status& status);

// Thread: one.
class CudaQueue {
 public:
  // `staging_bytes`: the most that one Stage can ask for. `readback_bytes`: the most that can wait
  // for a Deliver without Take waiting for the device.
  static absl::StatusOr<CudaQueue> Create(const CudaDevice& device, size_t staging_bytes,
                                          size_t readback_bytes, absl::Duration patience);

  const kernels::CudaLaunch& launch() const { return launch_; }
  bool graphs() const { return graphs_; }  // CudaDevice::graphs
  cudaStream_t stream() const { return launch_.stream; }
  absl::Duration patience() const { return patience_; }

  // Pinned room that the device can read, 16-byte aligned, to be filled and used by work that is
  // queued before the next Stage. Two halves take turns; waits where the device is behind.
  absl::StatusOr<void*> Stage(size_t bytes);
  // Copies host memory, which may change at once, to the device in stream order.
  absl::Status CopyIn(void* to, const void* from, size_t bytes);

  // Queues a copy of `rows` rows of `width` floats from device memory [rows, pitch]; row i goes to
  // destinations[i] at the next Deliver or Flush. REQUIRES: a row fits the readback.
  absl::Status CopyOut(const float* from, size_t pitch, size_t width,
                       std::span<float* const> destinations);
  bool copies_wait() const { return !deliveries_.empty(); }
  // Hands out what CopyOut brought. REQUIRES: the stream has come past it.
  void Deliver();
  // Waits for all queued work, then delivers.
  absl::Status Flush();

  // Waits for `event`. Errors: what the work before it left behind; CudaHangStatus.
  absl::Status Await(const CudaEvent& event) const;
  // Waits for all queued work.
  absl::Status AwaitAll() const;

 private:
  struct Delivery {
    size_t offset;  // floats into readback_
    size_t count;
    float* destination;
  };

  template <typename Done>
  absl::Status AwaitTrue(const Done& done) const;

  CudaStream stream_;
  kernels::CudaLaunch launch_;
  bool graphs_ = true;
  absl::Duration patience_;

  CudaMemory staging_;
  size_t half_bytes_ = 0, staged_ = 0;  // staged_: bytes of the current half in use
  int half_ = 0;
  std::array<CudaEvent, 2> left_;  // recorded when a half was left
  std::array<bool, 2> was_left_ = {};

  CudaMemory readback_;
  size_t readback_used_ = 0;  // floats
  std::vector<Delivery> deliveries_;
};

}  // namespace rivulet
