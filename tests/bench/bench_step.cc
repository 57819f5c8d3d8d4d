// SPDX-License-Identifier: Apache-2.0
// Steps of the CPU backend, and the limit they are measured against: the model's matrix products
// alone, with the same kernel and threads. Counters: tokens/s, and for steps the share of the limit
// of the same row count.
#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/gemm.h"
#include "model/cpu_backend.h"
#include "model/cpu_weights.h"
#include "model/model.h"
#include "model/thread_team.h"

namespace rivulet {
namespace {

const std::string kZoo = std::string(RIVULET_SOURCE_DIR) + "/model/zoo/";

std::shared_ptr<const Model> Load(const std::string& name) {
  auto model = Model::Load(kZoo + name);
  if (!model.ok()) {
    fprintf(stderr, "%s\n", model.status().ToString().c_str());
    exit(1);
  }
  return *model;
}

// All matrix products of one step, columns split over the threads, a barrier after each.
void BM_MatrixProducts(benchmark::State& state, const std::string& name,
                       WeightPrecision precision) {
  const auto model = Load(name);
  const int rows = int(state.range(0)), threads = int(state.range(1));
  const auto weights = *CpuWeights::Load(*model, precision);
  std::vector<const CpuMatrix*> matrices;
  for (const CpuLayer& layer : weights->layers) {
    for (const CpuMatrix* m : {&layer.qkv, &layer.out, &layer.ffn1, &layer.ffn2})
      matrices.push_back(m);
  }
  matrices.push_back(&weights->head);
  const size_t widest = size_t(kernels::PaddedColumns(4 * model->config().ffn_size));
  std::vector<float> x(size_t(rows) * widest, 0.5f), y(size_t(rows) * widest);
  ThreadTeam team(threads);
  SpinBarrier barrier(threads);
  for (auto _ : state) {
    team.Run([&](int thread) {
      for (const CpuMatrix* m : matrices) {
        kernels::GemmArgs args;
        args.w = m->packed;
        args.bias = m->bias.data();
        args.x = x.data();
        args.y = y.data();
        args.rows = rows;
        args.ldx = m->packed.k;
        args.ldy = kernels::PaddedColumns(m->packed.n);
        const int panels = kernels::NumPanels(m->packed.n);
        args.panel_begin = panels * thread / threads;
        args.panel_end = panels * (thread + 1) / threads;
        kernels::GemmCpu(args);
        barrier.Wait();
      }
    });
  }
  state.counters["tok/s"] =
      benchmark::Counter(double(state.iterations() * rows), benchmark::Counter::kIsRate);
}

// One decode step of `rows` sessions, sampling included.
void BM_Step(benchmark::State& state, const std::string& name, WeightPrecision precision) {
  const auto model = Load(name);
  const int rows = int(state.range(0)), threads = int(state.range(1));
  auto backend =
      *CreateCpuBackend(model, {.num_slots = rows, .weights = precision, .threads = threads});
  const int64_t length = model->config().max_tokens().value_or(1 << 20);
  std::vector<int32_t> tokens(size_t(rows), model->config().bos_token_id.value_or(0));
  for (int i = 0; i < rows; ++i) {
    SlotSampler sampler;
    sampler.params.seed = uint64_t(i);
    (void)backend->SetSampler(i + 1, sampler);
  }
  Run run;
  run.rows.resize(size_t(rows));
  std::vector<Record> records;
  int64_t position = 0;
  const auto step = [&] {
    for (int i = 0; i < rows; ++i) {
      RunRow& row = run.rows[size_t(i)];
      row.slot = i + 1;
      row.position = position % length;
      row.tokens = {&tokens[size_t(i)], 1};
      row.sample = true;
      row.max_samples = 1;
    }
    (void)backend->Submit(run);
    records.clear();
    (void)backend->Poll(&records);
    for (const Record& record : records) tokens[size_t(record.row)] = record.token;
    ++position;
  };
  for (int i = 0; i < 3; ++i) step();  // the first touch of a slot takes its pages
  for (auto _ : state) step();
  state.counters["tok/s"] =
      benchmark::Counter(double(state.iterations() * rows), benchmark::Counter::kIsRate);
}

// Feeding a prompt of 784 tokens to one session, in runs of 256.
void BM_Prefill(benchmark::State& state, const std::string& name, int chunk,
                WeightPrecision precision) {
  const auto model = Load(name);
  auto backend = *CreateCpuBackend(
      model, {.num_slots = 1, .weights = precision, .threads = int(state.range(0))});
  std::vector<int32_t> tokens(784, 7);
  const Slot slot = 1;
  for (auto _ : state) {
    (void)backend->ZeroSlots({&slot, 1});
    for (size_t at = 0; at < tokens.size(); at += size_t(chunk)) {
      Run run;
      RunRow row;
      row.slot = slot;
      row.position = int64_t(at);
      row.tokens = std::span(tokens).subspan(at, std::min(size_t(chunk), tokens.size() - at));
      run.rows.push_back(row);
      (void)backend->Submit(run);
    }
  }
  state.counters["tok/s"] =
      benchmark::Counter(double(state.iterations() * 784), benchmark::Counter::kIsRate);
}

void RowsAndThreads(benchmark::internal::Benchmark* b) {
  b->ArgsProduct({{1, 8, 64, 256}, {1, 2}})->ArgNames({"rows", "threads"});
  b->UseRealTime()->Unit(benchmark::kMicrosecond);
}

void Threads(benchmark::internal::Benchmark* b) {
  b->Arg(1)->Arg(2)->ArgNames({"threads"})->UseRealTime()->Unit(benchmark::kMillisecond);
}

constexpr WeightPrecision kF32 = WeightPrecision::kF32,
                          kF16 = WeightPrecision::kAuto;  // both files are F16
BENCHMARK_CAPTURE(BM_MatrixProducts, mnist_f32, "mnist-linear", kF32)->Apply(RowsAndThreads);
BENCHMARK_CAPTURE(BM_Step, mnist_f32, "mnist-linear", kF32)->Apply(RowsAndThreads);
BENCHMARK_CAPTURE(BM_MatrixProducts, mnist_f16, "mnist-linear", kF16)->Apply(RowsAndThreads);
BENCHMARK_CAPTURE(BM_Step, mnist_f16, "mnist-linear", kF16)->Apply(RowsAndThreads);
BENCHMARK_CAPTURE(BM_Step, shakespeare_rfa_f16, "shakespeare-rfa", kF16)->Apply(RowsAndThreads);
BENCHMARK_CAPTURE(BM_Prefill, mnist_784_tokens_at_once_f16, "mnist-linear", 256, kF16)
    ->Apply(Threads);
BENCHMARK_CAPTURE(BM_Prefill, mnist_784_tokens_stepped_f16, "mnist-linear", 1, kF16)
    ->Apply(Threads);
BENCHMARK_CAPTURE(BM_Prefill, mnist_784_tokens_at_once_f32, "mnist-linear", 256, kF32)
    ->Apply(Threads);
BENCHMARK_CAPTURE(BM_Prefill, mnist_784_tokens_stepped_f32, "mnist-linear", 1, kF32)
    ->Apply(Threads);

}  // namespace
}  // namespace rivulet

BENCHMARK_MAIN();
