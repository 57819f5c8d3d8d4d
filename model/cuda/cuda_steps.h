// SPDX-License-Identifier: Apache-2.0
// CudaSteps: the launches of a run: passes of a network, sampling of their outputs into records,
// and the inputs of the next step. Head outputs are computed and consumed in pieces of rows, so
// that a large vocabulary needs no more memory than a small one.
#pragma once

#include "absl/status/status.h"
#include "kernels/cuda/sample/sample_cuda.h"
#include "model/config.h"
#include "model/cuda/cuda_network.h"
#include "model/cuda/cuda_outputs.h"
#include "model/cuda/cuda_queue.h"
#include "model/cuda/cuda_records.h"
#include "model/cuda/cuda_run_block.h"
#include "model/cuda/cuda_run_plan.h"
#include "model/cuda/cuda_slots.h"

namespace rivulet {

// Thread: one. References must outlive it.
class CudaSteps {
 public:
  CudaSteps(const ModelConfig& config, const CudaNetwork& network, const CudaSlots& slots,
            const CudaRecords& records, const CudaOutputs& outputs)
      : config_(config), network_(network), slots_(slots), records_(records), outputs_(outputs) {}

  // Call once per device, before the first launch there.
  static absl::Status Prepare();

  // One step of `bucket` rows of `block.step`, which it replaces by the rows of the next step.
  absl::Status Step(const kernels::CudaLaunch& launch, const CudaRunBlock& block, int bucket) const;

  // The first step of a run of one row with up to `token_rows` tokens and one output at most
  // (CudaRunBlock::PlacePrompt). It does not count the tokens for penalties.
  absl::Status Prompt(const kernels::CudaLaunch& launch, const CudaRunBlock& block,
                      int token_rows) const;
  // Counts the tokens that the first step of `rows` rows feeds, for penalties.
  absl::Status Count(const kernels::CudaLaunch& launch, const CudaRunBlock& block, int rows) const;

  // The first step of a run that is not plain. `plan.raw` is copied out through `queue`. `count`:
  // some row counts its tokens.
  absl::Status First(CudaQueue& queue, const CudaRunBlock& block, const CudaRunPlan& plan,
                     bool count) const;

 private:
  // The use of the head outputs of a pass.
  struct Wanted {
    const kernels::CudaOutputWork* work;  // [num_outputs]
    const int32_t* fed;                   // see CudaSampleArgs
    kernels::CudaStepRows next;
  };
  absl::Status Sample(const kernels::CudaLaunch& launch, const Wanted& wanted, int first,
                      int rows) const;

  const ModelConfig& config_;
  const CudaNetwork& network_;
  const CudaSlots& slots_;
  const CudaRecords& records_;
  const CudaOutputs& outputs_;
};

}  // namespace rivulet
