// SPDX-License-Identifier: Apache-2.0
// The options of the backends. They have a separate file so that the parts of a backend can use
// them without including the backend.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "kernels/softmax_attention.h"
#include "model/weight_choice.h"

namespace rivulet {

inline constexpr int64_t kMostContext = int64_t{1} << 24;
inline constexpr int kMostAutoSlots = 256;
inline constexpr int kMostDrafts = 16;

// The number of positions that each slot holds, for models that cache keys and values of all
// positions; at most the model's own limit.
struct ContextChoice {
  std::optional<int64_t> tokens = {};  // 1 to kMostContext; nullopt: by memory
  // By memory: the most that leaves so many slots, 1 to kMostAutoSlots (ContextForSlots); nullopt:
  // AutoContext.
  std::optional<int> slots = {};
};

struct CpuBackendOptions {
  // Behaviour.
  std::optional<int> num_slots = 256;  // sequences with a state; nullopt: AutoSlots
  ContextChoice max_context = {};
  kernels::CacheType cache = kernels::CacheType::kF32;  // keys and values of softmax attention
  // Memory that other backends of this process have reserved, used or not. AutoSlots does not give
  // it to slots.
  int64_t reserved_bytes = 0;
  WeightChoice weights = {};
  int max_drafts = 0;          // DraftLimits::most, at most kMostDrafts
  int speculating_rows = 4;    // DraftLimits::rows; each takes memory from the start
  bool count_experts = false;  // BackendLimits::expert_load, for models with experts
  // Performance.
  int threads = 0;        // 0: UsableCores() of model/base/thread_team.h
  int max_rows = 256;     // rows of one run
  int max_tokens = 1024;  // tokens fed by one run, over all rows
};

enum class CudaPrecision : uint8_t {
  kDefault,  // matrix products of the layers in fp16, summed in float32; all else float32
  kFloat32,
};

// The library for matrix products that are separate launches. Products with norms or activations,
// and products of few rows, are parts of our own kernels.
enum class CudaProductChoice : uint8_t {
  kAuto,  // NVIDIA's cuBLASLt from library_rows on, if it is installed and gives the bits of our
          // own kernels on this device; else our own kernels
  kOwn,   // our own kernels
};

struct CudaBackendOptions {
  // Behaviour.
  std::optional<int> num_slots = 1024;  // nullopt: AutoSlots, from the device's free memory
  CudaPrecision precision = CudaPrecision::kDefault;
  // kInt8, for layers or head, keeps integers, which become F16 when they are multiplied; kInt4 is
  // refused. For all other types `precision` alone decides.
  WeightChoice weights = {};
  kernels::CacheType cache = kernels::CacheType::kF32;  // kF32 alone, with softmax attention
  CudaProductChoice products = CudaProductChoice::kAuto;
  std::string library = {};  // cuBLASLt: a file, or a name for the dynamic linker;
                             // empty: libcublasLt.so.13
  ContextChoice max_context = {};
  int device = 0;  // as CUDA counts them
  // If the device makes no progress for this time, it counts as hung, and the backend is poisoned.
  absl::Duration patience = absl::Seconds(10);
  // Workarounds for a fault of driver or device; the bits are the same.
  bool overlap = true;  // programmatic dependent launch, where the device has it
  bool graphs = true;   // CUDA graphs; without them every kernel is launched by the host
  // Performance.
  int max_rows = 0;         // rows of one run; 0: num_slots, but at most 4096
  int max_tokens = 0;       // tokens fed by one run, over all rows; 0: max_rows, but at least 8192
  int max_steps = 32;       // steps of one run
  int preferred_steps = 8;  // run length that hides the host's time
  int many_rows = 1;        // from this number of token rows on, products with weights in F16 read
                            // rows of F16, and norms are launches; the bits are the same
  int library_rows = 512;   // from this number of token rows on, a library may run a product
  int head_rows = 0;        // rows whose head outputs are computed at a time; 0: the rows of a
                            // step that fit into a 32nd of the memory that weights leave
};

}  // namespace rivulet
