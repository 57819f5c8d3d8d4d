// SPDX-License-Identifier: Apache-2.0
// Steps and prefill of a backend (--backend=cpu|cuda, backend_choice.h). On the CPU beside the
// limits that they are measured against: the model's matrix products alone, with the same kernel
// and threads, multiply-adds in registers, and memory that is read, or read and written, by as many
// threads.
//
// Without --model also single products BM_Product/TYPE/WIDTH, of every type of weights.
//
// Flags of its own, with --model (--target: always):
//   --model=NAME|DIR  this model alone (LoadModel of backend_choice.h)
//   --rows=1,32       of its steps
//   --prompt=N        tokens of its prompt, 0: none; by default 512
//   --sessions=1      CUDA: that each get the prompt
//   --runs=N          measured runs; by default 200, with more than 64 rows 40; 10 of a prompt
//   --target=AVX2     CPU: the kernels on that instruction set (SetCpuTargetForTest)
//   --context=N       tokens that each session has seen before its steps, each of which is behind N
//                     to N + 1,023; by default 0, and as many as there is room for
//   --profile         CUDA: one step for each of --rows, and the prompt: a profiler sees no more
//   --soak=N          CUDA: N steps and more, beside the same on graphs: the bits must be the same
#include <benchmark/benchmark.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/cpu/cpu_target.h"
#include "kernels/gemm.h"
#include "kernels/quantized.h"
#include "model/base/thread_team.h"
#include "model/loading/packed_weights.h"
#include "model/weights/dtype.h"
#include "tests/bench/backend_choice.h"
#include "tests/bench/generation.h"
#include "tests/bench/multiply_add_peak.h"
#include "tests/bench/profiler.h"

namespace rivulet {
namespace {

using bench::Begin;
using bench::Choice;
using bench::Complete;
using bench::Generation;
using bench::LoadModel;
using bench::NewBackend;
using bench::Require;

struct Figures {
  std::string model;  // empty: the CPU's list
  std::vector<int> rows = {1, 32}, sessions = {1};
  int prompt = 512;
  WeightChoice weights;  // --weights=
  int runs = 0;          // 0: by rows
  int soak = 0;          // 0: none
  int context = 0;       // tokens that sessions have seen before BM_Step
  bool profile = false;
};

// The matrices that a token row is multiplied with, and what holds them. Of a mixture of experts:
// the first ones, as many as a row chooses.
struct Products {
  std::unique_ptr<const PackedWeights> weights;
  std::vector<kernels::PackedMatrix> matrices;
  size_t bytes = 0, values = 0, widest = 0;  // widest: in values, of an input or output row

  void Add(const MatrixWeights& m, int of = 1, int chosen = 1) {
    if (m.packed.panels == nullptr) return;
    for (const MatrixWeights& more : m.more) Add(more);
    kernels::PackedMatrix w = m.packed;
    w.n = w.n / of * chosen;
    matrices.push_back(w);
    bytes += kernels::PackedSize(w.type, w.k, w.n);
    values += size_t(w.k) * size_t(kernels::PaddedColumns(w.n));
    widest = std::max({widest, size_t(w.k), size_t(kernels::PaddedColumns(w.n))});
  }
};

Products LoadProducts(const Model& model, const WeightChoice& precision) {
  Products products;
  products.weights = *PackedWeights::Load(model, precision);
  for (const LayerWeights& layer : products.weights->layers) {
    products.Add(layer.in);
    products.Add(layer.in_small);
    if (const Rwkv7Layer* const own = layer.rwkv7.get()) {
      for (const MatrixWeights* m : {&own->r, &own->k, &own->v}) products.Add(*m);
      for (const LowRank* low : {&own->w, &own->a, &own->g, &own->v_mix}) {
        products.Add(low->first);
        products.Add(low->second);
      }
    }
    for (const MatrixWeights* m : {&layer.decay, &layer.gate, &layer.out, &layer.up, &layer.down})
      products.Add(*m);
    if (const ExpertWeights* const own = layer.experts.get()) {
      const kernels::Router& router = model.config().block().experts->router;
      for (const MatrixWeights* m : {&own->router, &own->in, &own->out}) products.Add(*m);
      for (const MatrixWeights* m : {&own->up, &own->down}) {
        products.Add(*m, router.experts, router.chosen);
      }
    }
  }
  products.Add(products.weights->transform);
  products.Add(products.weights->Head());
  return products;
}

// What a process measures. Google Benchmark calls a function up to four times, for every number of
// rows anew; models, packed products and backends are made once.
class Subjects {
 public:
  // `slots`: of every backend.
  Subjects(Choice choice, int slots) : choice_(std::move(choice)), slots_(slots) {}

  const Choice& choice() const { return choice_; }
  int context = 0;  // Figures::context

  std::shared_ptr<const Model> model(const std::string& name) {
    std::shared_ptr<const Model>& model = models_[name];
    if (model == nullptr) model = LoadModel(choice_, name);
    return model;
  }

  // `threads` concerns the CPU alone.
  Backend* backend(const std::string& name, const WeightChoice& precision, int threads) {
    std::unique_ptr<Backend>& backend = backends_[{name, precision, threads}];
    if (backend == nullptr) backend = NewBackend(choice_, model(name), slots_, precision, threads);
    return backend.get();
  }

  const Products& products(const std::string& name, const WeightChoice& precision) {
    const auto [at, added] = products_.try_emplace({name, precision});
    if (added) at->second = LoadProducts(*model(name), precision);
    return at->second;
  }

 private:
  const Choice choice_;
  const int slots_;
  std::map<std::string, std::shared_ptr<const Model>> models_;
  std::map<std::tuple<std::string, WeightChoice, int>, std::unique_ptr<Backend>> backends_;
  std::map<std::pair<std::string, WeightChoice>, Products> products_;
};

// The backend that a benchmark asks for. On the CPU the threads are its argument `threads_at`.
Backend* BackendOf(Subjects* subjects, const std::string& name, const WeightChoice& precision,
                   const benchmark::State& state, size_t threads_at) {
  return subjects->backend(name, precision,
                           subjects->choice().cuda ? 0 : int(state.range(threads_at)));
}

// All matrix products of one step, columns split over the threads, a barrier after each. Counter
// "bytes": of the matrices, each read once a step or more often.
void BM_MatrixProducts(benchmark::State& state, Subjects* subjects, const std::string& name,
                       const WeightChoice& precision) {
  const int rows = int(state.range(0)), threads = int(state.range(1));
  const Products& products = subjects->products(name, precision);
  std::vector<float> x(size_t(rows) * products.widest, 0.5f), y(x), bias(products.widest);
  const AlignedBuffer quantized(size_t(rows) *
                                kernels::QuantizedRowLayout(int(products.widest)).bytes);
  ThreadTeam team(threads);
  for (auto _ : state) {
    team.Run([&](int thread, SpinBarrier& barrier) {
      for (const kernels::PackedMatrix& m : products.matrices) {
        kernels::GemmArgs args;
        args.w = m;
        args.bias = bias.data();
        args.x = x.data();
        args.y = y.data();
        args.rows = rows;
        args.ldx = m.k;
        args.ldy = kernels::PaddedColumns(m.n);
        const int panels = kernels::NumPanels(m.n);
        args.panel_begin = panels * thread / barrier.threads();
        args.panel_end = panels * (thread + 1) / barrier.threads();
        if (kernels::IsQuantized(args.w.type)) {
          args.quantized_x = quantized.data();
          kernels::QuantizeRowsCpu(
              {x.data(), quantized.data(), thread == 0 ? rows : 0, args.ldx, args.w.k});
          barrier.Wait();
        }
        kernels::GemmCpu(args);
        barrier.Wait();
      }
    });
  }
  state.counters["tok/s"] =
      benchmark::Counter(double(state.iterations() * rows), benchmark::Counter::kIsRate);
  state.counters["bytes"] = double(products.bytes);
  state.counters["GFLOP/s"] =
      benchmark::Counter(2e-9 * double(state.iterations() * rows) * double(products.values),
                         benchmark::Counter::kIsRate);
}

// A packed matrix of `width` x `width` random weights of a file's type.
MatrixWeights RandomMatrix(DType dtype, int width) {
  const DTypeLayout& layout = LayoutOf(dtype);
  const kernels::WeightType type = PackedTypeOf(dtype).value_or(kernels::WeightType::kF16);
  MatrixWeights m;
  m.bias.resize(size_t(width));
  m.panels = AlignedBuffer(kernels::PackedSize(type, width, width));
  m.packed = {type, width, width, m.panels.data()};
  std::minstd_rand random(1);
  std::string block(layout.bytes, '\0');
  const std::vector<float> row(size_t(width), 0.25f);
  bool packed = true;
  for (int column = 0; column < width; ++column) {
    if (!PackedTypeOf(dtype)) {
      packed &= kernels::PackWeights(type, row.data(), 1, width, column, m.panels.data());
    }
    const int groups = int(layout.weights) / kernels::kQuantizedInputs;
    for (int g = 0; groups > 0 && g < width / kernels::kQuantizedInputs; g += groups) {
      do {
        for (char& byte : block) byte = char(random() >> 8);
      } while (FindNonFinite(dtype, block.data(), 1));
      packed &= PackBlock(dtype, block.data(), width, column, g, m.panels.data());
    }
  }
  if (!packed) bench::Fail("random weights do not fit their type", 1);
  return m;
}

// Copies of a matrix, together more than any cache; the last ones asked for are kept.
struct Copies {
  DType dtype;
  int width;
  MatrixWeights matrix;
  size_t size, count;
  AlignedBuffer panels;

  static const Copies& Of(DType dtype, int width) {
    static std::unique_ptr<const Copies> last;
    if (last != nullptr && last->dtype == dtype && last->width == width) return *last;
    constexpr size_t kBytes = size_t{256} << 20;
    MatrixWeights matrix = RandomMatrix(dtype, width);
    const size_t size = kernels::PackedSize(matrix.packed.type, width, width);
    AlignedBuffer panels(kBytes / size * size);
    for (size_t at = 0; at + size <= kBytes; at += size) {
      std::memcpy(static_cast<char*>(panels.data()) + at, matrix.panels.data(), size);
    }
    last.reset(new Copies{dtype, width, std::move(matrix), size, kBytes / size, std::move(panels)});
    return *last;
  }
};

// Products of one type, each with another copy of the matrix. Counter: GB/s of weights.
void BM_Product(benchmark::State& state, DType dtype, int width) {
  const int rows = int(state.range(0));
  const Copies& copies = Copies::Of(dtype, width);
  const AlignedBuffer quantized(size_t(rows) * kernels::QuantizedRowLayout(width).bytes);
  std::vector<float> x(size_t(rows) * size_t(width), 0.5f), y(x.size());
  kernels::QuantizeRowsCpu({x.data(), quantized.data(), rows, width, width});
  kernels::GemmArgs args;
  args.w = copies.matrix.packed;
  args.bias = copies.matrix.bias.data();
  args.x = x.data();
  args.quantized_x = quantized.data();
  args.y = y.data();
  args.rows = rows;
  args.ldx = args.ldy = width;
  args.panel_end = kernels::NumPanels(width);
  size_t copy = 0;
  for (auto _ : state) {
    args.w.panels = static_cast<const char*>(copies.panels.data()) + copy * copies.size;
    copy = (copy + 1) % copies.count;
    kernels::GemmCpu(args);
    benchmark::ClobberMemory();
  }
  state.counters["GB/s"] = benchmark::Counter(
      1e-9 * double(copies.size) * double(state.iterations()), benchmark::Counter::kIsRate);
}

// The limit of products of many rows: threads that only multiply and add, in registers.
void BM_MultiplyAddPeak(benchmark::State& state) {
  ThreadTeam team{int(state.range(0))};
  std::vector<int64_t> flop(size_t(state.range(0)));
  for (auto _ : state) {
    team.Run([&](int thread, SpinBarrier&) {
      flop[size_t(thread)] += bench::MultiplyAddInRegisters(1'000'000);
    });
  }
  const double sum = double(std::accumulate(flop.begin(), flop.end(), int64_t{0}));
  state.counters["GFLOP/s"] = benchmark::Counter(1e-9 * sum, benchmark::Counter::kIsRate);
}

// Every thread's use(part of 1 GiB, thread) in each iteration; `passes` over memory is one use.
template <class Use>
void TouchMemory(benchmark::State& state, int passes, const Use& use) {
  constexpr size_t kWords = size_t{1} << 27;
  std::vector<uint64_t> memory(kWords, 1);
  ThreadTeam team{int(state.range(0))};
  for (auto _ : state) {
    team.Run([&](int thread, SpinBarrier& barrier) {
      const size_t part = kWords / size_t(barrier.threads()) / 8 * 8;
      use(std::span(memory).subspan(size_t(thread) * part, part), size_t(thread));
    });
    benchmark::DoNotOptimize(memory.data());
    benchmark::ClobberMemory();
  }
  const double bytes = double(kWords * sizeof(uint64_t)) * double(state.iterations());
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

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The first touch of a slot takes its pages, and a device that was idle raises its clocks.
void WarmUp(Generation* generation) {
  constexpr double kSeconds = 0.2;
  const double begin = Seconds();
  for (int i = 0; i < 3 || Seconds() - begin < kSeconds; ++i) generation->Run();
}

// Decode steps of `rows` sessions, sampling included, in runs of the length that the backend
// prefers. Counters, of the median run: us a step; GB/s of weights and states, each state read and
// written once a step; and, where the copy rate of the device is known, the share of it.
void BM_Step(benchmark::State& state, Subjects* subjects, const std::string& name,
             const WeightChoice& precision) {
  const int rows = int(state.range(0));
  Backend* const backend = BackendOf(subjects, name, precision, state, 1);
  const BackendLimits& limits = backend->limits();
  const int steps = limits.preferred_steps;
  const ModelConfig config = subjects->model(name)->config().WithContext(limits.context);
  Generation generation(backend, config, rows, steps);
  generation.RestartBehind(subjects->context);
  WarmUp(&generation);
  std::vector<double> times;
  for (auto _ : state) {
    const double begin = Seconds();
    generation.Run();
    times.push_back(Seconds() - begin);
  }
  const double step = Median(std::move(times)) / steps;
  if (subjects->choice().cuda) state.SetLabel(absl::StrCat(limits.plan, "; ", limits.products));
  // Keys and values are read alone.
  const double fixed =
                   limits.context > 0 ? double(limits.state.fixed) : double(limits.bytes_per_slot),
               all = double(backend->StateFloats(1)) * sizeof(float);
  const double bytes = double(limits.weight_bytes) + double(rows) * (fixed + all);
  state.counters["tok/s"] = rows / step;
  state.counters["us/step"] = step * 1e6;
  state.counters["GB/s"] = bytes / step / 1e9;
  // Half of what a step reads and writes of it.
  state.counters["state_bytes"] = (fixed + all) / 2;
  state.counters["weight_bytes"] = double(limits.weight_bytes);
  const double copy_rate = subjects->choice().copy_gb_per_s;
  if (copy_rate > 0) state.counters["share"] = bytes / step / 1e9 / copy_rate;
}

// One step of `rows` sessions for a profiler, which sees nothing else.
void BM_ProfiledStep(benchmark::State& state, Subjects* subjects, const std::string& name,
                     const WeightChoice& precision) {
  Backend* const backend = BackendOf(subjects, name, precision, state, 1);
  Generation generation(backend, subjects->model(name)->config(), int(state.range(0)), 1);
  WarmUp(&generation);
  bench::SetProfiling(true);
  for (auto _ : state) generation.Run();
  bench::SetProfiling(false);
}

uint32_t BitsOf(float value) { return std::bit_cast<uint32_t>(value); }

// Ends the program where two runs of `rows` x `steps` steps did not tell the same.
void RequireSameRecords(const Generation& tested, const Generation& reference, int rows,
                        int steps) {
  const std::vector<Record>&a = tested.records(), &b = reference.records();
  const auto fail = [&](size_t i, const std::string& what) {
    bench::Fail(absl::StrCat("soak: ", rows, " rows, position ", tested.position(), ", record ", i,
                             ": ", what),
                1);
  };
  if (a.size() != size_t(rows) * size_t(steps) || b.size() != a.size()) {
    fail(0, absl::StrCat(a.size(), " and ", b.size(), " records instead of ", rows * steps));
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].non_finite) fail(i, "the outputs are not finite");
    if (a[i].row != b[i].row || a[i].position != b[i].position || a[i].token != b[i].token ||
        BitsOf(a[i].logprob) != BitsOf(b[i].logprob)) {
      fail(i,
           absl::StrCat("tokens ", a[i].token, " and ", b[i].token, ", log-probabilities ",
                        absl::Hex(BitsOf(a[i].logprob)), " and ", absl::Hex(BitsOf(b[i].logprob))));
    }
  }
}

// Ends the program where slots 1..rows do not have the same bits.
void RequireSameStates(Backend* tested, Backend* reference, int rows) {
  std::vector<float> a(tested->limits().bytes_per_slot / sizeof(float)), b(a.size());
  for (Slot slot = 1; slot <= rows; ++slot) {
    Require(tested->ReadSlot(slot, a));
    Require(reference->ReadSlot(slot, b));
    if (std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0) continue;
    size_t at = 0;
    while (BitsOf(a[at]) == BitsOf(b[at])) ++at;
    bench::Fail(absl::StrCat("soak: ", rows, " rows, slot ", slot, ": states differ at float ", at),
                1);
  }
}

// `soak` steps and more on two backends that the flags choose: tokens, log-probabilities and, at
// the end of every sequence, states must have the same bits. Counter: steps.
void BM_Soak(benchmark::State& state, Subjects* subjects, const std::string& name,
             const WeightChoice& precision, int soak) {
  constexpr int64_t kMostTokens = 1024;  // of a sequence
  const int rows = int(state.range(0));
  const ModelConfig& config = subjects->model(name)->config();
  Backend* const tested = BackendOf(subjects, name, precision, state, 1);
  const auto reference = NewBackend(subjects->choice(), subjects->model(name), rows, precision, 0);
  const int steps = tested->limits().preferred_steps;
  const int64_t last = std::min(config.max_tokens().value_or(kMostTokens), kMostTokens) - steps;
  Generation a(tested, config, rows, steps), b(reference.get(), config, rows, steps);
  int64_t done = 0;
  for (auto _ : state) {
    for (uint64_t round = 0; done < soak; ++round) {
      for (Generation* one : {&a, &b}) one->Restart(round, /*logprobs=*/true);
      do {
        for (Generation* one : {&a, &b}) one->Run();
        RequireSameRecords(a, b, rows, steps);
        done += steps;
      } while (a.position() <= last && done < soak);
      RequireSameStates(tested, reference.get(), rows);
    }
  }
  state.SetLabel(absl::StrCat(tested->limits().plan, "; ", tested->limits().numerics_id));
  state.counters["steps"] = double(done);
}

// Multiplications and additions of one token's matrix products in the layers; head and attention
// come on top and are not counted. Of linear transformers.
double FlopAToken(const ModelConfig& c) {
  const double gates = c.encoder().gate == Gate::kRfa ? c.num_heads : 0;
  const double qkv = double(c.num_heads) * (2.0 * c.key_dim + c.value_dim) + gates;
  const double layer =
      double(c.hidden_size) * (qkv + double(c.num_heads) * c.value_dim + 2.0 * double(c.ffn_size));
  return 2.0 * double(c.num_layers) * layer;
}

// Feeds a prompt of `length` tokens to each of `sessions`, at most `chunk` tokens of each a run,
// and as many as the backend takes.
void Feed(Backend* backend, int sessions, int length, int chunk) {
  const std::vector<int32_t> tokens(size_t(length), 7);
  std::vector<Record> records;
  const size_t at_once = std::min(size_t(chunk), size_t(backend->limits().max_tokens / sessions));
  Begin(backend, sessions);
  for (size_t at = 0; at < tokens.size(); at += at_once) {
    Run run;
    for (Slot slot = 1; slot <= sessions; ++slot) {
      RunRow row;
      row.slot = slot;
      row.position = int64_t(at);
      row.tokens = std::span(tokens).subspan(at, std::min(at_once, tokens.size() - at));
      run.rows.push_back(row);
    }
    Complete(backend, run, &records);
  }
}

// Counters: tok/s; on a GPU, of linear transformers, TFLOP/s of matrix products and, where the rate
// of the device is known, the share of it.
void BM_Prefill(benchmark::State& state, Subjects* subjects, const std::string& name, int length,
                int chunk, const WeightChoice& precision) {
  const Choice& choice = subjects->choice();
  const int sessions = choice.cuda ? int(state.range(0)) : 1;
  Backend* const backend = BackendOf(subjects, name, precision, state, 0);
  Feed(backend, sessions, length, chunk);
  const double begin = Seconds();
  for (auto _ : state) Feed(backend, sessions, length, chunk);
  const double time = Seconds() - begin;
  state.SetLabel(backend->limits().products);
  const double rate = double(state.iterations()) * double(length) * double(sessions) / time;
  state.counters["tok/s"] = rate;
  const ModelConfig& config = subjects->model(name)->config();
  if (!choice.cuda || std::holds_alternative<BlockConfig>(config.network)) return;
  const double tflop = rate * FlopAToken(config) / 1e12;
  state.counters["TFLOP/s"] = tflop;
  if (choice.matrix_tflop_per_s > 0) state.counters["share"] = tflop / choice.matrix_tflop_per_s;
}

// One prompt for a profiler, which sees nothing else.
void BM_ProfiledPrompt(benchmark::State& state, Subjects* subjects, const std::string& name,
                       int length, const WeightChoice& precision) {
  Backend* const backend = BackendOf(subjects, name, precision, state, 0);
  Feed(backend, 1, length, length);
  bench::SetProfiling(true);
  for (auto _ : state) Feed(backend, 1, length, length);
  bench::SetProfiling(false);
}

// From the submission of a prompt of `length` tokens to the token drawn after it.
void BM_FirstToken(benchmark::State& state, Subjects* subjects, const std::string& name, int length,
                   const WeightChoice& precision) {
  Backend* const backend = BackendOf(subjects, name, precision, state, 0);
  const std::vector<int32_t> tokens(size_t(length), 7);
  rivulet::Run run;
  run.rows.resize(1);
  run.rows[0].slot = 1;
  run.rows[0].tokens = tokens;
  run.rows[0].sample = true;
  run.rows[0].max_samples = 1;
  std::vector<Record> records;
  for (auto _ : state) {
    state.PauseTiming();
    Begin(backend, 1);
    Require(backend->SetSampler(1, SlotSampler()));
    records.clear();
    state.ResumeTiming();
    Complete(backend, run, &records);
  }
}

void RowsAndThreads(benchmark::internal::Benchmark* b) {
  b->ArgsProduct({{1, 8, 64, 256}, {1, 2}})->ArgNames({"rows", "threads"});
  b->UseRealTime()->Unit(benchmark::kMicrosecond);
}

void Threads(benchmark::internal::Benchmark* b) {
  b->Arg(1)->Arg(2)->ArgNames({"threads"})->UseRealTime()->Unit(benchmark::kMillisecond);
}

// Registers `function`, called with the subjects and `args`.
template <class Function, class... Args>
benchmark::internal::Benchmark* Add(Subjects* subjects, const std::string& name, Function function,
                                    Args... args) {
  return benchmark::RegisterBenchmark(
      name.c_str(), [=](benchmark::State& state) { function(state, subjects, args...); });
}

void RegisterProducts() {
  for (const DType dtype : {DType::kF16, DType::kQ8_0, DType::kQ4_1, DType::kQ5_1, DType::kQ4_K,
                            DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS}) {
    for (const int width : {2048, 4096}) {
      benchmark::RegisterBenchmark(
          absl::StrCat("BM_Product/", LayoutOf(dtype).name, "/", width).c_str(),
          [=](benchmark::State& state) { BM_Product(state, dtype, width); })
          ->ArgName("rows")
          ->ArgsProduct({{1, 4, 32}})
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

void RegisterCpu(Subjects* subjects) {
  constexpr WeightPrecision kF32 = WeightPrecision::kF32,
                            kF16 = WeightPrecision::kAuto;  // both files are F16
  const auto add = [&](const char* name, auto function, auto... args) {
    return Add(subjects, name, function, args...);
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

int RunsOf(const Figures& figures, int rows) {
  if (figures.runs > 0) return figures.runs;
  return rows > 64 ? 40 : 200;
}

// The model of --model on the CPU, with as many threads as cores: its limits, and what it does.
void RegisterModelOnCpu(Subjects* subjects, const Figures& figures) {
  const auto add = [&](const std::string& name, auto function, auto... args) {
    return Add(subjects, name, function, args...)->UseRealTime()->Unit(benchmark::kMillisecond);
  };
  const int threads = UsableCores();
  for (auto* limit : {benchmark::RegisterBenchmark("BM_MultiplyAddPeak", BM_MultiplyAddPeak),
                      benchmark::RegisterBenchmark("BM_ReadMemory", BM_ReadMemory),
                      benchmark::RegisterBenchmark("BM_UpdateMemory", BM_UpdateMemory)}) {
    limit->UseRealTime()->Unit(benchmark::kMillisecond)->Arg(threads)->ArgName("threads");
  }
  const WeightChoice kAuto = figures.weights;
  for (const int rows : figures.rows) {
    for (auto* b : {add("BM_MatrixProducts", BM_MatrixProducts, figures.model, kAuto),
                    add("BM_Step", BM_Step, figures.model, kAuto)}) {
      b->Args({rows, threads})->ArgNames({"rows", "threads"});
      b->Iterations(figures.runs > 0 ? figures.runs : rows > 8 ? 12 : 60);
    }
  }
  if (figures.prompt == 0) return;
  auto* first = add(absl::StrCat("BM_FirstToken/", figures.prompt), BM_FirstToken, figures.model,
                    figures.prompt, kAuto);
  first->Arg(threads)->ArgName("threads")->Iterations(2);
}

// ... on a GPU.
void RegisterModelOnCuda(Subjects* subjects, const Figures& figures) {
  const auto add = [&](const std::string& name, auto function, auto... args) {
    return Add(subjects, name, function, args...)->UseRealTime()->Unit(benchmark::kMicrosecond);
  };
  const WeightChoice kAuto = figures.weights;
  const std::string& model = figures.model;
  for (const int rows : figures.rows) {
    auto* step = figures.profile    ? add("BM_ProfiledStep", BM_ProfiledStep, model, kAuto)
                 : figures.soak > 0 ? add("BM_Soak", BM_Soak, model, kAuto, figures.soak)
                                    : add("BM_Step", BM_Step, model, kAuto);
    step->Arg(rows)->ArgName("rows");
    step->Iterations(figures.profile || figures.soak > 0 ? 1 : RunsOf(figures, rows));
  }
  if (figures.prompt == 0) return;
  if (figures.profile) {
    add("BM_ProfiledPrompt", BM_ProfiledPrompt, model, figures.prompt, kAuto)->Iterations(1);
    return;
  }
  auto* prefill = add(absl::StrCat("BM_Prefill/", figures.prompt), BM_Prefill, figures.model,
                      figures.prompt, figures.prompt, kAuto);
  for (const int sessions : figures.sessions) prefill->Arg(sessions);
  prefill->ArgName("sessions")->Iterations(figures.runs > 0 ? figures.runs : 10);
}

// "1,64" as numbers above 0; ends the program where it is something else.
std::vector<int> Counts(const char* flag, const char* text) {
  std::vector<int> counts;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    int count = 0;
    if (!absl::SimpleAtoi(part, &count) || count < 1) {
      bench::Fail(absl::StrCat(flag, text, ": \"", part, "\" is no number above 0"), 2);
    }
    counts.push_back(count);
  }
  return counts;
}

bool Apply(const char* argument, Figures* figures) {
  using bench::FlagValue;
  if (const char* model = FlagValue(argument, "--model=")) {
    figures->model = model;
  } else if (const char* weights = FlagValue(argument, "--weights=")) {
    const absl::StatusOr<WeightChoice> choice = ParseWeightChoice(weights);
    if (!choice.ok()) bench::Fail(std::string(choice.status().message()), 2);
    figures->weights = *choice;
  } else if (const char* rows = FlagValue(argument, "--rows=")) {
    figures->rows = Counts("--rows=", rows);
  } else if (const char* sessions = FlagValue(argument, "--sessions=")) {
    figures->sessions = Counts("--sessions=", sessions);
  } else if (const char* context = FlagValue(argument, "--context=")) {
    if (!absl::SimpleAtoi(context, &figures->context) || figures->context < 0) {
      bench::Fail(absl::StrCat("--context=", context, " is no number of tokens"), 2);
    }
  } else if (const char* runs = FlagValue(argument, "--runs=")) {
    figures->runs = Counts("--runs=", runs)[0];
  } else if (const char* prompt = FlagValue(argument, "--prompt=")) {
    if (!absl::SimpleAtoi(prompt, &figures->prompt) || figures->prompt < 0) {
      bench::Fail(absl::StrCat("--prompt=", prompt, " is no number of tokens"), 2);
    }
  } else if (const char* target = FlagValue(argument, "--target=")) {
    if (!kernels::SetCpuTargetForTest(target)) {
      bench::Fail(absl::StrCat("--target=", target, ": this machine or build lacks it"), 2);
    }
  } else if (const char* soak = FlagValue(argument, "--soak=")) {
    figures->soak = Counts("--soak=", soak)[0];
  } else if (absl::string_view(argument) == "--profile") {
    figures->profile = true;
  } else {
    return false;
  }
  return true;
}

int SlotsFor(const Choice& choice, const Figures& figures) {
  if (figures.model.empty()) return 256;  // the most rows of the CPU's list
  int slots = *std::max_element(figures.rows.begin(), figures.rows.end());
  if (choice.cuda && figures.prompt > 0) {
    slots = std::max(slots, *std::max_element(figures.sessions.begin(), figures.sessions.end()));
  }
  return slots;
}

void Register(Subjects* subjects, const Figures& figures) {
  if (figures.model.empty()) {
    RegisterProducts();
    return RegisterCpu(subjects);
  }
  if (subjects->choice().cuda) return RegisterModelOnCuda(subjects, figures);
  RegisterModelOnCpu(subjects, figures);
}

}  // namespace
}  // namespace rivulet

int main(int argc, char** argv) {
  rivulet::Figures figures;
  const auto own = [&](const char* argument) { return rivulet::Apply(argument, &figures); };
  rivulet::bench::Choice choice = rivulet::bench::ParseChoice(&argc, argv, own);
  if (figures.context > 0) {
    choice.max_context = std::max(figures.context + 1024, figures.prompt + 1);
  }
  if (choice.cuda && figures.model.empty()) rivulet::bench::Fail("--backend=cuda needs --model", 2);
  if ((figures.profile || figures.soak > 0) && !choice.cuda) {
    rivulet::bench::Fail("--profile and --soak need --backend=cuda", 2);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  rivulet::Subjects subjects(choice, rivulet::SlotsFor(choice, figures));
  subjects.context = figures.context;
  rivulet::Register(&subjects, figures);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
