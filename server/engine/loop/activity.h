// SPDX-License-Identifier: Apache-2.0
// What the loops of this process are doing, in fixed memory that a crash handler can read. Writing
// it costs a few relaxed stores per run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace rivulet {

enum class LoopPhase : uint8_t { kIdle, kArrivals, kAdmit, kPlan, kSubmit, kPoll, kRecords, kEnd };
// One word, for example "submit".
const char* Name(LoopPhase phase);

// A loop's place in the table while its thread runs. Only kMaxLoops at once have one. Thread: the
// loop's.
class LoopActivity {
 public:
  static constexpr size_t kMaxLoops = 64;

  // `model`: the name, cut after 63 bytes.
  explicit LoopActivity(absl::string_view model);
  LoopActivity(const LoopActivity&) = delete;
  LoopActivity& operator=(const LoopActivity&) = delete;
  ~LoopActivity();
};

// Sets what the loop of the calling thread does. No effect if the loop has no place, as in tests
// that call Turn themselves.
void NotePhase(LoopPhase phase);
// Notes the run that begins or is running.
void NoteRun(int rows, int steps);

struct LoopState {
  char model[64];
  LoopPhase phase;
  int rows, steps;  // of its last run
  int64_t runs;     // runs begun since the start
};
// Reads the loop in place `index` of the table, below kMaxLoops. False: the place is empty. Thread:
// any, and signal handlers.
bool ReadLoop(size_t index, LoopState* state);

}  // namespace rivulet
