// SPDX-License-Identifier: Apache-2.0
// The resources of the CUDA backend on a device: memory, a stream, events, captured graphs. Every
// call that can fail returns a Status; destructors free and ignore errors.
//
// CUDA calls act on the calling thread's current device: CudaDevice::MakeCurrent comes first in
// every thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/base/error.h"

namespace rivulet {

// OK, or UNAVAILABLE with reason CUDA_ERROR, naming the failed action and the runtime's message.
absl::Status CudaStatus(cudaError_t error, absl::string_view what);

// Returns a failed CUDA call's Status, naming the call, from the current function.
#define RIVULET_CUDA_RETURN_IF_ERROR(call) \
  RIVULET_RETURN_IF_ERROR(::rivulet::CudaStatus((call), #call))

// One GPU. Any thread.
struct CudaDevice {
  int index = 0;
  int sm = 0;  // compute capability: 90 for 9.0
  int multiprocessors = 0;
  bool overlap = false;  // kernels use programmatic dependent launch; Open: if the device can
  bool graphs = true;    // repeated launches are replayed as a CUDA graph

  // Checks `index` and makes it current. Errors: UNAVAILABLE (reason BACKEND_ABSENT: no driver, no
  // device, or none of the index given here), INVALID_ARGUMENT (index beyond the devices, naming
  // their number), UNAVAILABLE (CUDA_ERROR).
  static absl::StatusOr<CudaDevice> Open(int index);
  absl::Status MakeCurrent() const;
};

// Device memory, or host memory that the device can write, too.
class CudaMemory {
 public:
  CudaMemory() = default;
  ~CudaMemory();
  CudaMemory(CudaMemory&& other) noexcept { *this = std::move(other); }
  CudaMemory& operator=(CudaMemory&& other) noexcept;

  // At least one byte. Errors: RESOURCE_EXHAUSTED (reason OUT_OF_MEMORY), UNAVAILABLE.
  static absl::StatusOr<CudaMemory> OnDevice(size_t bytes);
  // Pinned and mapped: one address for both sides. Zeroed.
  static absl::StatusOr<CudaMemory> OnHost(size_t bytes);

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  bool on_host_ = false;
};

class CudaStream {
 public:
  CudaStream() = default;
  ~CudaStream();
  CudaStream(CudaStream&& other) noexcept { std::swap(stream_, other.stream_); }
  CudaStream& operator=(CudaStream&& other) noexcept;
  static absl::StatusOr<CudaStream> Create();
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// A point in a stream that the host can query; without timing.
class CudaEvent {
 public:
  CudaEvent() = default;
  ~CudaEvent();
  CudaEvent(CudaEvent&& other) noexcept { std::swap(event_, other.event_); }
  CudaEvent& operator=(CudaEvent&& other) noexcept;
  static absl::StatusOr<CudaEvent> Create();

  absl::Status Record(cudaStream_t stream) const;
  // Whether the device has passed the last Record; or the error of earlier work.
  absl::StatusOr<bool> Passed() const;

 private:
  cudaEvent_t event_ = nullptr;
};

// Launches that are captured once and replayed; without graphs they are launched again each time.
class CudaGraph {
 public:
  using Launches = std::function<absl::Status()>;

  CudaGraph() = default;
  ~CudaGraph();
  CudaGraph(CudaGraph&& other) noexcept { *this = std::move(other); }
  CudaGraph& operator=(CudaGraph&& other) noexcept;

  // Captures the launches of `launches` in `stream`. The mode is relaxed, because a kernel may be
  // loaded at its first launch. With `graphs` false nothing is captured: this keeps `launches`, and
  // its references must outlive this.
  static absl::StatusOr<CudaGraph> Capture(cudaStream_t stream, bool graphs, Launches launches);
  // REQUIRES: the stream of Capture.
  absl::Status Launch(cudaStream_t stream) const;

 private:
  cudaGraphExec_t exec_ = nullptr;
  Launches launches_;  // without graphs
};

}  // namespace rivulet
