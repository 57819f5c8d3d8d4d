// SPDX-License-Identifier: Apache-2.0
// CudaBackend: the Backend on one NVIDIA GPU. Submit queues a run and returns; steps go on without
// the host. Where a build has no CUDA, CMake puts a stub in its place.
//
// A row's bits depend on model, precision, fed tokens and sampler alone: never on the other rows,
// its place, the bucket that a step was captured for, or how tokens are split over runs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "model/backend.h"
#include "model/model.h"

namespace rivulet {

enum class CudaPrecision : uint8_t {
  kDefault,  // matrix products of the layers in fp16, summed in float32; all else float32
  kFloat32,
};

// How the steps of a run are launched. The bits are the same.
enum class CudaPlan : uint8_t {
  kAuto,        // of few rows as one launch where weights fit into the device's shared memory, else
                // as graphs
  kLatency,     // of few rows as one launch, even if weights must be read anew in every step
  kThroughput,  // as graphs
};

// What runs the matrix products that stand alone. Norms, activations and few rows are part of our
// own kernels.
enum class CudaProductChoice : uint8_t {
  kAuto,  // NVIDIA's cuBLASLt from many rows on, where it is there and gives the bits of our own
          // kernels on this device; else these
  kCublasLt,  // cuBLASLt for every product at every row count: other bits, so another numerics id
  kOwn,       // our own kernels
};

struct CudaBackendOptions {
  // Behaviour.
  int num_slots = 1024;
  CudaPrecision precision = CudaPrecision::kDefault;
  CudaProductChoice products = CudaProductChoice::kAuto;
  std::string library = {};  // cuBLASLt: a file, or a name that the dynamic linker looks for;
                             // empty: libcublasLt.so.13
  int device = 0;            // as CUDA counts them
  // The device is taken for hung, and the backend poisoned, when it makes no progress for so long.
  absl::Duration patience = absl::Seconds(10);
  // Ways around a fault of driver or device; the bits are the same.
  bool overlap = true;  // programmatic dependent launch, where the device has it
  bool graphs = true;   // CUDA graphs; without them every kernel is launched by the host
  // Performance.
  CudaPlan plan = CudaPlan::kAuto;
  int latency_rows = 8;     // most rows of a run that goes as one launch, at most 16; 0: none
  int max_rows = 0;         // rows of one run; 0: num_slots, but at most 4096
  int max_tokens = 0;       // tokens fed by one run, over all rows; 0: max_rows, but at least 8192
  int max_steps = 32;       // steps of one run
  int preferred_steps = 8;  // run length that hides the host
  int many_rows = 512;      // from so many token rows on products take tiles of many rows
  int head_rows = 0;        // rows whose head outputs are made at a time; 0: what 32 MiB hold
};

// Uploads the weights, reserves the slots, captures a step for every bucket of row counts and runs
// each once, so that nothing is allocated or loaded later. Errors: UNIMPLEMENTED (reason
// BACKEND_ABSENT: this build has none), UNAVAILABLE (BACKEND_ABSENT: no driver or no usable device;
// CUDA_ERROR), INVALID_ARGUMENT (options, a device that is not there, a plan or products that it
// cannot run, a weight too large for fp16), RESOURCE_EXHAUSTED naming the arithmetic (weights,
// slots, free memory), DATA_LOSS (weights).
//
// A CUDA error or a hung device poisons the backend: every later call returns UNAVAILABLE with
// reason CUDA_ERROR or CUDA_HANG. After a hang the destructor leaves the device's memory to the end
// of the process, as giving it back would wait for ever.
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(std::shared_ptr<const Model> model,
                                                           const CudaBackendOptions& options);

}  // namespace rivulet
