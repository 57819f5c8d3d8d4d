// SPDX-License-Identifier: Apache-2.0
// Two backends, a reference and the backend under test. They do the same random operations in the
// same order, and must give the same results.
#pragma once

#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "model/backend.h"
#include "model/model.h"

namespace rivulet::testing {

// Tolerances between the results; all 0: the same bits.
struct BackendTolerance {
  double outputs = 0, logprobs = 0;
  double states = 0;  // relative to 1 + |value|
};

class TwoBackends {
 public:
  // Both have at least `slots` slots, and limits for a run of all slots with up to 7 tokens per row
  // and 6 steps.
  TwoBackends(std::shared_ptr<const Model> model, std::unique_ptr<Backend> reference,
              std::unique_ptr<Backend> tested, int slots, const BackendTolerance& tolerance,
              uint32_t seed);

  // Zeroes all slots, does `operations` operations, and compares all records on the way and all
  // states at the end. Differences fail the running test.
  void Compare(int operations);

 private:
  int UpTo(int n) { return int(random_() % uint32_t(n + 1)); }
  int32_t Token() { return int32_t(random_() % uint32_t(model_->config().num_output_tokens())); }
  SlotSampler RandomSampler();
  void Both(const std::function<absl::Status(Backend&)>& operation);
  void Zero(Slot slot);
  void RandomOperation();
  void RandomRun();
  void CompareRecords(const Run& run, const std::vector<Record>& expected,
                      const std::vector<Record>& told);
  void CompareStates();

  std::shared_ptr<const Model> model_;
  std::unique_ptr<Backend> reference_, tested_;
  const int slots_;
  const BackendTolerance tolerance_;
  std::mt19937 random_;
  std::vector<float> kept_;    // a state
  std::vector<int64_t> fed_;   // by slot
  std::vector<int32_t> last_;  // drawn but not fed; -1: none
};

}  // namespace rivulet::testing
