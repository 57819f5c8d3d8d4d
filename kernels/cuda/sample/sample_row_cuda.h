// SPDX-License-Identifier: Apache-2.0
// A block turns one row of head outputs into records (sample_cuda.h): the body of Sample().
// Included by .cu files only.
#pragma once

#include <cmath>

#include "kernels/cuda/sample/categorical_cuda.h"
#include "kernels/cuda/sample/sample_cuda.h"

namespace rivulet::kernels {

// ln p of tokens under one row of outputs. `normalizer`: ln sum e^x of a categorical row.
struct RowLikelihood {
  const float* outputs;
  MixtureHead mixture;
  double normalizer;

  __device__ float Of(int32_t token) const {
    if (mixture.mixtures > 0) return MixtureLogProb(mixture, outputs, token);
    return OfOutput(outputs[token]);
  }
  __device__ float OfOutput(float output) const {
    return static_cast<float>(static_cast<double>(output) - normalizer);
  }
};

// Publishes a record to the host. The thread that wrote the record's other fields calls it.
__device__ inline void WriteWord(CudaRecord* to, int32_t token, uint32_t flags, uint32_t sequence) {
  const uint64_t word = CudaRecord::Word(token, flags, sequence);
#if defined(__CUDA_ARCH__)
  if ((flags & kRecordLogprob) != 0) {
    asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(&to->word), "l"(word) : "memory");
  } else {
    asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(&to->word), "l"(word) : "memory");
  }
#else
  to->word = word;
#endif
}

// The `count` likeliest tokens, by ln p, then by id. `scratch`: [tokens], used for a mixture.
template <int kAhead>
__device__ __forceinline__ void FillTop(const RowLikelihood& likelihood, int tokens, int count,
                                        float* scratch, CudaTopLogprob* top) {
  if (count == 0) return;
  const bool mixture = likelihood.mixture.mixtures > 0;
  if (mixture) {
#pragma unroll 1
    for (int i = RowThread(); i < tokens; i += RowThreads()) scratch[i] = likelihood.Of(i);
    __syncthreads();
  }
  // `mine` is a thread's likeliest token that is not listed yet. Only a thread whose token was
  // listed looks again.
  Ranked last = ~Ranked{0}, mine = last;
#pragma unroll 1
  for (int rank = 0; rank < count; ++rank) {
    if (mine == last) {
      mine = 0;
      ForEachQuad<kAhead>(
          mixture ? scratch : likelihood.outputs, tokens, [&](int first, const Quad& q) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const Ranked r = RankOf(mixture ? q.v[i] : likelihood.OfOutput(q.v[i]), first + i);
              if (first + i < tokens && r < last && r > mine) mine = r;
            }
          });
    }
    last = BlockBest(mine);
    if (RowThread() == 0) top[rank] = {RankedId(last), RankedValue(last)};
  }
}

__device__ inline bool IsStop(const CudaSampler& sampler, int32_t token) {
  bool stop = false;
#pragma unroll 1
  for (int i = RowThread(); i < sampler.num_stop_ids; i += RowThreads()) {
    stop = stop || sampler.stop_ids[i] == token;
  }
  return __syncthreads_or(stop ? 1 : 0) != 0;
}

// Writes the logits with mask, penalties and bias to `scratch`.
template <int kAhead>
__device__ __forceinline__ void AdjustRow(const CudaSampler& sampler, const float* outputs, int n,
                                          float* scratch) {
  ForEachQuad<kAhead>(outputs, n, [&](int first, Quad q) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t seen = sampler.seen != nullptr && first + i < n ? sampler.seen[first + i] : 0;
      // A quad lies within a word of the mask.
      if (sampler.mask != nullptr && first + i < n &&
          (sampler.mask[first / 32] >> (first % 32 + i) & 1) == 0) {
        q.v[i] = -INFINITY;
      }
      q.v[i] = AdjustLogit(sampler.params, q.v[i], (seen & kSeenInPrompt) != 0,
                           static_cast<int32_t>(seen & ~kSeenInPrompt));
    }
    StoreQuad(scratch + first, q);
  });
  if (sampler.num_bias == 0) return;  // the same for the whole block
  __syncthreads();
#pragma unroll 1
  for (int i = RowThread(); i < sampler.num_bias; i += RowThreads()) {
    scratch[sampler.bias[i].token] += sampler.bias[i].bias;
  }
}

// Draws the next token; the same on all threads. `look`: LookAtRow of the outputs.
template <int kAhead>
__device__ __forceinline__ int32_t Draw(const CudaSampleArgs& p, const CudaSampler& sampler,
                                        int64_t position, RowLook look, const float* outputs,
                                        float* scratch) {
  const PhiloxWords random =
      DrawWords(sampler.seed, static_cast<uint64_t>(position), sampler.sample_index, /*draw=*/0);
  if (p.mixture.mixtures > 0) {
    if (RowThread() == 0) {
      OfRow().chosen = SampleMixture(p.mixture, outputs, sampler.params.temperature, random);
    }
    __syncthreads();
    const int32_t chosen = OfRow().chosen;
    __syncthreads();
    return chosen;
  }
  const float* logits = outputs;
  if (sampler.seen != nullptr || sampler.num_bias > 0 || sampler.mask != nullptr) {
    AdjustRow<kAhead>(sampler, outputs, p.num_outputs, scratch);
    __syncthreads();
    logits = scratch;
    look = LookAtRow<kAhead>(scratch, p.num_outputs, sampler.params.banned);
  }
  return RowSample<kAhead>(sampler.params, logits, look, scratch, p.num_outputs, random);
}

// Writes the next input of row `work.row` after it drew `token`. One thread calls it.
__device__ inline void WriteNext(const CudaStepRows& next, const CudaOutputWork& work,
                                 int32_t token, bool goes_on) {
  CudaOutputWork after = work;
  after.position = work.position + 1;
  after.target = -1;
  after.draws_left = goes_on ? work.draws_left - 1 : 0;
  after.draw_record = work.next_record;
  after.next_record = work.next_record + work.record_stride;
  next.outputs[work.row] = after;
  next.segments[work.row] = {work.slot, work.row, goes_on ? 1 : 0, work.row};
  if (!goes_on) return;  // the old token stays, which is valid
  next.tokens[work.row] = token;
  next.positions[work.row] = work.position;
}

// Does all work of row `row` of `p`, with kAhead loads per thread in flight. After a draw and
// before its record is written, thread 0 calls on_draw(goes_on, token); goes_on: the row feeds
// `token` next.
template <int kAhead>
__device__ void SampleRow(const CudaSampleArgs& p, int row) {
  const bool draws = p.work[row].draws_left > 0, scores = p.work[row].target >= 0;
  if (!draws && !scores) return;  // the whole block
  if (RowThread() == 0) {
    OfRow().work = p.work[row];
    OfRow().sampler = p.samplers[OfRow().work.slot];
    uint32_t* const seen = OfRow().sampler.seen;
    if (draws && p.fed != nullptr && seen != nullptr) ++seen[p.fed[row]];
  }
  __syncthreads();
  const CudaOutputWork& work = OfRow().work;
  const CudaSampler& sampler = OfRow().sampler;
  const float* outputs = p.outputs + At(row, p.ld_outputs);
  float* scratch = p.scratch + At(row, p.ld_scratch);
  const RowLook look = LookAtRow<kAhead>(outputs, p.num_outputs, sampler.params.banned);
  const bool finite = look.finite;
  RowLikelihood likelihood = {outputs, p.mixture, 0};
  if (finite && p.mixture.mixtures == 0 && (scores || sampler.want_logprobs != 0)) {
    likelihood.normalizer =
        RowLogSumExp<kAhead>(outputs, p.num_outputs, sampler.params.banned, look.largest);
  }
  // First the target, then the draw: a loop, so that the likelihood's code exists once.
#pragma unroll 1
  for (int draw = scores ? 0 : 1; draw < (draws ? 2 : 1); ++draw) {
    int32_t token = draw != 0 ? 0 : work.target;
    uint32_t flags = (finite ? 0u : kRecordNonFinite) | (draw != 0 ? 0u : kRecordScored);
    if (draw != 0 && finite) {
      token = Draw<kAhead>(p, sampler, work.position, look, outputs, scratch);
      if (IsStop(sampler, token)) flags |= kRecordStopped;
    }
    const bool goes_on = draw != 0 && flags == 0 && work.draws_left > 1;
    CudaRecord* const record = p.records + (draw != 0 ? work.draw_record : work.target_record);
    if (finite && (draw == 0 || sampler.want_logprobs != 0)) {
      flags |= kRecordLogprob;
      const int tokens = p.mixture.mixtures > 0 ? p.mixture.levels : p.num_outputs;
      int count = draw == 0 || p.top == nullptr ? 0 : sampler.num_top;
      count = count < tokens ? count : tokens;
      count = count < p.top_stride ? count : p.top_stride;
      if (RowThread() == 0) record->logprob = likelihood.Of(token), record->num_top = count;
      FillTop<kAhead>(likelihood, tokens, count, scratch,
                      p.top + At(work.draw_record, p.top_stride));
    }
    if (RowThread() != 0) continue;
    WriteWord(record, token, flags, work.sequence);
    if (draw != 0 && p.next.tokens != nullptr) WriteNext(p.next, work, token, goes_on);
  }
}

}  // namespace rivulet::kernels
