// SPDX-License-Identifier: Apache-2.0
// CudaRecords: the ring through which the device reports what it drew, in mapped pinned memory. The
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
  // Room for one run within `limits`, each record with up to `max_top` top log-probabilities.
  static absl::StatusOr<CudaRecords> Create(const BackendLimits& limits, int max_top);

  // What the next run's records carry: never what any record here carries yet. No run is under way.
  uint32_t NextSequence();

  // Whether the record that `expected` describes has come with the last sequence; then fills it.
  bool Take(const CudaRecordOrder::Expected& expected, Record* record) const;

  // For the kernels.
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
