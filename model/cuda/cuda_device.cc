// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_device.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace rivulet {
namespace {

absl::Status NoDevice(absl::string_view why) {
  return MakeError(absl::StatusCode::kUnavailable, absl::StrCat("no CUDA device: ", why),
                   {"BACKEND_ABSENT", "backend", {}});
}

// cudaErrorMemoryAllocation is no broken device: this clears the error.
absl::Status AllocationStatus(cudaError_t error, absl::string_view what, size_t bytes) {
  if (error != cudaErrorMemoryAllocation) return CudaStatus(error, what);
  (void)cudaGetLastError();
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat(what, " of ", bytes, " bytes: ", cudaGetErrorString(error)),
                   {"OUT_OF_MEMORY", "slots", {}});
}

}  // namespace

absl::Status CudaStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kUnavailable,
      absl::StrCat("CUDA error ", int(error), " (", cudaGetErrorString(error), ") in ", what),
      {"CUDA_ERROR", "", {}});
}

absl::StatusOr<CudaDevice> CudaDevice::Open(int index) {
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted != cudaSuccess) {
    (void)cudaGetLastError();
    // Without a driver the runtime reports that the driver is too old.
    int driver = 0;
    const bool installed = cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0;
    return NoDevice(installed ? cudaGetErrorString(counted) : "no NVIDIA driver is installed");
  }
  if (count == 0) return NoDevice("the driver lists none");
  if (index < 0 || index >= count) {
    return InvalidField(
        "NO_SUCH_DEVICE", "device",
        absl::StrCat("device is ", index, "; this machine has ", count, " CUDA device",
                     count == 1 ? "" : "s", "; allowed: 0 to ", count - 1));
  }
  CudaDevice device;
  device.index = index;
  RIVULET_RETURN_IF_ERROR(device.MakeCurrent());
  int major = 0, minor = 0;
  const std::pair<int*, cudaDeviceAttr> attributes[] = {
      {&major, cudaDevAttrComputeCapabilityMajor},
      {&minor, cudaDevAttrComputeCapabilityMinor},
      {&device.multiprocessors, cudaDevAttrMultiProcessorCount}};
  for (const auto& [value, attribute] : attributes) {
    RIVULET_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(value, attribute, index));
  }
  device.sm = 10 * major + minor;
  constexpr int kOldestSm = 80, kOverlapSm = 90;
  device.overlap = device.sm >= kOverlapSm;
  if (device.sm < kOldestSm) {
    return NoDevice(absl::StrCat("device ", index, " has compute capability ", major, ".", minor,
                                 ", and this build needs 8.0 or newer"));
  }
  return device;
}

absl::Status CudaDevice::MakeCurrent() const {
  return CudaStatus(cudaSetDevice(index), "cudaSetDevice");
}

CudaMemory::~CudaMemory() {
  if (data_ == nullptr) return;
  (void)(on_host_ ? cudaFreeHost(data_) : cudaFree(data_));
}

CudaMemory& CudaMemory::operator=(CudaMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(on_host_, other.on_host_);
  return *this;
}

absl::StatusOr<CudaMemory> CudaMemory::OnDevice(size_t bytes) {
  CudaMemory memory;
  const size_t taken = bytes > 0 ? bytes : 1;
  RIVULET_RETURN_IF_ERROR(AllocationStatus(cudaMalloc(&memory.data_, taken), "cudaMalloc", taken));
  memory.bytes_ = bytes;
  return memory;
}

absl::StatusOr<CudaMemory> CudaMemory::OnHost(size_t bytes) {
  CudaMemory memory;
  memory.on_host_ = true;
  const size_t taken = bytes > 0 ? bytes : 1;
  RIVULET_RETURN_IF_ERROR(AllocationStatus(cudaHostAlloc(&memory.data_, taken, cudaHostAllocMapped),
                                           "cudaHostAlloc", taken));
  std::memset(memory.data_, 0, taken);
  memory.bytes_ = bytes;
  return memory;
}

CudaStream::~CudaStream() {
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
}

CudaStream& CudaStream::operator=(CudaStream&& other) noexcept {
  std::swap(stream_, other.stream_);
  return *this;
}

absl::StatusOr<CudaStream> CudaStream::Create() {
  CudaStream stream;
  RIVULET_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&stream.stream_, cudaStreamNonBlocking));
  return stream;
}

CudaEvent::~CudaEvent() {
  if (event_ != nullptr) (void)cudaEventDestroy(event_);
}

CudaEvent& CudaEvent::operator=(CudaEvent&& other) noexcept {
  std::swap(event_, other.event_);
  return *this;
}

absl::StatusOr<CudaEvent> CudaEvent::Create() {
  CudaEvent event;
  RIVULET_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&event.event_, cudaEventDisableTiming));
  return event;
}

absl::Status CudaEvent::Record(cudaStream_t stream) const {
  return CudaStatus(cudaEventRecord(event_, stream), "cudaEventRecord");
}

absl::StatusOr<bool> CudaEvent::Passed() const {
  const cudaError_t error = cudaEventQuery(event_);
  if (error == cudaErrorNotReady) return false;
  RIVULET_RETURN_IF_ERROR(CudaStatus(error, "work on the device"));
  return true;
}

CudaGraph::~CudaGraph() {
  if (exec_ != nullptr) (void)cudaGraphExecDestroy(exec_);
}

CudaGraph& CudaGraph::operator=(CudaGraph&& other) noexcept {
  std::swap(exec_, other.exec_);
  std::swap(launches_, other.launches_);
  return *this;
}

absl::StatusOr<CudaGraph> CudaGraph::Capture(cudaStream_t stream, bool graphs, Launches launches) {
  CudaGraph graph;
  if (!graphs) {
    graph.launches_ = std::move(launches);
    return graph;
  }
  RIVULET_CUDA_RETURN_IF_ERROR(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  absl::Status status = launches();
  cudaGraph_t captured = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream, &captured);
  // An open capture would make all later calls fail, including cudaFree.
  if (ended != cudaSuccess) (void)cudaStreamEndCapture(stream, &captured);
  if (status.ok()) status = CudaStatus(ended, "cudaStreamEndCapture");
  if (status.ok()) {
    status = CudaStatus(cudaGraphInstantiate(&graph.exec_, captured, 0), "cudaGraphInstantiate");
  }
  if (captured != nullptr)
    status.Update(CudaStatus(cudaGraphDestroy(captured), "cudaGraphDestroy"));
  if (!status.ok()) return status;
  return graph;
}

absl::Status CudaGraph::Launch(cudaStream_t stream) const {
  if (launches_ != nullptr) return launches_();
  return CudaStatus(cudaGraphLaunch(exec_, stream), "cudaGraphLaunch");
}

}  // namespace rivulet
