// SPDX-License-Identifier: Apache-2.0
// The forward pass on the device: token rows in, records out, states advanced. Launches only; the
// same launches are queued directly (a first step) or captured (a step).
//
//   embed -> per layer [ norm of the layer before + qkv | attention | out + residual |
//                        norm + ffn1 + activation | ffn2 + residual ] -> norm(s) + head -> sample
// Norms are prologues of the products that read them; with many rows they are launches of their
// own, and what only products read is kept in F16 (where the weights are), rounded as a product
// would round it: the bits are the same. Products that stand alone then may be a library's
// (CudaProducts). Head outputs are made and consumed in pieces of rows, so
// that a large vocabulary needs no more memory than a small one.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/attention/linear_attention_cuda.h"
#include "kernels/cuda/sample/sample_cuda.h"
#include "model/config.h"
#include "model/cuda/cuda_device.h"
#include "model/cuda/cuda_products.h"
#include "model/cuda/cuda_queue.h"
#include "model/cuda/cuda_records.h"
#include "model/cuda/cuda_run_block.h"
#include "model/cuda/cuda_scratch.h"
#include "model/cuda/cuda_slots.h"
#include "model/cuda/cuda_weights.h"

namespace rivulet {

// Thread: one. References must outlive it.
class CudaForward {
 public:
  // `many_rows`: from so many on a pass is one of many rows.
  CudaForward(const ModelConfig& config, const CudaWeights& weights, const CudaSlots& slots,
              const CudaRecords& records, const CudaScratch& scratch, const CudaProducts& products,
              int many_rows)
      : config_(config),
        weights_(weights),
        slots_(slots),
        records_(records),
        scratch_(scratch),
        products_(products),
        many_rows_(many_rows) {}

  // Once a device, before the first launch there.
  static absl::Status Prepare();

  // OK, or UNIMPLEMENTED saying why no kernel runs `config`.
  static absl::Status Check(const ModelConfig& config);

  // One step of `bucket` rows of `block.step`, which it turns into the next step's.
  absl::Status Step(const kernels::CudaLaunch& launch, const CudaRunBlock& block, int bucket) const;

  // The first step of a run of one row with up to `token_rows` tokens and one output at most
  // (CudaRunBlock::PlacePrompt), without the count of its tokens.
  absl::Status Prompt(const kernels::CudaLaunch& launch, const CudaRunBlock& block,
                      int token_rows) const;
  // Counts the tokens that the first step of `rows` rows feeds, for penalties.
  absl::Status Count(const kernels::CudaLaunch& launch, const CudaRunBlock& block, int rows) const;

  // The first step of a run that is not plain. `plan.raw` is copied out through `queue`. `count`:
  // some row counts its tokens.
  absl::Status First(CudaQueue& queue, const CudaRunBlock& block, const CudaRunPlan& plan,
                     bool count) const;

 private:
  // Token rows of one pass and what is wanted of them.
  struct Pass {
    const int32_t* tokens;
    const int64_t* positions;
    const kernels::CudaSegment* segments;
    int rows, num_segments, num_long;
    const int32_t* gather;  // token rows whose outputs are wanted; null: all
    int num_outputs;
    const kernels::CudaOutputWork* work;  // [num_outputs]
    const int32_t* fed;                   // see CudaSampleArgs
    kernels::CudaStepRows next;
  };
  absl::Status Layers(const kernels::CudaLaunch& launch, const Pass& pass) const;
  bool Many(int rows) const { return rows >= many_rows_ || products_.all(); }
  // Many rows, and products that take F16.
  bool Wide(int rows) const;
  absl::Status Embed(const kernels::CudaLaunch& launch, const Pass& pass) const;
  absl::Status Queries(const kernels::CudaLaunch& launch, int index, int rows) const;
  absl::Status Attention(const kernels::CudaLaunch& launch, const Pass& pass, int index) const;
  absl::Status AttentionOut(const kernels::CudaLaunch& launch, const Pass& pass, int index) const;
  absl::Status LibraryAttentionOut(const kernels::CudaLaunch& launch, const Pass& pass, int index,
                                   const int32_t* gather, int rows) const;
  absl::Status FeedForward(const kernels::CudaLaunch& launch, const CudaLayer& layer,
                           int rows) const;
  absl::Status Expand(const kernels::CudaLaunch& launch, const CudaLayer& layer, int rows) const;
  // x as a product of so many rows reads it from a library's point of view.
  const void* InputX(int rows) const {
    return Wide(rows) ? static_cast<const void*>(scratch_.half) : scratch_.x;
  }
  absl::Status Normalize(const kernels::CudaLaunch& launch, const CudaNorm& norm, int first,
                         float* to, int rows) const;
  absl::Status Head(const kernels::CudaLaunch& launch, int first, int rows) const;
  absl::Status Sample(const kernels::CudaLaunch& launch, const Pass& pass, int first,
                      int rows) const;

  const ModelConfig& config_;
  const CudaWeights& weights_;
  const CudaSlots& slots_;
  const CudaRecords& records_;
  const CudaScratch& scratch_;
  const CudaProducts& products_;
  const int many_rows_;
};

}  // namespace rivulet
