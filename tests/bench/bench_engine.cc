// SPDX-License-Identifier: Apache-2.0
// The engine without gRPC: `rows` sessions of mnist-linear generate at once and begin anew when
// they end. One iteration is 49 tokens for each row (a sixteenth of an image). Compare with BM_Step
// and BM_MatrixProducts of bench_step.
#include <benchmark/benchmark.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "model/cpu_backend.h"
#include "model/model.h"
#include "server/engine/engine.h"

namespace rivulet {
namespace {

// One session after another on one engine, as a client that always wants the next image.
class EndlessSession : public ReplyListener {
 public:
  EndlessSession(Engine* engine, uint64_t seed, std::atomic<int64_t>* tokens)
      : engine_(engine), seed_(seed), tokens_(tokens) {
    Start();
  }
  // Ends after the reply that is running; wait for it by destroying the engine.
  void OnReady() override {
    int64_t taken = 0;
    for (const ReplyDelta& delta : ticket_.reply->Take()) taken += int64_t(delta.tokens.size());
    tokens_->fetch_add(taken);
    if (ticket_.reply->end().has_value() && ticket_.reply->end()->status.ok()) Start();
  }

 private:
  void Start() {
    GenerateSpec spec;
    spec.sampling.seed = seed_++;
    absl::StatusOr<Engine::Ticket> ticket = engine_->Generate(std::move(spec), this);
    if (ticket.ok()) ticket_ = *std::move(ticket);
  }

  Engine* engine_;
  uint64_t seed_;
  std::atomic<int64_t>* tokens_;
  Engine::Ticket ticket_;
};

void BM_Engine(benchmark::State& state, WeightPrecision precision) {
  const int rows = int(state.range(0)), threads = int(state.range(1));
  auto model = *Model::Load(std::string(RIVULET_SOURCE_DIR) + "/model/zoo/mnist-linear");
  std::atomic<int64_t> tokens{0};
  std::vector<std::unique_ptr<EndlessSession>> sessions;
  std::unique_ptr<Engine> engine = Engine::Create(
      model,
      *CreateCpuBackend(model, {.num_slots = rows, .weights = precision, .threads = threads}), {});
  for (int i = 0; i < rows; ++i) {
    sessions.push_back(std::make_unique<EndlessSession>(engine.get(), uint64_t(i) << 32, &tokens));
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

const std::vector<std::vector<int64_t>> kSizes = {{1, 8, 64, 256}, {1, 2}};
BENCHMARK_CAPTURE(BM_Engine, mnist_f32, WeightPrecision::kF32)
    ->ArgsProduct(kSizes)
    ->ArgNames({"rows", "threads"})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Engine, mnist_f16, WeightPrecision::kAuto)
    ->ArgsProduct(kSizes)
    ->ArgNames({"rows", "threads"})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace rivulet

BENCHMARK_MAIN();
