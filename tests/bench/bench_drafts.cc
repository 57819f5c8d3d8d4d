// SPDX-License-Identifier: Apache-2.0
// What drafts bring on the CPU: one stream with drafts of which each is right with a given
// probability, beside the same stream without. A reply is recorded at temperature 0; then its own
// tokens are the drafts, some of them replaced by wrong ones. The draws must stay the same.
//
// One line for each probability p: E, the tokens of a pass; c, the time of a step of 1 + K sessions
// over that of one session; the rate over that without drafts; that over E / c, the limit where the
// rows of a pass cost what rows of several sessions cost. All in turn, and medians of the rounds.
// With --drafts=auto what was learned at one p goes on into the next.
//
// Flags, beside those of backend_choice.h:
//   --model=NAME|DIR   LoadModel of backend_choice.h
//   --weights=TYPE     of the server
//   --target=AVX2      the kernels on that instruction set (SetCpuTargetForTest)
//   --drafts=4         a pass; auto: as many as policy/speculation.h finds to pay, at most 8
//   --right=0.9,0.7    each p
//   --tokens=64        of the reply
//   --rounds=10
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/cpu/cpu_target.h"
#include "model/base/thread_team.h"
#include "server/engine/policy/speculation.h"
#include "tests/bench/backend_choice.h"
#include "tests/bench/generation.h"

namespace rivulet {
namespace {

using bench::Fail;
using bench::Require;

struct Flags {
  std::string model = "rwkv7-0.4b";
  WeightChoice weights;
  int drafts = 4, tokens = 64, rounds = 10;  // drafts 0: auto
  std::vector<double> right = {0.9, 0.7};
};

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// As the engine's loop for one row.
struct Policy {
  DraftAcceptance acceptance;
  PassCosts costs;
  BackendLimits limits;
  uint64_t run = 0;
  std::vector<int> drafts;

  int Plan(int most) {
    const DraftView view = {most, true, acceptance.rate(), acceptance.was_right()};
    PlanDrafts({&view, 1}, costs, limits, ++run, &drafts);
    return drafts[0];
  }
  void Note(size_t fed, size_t draws, double seconds) {
    if (fed > 1) acceptance.Note(static_cast<int>(fed) - 1, static_cast<int>(draws) - 1);
    costs.Note(static_cast<int>(fed), seconds);
  }
};

// Session 1 of a backend, and the same reply each time.
class Reply {
 public:
  Reply(Backend* backend, const ModelConfig& config)
      : backend_(backend), first_(config.bos_token_id.value_or(0)), vocab_(config.vocab_size) {}

  // Draws `count` tokens, which later calls of Generate draw again.
  void Record(size_t count) {
    tokens_.assign(count, -1);
    Generate(0, 0, 1);
  }
  // Returns the number of passes. `policy` null: `drafts` in each.
  int Generate(int drafts, double right, uint64_t seed, Policy* policy = nullptr) {
    bench::Begin(backend_, 1);
    SlotSampler sampler;
    sampler.params.temperature = 0;
    Require(backend_->SetSampler(1, sampler));
    std::mt19937_64 random(seed);
    std::bernoulli_distribution is_right(right);
    int passes = 0;
    size_t drawn = 0;
    for (; drawn < tokens_.size(); ++passes) {
      fed_ = {drawn == 0 ? first_ : tokens_[drawn - 1]};
      const auto room = static_cast<int>(tokens_.size() - drawn) - 1;
      const int most = std::min(drafts, room);
      const int planned = policy == nullptr ? most : policy->Plan(most);
      for (int i = 0; i < planned; ++i) {
        const int32_t token = tokens_[drawn + static_cast<size_t>(i)];
        fed_.push_back(is_right(random) ? token : (token + 1) % vocab_);
      }
      const double begin = Seconds();
      const size_t draws = Pass(drawn);
      if (policy != nullptr) policy->Note(fed_.size(), draws, Seconds() - begin);
      drawn += draws;
    }
    return passes;
  }

 private:
  // Feeds fed_; returns the number of draws.
  size_t Pass(size_t drawn) {
    Run run;
    RunRow& row = run.rows.emplace_back();
    row.slot = 1;
    row.position = static_cast<int64_t>(drawn);
    row.tokens = fed_;
    row.drafts = static_cast<int>(fed_.size()) - 1;
    row.sample = true;
    row.max_samples = 1 + row.drafts;
    records_.clear();
    bench::Complete(backend_, run, &records_);
    for (size_t i = 0; i < records_.size(); ++i) {
      int32_t& token = tokens_[drawn + i];
      if (token < 0) token = records_[i].token;
      if (token != records_[i].token) Fail(absl::StrCat("drafts change token ", drawn + i), 1);
    }
    return records_.size();
  }

  Backend* const backend_;
  const int32_t first_;
  const int vocab_;
  std::vector<int32_t> tokens_, fed_;
  std::vector<rivulet::Record> records_;
};

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Seconds of a step of `rows` sessions.
double StepSeconds(Backend* backend, const ModelConfig& config, int rows, int guesses = 0) {
  constexpr int kSteps = 8;
  bench::Generation generation(backend, config, rows, 1);
  generation.guesses = guesses;
  generation.Run();
  const double begin = Seconds();
  for (int i = 0; i < kSteps; ++i) generation.Run();
  return (Seconds() - begin) / kSteps;
}

void Measure(const Flags& flags, Backend* backend, const ModelConfig& config, double right,
             Policy* policy) {
  Reply reply(backend, config);
  reply.Record(static_cast<size_t>(flags.tokens));
  const int drafts = backend->limits().drafts.most;
  std::vector<double> ratios, costs, lone;
  double passes = 0;
  for (int round = 0; round < flags.rounds; ++round) {
    const double one = StepSeconds(backend, config, 1);
    costs.push_back(StepSeconds(backend, config, 1 + drafts) / one);
    const double begin = Seconds();
    reply.Generate(0, 0, 1);
    const double middle = Seconds();
    passes += reply.Generate(drafts, right, static_cast<uint64_t>(round) + 1,
                             flags.drafts == 0 ? policy : nullptr);
    ratios.push_back((middle - begin) / (Seconds() - middle));
    lone.push_back((middle - begin) / flags.tokens);
  }
  const double tokens = flags.tokens * flags.rounds / passes, cost = Median(costs),
               ratio = Median(ratios);
  std::printf("p %.2f: E %.2f, c %.2f, rate %.2f, of E / c %.2f; without %.2f ms a token\n", right,
              tokens, cost, ratio, ratio * cost / tokens, Median(lone) * 1e3);
  std::fflush(stdout);
}

// What a guess of the backend costs beside a step.
void MeasureGuess(const Flags& flags, Backend* backend, const ModelConfig& config) {
  std::vector<double> costs;
  for (int round = 0; round < flags.rounds; ++round) {
    const double step = StepSeconds(backend, config, 1);
    costs.push_back(StepSeconds(backend, config, 1, /*guesses=*/1) / step - 1);
  }
  std::printf("a guess of the model's own head: %.2f of a step\n", Median(costs));
}

bool Apply(const char* argument, Flags* flags) {
  using bench::FlagValue;
  const auto count = [&](const char* flag, int* value) {
    const char* const text = FlagValue(argument, flag);
    if (text != nullptr && (!absl::SimpleAtoi(text, value) || *value < 1)) {
      Fail(absl::StrCat(argument, ": no number above 0"), 2);
    }
    return text != nullptr;
  };
  if (const char* model = FlagValue(argument, "--model=")) {
    flags->model = model;
  } else if (const char* weights = FlagValue(argument, "--weights=")) {
    const absl::StatusOr<WeightChoice> choice = ParseWeightChoice(weights);
    if (!choice.ok()) Fail(std::string(choice.status().message()), 2);
    flags->weights = *choice;
  } else if (const char* target = FlagValue(argument, "--target=")) {
    if (!kernels::SetCpuTargetForTest(target)) {
      Fail(absl::StrCat(argument, ": this machine or build lacks it"), 2);
    }
  } else if (const char* right = FlagValue(argument, "--right=")) {
    flags->right.clear();
    for (const absl::string_view part : absl::StrSplit(right, ',')) {
      double p = -1;
      if (!absl::SimpleAtod(part, &p) || p < 0 || p > 1) {
        Fail(absl::StrCat(argument, ": \"", part, "\" is no probability"), 2);
      }
      flags->right.push_back(p);
    }
  } else if (absl::string_view(argument) == "--drafts=auto") {
    flags->drafts = 0;
  } else {
    return count("--drafts=", &flags->drafts) || count("--tokens=", &flags->tokens) ||
           count("--rounds=", &flags->rounds);
  }
  return true;
}

}  // namespace
}  // namespace rivulet

int main(int argc, char** argv) {
  using namespace rivulet;
  Flags flags;
  bench::Choice choice =
      bench::ParseChoice(&argc, argv, [&](const char* a) { return Apply(a, &flags); });
  if (argc > 1) Fail(absl::StrCat("unknown flag ", argv[1]), 2);
  choice.max_drafts = flags.drafts == 0 ? 8 : flags.drafts;
  const std::shared_ptr<const Model> model = LoadModel(choice, flags.model);
  const std::unique_ptr<Backend> backend =
      NewBackend(choice, model, 1 + choice.max_drafts, flags.weights, UsableCores());
  Policy policy;
  policy.limits = backend->limits();
  for (const double right : flags.right) {
    Measure(flags, backend.get(), model->config(), right, &policy);
  }
  if (policy.limits.drafts.guesses > 0) MeasureGuess(flags, backend.get(), model->config());
  return 0;
}
