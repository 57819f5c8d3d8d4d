// SPDX-License-Identifier: Apache-2.0
// The backend that a conformance program tests. The tests are written once for the interface; each
// program links them with tested_cpu.cc or cuda_tested.cc.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/backend.h"
#include "model/model.h"
#include "tests/support/random_model.h"

namespace rivulet::testing {

using BackendFactory = std::function<absl::StatusOr<std::unique_ptr<Backend>>(
    std::shared_ptr<const Model> model, int num_slots)>;

// Ways to make a backend whose sessions have the same bits: thread counts, vector widths, row
// limits. A backend is used and destroyed before the next factory is called.
struct TestedBackend {
  std::string name;
  double least_output_tolerance = 0;  // least tolerance, if above OutputTolerance()
  std::vector<BackendFactory> same_bits;
  bool softmax = false;  // with models of softmax attention
  int window = 0;

  // TinyConfig() with the attention that is tested.
  ModelConfig Config() const;
};

std::vector<TestedBackend> TestedBackends();
// The same, and each with softmax attention.
std::vector<TestedBackend> TestedAttention();
// The same with rounded weights, for which only equal bits are promised.
std::vector<TestedBackend> RoundedBackends();

// Whether every step takes milliseconds (emulated, or under a sanitizer): sweeps shrink, and the
// bundled models are left out if BundledModelsAreTooLarge().
bool StepsAreSlow();
bool BundledModelsAreTooLarge();
// Whether the backend has mixtures of experts.
bool HasExperts();

// Directories with a golden.json: the tests' and the bundled directories.
std::vector<std::string> GoldenDirectories();

// The last part of `path`, and `suffix`, as the name of a test.
std::string TestName(const std::string& path, const std::string& suffix);

// Polls until the outstanding run is complete; a test failure if it ends in an error.
std::vector<Record> PollAll(Backend& backend);

}  // namespace rivulet::testing
