// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_records.h"

#include <atomic>

namespace rivulet {

absl::StatusOr<CudaRecords> CudaRecords::Create(const BackendLimits& limits, int max_top) {
  CudaRecords ring;
  const size_t count = CudaRunPlan::MaxRecords(limits);
  ring.max_top_ = max_top;
  RIVULET_ASSIGN_OR_RETURN(ring.records_, CudaMemory::OnHost(count * sizeof(kernels::CudaRecord)));
  RIVULET_ASSIGN_OR_RETURN(
      ring.top_, CudaMemory::OnHost(count * size_t(max_top) * sizeof(kernels::CudaTopLogprob)));
  return ring;
}

bool CudaRecords::Take(const CudaRecordOrder::Expected& expected, Record* record) const {
  kernels::CudaRecord& written = records()[expected.place];
  if (std::atomic_ref<uint32_t>(written.sequence).load(std::memory_order_acquire) != sequence_) {
    return false;
  }
  record->row = expected.row;
  record->position = expected.position;
  record->token = written.token;
  record->stopped = (written.flags & kernels::kRecordStopped) != 0;
  record->non_finite = (written.flags & kernels::kRecordNonFinite) != 0;
  record->logprob = written.logprob;
  record->top.clear();
  const kernels::CudaTopLogprob* const top =
      this->top() + size_t(expected.place) * size_t(max_top_);
  for (int i = 0; i < written.num_top; ++i) record->top.push_back({top[i].token, top[i].logprob});
  return true;
}

}  // namespace rivulet
