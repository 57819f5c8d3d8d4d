// SPDX-License-Identifier: Apache-2.0
// From head outputs to records on the GPU: scores given tokens, draws next tokens, and prepares the
// input of the next step. categorical.h and mixture_of_logistics.h have the mathematics.
//
// One block per row of outputs: 128 threads, or 512 for a long row. A draw reads the row twice: to
// check it and find its maximum, then for the sum of the weights. Masks, penalties and bias add two
// passes; filters add one pass that writes the weights, and three passes each (threshold_cuda.h).
// Sums over a vocabulary run in double, in a fixed order that differs from the host's
// (row_sums_cuda.h). So results differ from the host's where expf differs, by an ulp, or where
// these sums round differently.
//
// Order within a row: count the fed token; check outputs for NaN and infinity; score the target;
// draw a token; write the records; write the next step's inputs. A record's word is written last
// and whole: the host takes a record when it reads the expected sequence number there. Thread: any.
// Tested by: tests/parity/cuda_sample_test.cc
#pragma once

#include <cstdint>

#include "kernels/categorical.h"
#include "kernels/cuda/common/launch_cuda.h"
#include "kernels/mixture_of_logistics.h"

namespace rivulet::kernels {

struct CudaLogitBias {
  int32_t token;
  float bias;
};

// How one slot samples.
struct CudaSampler {
  CategoricalParams params;   // for a mixture only temperature counts
  uint32_t sample_index = 0;  // second word of the Philox counter
  uint64_t seed = 0;
  const int32_t* stop_ids = nullptr;    // [num_stop_ids]
  const CudaLogitBias* bias = nullptr;  // [num_bias], tokens distinct
  // [ceil(vocab / 32)] one bit a token: the tokens that may be drawn; null: all.
  const uint32_t* mask = nullptr;
  // [vocab] tokens seen: bit 31 = in the prompt, the other bits count it in the output; null
  // without penalties.
  uint32_t* seen = nullptr;
  int32_t num_stop_ids = 0, num_bias = 0;
  int32_t want_logprobs = 0, num_top = 0;  // num_top: at most CudaSampleArgs::top_stride
};
inline constexpr uint32_t kSeenInPrompt = 0x80000000u;

// The work for one row of outputs. 48 bytes.
struct CudaOutputWork {
  int64_t position = 0;  // tokens fed so far, with the bos: position of draw and record
  int32_t slot = 0;
  int32_t row = 0;            // index into the run's rows
  int32_t target = -1;        // scored where not negative ...
  int32_t target_record = 0;  // ... into this record
  int32_t draws_left = 0;     // draws that the row may still make, with this one; 0: none here
  int32_t draw_record = 0;    // the record of this draw ...
  int32_t next_record = 0;    // ... of the row's next ...
  int32_t record_stride = 0;  // ... and from there to the one after
  uint32_t sequence = 0;      // of the run's records: below kRecordSequences, not used there yet
  uint32_t padding = 0;
};
static_assert(sizeof(CudaOutputWork) == 48);

inline constexpr uint32_t kRecordStopped = 1;    // the token is a stop id: the row ended
inline constexpr uint32_t kRecordNonFinite = 2;  // outputs held a NaN or infinity: the row ended
inline constexpr uint32_t kRecordScored = 4;     // the token is a target, not a draw
inline constexpr uint32_t kRecordLogprob = 8;    // logprob and num_top are there
inline constexpr int kRecordFlagBits = 4;
inline constexpr uint32_t kRecordSequences = 1u << (32 - kRecordFlagBits);

// A record without a log-probability is only its word, one store: a fence for other values would
// delay the step.
struct CudaRecord {
  uint64_t word;    // from its lowest bit: token, flags, sequence
  float logprob;    // only with kRecordLogprob
  int32_t num_top;  // likewise

  static constexpr uint64_t Word(int32_t token, uint32_t flags, uint32_t sequence) {
    return uint64_t{sequence << kRecordFlagBits | flags} << 32 | static_cast<uint32_t>(token);
  }
  constexpr int32_t token() const { return static_cast<int32_t>(word & 0xFFFFFFFFu); }
  constexpr uint32_t flags() const {
    return static_cast<uint32_t>(word >> 32) & ((1u << kRecordFlagBits) - 1);
  }
  constexpr uint32_t sequence() const {
    return static_cast<uint32_t>(word >> (32 + kRecordFlagBits));
  }
};
static_assert(sizeof(CudaRecord) == 16);

struct CudaTopLogprob {
  int32_t token;
  float logprob;
};

// Inputs and work of the next step; entry i belongs to row i of the run. These may be the arrays
// that the current step reads, if its i-th row of outputs is row i of the run. Null tokens: no step
// follows.
struct CudaStepRows {
  int32_t* tokens = nullptr;
  int64_t* positions = nullptr;     // of the fed tokens
  CudaSegment* segments = nullptr;  // num_rows becomes 1, or 0 where the row ended
  CudaOutputWork* outputs = nullptr;
};

struct CudaSampleArgs {
  // [rows, ld_outputs] raw head outputs. Outputs and scratch: 16-byte aligned, ld a multiple of 4.
  const float* outputs = nullptr;
  int rows = 0, num_outputs = 0, ld_outputs = 0;
  MixtureHead mixture;                   // mixtures = 0: a categorical head of num_outputs tokens
  const CudaOutputWork* work = nullptr;  // [rows]
  const int32_t* fed = nullptr;          // [rows] tokens that this step fed, counted as output
                                         // before the draw of rows that draw; null: counted already
  const CudaSampler* samplers = nullptr;  // by slot
  float* scratch = nullptr;               // [rows, ld_scratch], ld_scratch >= tokens of the head
  int ld_scratch = 0;
  CudaRecord* records = nullptr;  // mapped host memory, or device memory
  CudaTopLogprob* top = nullptr;  // [records, top_stride] likewise; null: none
  int top_stride = 0;
  CudaStepRows next;
};

// Call once per device, before the first launch of SampleCuda or CountTokensCuda.
cudaError_t PrepareSampleCuda();
cudaError_t SampleCuda(const CudaLaunch& launch, const CudaSampleArgs& args);
// For tests: threads of a block, a multiple of 32 up to 512; more than 128 use the kernel for long
// rows; 0: chosen by size. Thread: no other thread may call SampleCuda meanwhile.
void SetCudaSampleThreadsForTest(int threads);

// Counts the tokens of segments, for slots whose samplers have `seen`.
struct CudaCountArgs {
  const CudaSegment* segments = nullptr;  // [num_segments]
  int num_segments = 0;
  const int32_t* tokens = nullptr;     // by token row
  const uint8_t* as_output = nullptr;  // [rows of the run] 1: as output, 0: as prompt
  const CudaSampler* samplers = nullptr;
};
cudaError_t CountTokensCuda(const CudaLaunch& launch, const CudaCountArgs& args);

}  // namespace rivulet::kernels
