// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_records.h"

#include <algorithm>
#include <atomic>
#include <limits>

namespace rivulet {

absl::StatusOr<CudaRecords> CudaRecords::Create(const BackendLimits& limits, int max_top) {
  CudaRecords ring;
  const size_t count = CudaRunPlan::MaxRecords(limits);
  ring.count_ = count;
  ring.max_top_ = max_top;
  RIVULET_ASSIGN_OR_RETURN(ring.records_, CudaMemory::OnHost(count * sizeof(kernels::CudaRecord)));
  RIVULET_ASSIGN_OR_RETURN(
      ring.top_, CudaMemory::OnHost(count * size_t(max_top) * sizeof(kernels::CudaTopLogprob)));
  return ring;
}

uint32_t CudaRecords::NextSequence() {
  if (++sequence_ == kernels::kRecordSequences) {
    std::fill_n(records(), count_, kernels::CudaRecord{});  // clears the records of earlier rounds
    sequence_ = 1;
  }
  return sequence_;
}

bool CudaRecords::Take(const CudaRecordOrder::Expected& expected, Record* record) const {
  kernels::CudaRecord& written = records()[expected.place];
  const kernels::CudaRecord seen = {
      std::atomic_ref<uint64_t>(written.word).load(std::memory_order_acquire), 0, 0};
  if (seen.sequence() != sequence_) return false;
  record->row = expected.row;
  record->position = expected.position;
  record->token = seen.token();
  record->stopped = (seen.flags() & kernels::kRecordStopped) != 0;
  record->non_finite = (seen.flags() & kernels::kRecordNonFinite) != 0;
  record->logprob = std::numeric_limits<float>::quiet_NaN();
  record->top.clear();
  if ((seen.flags() & kernels::kRecordLogprob) == 0) return true;
  record->logprob = written.logprob;
  const kernels::CudaTopLogprob* const top =
      this->top() + size_t(expected.place) * size_t(max_top_);
  for (int i = 0; i < written.num_top; ++i) record->top.push_back({top[i].token, top[i].logprob});
  return true;
}

}  // namespace rivulet
