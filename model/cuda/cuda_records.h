// SPDX-License-Identifier: Apache-2.0
// CudaRecords: the ring in mapped pinned memory through which the device reports its draws. The
// device writes a record's word last and whole; the host takes a record once it reads the sequence
// that it expects there.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/cuda/sample/sample_cuda.h"
#include "model/backend.h"
#include "model/cuda/cuda_device.h"
#include "model/cuda/cuda_run_plan.h"

namespace rivulet {

// Thread: one.
class CudaRecords {
 public:
  // Allocates for one run within `limits`, each record with up to `max_top` top log-probabilities.
  static absl::StatusOr<CudaRecords> Create(const BackendLimits& limits, int max_top);

  // The sequence number for the next run, which no record here has. No run is outstanding.
  uint32_t NextSequence();

  // Whether the record of `expected` has arrived with the last sequence number; then fills it.
  bool Take(const CudaRecordOrder::Expected& expected, Record* record) const;

  // The arrays for kernels.
  kernels::CudaRecord* records() const {
    return static_cast<kernels::CudaRecord*>(records_.data());
  }
  kernels::CudaTopLogprob* top() const {
    return static_cast<kernels::CudaTopLogprob*>(top_.data());
  }
  int top_stride() const { return max_top_; }

 private:
  CudaMemory records_, top_;
  size_t count_ = 0;
  int max_top_ = 0;
  uint32_t sequence_ = 0;
};

}  // namespace rivulet
