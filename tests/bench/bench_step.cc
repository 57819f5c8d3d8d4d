// SPDX-License-Identifier: Apache-2.0
// Steps and prefill of a backend (--backend=cpu|cuda, backend_choice.h). On the CPU beside the
// limits that they are measured against: the model's matrix products alone, with the same kernel
// and threads, and memory that is read, or read and written, by as many threads.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/gemm.h"
#include "model/cpu/block_weights.h"
#include "model/cpu/cpu_weights.h"
#include "model/cpu/thread_team.h"
#include "tests/bench/backend_choice.h"

namespace rivulet {
namespace {

using bench::Choice;
using bench::LoadShape;
using bench::NewBackend;

// The model as the other functions here load it: --model, or one of the known shapes.
std::shared_ptr<const Model> Load(const Choice& choice, const std::string& name) {
  return choice.model.empty() ? LoadShape(choice, name) : bench::LoadDirectory(choice.model);
}

// The matrices that a token row is multiplied with, and what holds them.
struct Products {
  std::unique_ptr<const CpuWeights> own;
  std::unique_ptr<const BlockWeights> family;
  std::vector<const CpuMatrix*> matrices;
  size_t bytes = 0, widest = 0;  // widest: in values, of an input or output row

  void Add(const CpuMatrix& m) {
    if (m.packed.panels == nullptr) return;
    matrices.push_back(&m);
    bytes += kernels::PackedSize(m.packed.type, m.packed.k, m.packed.n);
    widest = std::max({widest, size_t(m.packed.k), size_t(kernels::PaddedColumns(m.packed.n))});
  }
};

void AddFamily(const BlockWeights& weights, Products* products) {
  for (const BlockLayer& layer : weights.layers) {
    products->Add(layer.in);
    if (const Rwkv7Layer* const own = layer.rwkv7.get()) {
      for (const CpuMatrix* m : {&own->r, &own->k, &own->v}) products->Add(*m);
      for (const LowRank* low : {&own->w, &own->a, &own->g, &own->v_mix}) {
        products->Add(low->first);
        products->Add(low->second);
      }
    }
    for (const CpuMatrix* m : {&layer.decay, &layer.gate, &layer.out, &layer.up, &layer.down})
      products->Add(*m);
  }
  const bool tied = weights.head.packed.panels == nullptr;
  products->Add(tied ? weights.embedding : weights.head);
}

Products LoadProducts(const Model& model, WeightPrecision precision) {
  Products products;
  if (model.config().blocks != nullptr) {
    products.family = *BlockWeights::Load(*model.checkpoint(), *model.config().blocks, precision);
    AddFamily(*products.family, &products);
    return products;
  }
  products.own = *CpuWeights::Load(model, precision);
  for (const CpuLayer& layer : products.own->layers) {
    for (const CpuMatrix* m : {&layer.qkv, &layer.out, &layer.ffn1, &layer.ffn2}) products.Add(*m);
  }
  products.Add(products.own->head);
  return products;
}

// All matrix products of one step, columns split over the threads, a barrier after each. Counter
// "bytes": of the matrices, each read once a step or more often.
void BM_MatrixProducts(benchmark::State& state, const Choice& choice, const std::string& name,
                       WeightPrecision precision) {
  const auto model = Load(choice, name);
  const int rows = int(state.range(0)), threads = int(state.range(1));
  const Products products = LoadProducts(*model, precision);
  std::vector<float> x(size_t(rows) * products.widest, 0.5f), y(size_t(rows) * products.widest);
  ThreadTeam team(threads);
  SpinBarrier barrier(threads);
  for (auto _ : state) {
    team.Run([&](int thread) {
      for (const CpuMatrix* m : products.matrices) {
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
  state.counters["bytes"] = double(products.bytes);
}

// Every thread's use(part of 1 GiB, thread) in each iteration; `passes` over memory is one use.
template <class Use>
void TouchMemory(benchmark::State& state, int passes, const Use& use) {
  constexpr size_t kWords = size_t{1} << 27;
  const size_t threads = size_t(state.range(0)), part = kWords / threads / 8 * 8;
  std::vector<uint64_t> memory(kWords, 1);
  ThreadTeam team{int(threads)};
  for (auto _ : state) {
    team.Run([&](int thread) {
      use(std::span(memory).subspan(size_t(thread) * part, part), size_t(thread));
    });
    benchmark::DoNotOptimize(memory.data());
    benchmark::ClobberMemory();
  }
  const double bytes = double(threads * part * sizeof(uint64_t)) * double(state.iterations());
  state.counters["GB/s"] = benchmark::Counter(passes * bytes / 1e9, benchmark::Counter::kIsRate);
}

// The limit of memory for weights: threads that only read.
void BM_ReadMemory(benchmark::State& state) {
  std::vector<uint64_t> sums(size_t(state.range(0)) * 8);  // so that no read is optimized away
  TouchMemory(state, 1, [&](std::span<const uint64_t> words, size_t thread) {
    uint64_t sum[8] = {};
    for (size_t i = 0; i < words.size(); i += 8) {
      for (size_t j = 0; j < 8; ++j) sum[j] += words[i + j];
    }
    std::copy(sum, sum + 8, &sums[thread * 8]);
  });
  benchmark::DoNotOptimize(sums.data());
}

// ... and for states: threads that read and write in place. A word counts twice.
void BM_UpdateMemory(benchmark::State& state) {
  TouchMemory(state, 2, [](std::span<uint64_t> words, size_t) {
    for (uint64_t& word : words) word += 1;
  });
}

// Sessions 1..rows of a backend, generating for ever, in runs of the length that it prefers.
class Generation {
 public:
  Generation(Backend* backend, const ModelConfig& config, int rows)
      : backend_(backend),
        length_(config.max_tokens().value_or(1 << 20)),
        tokens_(size_t(rows), config.bos_token_id.value_or(0)) {
    run_.rows.resize(size_t(rows));
    run_.num_steps = backend->limits().preferred_steps;
    for (int i = 0; i < rows; ++i) {
      SlotSampler sampler;
      sampler.params.seed = uint64_t(i);
      Require(backend->SetSampler(i + 1, sampler));
    }
  }

  int steps() const { return run_.num_steps; }

  void Run() {
    if (position_ + run_.num_steps > length_) position_ = 0;
    for (size_t i = 0; i < run_.rows.size(); ++i) {
      RunRow& row = run_.rows[i];
      row.slot = Slot(i) + 1;
      row.position = position_;
      row.tokens = {&tokens_[i], 1};
      row.sample = true;
      row.max_samples = run_.num_steps;
    }
    Require(backend_->Submit(run_));
    records_.clear();
    while (true) {
      const absl::StatusOr<bool> complete = backend_->Poll(&records_);
      Require(complete.status());
      if (*complete) break;
    }
    for (const Record& record : records_) tokens_[size_t(record.row)] = record.token;
    position_ += run_.num_steps;
  }

  static void Require(const absl::Status& status) {
    if (status.ok()) return;
    fprintf(stderr, "%s\n", status.ToString().c_str());
    exit(1);
  }

 private:
  Backend* backend_;
  const int64_t length_;
  std::vector<int32_t> tokens_;
  rivulet::Run run_;
  std::vector<Record> records_;
  int64_t position_ = 0;
};

// Decode steps of `rows` sessions, sampling included. Counters: us a step; GB/s of weights and
// states, each state read and written once a step; and, where the copy rate of the device is known,
// the share of it.
void BM_Step(benchmark::State& state, const Choice& choice, const std::string& name,
             WeightPrecision precision) {
  const auto model = Load(choice, name);
  const int rows = int(state.range(0)), threads = choice.cuda ? 0 : int(state.range(1));
  auto backend = NewBackend(choice, model, rows, precision, threads);
  Generation generation(backend.get(), model->config(), rows);
  for (int i = 0; i < 3; ++i) generation.Run();  // the first touch of a slot takes its pages
  const auto begin = std::chrono::steady_clock::now();
  for (auto _ : state) generation.Run();
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  const double step = time.count() / (double(state.iterations()) * generation.steps());
  const BackendLimits& limits = backend->limits();
  state.SetLabel(limits.products);
  const double bytes =
      double(limits.weight_bytes) + 2.0 * double(rows) * double(limits.bytes_per_slot);
  state.counters["tok/s"] = rows / step;
  state.counters["us/step"] = step * 1e6;
  state.counters["GB/s"] = bytes / step / 1e9;
  state.counters["state_bytes"] = double(limits.bytes_per_slot);
  if (choice.copy_gb_per_s > 0) {
    state.counters["share"] = bytes / step / 1e9 / choice.copy_gb_per_s;
  }
}

// Multiplications and additions of one token's matrix products in the layers; head and attention
// come on top and are not counted.
double FlopAToken(const ModelConfig& c) {
  const double gates = c.gate == Gate::kRfa ? c.num_heads : 0;
  const double qkv = double(c.num_heads) * (2.0 * c.key_dim + c.value_dim) + gates;
  const double layer =
      double(c.hidden_size) * (qkv + double(c.num_heads) * c.value_dim + 2.0 * double(c.ffn_size));
  return 2.0 * double(c.num_layers) * layer;
}

// Feeding a prompt of `length` tokens to each of `sessions`, at most `chunk` tokens of each a run,
// and as many as the backend takes. Counters: TFLOP/s of matrix products and, where the rate of the
// device is known, the share of it.
void BM_Prefill(benchmark::State& state, const Choice& choice, const std::string& name, int length,
                int chunk, WeightPrecision precision) {
  const auto model = Load(choice, name);
  const int sessions = choice.cuda ? int(state.range(0)) : 1;
  auto backend =
      NewBackend(choice, model, sessions, precision, choice.cuda ? 0 : int(state.range(0)));
  const std::vector<int32_t> tokens(size_t(length), 7);
  std::vector<Slot> slots;
  for (Slot slot = 1; slot <= sessions; ++slot) slots.push_back(slot);
  std::vector<Record> records;
  const size_t at_once = std::min(size_t(chunk), size_t(backend->limits().max_tokens / sessions));
  const auto begin = std::chrono::steady_clock::now();
  for (auto _ : state) {
    Generation::Require(backend->ZeroSlots(slots));
    for (size_t at = 0; at < tokens.size(); at += at_once) {
      Run run;
      for (const Slot slot : slots) {
        RunRow row;
        row.slot = slot;
        row.position = int64_t(at);
        row.tokens = std::span(tokens).subspan(at, std::min(at_once, tokens.size() - at));
        run.rows.push_back(row);
      }
      Generation::Require(backend->Submit(run));
      while (!*backend->Poll(&records)) {
      }
    }
  }
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  state.SetLabel(backend->limits().products);
  const double rate = double(state.iterations()) * double(length) * double(sessions) / time.count();
  state.counters["tok/s"] = rate;
  if (!choice.cuda) return;
  const double tflop = rate * FlopAToken(model->config()) / 1e12;
  state.counters["TFLOP/s"] = tflop;
  if (choice.matrix_tflop_per_s > 0) state.counters["share"] = tflop / choice.matrix_tflop_per_s;
}

// From the submission of a prompt of `length` tokens to the token drawn after it.
void BM_FirstToken(benchmark::State& state, const Choice& choice, int length) {
  const auto model = Load(choice, "");
  auto backend = NewBackend(choice, model, 1, WeightPrecision::kAuto, int(state.range(0)));
  const std::vector<int32_t> tokens(size_t(length), 7);
  const Slot slots[] = {1};
  rivulet::Run run;
  run.rows.resize(1);
  run.rows[0].slot = 1;
  run.rows[0].tokens = tokens;
  run.rows[0].sample = true;
  run.rows[0].max_samples = 1;
  std::vector<Record> records;
  for (auto _ : state) {
    state.PauseTiming();
    Generation::Require(backend->ZeroSlots(slots));
    Generation::Require(backend->SetSampler(1, SlotSampler()));
    records.clear();
    state.ResumeTiming();
    Generation::Require(backend->Submit(run));
    while (!*backend->Poll(&records)) {
    }
  }
}

void RowsAndThreads(benchmark::internal::Benchmark* b) {
  b->ArgsProduct({{1, 8, 64, 256}, {1, 2}})->ArgNames({"rows", "threads"});
  b->UseRealTime()->Unit(benchmark::kMicrosecond);
}

void Threads(benchmark::internal::Benchmark* b) {
  b->Arg(1)->Arg(2)->ArgNames({"threads"})->UseRealTime()->Unit(benchmark::kMillisecond);
}

void RegisterCpu(const Choice& choice) {
  constexpr WeightPrecision kF32 = WeightPrecision::kF32,
                            kF16 = WeightPrecision::kAuto;  // both files are F16
  const auto add = [&](const char* name, auto function, auto... args) {
    return benchmark::RegisterBenchmark(
        name, [=](benchmark::State& state) { function(state, choice, args...); });
  };
  const char *mnist = "mnist-linear", *shakespeare = "shakespeare-rfa";
  RowsAndThreads(add("BM_MatrixProducts/mnist_f32", BM_MatrixProducts, mnist, kF32));
  RowsAndThreads(add("BM_Step/mnist_f32", BM_Step, mnist, kF32));
  RowsAndThreads(add("BM_MatrixProducts/mnist_f16", BM_MatrixProducts, mnist, kF16));
  RowsAndThreads(add("BM_Step/mnist_f16", BM_Step, mnist, kF16));
  RowsAndThreads(add("BM_Step/shakespeare_rfa_f16", BM_Step, shakespeare, kF16));
  Threads(add("BM_Prefill/mnist_784_tokens_at_once_f16", BM_Prefill, mnist, 784, 256, kF16));
  Threads(add("BM_Prefill/mnist_784_tokens_stepped_f16", BM_Prefill, mnist, 784, 1, kF16));
  Threads(add("BM_Prefill/mnist_784_tokens_at_once_f32", BM_Prefill, mnist, 784, 256, kF32));
  Threads(add("BM_Prefill/mnist_784_tokens_stepped_f32", BM_Prefill, mnist, 784, 1, kF32));
}

// One model of --model, on the CPU, with as many threads as cores: its limits, and what it does.
void RegisterModel(const Choice& choice) {
  const auto add = [&](const char* name, auto function, auto... args) {
    auto* b = benchmark::RegisterBenchmark(
        name, [=](benchmark::State& state) { function(state, choice, args...); });
    return b->UseRealTime()->Unit(benchmark::kMillisecond);
  };
  const int threads = UsableCores();
  for (auto* memory : {benchmark::RegisterBenchmark("BM_ReadMemory", BM_ReadMemory),
                       benchmark::RegisterBenchmark("BM_UpdateMemory", BM_UpdateMemory)}) {
    memory->UseRealTime()->Unit(benchmark::kMillisecond)->Arg(threads)->ArgName("threads");
  }
  // Fixed numbers of iterations: to find its own, the library would load the model several times.
  for (const auto& [rows, iterations] : {std::pair{1, 60}, {32, 12}}) {
    for (auto* b : {add("BM_MatrixProducts", BM_MatrixProducts, "", WeightPrecision::kAuto),
                    add("BM_Step", BM_Step, "", WeightPrecision::kAuto)}) {
      b->Args({rows, threads})->ArgNames({"rows", "threads"})->Iterations(iterations);
    }
  }
  auto* first = add("BM_FirstToken/512", BM_FirstToken, 512);
  first->Arg(threads)->ArgName("threads")->Iterations(2);
}

void RegisterCuda(const Choice& choice) {
  for (const std::string name : {"mnist-linear", "shakespeare-rfa", "cifar-10", "110m"}) {
    auto* step = benchmark::RegisterBenchmark(
        ("BM_Step/" + name).c_str(), [choice, name](benchmark::State& state) {
          BM_Step(state, choice, name, WeightPrecision::kAuto);
        });
    step->ArgName("rows")->UseRealTime()->Unit(benchmark::kMicrosecond);
    if (name == "110m") {
      step->Arg(1)->Arg(16)->Arg(64);
    } else {
      step->Arg(1)->Arg(8)->Arg(16)->Arg(64)->Arg(256)->Arg(1024)->Arg(4096);
    }
    if (name == "mnist-linear") step->Arg(16384);
  }
  for (const std::string name : {"rwkv7-0.4b", "rwkv7-1.5b"}) {
    auto* step = benchmark::RegisterBenchmark(
        ("BM_Step/" + name).c_str(), [choice, name](benchmark::State& state) {
          BM_Step(state, choice, name, WeightPrecision::kAuto);
        });
    step->ArgName("rows")->UseRealTime()->Unit(benchmark::kMicrosecond);
    step->Arg(1)->Arg(16)->Arg(64)->Arg(256);
  }
  struct Prompt {
    std::string name;
    int length;
  };
  for (const Prompt& prompt : {Prompt{"mnist-linear", 784}, Prompt{"shakespeare-rfa", 784},
                               Prompt{"cifar-10", 3072}, Prompt{"110m", 784}}) {
    auto* prefill = benchmark::RegisterBenchmark(
        absl::StrCat("BM_Prefill/", prompt.name, "_", prompt.length, "_tokens").c_str(),
        [choice, prompt](benchmark::State& state) {
          BM_Prefill(state, choice, prompt.name, prompt.length, prompt.length,
                     WeightPrecision::kAuto);
        });
    prefill->Arg(1)->Arg(8)->Arg(64)->ArgName("sessions");
    prefill->UseRealTime()->Unit(benchmark::kMicrosecond);
  }
}

}  // namespace
}  // namespace rivulet

int main(int argc, char** argv) {
  const rivulet::bench::Choice choice = rivulet::bench::ParseChoice(&argc, argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  if (!choice.model.empty()) {
    rivulet::RegisterModel(choice);
  } else {
    choice.cuda ? rivulet::RegisterCuda(choice) : rivulet::RegisterCpu(choice);
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
