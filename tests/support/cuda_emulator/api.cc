// SPDX-License-Identifier: Apache-2.0
// The functions of the runtime API that move no stream: devices, memory, errors.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda_profiler_api.h"
#include "tests/support/cuda_emulator/block.h"
#include "tests/support/cuda_emulator/runtime.h"

using rivulet::cuda_emulator::Die;
using rivulet::cuda_emulator::Lock;
using rivulet::cuda_emulator::Runtime;
using rivulet::cuda_emulator::Stream;

#define RIVULET_ENTER(call)    \
  Runtime& r = Runtime::Get(); \
  const Lock lock(r.mutex);    \
  if (const cudaError_t e = r.Enter(call)) return e

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    default:
      return "cudaError";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    default:
      return "an emulated CUDA error";
  }
}

cudaError_t cudaGetLastError() {
  Runtime& r = Runtime::Get();
  const Lock lock(r.mutex);
  const cudaError_t last = r.last;
  r.last = r.sticky;
  return last;
}

cudaError_t cudaPeekAtLastError() {
  Runtime& r = Runtime::Get();
  const Lock lock(r.mutex);
  return r.last;
}

cudaError_t cudaGetDeviceCount(int* count) {
  RIVULET_ENTER("cudaGetDeviceCount");
  *count = r.options.num_devices;
  return *count > 0 ? cudaSuccess : r.Remember(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int* device) {
  RIVULET_ENTER("cudaGetDevice");
  *device = r.device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  RIVULET_ENTER("cudaSetDevice");
  if (device < 0 || device >= r.options.num_devices) return r.Remember(cudaErrorInvalidDevice);
  r.device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  RIVULET_ENTER("cudaGetDeviceProperties");
  if (device < 0 || device >= r.options.num_devices) return r.Remember(cudaErrorInvalidDevice);
  *properties = {};
  snprintf(properties->name, sizeof properties->name, "Emulated device %d", device);
  properties->totalGlobalMem = r.options.memory_bytes;
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = r.options.shared_bytes;
  properties->sharedMemPerMultiprocessor = r.options.shared_bytes + (1 << 10);
  properties->major = r.options.major;
  properties->minor = r.options.minor;
  properties->multiProcessorCount = r.options.multiprocessors;
  properties->l2CacheSize = 50 << 20;
  properties->warpSize = 32;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  RIVULET_ENTER("cudaDeviceGetAttribute");
  if (device < 0 || device >= r.options.num_devices) return r.Remember(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = 1024;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = r.options.multiprocessors;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = r.options.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = r.options.minor;
      return cudaSuccess;
  }
  return r.Remember(cudaErrorInvalidValue);
}

cudaError_t cudaDriverGetVersion(int* version) {
  RIVULET_ENTER("cudaDriverGetVersion");
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  RIVULET_ENTER("cudaMemGetInfo");
  *total_bytes = r.options.memory_bytes;
  *free_bytes = r.options.memory_bytes - r.memory.allocated(r.device);
  return cudaSuccess;
}

namespace {

// While a stream captures, these calls are forbidden and end the capture.
cudaError_t FailCaptures(Runtime& r) {
  for (Stream* s : r.streams) {
    if (s->capture == nullptr) continue;
    s->capture_failed = true;
    return r.Remember(cudaErrorStreamCaptureUnsupported);
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  RIVULET_ENTER("cudaMalloc");
  if (const cudaError_t e = FailCaptures(r)) return e;
  ++r.counters.mallocs;
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  const size_t allocated = r.memory.allocated(r.device);
  if (allocated > r.options.memory_bytes || bytes > r.options.memory_bytes - allocated) {
    return r.Remember(cudaErrorMemoryAllocation);
  }
  *pointer = r.memory.Allocate(bytes, r.device);
  return *pointer == nullptr ? r.Remember(cudaErrorMemoryAllocation) : cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  RIVULET_ENTER("cudaFree");
  if (pointer == nullptr) return cudaSuccess;
  if (const cudaError_t e = FailCaptures(r)) return e;
  for (Stream* s : std::set<Stream*>(r.streams)) r.RunAll(s, "cudaFree");
  return r.memory.Free(pointer) ? cudaSuccess : r.Remember(cudaErrorInvalidValue);
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  RIVULET_ENTER("cudaHostAlloc");
  if (const cudaError_t e = FailCaptures(r)) return e;
  ++r.counters.mallocs;
  *pointer = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (*pointer == nullptr) return r.Remember(cudaErrorMemoryAllocation);
  memset(*pointer, 0xA5, bytes);  // the real one promises no zeros
  r.host_allocations[*pointer] = bytes;
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void* pointer) {
  RIVULET_ENTER("cudaFreeHost");
  if (pointer == nullptr) return cudaSuccess;
  for (Stream* s : std::set<Stream*>(r.streams)) r.RunAll(s, "cudaFreeHost");
  if (r.host_allocations.erase(pointer) == 0) return r.Remember(cudaErrorInvalidValue);
  free(pointer);
  return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void** device_pointer, void* host_pointer, unsigned) {
  RIVULET_ENTER("cudaHostGetDevicePointer");
  auto it = r.host_allocations.upper_bound(host_pointer);
  if (it == r.host_allocations.begin()) return r.Remember(cudaErrorInvalidValue);
  --it;
  if (static_cast<char*>(host_pointer) >= static_cast<char*>(it->first) + it->second) {
    return r.Remember(cudaErrorInvalidValue);
  }
  *device_pointer = host_pointer;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  RIVULET_ENTER("cudaFuncSetAttribute");
  if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) {
    if (value < -1 || value > 100) return r.Remember(cudaErrorInvalidValue);
    r.carveouts[function] = value;
  }
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || static_cast<size_t>(value) > r.options.shared_bytes)
    return r.Remember(cudaErrorInvalidValue);
  r.shared_limits[function] = value;
  return cudaSuccess;
}

cudaError_t cudaProfilerStart() {
  RIVULET_ENTER("cudaProfilerStart");
  r.profiling = true;
  return cudaSuccess;
}

cudaError_t cudaProfilerStop() {
  RIVULET_ENTER("cudaProfilerStop");
  r.profiling = false;
  return cudaSuccess;
}
