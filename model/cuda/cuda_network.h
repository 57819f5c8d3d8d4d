// SPDX-License-Identifier: Apache-2.0
// CudaNetwork: a model on the device, its weights and its forward pass, for CudaBackend and
// CudaSteps: token rows in, raw head outputs out, states advanced. A pass consists of launches,
// which are queued directly (a first step) or captured (a step).
//
// The weights and their loader, products, scratch, slots, outputs and kernels of rows are the same
// for all kinds. The layers differ: layers of our own format normalize after the residual, as
// prologues of the next products, and have a kernel of whole steps (CudaForward); layers of the
// family normalize before the mixer, which rounds for the products after it (CudaBlockForward).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/common/launch_cuda.h"
#include "model/backend.h"
#include "model/backend_options.h"
#include "model/config.h"
#include "model/cuda/cuda_library_weights.h"
#include "model/cuda/cuda_outputs.h"
#include "model/cuda/cuda_products.h"
#include "model/cuda/cuda_queue.h"
#include "model/cuda/cuda_scratch.h"
#include "model/cuda/cuda_slots.h"
#include "model/cuda/cuda_weights.h"
#include "model/loading/packed_weights.h"
#include "model/model.h"

namespace rivulet {

// Token rows of one pass, and the token rows whose head outputs are wanted. Device pointers.
struct CudaPass {
  const int32_t* tokens = nullptr;                 // [rows]
  const int64_t* positions = nullptr;              // [rows]
  const kernels::CudaSegment* segments = nullptr;  // [num_segments]
  int rows = 0, num_segments = 0;
  int num_long = 0;                 // the first num_long segments are long
  const int32_t* gather = nullptr;  // [num_outputs] token rows; null: all, in order
  int num_outputs = 0;
};

// Objects of the backend that a network uses. The backend may fill them after Load.
struct CudaShared {
  const CudaSlots& slots;
  const CudaOutputs& outputs;
  const CudaProducts& products;
};

// Thread: one. Passes share activations, so they must follow each other in one stream.
class CudaNetwork {
 public:
  struct Bytes {
    size_t weights = 0;
    size_t work = 0;  // all other memory
  };
  virtual ~CudaNetwork() = default;

  // Increased by each change of the code that changes bits.
  virtual int numerics_version() const = 0;
  // Why no library may run products, even if one is installed; "": it may.
  virtual std::string WhyNoLibrary() const { return ""; }
  // Device memory that Load takes. Call before Load.
  Bytes Measure(const BackendLimits& limits, const CudaLibrary& library);

  // Uploads the weights and takes the memory between launches. Call once, before the functions
  // below. Errors: DATA_LOSS (file), INVALID_ARGUMENT (a weight too large for fp16, named),
  // RESOURCE_EXHAUSTED, UNAVAILABLE.
  absl::Status Load(const BackendLimits& limits, const CudaLibrary& library, CudaQueue& queue);
  // The inputs and outputs of the products that a library may run.
  virtual CudaProductPlaces Places(int max_tokens) const = 0;
  CudaLibraryWeights& library_weights() { return weights_.library; }
  // CudaWeights::initial_state.
  const float* initial_state() const { return weights_.initial_state; }

  // All layers.
  virtual absl::Status Layers(const kernels::CudaLaunch& launch, const CudaPass& pass) const = 0;
  // Head outputs of the output rows first .. first + rows - 1 of the last pass, into CudaOutputs.
  virtual absl::Status Head(const kernels::CudaLaunch& launch, int first, int rows) const = 0;

 protected:
  CudaNetwork(const Model& model, std::unique_ptr<PackedWeights> host,
              const CudaBackendOptions& options, const CudaShared& shared)
      : config_(model.config()),
        parts_(config_.state()),
        options_(options),
        slots_(shared.slots),
        outputs_(shared.outputs),
        products_(shared.products),
        host_(std::move(host)) {}
  // Prepares the network's kernels for launches.
  virtual absl::Status Prepare() const = 0;

  const ModelConfig& config_;
  const StateParts parts_;
  const CudaBackendOptions options_;
  const CudaSlots& slots_;
  const CudaOutputs& outputs_;
  const CudaProducts& products_;
  std::unique_ptr<PackedWeights> host_;  // until the weights are on the device
  CudaWeights weights_;
  CudaScratch scratch_;
};

// The network for the model's kind; `model` and the objects in `shared` must outlive it. Reads the
// checkpoint into host memory; nothing is on the device yet. Errors: UNIMPLEMENTED
// (MODEL_UNSUPPORTED: no kernel runs it), INVALID_ARGUMENT (an option that the kind does not have),
// DATA_LOSS (weights).
absl::StatusOr<std::unique_ptr<CudaNetwork>> NewCudaNetwork(const Model& model,
                                                            const CudaBackendOptions& options,
                                                            const CudaShared& shared);

}  // namespace rivulet
