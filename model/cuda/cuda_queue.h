// SPDX-License-Identifier: Apache-2.0
// The one stream of a backend, and copies in its order: staging from host to device, readback from
// device to host. Every wait for the device has a time limit.
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

// UNAVAILABLE with reason CUDA_HANG: `what` did not arrive within `patience`.
absl::Status CudaHangStatus(absl::string_view what, absl::Duration patience);
bool IsCudaHang(const absl::Status& status);

// Thread: one.
class CudaQueue {
 public:
  // `staging_bytes`: the most bytes for one Stage. `readback_bytes`: the most bytes that can wait
  // for a Deliver; with more CopyOut waits for the device.
  static absl::StatusOr<CudaQueue> Create(const CudaDevice& device, size_t staging_bytes,
                                          size_t readback_bytes, absl::Duration patience);

  const kernels::CudaLaunch& launch() const { return launch_; }
  bool graphs() const { return graphs_; }  // CudaDevice::graphs
  cudaStream_t stream() const { return launch_.stream; }
  absl::Duration patience() const { return patience_; }

  // Pinned memory that the device can read, 16-byte aligned, for work that is queued before the
  // next Stage. Two halves take turns; waits if the device still uses a half.
  absl::StatusOr<void*> Stage(size_t bytes);
  // Copies host memory, which may change as soon as this returns, to the device in stream order.
  absl::Status CopyIn(void* to, const void* from, size_t bytes);

  // Queues a copy of `rows` rows of `width` floats from device memory [rows, pitch]; row i goes to
  // destinations[i] at the next Deliver or Flush. REQUIRES: a row fits the readback.
  absl::Status CopyOut(const float* from, size_t pitch, size_t width,
                       std::span<float* const> destinations);
  bool copies_wait() const { return !deliveries_.empty(); }
  // Copies the data of CopyOut to its destinations. REQUIRES: the stream has passed the copies.
  void Deliver();
  // Waits for all queued work, then delivers.
  absl::Status Flush();

  // Waits for `event`. Errors: those of earlier work; CudaHangStatus.
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
  std::array<CudaEvent, 2> left_;  // recorded after the work of a half
  std::array<bool, 2> was_left_ = {};

  CudaMemory readback_;
  size_t readback_used_ = 0;  // floats
  std::vector<Delivery> deliveries_;
};

}  // namespace rivulet
