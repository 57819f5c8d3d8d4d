// SPDX-License-Identifier: Apache-2.0
// Models of the family, hybrids and GP-MoLFormer against their float64 goldens (make_family.py,
// make_gguf.py, gguf_hybrids_test.py, the READMEs of hybrid/, llama_cpp/ and molformer/), and the
// promises of the seam that their states must keep: prefill is stepping, threads and batches change
// no bit, a state that was read and written continues with the same bits. RIVULET_FAMILY_DIR adds a
// folder of model directories.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/cpu/cpu_backend.h"
#include "model/model.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"

namespace rivulet::testing {
namespace {

std::vector<std::string> Directories() {
  std::vector<std::string> found;
  std::vector<std::string> folders = {
      SourcePath("tests/conformance/family"), SourcePath("tests/conformance/gguf"),
      SourcePath("tests/conformance/hybrid"), SourcePath("tests/conformance/llama_cpp"),
      SourcePath("tests/conformance/molformer")};
  if (const char* more = std::getenv("RIVULET_FAMILY_DIR")) folders.emplace_back(more);
  for (const std::string& folder : folders) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (std::filesystem::exists(entry.path() / "golden.json")) found.push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

// What --model would be given: the directory, or the GGUF file in it, of several the first.
std::string ModelIn(const std::string& directory) {
  for (const char* file : {"model.gguf", "model-00001-of-00003.gguf"}) {
    if (std::filesystem::exists(directory + "/" + file)) return directory + "/" + file;
  }
  return directory;
}

std::unique_ptr<Backend> NewBackend(std::shared_ptr<const Model> model, int threads,
                                    const WeightChoice& weights = {}) {
  CpuBackendOptions options;
  options.weights = weights;
  options.num_slots = 3;
  options.threads = threads;
  auto backend = CreateCpuBackend(std::move(model), options);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return backend.ok() ? *std::move(backend) : nullptr;
}

bool RoundsActivations(const Backend& backend) {
  return backend.limits().numerics_id.find("-a8-") != std::string::npos;
}

class FamilyGoldenTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto model = Model::Load(ModelIn(GetParam()));
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    golden_ = ReadGolden(GetParam());
    ASSERT_FALSE(golden_.sequences.empty());
  }
  BackendScore Score(Backend& backend, std::span<const int32_t> tokens, int chunk) {
    return ScoreThroughBackend(backend, model_->config(), 1, tokens, chunk);
  }

  std::shared_ptr<const Model> model_;
  Golden golden_;
};

TEST_P(FamilyGoldenTest, OutputsAndLikelihoodMatchFloat64) {
  auto backend = NewBackend(model_, 2);
  // Blocks of integers are multiplied with activations of 8 bits; the golden's are float64.
  if (RoundsActivations(*backend)) backend = NewBackend(model_, 2, WeightPrecision::kF32);
  for (const GoldenSequence& sequence : golden_.sequences) {
    const BackendScore score = Score(*backend, sequence.tokens, 1024);
    ASSERT_EQ(int64_t(score.logprobs.size()), sequence.num_scored);
    EXPECT_NEAR(score.nll_nats, sequence.nll_nats, 1e-4 * std::max(1.0, sequence.nll_nats));
    const double worst = WorstOutputError(golden_, sequence, score);
    EXPECT_LE(worst, 1e-4);
    std::printf("  %s: worst output error %.2g\n", GetParam().c_str() + GetParam().rfind('/') + 1,
                worst);
  }
}

// As served, with activations of 8 bits.
TEST_P(FamilyGoldenTest, RoundedActivationsStayNearFloat64) {
  const auto backend = NewBackend(model_, 2);
  if (!RoundsActivations(*backend)) return;
  for (const GoldenSequence& sequence : golden_.sequences) {
    const BackendScore score = Score(*backend, sequence.tokens, 1024);
    if (sequence.num_scored > 9) {  // a few tokens can be unlucky
      EXPECT_NEAR(score.nll_nats, sequence.nll_nats, 0.005 * sequence.nll_nats);
    }
    for (size_t i = 0; i < sequence.outputs.size(); ++i) {
      const std::vector<float>& served = score.outputs[size_t(golden_.positions[i])];
      double errors = 0, squares = 0;
      for (size_t j = 0; j < served.size(); ++j) {
        const double exact = sequence.outputs[i][j], error = double{served[j]} - exact;
        errors += error * error;
        squares += exact * exact;
      }
      EXPECT_LT(std::sqrt(errors / squares), 0.05) << "position " << golden_.positions[i];
    }
  }
}

// The root of the mean square of the errors of a sequence's outputs, over that of the outputs.
double OutputError(const BackendScore& score, const BackendScore& exact) {
  double errors = 0, squares = 0;
  for (size_t i = 0; i < exact.outputs.size(); ++i) {
    for (size_t j = 0; j < exact.outputs[i].size(); ++j) {
      const double error = double{score.outputs[i][j]} - double{exact.outputs[i][j]};
      errors += error * error;
      squares += double{exact.outputs[i][j]} * double{exact.outputs[i][j]};
    }
  }
  return std::sqrt(errors / squares);
}

// Random weights have no structure that would hide errors, or make them worse.
TEST_P(FamilyGoldenTest, WeightsOfFewBitsMoveTheOutputsALittle) {
  const std::vector<int32_t>& tokens = golden_.sequences.back().tokens;
  const BackendScore exact = Score(*NewBackend(model_, 1, WeightPrecision::kF32), tokens, 1024);
  // The hybrids' norms make small errors four times as large: those of BF16, too.
  const bool grows = model_->config().state().attention.has_value();
  // Post-norm layers have no path around their norms.
  const bool post_norm = model_->config().kind() == std::string("linear");
  const double most_int4 = grows ? 0.8 : post_norm ? 0.4 : 0.3;
  for (const auto& [weights, most] : {std::pair{WeightPrecision::kAuto, 0.05},
                                      {WeightPrecision::kInt8, grows ? 0.25 : 0.05},
                                      {WeightPrecision::kInt4, most_int4}}) {
    const auto backend = NewBackend(model_, 2, weights);
    if (weights == WeightPrecision::kAuto && !RoundsActivations(*backend)) continue;
    const double error = OutputError(Score(*backend, tokens, 1024), exact);
    EXPECT_LT(error, most);
    EXPECT_GT(error, 0);
  }
}

TEST_P(FamilyGoldenTest, TheCutIntoRunsAndTheThreadsChangeNoBit) {
  const std::vector<int32_t>& tokens = golden_.sequences.back().tokens;
  for (const WeightPrecision weights :
       {WeightPrecision::kAuto, WeightPrecision::kInt8, WeightPrecision::kInt4}) {
    const auto alone = NewBackend(model_, 1, weights);
    const BackendScore whole = Score(*alone, tokens, 1024);
    for (const int threads : {1, 3}) {
      const auto backend = NewBackend(model_, threads, weights);
      // The sanitizers find nothing in one cut that they do not find in another.
      for (const int chunk : RIVULET_SANITIZED ? std::vector{7} : std::vector{1, 2, 7, 1024}) {
        const BackendScore score = Score(*backend, tokens, chunk);
        const std::string where = absl::StrCat(backend->limits().numerics_id, ", ", threads,
                                               " threads, chunks of ", chunk);
        EXPECT_EQ(score.outputs, whole.outputs) << where;
        EXPECT_EQ(score.state, whole.state) << where;
      }
    }
  }
}

TEST_P(FamilyGoldenTest, AStateThatWasReadAndWrittenContinuesWithTheSameBits) {
  const std::vector<int32_t>& tokens = golden_.sequences.front().tokens;
  const auto backend = NewBackend(model_, 2);
  const BackendScore whole = Score(*backend, tokens, 1024);
  const size_t half = tokens.size() / 2;
  const BackendScore first = Score(*backend, std::span(tokens).first(half + 1), 1024);
  const Slot slot = 2, copy = 3;
  ASSERT_TRUE(backend->ZeroSlots({{slot, copy}}).ok());
  ASSERT_TRUE(backend->WriteSlot(slot, first.state).ok());
  ASSERT_TRUE(backend->CopySlot(slot, copy).ok());
  std::vector<std::vector<float>> outputs(tokens.size() - 1 - half);
  std::vector<OutputRequest> requests;
  for (size_t i = 0; i < outputs.size(); ++i) {
    outputs[i].resize(size_t(model_->config().output_size()));
    requests.push_back({int(i), outputs[i].data()});
  }
  for (const Slot one : {slot, copy}) {
    rivulet::Run run;
    RunRow row;
    row.slot = one;
    row.position = int64_t(half);
    row.tokens = std::span(tokens).subspan(half, outputs.size());
    row.outputs = requests;
    run.rows.push_back(row);
    for (std::vector<float>& output : outputs) std::fill(output.begin(), output.end(), 0.0f);
    ASSERT_TRUE(backend->Submit(run).ok());
    std::vector<Record> records;
    ASSERT_TRUE(*backend->Poll(&records));
    for (size_t i = 0; i < outputs.size(); ++i) {
      ASSERT_EQ(outputs[i], whole.outputs[half + i]) << "slot " << one << " token " << half + i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, FamilyGoldenTest, ::testing::ValuesIn(Directories()),
                         [](const auto& param) {
                           std::string name = param.param.substr(param.param.rfind('/') + 1);
                           const auto odd = [](unsigned char c) { return !std::isalnum(c); };
                           std::replace_if(name.begin(), name.end(), odd, '_');
                           // Two folders may hold directories of one name.
                           const auto is_in = [&](const char* folder) {
                             return param.param.rfind(SourcePath(folder), 0) == 0;
                           };
                           if (is_in("tests/conformance/gguf")) return "gguf_" + name;
                           if (is_in("tests/conformance/llama_cpp")) return "llama_cpp_" + name;
                           return is_in("tests/conformance/family") ? name : "other_" + name;
                         });

}  // namespace
}  // namespace rivulet::testing
