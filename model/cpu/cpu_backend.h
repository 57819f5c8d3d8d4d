// SPDX-License-Identifier: Apache-2.0
// CpuBackend: the Backend on the cores of this machine. Submit does the work before it returns.
//
// A row's bits depend on model, weight precision, fed tokens and sampler alone: never on the other
// rows, the number of threads, how tokens are split over runs, or AVX2 against AVX-512
// (kernels/README.md says why).
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "model/backend.h"
#include "model/model.h"

namespace rivulet {

// How matrix weights are kept in memory. Arithmetic is float32 in every case.
enum class WeightPrecision : uint8_t {
  kAuto,  // as in the file where every matrix is F16 (or every one BF16), which loses nothing; else
          // kF32
  kF32,
  kF16,   // rounds F32 and BF16 files; a weight that is too large for F16 is an error
  kBF16,  // rounds F32 and F16 files
};

struct CpuBackendOptions {
  // Behaviour.
  int num_slots = 256;  // sessions that fit
  WeightPrecision weights = WeightPrecision::kAuto;
  // Performance.
  int threads = 0;        // 0: UsableCores() of model/cpu/thread_team.h
  int max_rows = 256;     // rows of one run
  int max_tokens = 1024;  // tokens fed by one run, over all rows
};

// Decodes and packs the weights and reserves the slots (pages are taken when a slot is first used).
// Errors: DATA_LOSS (weights), INVALID_ARGUMENT (options), RESOURCE_EXHAUSTED naming the arithmetic
// (weights, slots, memory).
absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(std::shared_ptr<const Model> model,
                                                          const CpuBackendOptions& options);

}  // namespace rivulet
