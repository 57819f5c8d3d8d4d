// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/generation.h"

#include <algorithm>

#include "absl/status/statusor.h"
#include "tests/bench/backend_choice.h"

namespace rivulet::bench {

void Require(const absl::Status& status) {
  if (!status.ok()) Fail(status.ToString(), 1);
}

void Await(Backend* backend, std::vector<Record>* records) {
  while (true) {
    const absl::StatusOr<bool> complete = backend->Poll(records);
    Require(complete.status());
    if (*complete) return;
  }
}

void Complete(Backend* backend, const Run& run, std::vector<Record>* records) {
  Require(backend->Submit(run));
  Await(backend, records);
}

void Begin(Backend* backend, int sessions) {
  std::vector<Slot> slots;
  for (Slot slot = 1; slot <= sessions; ++slot) slots.push_back(slot);
  Require(backend->ZeroSlots(slots));
}

Generation::Generation(Backend* backend, const ModelConfig& config, int rows, int steps)
    : backend_(backend),
      // The last token of a sequence is not fed.
      length_(config.max_tokens().value_or(1 << 20) - (config.has_bos() ? 0 : 1)),
      first_(config.bos_token_id.value_or(0)),
      tokens_(size_t(rows)) {
  run_.rows.resize(size_t(rows));
  run_.num_steps = steps;
  Restart(0);
}

void Generation::Restart(uint64_t round, bool logprobs) {
  const int rows = int(run_.rows.size());
  Begin(backend_, rows);
  for (int i = 0; i < rows; ++i) {
    SlotSampler sampler;
    sampler.params.seed = round * uint64_t(rows) + uint64_t(i);
    sampler.want_logprobs = logprobs;
    Require(backend_->SetSampler(i + 1, sampler));
  }
  std::fill(tokens_.begin(), tokens_.end(), first_);
  position_ = behind_ = 0;
}

void Generation::RestartBehind(int tokens) {
  Restart(0);
  const std::vector<int32_t> prompt(size_t(tokens), first_);
  const int most = backend_->limits().max_tokens;
  for (int fed = 0; fed < tokens; fed += most) {
    rivulet::Run run;
    RunRow& row = run.rows.emplace_back();
    row.slot = 1;
    row.position = fed;
    row.tokens = std::span(prompt).subspan(size_t(fed), size_t(std::min(most, tokens - fed)));
    std::vector<Record> records;
    Complete(backend_, run, &records);
  }
  for (size_t i = 1; i < run_.rows.size(); ++i) Require(backend_->CopySlot(1, Slot(i) + 1));
  position_ = behind_ = tokens;
}

void Generation::Run() {
  Submit();
  Await();
}

void Generation::Submit() {
  if (position_ + run_.num_steps > length_) position_ = behind_;
  for (size_t i = 0; i < run_.rows.size(); ++i) {
    RunRow& row = run_.rows[i];
    row.slot = Slot(i) + 1;
    row.position = position_;
    row.tokens = {&tokens_[i], 1};
    row.sample = true;
    row.max_samples = run_.num_steps;
    row.guesses = guesses;
  }
  records_.clear();
  Require(backend_->Submit(run_));
}

void Generation::Await() {
  bench::Await(backend_, &records_);
  for (const Record& record : records_) tokens_[size_t(record.row)] = record.token;
  position_ += run_.num_steps;
}

}  // namespace rivulet::bench
