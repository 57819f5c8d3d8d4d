// SPDX-License-Identifier: Apache-2.0
// The engine without gRPC: `rows` sequences of mnist-linear generate at once and begin anew when
// they end. One iteration is 49 tokens for each row (a sixteenth of an image). Compare with BM_Step
// and BM_MatrixProducts of bench_step.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/engine/engine.h"
#include "tests/bench/backend_choice.h"

namespace rivulet {
namespace {

// One sequence after another on one engine, as a client that always wants the next image.
class EndlessSequences : public ReplyListener {
 public:
  EndlessSequences(Engine* engine, uint64_t seed, std::atomic<int64_t>* tokens)
      : engine_(engine), seed_(seed), tokens_(tokens) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Start();
  }
  // Ends after the reply that is running; wait for it by destroying the engine.
  void OnReady() override {
    // The reply may be ready before Start has it.
    const std::lock_guard<std::mutex> lock(mutex_);
    int64_t taken = 0;
    for (const ReplyDelta& delta : reply_->Take()) taken += int64_t(delta.tokens.size());
    tokens_->fetch_add(taken);
    if (reply_->end().has_value() && reply_->end()->status.ok()) Start();
  }

 private:
  void Start() {
    GenerateSpec spec;
    spec.sampling.seed = seed_++;
    absl::StatusOr<std::shared_ptr<Reply>> submitted = engine_->Generate(std::move(spec), this);
    if (submitted.ok()) reply_ = *std::move(submitted);
  }

  Engine* engine_;
  uint64_t seed_;
  std::atomic<int64_t>* tokens_;
  std::mutex mutex_;
  std::shared_ptr<Reply> reply_;
};

void BM_Engine(benchmark::State& state, const bench::Choice& choice, WeightPrecision precision) {
  const int rows = int(state.range(0)), threads = choice.cuda ? 0 : int(state.range(1));
  auto model = bench::LoadModel(choice, "mnist-linear");
  std::atomic<int64_t> tokens{0};
  std::vector<std::unique_ptr<EndlessSequences>> all;
  EngineOptions options;
  options.max_queue = std::max(options.max_queue, rows);
  std::unique_ptr<Engine> engine =
      Engine::Create(model, bench::NewBackend(choice, model, rows, precision, threads), options);
  for (int i = 0; i < rows; ++i) {
    all.push_back(std::make_unique<EndlessSequences>(engine.get(), uint64_t(i) << 32, &tokens));
  }
  const auto wait_for = [&](int64_t target) {
    while (tokens.load() < target) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  };
  wait_for(rows * 8);  // every slot has its pages
  int64_t done = tokens.load(), begin = done;
  for (auto _ : state) {
    done += rows * 49;
    wait_for(done);
  }
  state.counters["tok/s"] =
      benchmark::Counter(double(tokens.load() - begin), benchmark::Counter::kIsRate);
  engine.reset();
}

void Register(const bench::Choice& choice) {
  const auto add = [&](const char* name, WeightPrecision precision) {
    auto* b = benchmark::RegisterBenchmark(name, [choice, precision](benchmark::State& state) {
      BM_Engine(state, choice, precision);
    });
    return b->UseRealTime()->Unit(benchmark::kMillisecond);
  };
  if (choice.cuda) {
    auto* b = add("BM_Engine/mnist-linear", WeightPrecision::kAuto)->ArgName("rows");
    b->Arg(1)->Arg(64)->Arg(1024)->Arg(4096);
    return;
  }
  for (const auto& [name, precision] : {std::pair{"BM_Engine/mnist_f32", WeightPrecision::kF32},
                                        {"BM_Engine/mnist_f16", WeightPrecision::kAuto}}) {
    add(name, precision)->ArgsProduct({{1, 8, 64, 256}, {1, 2}})->ArgNames({"rows", "threads"});
  }
}

}  // namespace
}  // namespace rivulet

int main(int argc, char** argv) {
  const rivulet::bench::Choice choice = rivulet::bench::ParseChoice(&argc, argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  rivulet::Register(choice);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
