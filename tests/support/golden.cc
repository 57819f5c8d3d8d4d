// SPDX-License-Identifier: Apache-2.0
#include "tests/support/golden.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>

namespace rivulet::testing {
namespace {

void Require(bool condition, const std::string& what) {
  if (condition) return;
  std::cerr << what << "\n";
  std::abort();
}

void Require(const absl::Status& status) { Require(status.ok(), status.ToString()); }

}  // namespace

Golden ReadGolden(const std::string& directory) {
  std::ifstream file(directory + "/golden.json");
  Require(file.good(), "no golden.json in " + directory);
  const nlohmann::json json = nlohmann::json::parse(file);
  Golden golden;
  json.at("positions").get_to(golden.positions);
  for (const nlohmann::json& s : json.at("sequences")) {
    GoldenSequence sequence;
    s.at("tokens").get_to(sequence.tokens);
    s.at("num_scored").get_to(sequence.num_scored);
    s.at("nll_nats").get_to(sequence.nll_nats);
    s.at("outputs").get_to(sequence.outputs);
    golden.sequences.push_back(std::move(sequence));
  }
  return golden;
}

double OutputTolerance(const std::string& directory) {
  if (directory.find("zoo") != std::string::npos) return 2e-3;  // trained: large activations
  if (directory.find("random-fourier") != std::string::npos &&
      directory.find("smoothed") == std::string::npos) {
    return 5e-3;  // ill-conditioned: the divisor q.z comes close to zero
  }
  return 1e-4;
}

BackendScore ScoreThroughBackend(Backend& backend, const ModelConfig& config, Slot slot,
                                 std::span<const int32_t> tokens, int chunk) {
  std::vector<int32_t> sequence;
  if (config.has_bos()) sequence.push_back(*config.bos_token_id);
  sequence.insert(sequence.end(), tokens.begin(), tokens.end());
  const size_t scored = sequence.size() - 1;
  BackendScore score;
  score.outputs.assign(scored, std::vector<float>(size_t(config.output_size())));
  Require(backend.ZeroSlots({&slot, 1}));
  std::vector<Record> records;
  for (size_t at = 0; at < scored; at += size_t(chunk)) {
    const size_t count = std::min(size_t(chunk), scored - at);
    std::vector<OutputRequest> outputs;
    for (size_t i = 0; i < count; ++i) outputs.push_back({int(i), score.outputs[at + i].data()});
    Run run;
    RunRow row;
    row.slot = slot;
    row.position = int64_t(at);
    row.tokens = std::span(sequence).subspan(at, count);
    row.targets = std::span(sequence).subspan(at + 1, count);
    row.outputs = outputs;
    run.rows.push_back(row);
    Require(backend.Submit(run));
    for (bool complete = false; !complete;) {
      absl::StatusOr<bool> polled = backend.Poll(&records);
      Require(polled.status());
      complete = *polled;
    }
  }
  for (const Record& record : records) {
    score.logprobs.push_back(record.logprob);
    score.nll_nats -= double{record.logprob};
  }
  score.state.resize(backend.StateFloats(slot));
  Require(backend.ReadSlot(slot, score.state));
  Require(backend.ZeroSlots({&slot, 1}));
  return score;
}

double WorstOutputError(const Golden& golden, const GoldenSequence& sequence,
                        const BackendScore& score) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  size_t next = 0;
  double worst = 0;
  for (const int64_t position : golden.positions) {
    if (position >= sequence.num_scored) continue;
    if (size_t(position) >= score.outputs.size() || next >= sequence.outputs.size()) {
      return kInfinity;
    }
    const std::vector<float>& outputs = score.outputs[size_t(position)];
    const std::vector<double>& expected = sequence.outputs[next++];
    if (outputs.size() != expected.size()) return kInfinity;
    for (size_t i = 0; i < outputs.size(); ++i) {
      const double error = std::fabs(double{outputs[i]} - expected[i]);
      if (std::isnan(error)) return kInfinity;
      worst = std::max(worst, error);
    }
  }
  return next == sequence.outputs.size() ? worst : kInfinity;
}

}  // namespace rivulet::testing
