// SPDX-License-Identifier: Apache-2.0
// CpuReplay: what a pass keeps of a row with drafts, so that the row's slot can go back to the
// state after the tokens that were right.
//
// A pass updates the slot's state in place. Before each update it copies here the old S (and z) and
// the vectors that the update reads. Rewind computes S again from these copies by the same kernel,
// for the right tokens alone: several tokens in one call give the bits of calls of one token each
// (kernels/recurrence.h). No matrix of the model is read again. The inputs of convolutions and
// token shifts are copied, and what the cache of a layer with attention held at the tokens' places.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/linear_attention.h"
#include "kernels/recurrence.h"
#include "kernels/softmax_attention.h"
#include "model/config.h"
#include "model/loading/aligned_buffer.h"

namespace rivulet {

// The last inputs of a convolution or a token shift, in a state: [rows, n]. The pass feeds x
// [tokens, stride].
struct KeptInputs {
  float* state = nullptr;
  int rows = 0, n = 0, tokens = 0;
  const float* x = nullptr;
  size_t stride = 0;
};
enum class InputPart : uint8_t { kConv, kMixerShift, kFfnShift };
inline constexpr size_t kInputParts = 3;

// Thread: different layers, heads and parts may be kept by different threads at once. A pass keeps
// each once.
class CpuReplay {
 public:
  // Of passes that feed at most `max_tokens` tokens of a row. Takes Bytes().
  CpuReplay(const ModelConfig& config, const StateParts& parts, int max_tokens, int threads);
  static size_t Bytes(const ModelConfig& config, const StateParts& parts, int max_tokens,
                      int threads);

  // Before a pass. `state`: the slot's.
  void Begin(float* state);

  // Called before the kernel that takes the same arguments. `head`: of S, or of keys and values.
  void Keep(int layer, int head, const kernels::RecurrenceArgs& args);
  void Keep(int layer, int head, const kernels::LinearAttentionArgs& args);
  void Keep(int layer, int head, const kernels::SoftmaxAttentionArgs& args);
  void Keep(int layer, InputPart part, const KeptInputs& inputs);

  // The state becomes the state after the first `tokens` >= 1 tokens of the last pass. All threads
  // call it with the same arguments; each does its share.
  void Rewind(int tokens, int thread, int threads);

 private:
  // Sizes in floats.
  struct Layout {
    Layout(const ModelConfig& config, const StateParts& parts, int max_tokens);
    size_t saved = 0;    // the recurrent parts of a slot
    size_t kept = 0;     // of all tokens of a pass
    size_t scratch = 0;  // of a thread
    int layers = 0, heads = 0, kept_heads = 0;
    size_t all(int threads) const { return saved + kept + size_t(threads) * scratch; }
  };

  // Memory for `floats` of this pass.
  float* Take(size_t floats);
  void RewindHead(size_t index, int tokens, float* scratch);
  void RewindInputs(size_t index, int tokens) const;
  float* SavedAt(const float* state) const { return saved_ + (state - state_); }

  const Layout layout_;
  AlignedBuffer memory_;
  float *const saved_, *const scratch_, *const kept_;
  std::atomic<size_t> taken_{0};  // of kept_
  float* state_ = nullptr;
  // Of each (layer, head) or (layer, part); tokens 0: there is none. Vectors lie in this memory.
  std::vector<kernels::RecurrenceArgs> recurrences_;
  std::vector<kernels::LinearAttentionArgs> linear_;
  std::vector<kernels::SoftmaxAttentionArgs> caches_;
  std::vector<float*> places_;  // of caches_
  std::vector<KeptInputs> kept_inputs_;
};

}  // namespace rivulet
