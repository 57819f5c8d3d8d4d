// SPDX-License-Identifier: Apache-2.0
// FakeBackend: a Backend without a model. The next token is a hash of all tokens fed to the slot,
// of the sampler (with penalties: also of the split into prompt and output) and of the position. So
// any mix-up of slots, rows or order, a missing zeroing, stale state or double feeding changes
// tokens. It checks Backend's requirements on its caller, can fail at a chosen call, and can spread
// a run's records over many polls.
//
// The backend belongs to the engine; a test talks to it through a FakeProbe that both share.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/backend.h"
#include "model/config.h"

namespace rivulet {

// All data on which the outputs of a slot depend.
struct FakeHistory {
  // Stands for the recurrent state, which ReadPart and WriteParts copy.
  uint64_t hash = 1;
  int64_t count = 0;  // tokens fed
  // Stands for the keys and values of a window: position p is at p % 8.
  std::array<uint16_t, 8> ring = {};
  // Stands for keys and values: one entry per token, if the state grows (BackendLimits::state).
  bool grows = false;
  std::vector<uint16_t> kept = {};
  // For the penalties: by token, whether it was in the prompt, and its count in the output.
  absl::flat_hash_map<int32_t, std::pair<bool, int32_t>> counts = {};

  void Feed(int32_t token, bool as_output);
  void Count(const TokenCount& seen);
  // Of `counts`.
  uint64_t CountsHash() const;
  // Of a target, or of the drawn token: in (-1, 0].
  float Logprob(int32_t token) const;
};

// Replaces the hash if a test needs certain tokens: the token that is drawn after `position` fed
// tokens.
using FakeScript = std::function<int32_t(uint32_t sample_index, int64_t position)>;

inline constexpr int64_t kFakeStateBytes = 64;

struct FakeBackendOptions {
  BackendLimits limits = {.num_slots = 4,
                          .max_rows = 4,
                          .max_tokens = 256,
                          .max_steps = 1,
                          .preferred_steps = 1,
                          .bytes_per_slot = kFakeStateBytes,
                          .numerics_id = "fake"};
  int polls_per_run = 1;             // > 1: records come in this number of parts
  int64_t fail_at_call = -1;         // this call and all later calls fail; 0 = the first, -1 = none
  int64_t nan_score_position = -1;   // the target scored after this number of fed tokens gets NaN
  int64_t nan_output_position = -1;  // raw outputs after this number of fed tokens hold an infinity
  int64_t non_finite_draw_position =
      -1;             // the draw after this number of fed tokens finds no finite outputs
  FakeScript script;  // null: the hash
  // What it does wrong with a draft that is not the token it draws.
  enum class DraftFault : uint8_t {
    kNone,
    kAcceptsIt,
    kCountsIt,    // for penalties
    kKeepsState,  // after it
    kLosesDraw,   // that shows it
  };
  DraftFault draft_fault = DraftFault::kNone;
};

// Of a token that was drawn, the first one from it on, around the vocabulary, that `mask` allows.
int32_t FakeMasked(int32_t drawn, int vocab_size, std::span<const uint32_t> mask);

// The token drawn after `history` for `sampler`.
int32_t FakeDraw(const ModelConfig& config, const FakeScript& script, const FakeHistory& history,
                 const SlotSampler& sampler);

// The result of ReadSlot after `history`: [size.At(history.count) / 4].
std::vector<float> FakeState(const FakeHistory& history, const StateSize& size);

// The tokens that a lone session must draw after `feed` (bos included): at most `max_new`; a stop
// id is the last.
std::vector<int32_t> FakeSolo(const ModelConfig& config, const FakeScript& script,
                              const std::vector<int32_t>& feed, const SlotSampler& sampler,
                              int64_t max_new);

// A submitted run.
struct FakeRun {
  struct Row {
    Slot slot;
    int tokens;
    int64_t position;
    bool sample, score;
  };
  std::vector<Row> rows;
  int num_steps;
};

// Thread: any.
class FakeProbe {
 public:
  // Lets `runs` more runs complete, then holds the next run in Poll. Without a call no run is held.
  void AllowRuns(int64_t runs);
  void AllowAll();

  int64_t calls() const;              // of any method that can fail
  int64_t zeroed() const;             // slots zeroed
  int64_t copied() const;             // CopySlot calls
  int dirty_slots() const;            // slots that were fed and not zeroed since
  std::vector<FakeRun> runs() const;  // the first 10,000
  int64_t num_runs() const;
  std::vector<std::string> violations() const;  // of Backend's requirements

 private:
  friend class FakeBackend;
  bool TakePermit();

  mutable std::mutex mutex_;
  int64_t permits_ = -1;  // -1: no limit
  int64_t calls_ = 0, zeroed_ = 0, copied_ = 0, num_runs_ = 0;
  std::vector<bool> dirty_;
  std::vector<FakeRun> runs_;
  std::vector<std::string> violations_;
};

class FakeBackend final : public Backend {
 public:
  FakeBackend(const ModelConfig& config, const FakeBackendOptions& options,
              std::shared_ptr<FakeProbe> probe);

  const BackendLimits& limits() const override { return options_.limits; }
  absl::Status ZeroSlots(std::span<const Slot> slots) override;
  absl::Status SetSampler(Slot slot, const SlotSampler& sampler) override;
  absl::Status CopySlot(Slot from, Slot to) override;
  size_t StateFloats(Slot slot) const override;
  absl::Status ReadPart(Slot slot, size_t from, std::span<float> out) override;
  absl::Status WriteParts(Slot slot, std::span<const std::span<const float>> parts) override;
  absl::Status Submit(const Run& run) override;
  absl::StatusOr<bool> Poll(std::vector<Record>* records) override;

 private:
  struct SlotState {
    FakeHistory history{.hash = 0xbadbadbad,
                        .count = 777};  // content of a slot before its first zeroing
    bool zeroed = false, has_sampler = false;
    SlotSampler sampler;
    bool late = false;  // its last row could not draw
  };
  absl::Status CountCall();
  absl::Status Violation(const std::string& what);
  absl::Status CheckSlot(Slot slot);
  absl::Status CheckRow(const RunRow& row);
  void FirstStep(int index, const RunRow& row);
  void Draw(int index, const TokenMask* mask);
  void DrawDrafts(int index, const RunRow& row);
  void Guess(const RunRow& row);
  SlotState& state(Slot slot) { return slots_[static_cast<size_t>(slot)]; }

  const ModelConfig config_;
  const FakeBackendOptions options_;
  const std::shared_ptr<FakeProbe> probe_;
  std::vector<SlotState> slots_;
  absl::Status failed_;

  // The outstanding run.
  bool outstanding_ = false, has_permit_ = false;
  Run run_;
  std::vector<int> left_;                          // [rows] samples still to draw
  std::vector<int32_t> last_;                      // [rows] token drawn last
  std::vector<std::pair<float*, float>> outputs_;  // to be filled on completion
  std::vector<Record> records_;
  size_t next_record_ = 0, records_per_poll_ = 0;
};

// A small valid configuration without files: categorical, tokens, no positions.
ModelConfig FakeConfig(int vocab_size, bool with_bos);

}  // namespace rivulet
