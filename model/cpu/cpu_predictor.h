// SPDX-License-Identifier: Apache-2.0
// CpuPredictor: guesses of the tokens that follow a draw, by the model's own head for that
// (PredictorWeights).
//
// For each token that a row has drawn, the head takes the row h that the model's head read before
// the draw, keeps a key and a value, and after the last token guesses the next one. Its own row g
// and the guess lead to a further guess. The next call writes the keys of guesses again, from the
// model's rows. The keys of a slot begin with the first draws whose followers are asked for. They
// are no part of the slot's state: without them guesses are worse, and draws are the same.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/backend.h"
#include "model/base/thread_team.h"
#include "model/cpu/cpu_network.h"
#include "model/loading/aligned_buffer.h"
#include "model/slot_choice.h"

namespace rivulet {

// Keys are kept for one slot, the last of Take. Thread: one; Take and Guess may be called by
// different threads, one after the other.
class CpuPredictor {
 public:
  // Keys of a slot begin anew behind so many.
  static constexpr int64_t kMostTokens = 8192;
  static int64_t TokensOf(const ModelConfig& config) {
    return std::min(kMostTokens, LongestContext(config));
  }

  // `network` has a predictor, and is borrowed.
  CpuPredictor(const CpuNetwork& network, const ModelConfig& config);

  // The slot has another sequence, or none.
  void Forget(Slot slot);

  // A row of `slot` has drawn `tokens`, and wants `guesses` tokens, from 1 on. `hidden`, from row
  // `first` on [tokens, ld]: what the head read before each of them.
  void Take(Slot slot, int guesses, std::span<const int32_t> tokens, const CpuArray& hidden,
            int first);
  // The guesses that follow the tokens of Take; empty: there was no Take since the last call.
  // `activations`: for as many rows as Take had tokens.
  std::vector<int32_t> Guess(ThreadTeam* team, CpuActivations* activations);

 private:
  const CpuNetwork& network_;
  const size_t hidden_size_;
  const int outputs_;
  const int64_t most_tokens_;
  const AlignedBuffer state_;
  Slot slot_ = kGuardSlot;
  int64_t kept_ = 0;  // tokens whose keys are there
  int wanted_ = 0;
  std::vector<int32_t> tokens_;  // to feed
  std::vector<float> hidden_;    // [tokens_, hidden_size_]
};

}  // namespace rivulet
