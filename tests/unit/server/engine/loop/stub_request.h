// SPDX-License-Identifier: Apache-2.0
// A LiveRequest and its Sequences for tests of the loop's parts: they feed the test's tokens and
// record the calls that they get.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "server/engine/sequences/live_request.h"

namespace rivulet {

inline constexpr absl::Time kNow = absl::UnixEpoch();

class StubSequence final : public Sequence {
 public:
  using Sequence::Sequence;

  bool runnable() const override { return can_run; }
  SequenceView View() const override {
    SequenceView view = next_view;
    view.last_served = last_served;
    return view;
  }
  std::optional<SlotSampler> Sampler() const override { return sampler; }
  void FillRow(const RowShare& share, TokenBuffer* buffer, RunRow* run_row) override {
    const size_t begin = buffer->size();
    for (int i = 0; i < share.tokens; ++i) buffer->push_back(token);
    run_row->slot = slot;
    run_row->position = position;
    run_row->tokens = std::span(*buffer).subspan(begin);
    run_row->sample = sample;
    run_row->max_samples = sample ? share.steps : 0;
    position += share.tokens;
  }
  void OnRecord(Record* record) override { records.push_back(*record); }
  Next OnRunDone() override { return next; }
  Checkpoint start() const override { return begins_with; }
  const Sequence* copies_from() const override { return first; }
  int64_t fed() const override { return position; }

  bool can_run = true;
  SequenceView next_view;
  std::optional<SlotSampler> sampler;
  int32_t token = 0;
  int64_t position = 0;
  bool sample = false;
  Next next = Next::kContinue;
  Checkpoint begins_with;
  const Sequence* first = nullptr;
  std::vector<Record> records;  // given to it
};

class StubRequest final : public LiveRequest {
 public:
  explicit StubRequest(RequestId number = 1, int samples = 1) {
    id = number;
    num_slots = samples;
  }
  void CreateSequences() override {
    for (int i = 0; i < num_slots; ++i) sequences.push_back(std::make_unique<StubSequence>(this));
    open_sequences = num_slots;
  }
  // Takes the request to the point where it holds slots.
  void HoldSlots() {
    life.Go(RequestLife::State::kFindsState);
    life.Go(RequestLife::State::kWaitsForSlots);
    life.Go(RequestLife::State::kHoldsSlots);
  }
  void OnReady() override {}
  void OnEnd() override {}
  bool reader_slow() override {
    ++times_asked;
    return slow;
  }
  KeptCheckpoint BestState(PrefixCache* cache) override { return DeepestState(cache, most_fed); }
  std::span<const int32_t> sequence_tokens() const override { return tokens; }

  StubSequence* sequence(size_t i) { return static_cast<StubSequence*>(sequences[i].get()); }

  bool slow = false;
  int times_asked = 0;          // calls that asked whether it is slow
  int64_t most_fed = 1000;      // of the state that it continues from
  std::vector<int32_t> tokens;  // without a session
};

}  // namespace rivulet
