// SPDX-License-Identifier: Apache-2.0
// CpuNetwork: the forward pass on the CPU of all kinds of models: token rows in, raw head outputs
// out, states advanced.
//
// A *segment* is consecutive tokens of one slot; a *piece* is the segments of one pass. Matrix
// products run over all token rows of a piece; states advance token by token in order. There are
// two ways to use threads, with the same bits: Shared (all threads split columns and heads of one
// piece, with barriers between phases) for few rows and for prompts; Solo (each thread takes whole
// pieces) for many rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/experts.h"
#include "model/backend_options.h"
#include "model/base/thread_team.h"
#include "model/config.h"
#include "model/expert_load.h"
#include "model/loading/aligned_buffer.h"
#include "model/loading/packed_weights.h"
#include "model/model.h"

namespace rivulet {

class CpuReplay;

struct CpuSegment {
  float* state = nullptr;           // the slot's state
  int64_t position = 0;             // of tokens[0]
  std::span<const int32_t> tokens;  // at least 1
  int outputs = 0;                  // head outputs after this many of the last tokens
  CpuReplay* replay = nullptr;      // keeps what the pass changes; null: nothing does
};

// The number of token rows of a piece, and of token rows with head outputs.
int TokenRows(std::span<const CpuSegment> piece);
int OutputRows(std::span<const CpuSegment> piece);

struct CpuArray {
  float* data = nullptr;
  int ld = 0;
  float* row(int r) const { return data + size_t(r) * size_t(ld); }
};

// Of a mixture of experts.
struct ExpertScratch {
  CpuArray scores;              // of the router, then the shared expert's gate
  CpuArray in, ffn;             // inputs of an expert's rows, and of its second product
  CpuArray latent, latent_sum;  // the projected row, and the sum of its experts
  std::vector<int32_t> chosen;  // [rows * router.chosen]
  std::vector<float> weights;
  std::vector<kernels::ExpertRows> lists;       // per thread
  std::vector<kernels::RouterScratch> routers;  // likewise
};

// Arrays beside the rows of activations.
struct CpuScratch {
  // Rows of 8 bits (kernels/quantized.h); products use the two arrays in turn. Two suffice: a
  // thread fills one only after the barrier of the product that used the other.
  AlignedBuffer quantized[2];
  std::vector<std::vector<int32_t>> nonzero;  // RWKV-7: per thread, the inputs that are not 0
  std::vector<AlignedBuffer> attention;       // per thread, of linear or softmax attention
  ExpertScratch experts;
  // For hybrids with fewer heads of keys than threads: SharedPartFloats for each head of a step
  // that has fewer heads than threads.
  AlignedBuffer parts;
  // The rows that the head read in the last pass, one for each output row; and of Predict, two rows
  // of the hidden size side by side.
  CpuArray head_rows, pairs;
  // Bytes of matrices that products have read since the start, those of experts not counted.
  size_t matrix_bytes = 0;
};

// The number of blocks of a head that threads share at a time, and the floats for them: the blocks'
// parts (kernels/softmax_attention.h), and two floats per query.
inline constexpr int64_t kSharedBlocks = 64;
constexpr size_t SharedPartFloats(int queries, int value_dim) {
  return size_t(kSharedBlocks) * kernels::SoftmaxPartFloats(queries, value_dim) +
         2 * size_t(queries);
}

// Activations of one piece; one for Shared use, one per thread for Solo use. Arrays are [rows, ld];
// ld is a whole number of panels so that products may store whole panels. An array that the kind
// does not use has no memory.
class CpuActivations {
 public:
  using Array = CpuArray;

  CpuActivations(const ModelConfig& config, const PackedWeights& weights, const StateParts& parts,
                 int max_rows, int threads);

  // Head outputs of output row i of the last pass: [output_size] float32, valid until the next
  // pass. Output rows are numbered over the piece in order of segments and tokens.
  const float* output(int i) const { return outputs.row(i); }

  Array x, h;                     // the residual stream; the normed row
  Array in;                       // InputColumns; RWKV-7: r | k | v, each padded
  Array conv;                     // the output of the convolution
  Array decay;                    // w: [keys] or [heads]
  Array rate;                     // RWKV-7: alpha; [keys]
  Array gate;                     // of the output, if it has a product of its own
  Array low;                      // RWKV-7: first halves of the low-rank products
  Array value;                    // Mamba-2: dt x; RWKV-7: the weight of v's mix
  Array first;                    // RWKV-7: v of layer 0
  Array removal;                  // RWKV-7: kk, and -kk alpha
  Array o;                        // [values]
  Array mix;                      // RWKV-7: six rows per token row
  Array ffn;                      // [gate | up]; RWKV-7, kinds "linear" and "softmax": [ffn]
  Array rope;                     // cosines, then sines, of a row's position
  Array kept_x, kept_o, outputs;  // of the rows with outputs
  CpuScratch scratch;

 private:
  AlignedBuffer memory_;
};

// Thread: const; passes with different activations and states may run at once.
class CpuNetwork {
 public:
  // Reads and packs the weights; the network borrows model.config(). `predict`: and those of the
  // predictor. Errors: PackedWeights::Load's.
  static absl::StatusOr<std::unique_ptr<CpuNetwork>> Load(const Model& model,
                                                          const WeightChoice& choice,
                                                          kernels::CacheType cache,
                                                          bool predict = false);

  const WeightFacts& weights() const { return weights_->facts; }
  StateSize state_size() const { return parts_.size(); }
  // Passes count the rows of experts there. Call it before the first pass.
  void CountExperts(std::shared_ptr<ExpertLoad> load) { expert_load_ = std::move(load); }
  // PackedWeights::initial_state.
  std::span<const float> initial_state() const { return weights_->initial_state; }
  // For pieces of at most `max_rows` token rows and at most `threads` threads.
  std::unique_ptr<CpuActivations> NewActivations(int max_rows, int threads) const;
  std::unique_ptr<CpuReplay> NewReplay(int max_tokens, int threads) const;

  // Does the part of thread `thread` of `threads` in one pass over `piece`; all threads call it
  // with the same arguments and a barrier for `threads` threads (Solo: 0 of 1). Returns once the
  // outputs are complete. REQUIRES: token rows fit `activations`, which are of this network.
  void Pass(std::span<const CpuSegment> piece, CpuActivations& activations, int thread, int threads,
            SpinBarrier& barrier) const;

  // What a segment of Predict has as its state; nullopt: there is no predictor (PredictorWeights).
  const std::optional<StateParts>& predictor_parts() const { return predictor_parts_; }
  // The same for the predictor. `hidden` [token rows, hidden_size]: for each token of the piece the
  // row that the head read before it was drawn. Positions count the tokens in the segment's state.
  void Predict(std::span<const CpuSegment> piece, const float* hidden, CpuActivations& activations,
               int thread, int threads, SpinBarrier& barrier) const;

 private:
  CpuNetwork(const ModelConfig& config, kernels::CacheType cache,
             std::unique_ptr<const PackedWeights> weights);

  const ModelConfig& config_;
  const StateParts parts_;
  const BlockState state_;  // of the family
  const std::unique_ptr<const PackedWeights> weights_;
  const std::optional<StateParts> predictor_parts_;
  std::shared_ptr<ExpertLoad> expert_load_;  // null: nothing is counted
};

}  // namespace rivulet
