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

// Thread: one, except Take.
class CpuPredictor {
 public:
  // Keys of a slot begin anew behind so many.
  static constexpr int64_t kMostTokens = 8192;
  static int64_t TokensOf(const ModelConfig& config) {
    return std::min(kMostTokens, LongestContext(config));
  }

  // For `slots` slots at a time. `network` has a predictor, and is borrowed.
  CpuPredictor(const CpuNetwork& network, const ModelConfig& config, int slots);

  // The slot has another sequence, or none.
  void Forget(Slot slot);

  // Before a step.
  void Begin() { rows_.clear(); }
  // A row of the step wants `guesses`. Returns its number, from 0 on.
  int Add(Slot slot, int guesses);
  // Row `row` has drawn `tokens`. `hidden` [tokens, ld]: what the head read before each of them.
  // Thread: different rows by different threads at once.
  void Take(int row, std::span<const int32_t> tokens, const CpuArray& hidden, int first);
  // After the step: the guesses of all rows that were taken. `activations`: for `max_rows` rows.
  void Guess(ThreadTeam* team, CpuActivations* activations, int max_rows);
  // Of a row; empty: it was not taken.
  std::vector<int32_t>& guesses(int row) { return rows_[size_t(row)].guesses; }

 private:
  struct Cache {
    Slot slot = kGuardSlot;
    int64_t tokens = 0;  // whose keys are there
    uint64_t used = 0;   // the time of its last use
  };
  struct Row {
    size_t cache = 0;
    int wanted = 0;
    std::vector<int32_t> tokens;  // to feed
    std::vector<float> hidden;    // [tokens, hidden_size]
    std::vector<int32_t> guesses;
  };
  // Feeds the tokens of rows `begin` .. `end` - 1 and takes the guess behind each one's last.
  void Pass(ThreadTeam* team, CpuActivations* activations, size_t begin, size_t end);

  const CpuNetwork& network_;
  const size_t hidden_size_;
  const int outputs_;
  const size_t state_floats_;
  const int64_t most_tokens_;
  const AlignedBuffer states_;  // [caches][state_floats_]
  std::vector<Cache> caches_;
  uint64_t time_ = 0;
  std::vector<Row> rows_;
  std::vector<CpuSegment> segments_;
  std::vector<float> hidden_;
};

}  // namespace rivulet
