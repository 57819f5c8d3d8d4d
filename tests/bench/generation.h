// SPDX-License-Identifier: Apache-2.0
// Sessions that generate on a backend, for benchmarks. An error of the backend ends the program.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "model/backend.h"
#include "model/config.h"

namespace rivulet::bench {

void Require(const absl::Status& status);
// Waits for the records of the outstanding run.
void Await(Backend* backend, std::vector<Record>* records);
// Submits a run and waits for its records.
void Complete(Backend* backend, const Run& run, std::vector<Record>* records);
// Slots 1..sessions, without a token.
void Begin(Backend* backend, int sessions);

// Sessions 1..rows of a backend, generating for ever, in runs of `steps`.
class Generation {
 public:
  Generation(Backend* backend, const ModelConfig& config, int rows, int steps);

  // Restarts all sessions, with different seeds for every `round`.
  void Restart(uint64_t round, bool logprobs = false);
  // The same, but each session has been fed the same `tokens` tokens, also after a restart at a
  // full sequence.
  void RestartBehind(int tokens);
  // Submit, then Await.
  void Run();
  void Submit();
  void Await();

  const std::vector<Record>& records() const { return records_; }  // of the last run
  int64_t position() const { return position_; }                   // tokens fed to each session
  int guesses = 0;                                                 // RunRow::guesses

 private:
  Backend* backend_;
  const int64_t length_;
  const int32_t first_;
  std::vector<int32_t> tokens_;
  rivulet::Run run_;
  std::vector<Record> records_;
  int64_t position_ = 0, behind_ = 0;  // behind_: position after a full sequence
};

}  // namespace rivulet::bench
