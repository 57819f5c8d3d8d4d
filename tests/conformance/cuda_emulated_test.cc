// SPDX-License-Identifier: Apache-2.0
// The CUDA backend where only the emulator can look: errors at every call of the runtime, hung
// kernels, devices that are small or absent, and the order of operations against the CPU backend.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "model/base/error.h"
#include "model/cpu_backend.h"
#include "model/cuda_backend.h"
#include "tests/conformance/tested_backend.h"
#include "tests/support/cuda_emulator/cuda_emulator.h"
#include "tests/support/golden.h"
#include "tests/support/random_model.h"

namespace rivulet::testing {
namespace {

using ::testing::HasSubstr;
namespace emulator = ::rivulet::cuda_emulator;

SlotSampler Sampler(uint64_t seed) {
  SlotSampler sampler;
  sampler.params.seed = seed;
  return sampler;
}

// Everything that the seam offers.
class CudaEmulatedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    emulator::Reset();
    ModelConfig config = TinyConfig();
    config.num_layers = 1;
    ASSERT_TRUE(WriteRandomModel(directory_.path(), config, 3).ok());
    auto model = Model::Load(directory_.path());
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *model;
  }
  void TearDown() override { emulator::Reset(); }

  static CudaBackendOptions Options() {
    CudaBackendOptions options;
    options.num_slots = 4;
    options.precision = CudaPrecision::kFloat32;
    options.max_rows = 2;
    options.max_tokens = 8;
    options.max_steps = 8;
    return options;
  }
  std::unique_ptr<Backend> New(const CudaBackendOptions& options = Options()) {
    auto backend = CreateCudaBackend(model_, options);
    EXPECT_TRUE(backend.ok()) << backend.status();
    return backend.ok() ? *std::move(backend) : nullptr;
  }

  TempDir directory_;
  std::shared_ptr<const Model> model_;
};

// Runs `run` and adds its records; the first error ends it. Gives up after minutes.
absl::Status Complete(Backend& backend, const rivulet::Run& run, std::vector<Record>* records) {
  RIVULET_RETURN_IF_ERROR(backend.Submit(run));
  const absl::Time late = absl::Now() + absl::Minutes(2);
  while (absl::Now() < late) {
    RIVULET_ASSIGN_OR_RETURN(const bool complete, backend.Poll(records));
    if (complete) return absl::OkStatus();
  }
  return absl::DeadlineExceededError("a run that never ends");
}

// Uses every function of the seam once or more; returns the first error.
absl::Status UseEverything(Backend& backend, const ModelConfig& config) {
  const std::vector<Slot> slots = {1, 2, 3};
  RIVULET_RETURN_IF_ERROR(backend.ZeroSlots(slots));
  SlotSampler sampler = Sampler(1);
  sampler.params.frequency_penalty = 1;
  sampler.params.logit_bias = {{3, 1.5f}};
  sampler.stop_ids = {9};
  sampler.want_logprobs = true;
  sampler.num_top_logprobs = 2;
  RIVULET_RETURN_IF_ERROR(backend.SetSampler(1, sampler));
  RIVULET_RETURN_IF_ERROR(backend.SetSampler(2, Sampler(2)));
  const std::vector<int32_t> prompt = {0, 1, 2}, targets = {1, 2, 3}, one = {4};
  std::vector<float> outputs(size_t(config.output_size()));
  const OutputRequest request{1, outputs.data()};
  rivulet::Run run;
  run.num_steps = 3;
  run.rows.resize(2);
  run.rows[0].slot = 1;
  run.rows[0].tokens = prompt;
  run.rows[0].sample = true;
  run.rows[0].max_samples = 3;
  run.rows[1].slot = 2;
  run.rows[1].tokens = prompt;
  run.rows[1].targets = targets;
  run.rows[1].outputs = {&request, 1};
  std::vector<Record> records;
  RIVULET_RETURN_IF_ERROR(Complete(backend, run, &records));
  RIVULET_RETURN_IF_ERROR(backend.CopySlot(2, 3));
  std::vector<float> state(backend.limits().bytes_per_slot / sizeof(float));
  RIVULET_RETURN_IF_ERROR(backend.ReadSlot(3, state));
  RIVULET_RETURN_IF_ERROR(backend.WriteSlot(2, state));
  run.rows.resize(1);
  run.rows[0].slot = 2;
  run.rows[0].tokens = one;
  run.rows[0].position = 3;
  RIVULET_RETURN_IF_ERROR(Complete(backend, run, &records));
  return records.size() > 4 ? absl::OkStatus() : absl::InternalError("records are missing");
}

// Every call must now fail as the first did.
void ExpectPoisoned(Backend& backend, const absl::Status& first) {
  const Slot slot = 1;
  const std::vector<int32_t> one = {1};
  rivulet::Run run;
  run.rows.resize(1);
  run.rows[0].slot = 1;
  run.rows[0].tokens = one;
  std::vector<float> state(backend.limits().bytes_per_slot / sizeof(float));
  std::vector<Record> records;
  EXPECT_EQ(backend.Submit(run), first);
  EXPECT_EQ(backend.Poll(&records).status(), first);
  EXPECT_EQ(backend.ZeroSlots({&slot, 1}), first);
  EXPECT_EQ(backend.SetSampler(1, Sampler(1)), first);
  EXPECT_EQ(backend.CopySlot(1, 2), first);
  EXPECT_EQ(backend.ReadSlot(1, state), first);
  EXPECT_EQ(backend.WriteSlot(1, state), first);
  EXPECT_TRUE(records.empty());
}

void ExpectCudaError(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(GetErrorDetail(status).reason, "CUDA_ERROR") << status;
}

TEST_F(CudaEmulatedTest, EveryFunctionOfTheSeamWorksAndNothingIsAllocatedOnTheWay) {
  const size_t before = emulator::Count().device_bytes;
  auto backend = New();
  const int64_t mallocs = emulator::Count().mallocs;
  EXPECT_EQ(UseEverything(*backend, model_->config()), absl::OkStatus());
  EXPECT_EQ(emulator::Count().mallocs, mallocs);
  EXPECT_GT(emulator::Count().graph_launches, 0);
  backend.reset();
  EXPECT_EQ(emulator::Count().device_bytes, before);
}

// An error at every call of the runtime in turn, once and sticky.
TEST_F(CudaEmulatedTest, AnErrorAtAnyCallOfTheRuntimePoisonsAndNothingLeaksOrHangs) {
  emulator::Reset();
  auto unharmed = New();
  const int64_t at_start = emulator::Count().calls;
  ASSERT_EQ(UseEverything(*unharmed, model_->config()), absl::OkStatus());
  const int64_t calls = emulator::Count().calls;
  unharmed.reset();
  const size_t before = emulator::Count().device_bytes;
  ASSERT_GT(calls, at_start + 20);
  for (const bool sticky : {false, true}) {
    for (int n = 1; n <= calls; ++n) {
      SCOPED_TRACE(absl::StrCat("call ", n, sticky ? " and all later ones" : ""));
      emulator::Reset();
      emulator::FailCall(n, cudaErrorLaunchFailure, sticky);
      auto backend = CreateCudaBackend(model_, Options());
      EXPECT_EQ(backend.ok(), n > at_start);
      if (!backend.ok()) {
        // The first call asks how many devices there are: an error means none that can be used.
        EXPECT_EQ(backend.status().code(), absl::StatusCode::kUnavailable) << backend.status();
      } else {
        const absl::Status status = UseEverything(**backend, model_->config());
        // Polls may differ in number: the last calls of the run without faults may not come.
        if (n < calls - 5 || !status.ok()) {
          ExpectCudaError(status);
          ExpectPoisoned(**backend, status);
        }
        backend->reset();
      }
      if (!sticky) {
        EXPECT_EQ(emulator::Count().device_bytes, before);
      }
      ASSERT_FALSE(HasFailure());
    }
  }
}

TEST_F(CudaEmulatedTest, AKernelThatFailsPoisonsWhereverItRuns) {
  New().reset();
  const int64_t at_start = emulator::Count().kernels;
  ASSERT_GT(at_start, 10);
  int n = 1;
  // Every third: the kernels of a layer come again and again.
  for (bool reached = true; reached; n += 3) {
    SCOPED_TRACE(absl::StrCat("kernel ", n));
    emulator::Reset();
    emulator::FailKernel(n);
    auto backend = CreateCudaBackend(model_, Options());
    if (!backend.ok()) {
      ExpectCudaError(backend.status());
      EXPECT_LE(n, at_start);
      continue;
    }
    const absl::Status status = UseEverything(**backend, model_->config());
    reached = !status.ok();
    if (reached) {
      ExpectCudaError(status);
      ExpectPoisoned(**backend, status);
    }
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(n, at_start + 10);
}

TEST_F(CudaEmulatedTest, AKernelThatNeverEndsIsNoticedAndDestructionDoesNotWaitForIt) {
  CudaBackendOptions options = Options();
  options.patience = absl::Milliseconds(1500);
  New().reset();
  const int64_t at_start = emulator::Count().kernels;
  for (const int64_t n : {int64_t{1}, at_start + 1, at_start + 17}) {
    SCOPED_TRACE(absl::StrCat("kernel ", n));
    emulator::Reset();
    while (emulator::Advance(1000)) {  // what an abandoned backend left
    }
    emulator::HangKernel(int(n));
    auto backend = CreateCudaBackend(model_, options);
    absl::Status status = backend.status();
    if (backend.ok()) {
      status = UseEverything(**backend, model_->config());
      ExpectPoisoned(**backend, status);
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ(GetErrorDetail(status).reason, "CUDA_HANG") << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("1.5s"));
  }
}

TEST_F(CudaEmulatedTest, DestructionWithARunInFlightIsCleanAndSoItIsWithAHungOne) {
  const std::vector<int32_t> prompt = {0, 1, 2};
  rivulet::Run run;
  run.num_steps = 8;
  run.rows.resize(1);
  run.rows[0].slot = 1;
  run.rows[0].tokens = prompt;
  run.rows[0].sample = true;
  run.rows[0].max_samples = 8;
  const size_t before = emulator::Count().device_bytes;  // abandoned by other tests
  auto backend = New();
  ASSERT_TRUE(backend->Submit(run).ok());
  backend.reset();
  EXPECT_EQ(emulator::Count().device_bytes, before);
  CudaBackendOptions options = Options();
  options.patience = absl::Milliseconds(1500);
  backend = New(options);
  emulator::HangKernel(2);
  ASSERT_TRUE(backend->Submit(run).ok());
  backend.reset();
}

TEST_F(CudaEmulatedTest, NoDeviceIsUnavailableAndNamesTheDriversWords) {
  emulator::FailCallOf("cudaGetDeviceCount", 1, cudaErrorInsufficientDriver);
  absl::Status status = CreateCudaBackend(model_, Options()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(GetErrorDetail(status).reason, "BACKEND_ABSENT");
  EXPECT_THAT(std::string(status.message()), HasSubstr("no CUDA device"));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(cudaGetErrorString(cudaErrorInsufficientDriver)));
  emulator::Options machine;
  machine.num_devices = 0;
  emulator::Reset(machine);
  status = CreateCudaBackend(model_, Options()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no CUDA device"));
  machine.num_devices = 1;
  machine.major = 7;
  emulator::Reset(machine);
  status = CreateCudaBackend(model_, Options()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("compute capability 7.0"));
}

TEST_F(CudaEmulatedTest, TheDeviceIsChosenByItsIndexAndABadOneNamesHowManyThereAre) {
  emulator::Options machine;
  machine.num_devices = 2;
  emulator::Reset(machine);
  CudaBackendOptions options = Options();
  options.device = 1;
  auto backend = New(options);
  EXPECT_EQ(UseEverything(*backend, model_->config()), absl::OkStatus());
  int current = -1;
  EXPECT_EQ(cudaGetDevice(&current), cudaSuccess);
  EXPECT_EQ(current, 1);
  for (const int device : {-1, 2}) {
    options.device = device;
    const absl::Status status = CreateCudaBackend(model_, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(GetErrorDetail(status).field, "device");
    EXPECT_THAT(std::string(status.message()), HasSubstr("2 CUDA devices"));
  }
}

TEST_F(CudaEmulatedTest, TooLittleMemoryNamesTheArithmeticAndWhatWouldFit) {
  CudaBackendOptions options = Options();
  const size_t before = emulator::Count().device_bytes;
  emulator::Options machine;
  machine.memory_bytes = before + (size_t{3} << 20);
  emulator::Reset(machine);
  options.num_slots = 100000;
  options.max_rows = 4;
  const absl::Status status = CreateCudaBackend(model_, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(GetErrorDetail(status).reason, "OUT_OF_MEMORY");
  const std::string message(status.message());
  for (const char* word : {"weights of", "100000 sessions of", "free of", "sessions would fit"}) {
    EXPECT_THAT(message, HasSubstr(word));
  }
  // What is said to fit does.
  const size_t end = message.find(" sessions would fit");
  const size_t begin = message.rfind(' ', end - 1) + 1;
  options.num_slots = std::atoi(message.substr(begin, end - begin).c_str());
  ASSERT_GT(options.num_slots, 0) << message;
  auto backend = New(options);
  ASSERT_NE(backend, nullptr) << message;
  EXPECT_GT(emulator::Count().device_bytes, before);
  // And a failure behind the arithmetic's back says the same.
  backend.reset();
  for (const int n : {1, 5, 20}) {
    emulator::Reset();
    emulator::FailCallOf("cudaMalloc", n, cudaErrorMemoryAllocation);
    const absl::Status late = CreateCudaBackend(model_, Options()).status();
    EXPECT_EQ(late.code(), absl::StatusCode::kResourceExhausted) << late;
    EXPECT_THAT(std::string(late.message()), HasSubstr("weights of"));
    EXPECT_EQ(emulator::Count().device_bytes, before);
  }
}

TEST_F(CudaEmulatedTest, OptionsOutOfRangeAreNamed) {
  const auto field = [&](const std::function<void(CudaBackendOptions*)>& change) {
    CudaBackendOptions options = Options();
    change(&options);
    const absl::Status status = CreateCudaBackend(model_, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return GetErrorDetail(status).field;
  };
  EXPECT_EQ(field([](auto* o) { o->num_slots = 0; }), "num_slots");
  EXPECT_EQ(field([](auto* o) { o->max_rows = -1; }), "max_rows");
  EXPECT_EQ(field([](auto* o) { o->max_tokens = -1; }), "max_tokens");
  EXPECT_EQ(field([](auto* o) { o->max_steps = 0; }), "max_steps");
  EXPECT_EQ(field([](auto* o) { o->preferred_steps = 9; }), "preferred_steps");
  EXPECT_EQ(field([](auto* o) { o->patience = absl::ZeroDuration(); }), "patience");
}

TEST_F(CudaEmulatedTest, TheNumericsIdNamesPrecisionPlanAndArchitecture) {
  const std::string full = New()->limits().numerics_id;
  CudaBackendOptions options = Options();
  options.precision = CudaPrecision::kDefault;
  const std::string fp16 = New(options)->limits().numerics_id;
  EXPECT_THAT(full, ::testing::MatchesRegex("cuda-float32-graph-sm90-[0-9]+"));
  EXPECT_THAT(fp16, ::testing::MatchesRegex("cuda-default-graph-sm90-[0-9]+"));
}

TEST_F(CudaEmulatedTest, AWeightTooLargeForFp16IsAnErrorThatNamesItAndFloat32TakesIt) {
  ModelConfig config = TinyConfig();
  std::vector<RawTensor> tensors = RandomTensors(config, 1, DType::kF32);
  for (RawTensor& tensor : tensors) {
    if (tensor.name != "transformer.layers.1.linear1.weight") continue;
    std::vector<float> values(tensor.bytes.size() / 4, 0.1f);
    values[7] = 70000;
    tensor = MakeTensor(tensor.name, tensor.shape, DType::kF32, values);
  }
  TempDir directory;
  ASSERT_TRUE(WriteFile(directory.File("config.json"), ConfigJson(config)).ok());
  ASSERT_TRUE(WriteFile(directory.File("model.safetensors"), WriteSafetensors(tensors)).ok());
  auto model = Model::Load(directory.path());
  ASSERT_TRUE(model.ok()) << model.status();
  CudaBackendOptions options = Options();
  EXPECT_TRUE(CreateCudaBackend(*model, options).ok());
  options.precision = CudaPrecision::kDefault;
  const absl::Status status = CreateCudaBackend(*model, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("transformer.layers.1.linear1.weight"));
}

// Two backends do the same, at random; every record and state must agree.
class CudaAgainstCpuTest : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr int kSlots = 5;

  void SetUp() override {
    emulator::Reset();
    auto model = Model::Load(SourceDir() + "/tests/conformance/models/" + GetParam());
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *model;
    auto cpu = CreateCpuBackend(model_, {.num_slots = kSlots, .threads = 1});
    CudaBackendOptions options;
    options.num_slots = kSlots;
    options.precision = CudaPrecision::kFloat32;
    options.max_tokens = 64;
    auto cuda = CreateCudaBackend(model_, options);
    ASSERT_TRUE(cpu.ok() && cuda.ok()) << cpu.status() << cuda.status();
    cpu_ = *std::move(cpu);
    cuda_ = *std::move(cuda);
  }

  int UpTo(int n) { return int(random_() % uint32_t(n + 1)); }
  int32_t Token() { return int32_t(random_() % uint32_t(model_->config().num_output_tokens())); }

  SlotSampler RandomSampler() {
    SlotSampler sampler = Sampler(random_());
    sampler.params.temperature = UpTo(3) == 0 ? 0.0f : 0.5f + 0.25f * float(UpTo(3));
    sampler.sample_index = uint32_t(UpTo(3));
    if (UpTo(1) == 0) {
      sampler.want_logprobs = true;
      sampler.num_top_logprobs = UpTo(5);
    }
    if (UpTo(1) == 0) sampler.stop_ids = {Token(), Token()};
    if (model_->config().output.type == OutputType::kMixtureOfLogistics) return sampler;
    if (UpTo(1) == 0) {
      sampler.params.frequency_penalty = 0.5f * float(UpTo(3));
      sampler.params.presence_penalty = 0.5f * float(UpTo(3));
      sampler.params.repetition_penalty = 1 + 0.5f * float(UpTo(2));
    }
    if (UpTo(1) == 0) sampler.params.logit_bias = {{Token(), 2.0f}};
    sampler.params.top_k = UpTo(8);
    if (UpTo(1) == 0) sampler.params.top_p = 0.7f;
    if (UpTo(2) == 0) sampler.params.min_p = 0.1f;
    return sampler;
  }
  void Both(const std::function<absl::Status(Backend&)>& operation) {
    EXPECT_EQ(operation(*cpu_), absl::OkStatus());
    EXPECT_EQ(operation(*cuda_), absl::OkStatus());
  }
  void Zero(Slot slot) {
    Both([&](Backend& b) { return b.ZeroSlots({&slot, 1}); });
    fed_[slot] = 0;
    last_[slot] = -1;
  }
  void RandomRun();
  void CompareStates();

  std::mt19937 random_{uint32_t(std::hash<std::string>()(GetParam()))};
  std::shared_ptr<const Model> model_;
  std::unique_ptr<Backend> cpu_, cuda_;
  int64_t fed_[kSlots + 1] = {};
  int32_t last_[kSlots + 1] = {-1, -1, -1, -1, -1, -1};  // drawn but not fed
};

void CudaAgainstCpuTest::RandomRun() {
  const int num_steps = 1 + UpTo(5);
  std::vector<std::vector<int32_t>> tokens(kSlots), targets(kSlots);
  std::vector<std::vector<OutputRequest>> requests[2];
  std::vector<std::vector<float>> outputs[2];
  std::vector<rivulet::Run> runs(2);
  for (auto& r : requests) r.resize(kSlots);
  for (auto& o : outputs)
    o.assign(kSlots, std::vector<float>(size_t(model_->config().output_size())));
  for (Slot slot = 1; slot <= kSlots; ++slot) {
    const auto i = size_t(slot) - 1;
    if (UpTo(3) == 0) continue;
    RunRow row;
    row.slot = slot;
    row.position = fed_[slot];
    const bool goes_on = last_[slot] >= 0;
    const int count = goes_on || UpTo(1) == 0 ? 1 : 1 + UpTo(6);
    for (int t = 0; t < count; ++t) tokens[i].push_back(goes_on ? last_[slot] : Token());
    row.count_as_output = goes_on;
    row.tokens = tokens[i];
    if (UpTo(3) == 0) {
      for (int t = 0; t < count; ++t) targets[i].push_back(Token());
      row.targets = targets[i];
    }
    const bool wants = UpTo(3) == 0;
    const int index = UpTo(count - 1);
    for (int b = 0; wants && b < 2; ++b) requests[b][i] = {{index, outputs[b][i].data()}};
    row.sample = UpTo(4) > 0;
    row.max_samples = row.sample ? 1 + UpTo(6) : 0;
    for (int b = 0; b < 2; ++b) {
      row.outputs = requests[b][i];
      runs[size_t(b)].rows.push_back(row);
    }
  }
  if (runs[0].rows.empty()) return;
  std::vector<Record> records[2];
  Backend* backends[] = {cpu_.get(), cuda_.get()};
  for (int b = 0; b < 2; ++b) {
    runs[size_t(b)].num_steps = num_steps;
    ASSERT_EQ(Complete(*backends[b], runs[size_t(b)], &records[b]), absl::OkStatus());
  }
  for (size_t i = 0; i < kSlots; ++i) {
    for (size_t j = 0; j < outputs[0][i].size(); ++j) {
      ASSERT_NEAR(outputs[1][i][j], outputs[0][i][j], 1e-3) << "raw outputs of slot " << i + 1;
    }
  }
  ASSERT_EQ(records[1].size(), records[0].size());
  for (const RunRow& row : runs[0].rows) fed_[row.slot] += int64_t(row.tokens.size());
  for (const RunRow& row : runs[0].rows) last_[row.slot] = -1;
  std::vector<size_t> seen(runs[0].rows.size());  // records of each row
  for (size_t i = 0; i < records[0].size(); ++i) {
    const Record &cpu = records[0][i], &cuda = records[1][i];
    ASSERT_EQ(cuda.row, cpu.row) << i;
    ASSERT_EQ(cuda.position, cpu.position) << i;
    ASSERT_EQ(cuda.token, cpu.token) << i;
    ASSERT_EQ(cuda.stopped, cpu.stopped) << i;
    ASSERT_EQ(cuda.non_finite, cpu.non_finite) << i;
    ASSERT_EQ(std::isnan(cuda.logprob), std::isnan(cpu.logprob)) << i;
    if (!std::isnan(cpu.logprob)) {
      ASSERT_NEAR(cuda.logprob, cpu.logprob, 2e-3) << i;
    }
    ASSERT_EQ(cuda.top.size(), cpu.top.size()) << i;
    for (size_t t = 0; t < cpu.top.size(); ++t) {
      ASSERT_EQ(cuda.top[t].token, cpu.top[t].token) << i;
      ASSERT_NEAR(cuda.top[t].logprob, cpu.top[t].logprob, 2e-3) << i;
    }
    const RunRow& row = runs[0].rows[size_t(cpu.row)];
    const bool drawn = seen[size_t(cpu.row)]++ >= row.targets.size();
    if (drawn) {
      if (last_[row.slot] >= 0) ++fed_[row.slot];
      last_[row.slot] = cpu.stopped ? -1 : cpu.token;
    }
  }
}

void CudaAgainstCpuTest::CompareStates() {
  std::vector<float> cpu(cpu_->limits().bytes_per_slot / sizeof(float)), cuda(cpu.size());
  ASSERT_EQ(cuda_->limits().bytes_per_slot, cpu_->limits().bytes_per_slot);
  for (Slot slot = 1; slot <= kSlots; ++slot) {
    ASSERT_TRUE(cpu_->ReadSlot(slot, cpu).ok());
    ASSERT_TRUE(cuda_->ReadSlot(slot, cuda).ok());
    for (size_t i = 0; i < cpu.size(); ++i) {
      ASSERT_NEAR(cuda[i], cpu[i], 1e-4 * (1 + std::fabs(cpu[i]))) << "slot " << slot;
    }
  }
}

TEST_P(CudaAgainstCpuTest, RandomOperationsGiveTheSameRecordsAndStatesInTheSameOrder) {
  for (Slot slot = 1; slot <= kSlots; ++slot) Zero(slot);
  std::vector<float> kept(cpu_->limits().bytes_per_slot / sizeof(float));
  for (int i = 0; i < 60; ++i) {
    SCOPED_TRACE(absl::StrCat("operation ", i));
    const Slot a = 1 + UpTo(kSlots - 1), b = 1 + UpTo(kSlots - 1);
    switch (UpTo(6)) {
      case 0: {
        const SlotSampler sampler = RandomSampler();
        Both([&](Backend& backend) { return backend.SetSampler(a, sampler); });
        break;
      }
      case 1:
        if (a == b) break;
        Both([&](Backend& backend) { return backend.CopySlot(a, b); });
        fed_[b] = fed_[a];
        last_[b] = last_[a];
        break;
      case 2:
        ASSERT_TRUE(cpu_->ReadSlot(a, kept).ok());
        Both([&](Backend& backend) { return backend.WriteSlot(b, kept); });
        fed_[b] = fed_[a];
        last_[b] = -1;
        break;
      default:
        if (fed_[a] > 25) Zero(a);
        if (fed_[b] > 25) Zero(b);
        for (Slot slot = 1; slot <= kSlots; ++slot) {
          if (fed_[slot] > 30) Zero(slot);
        }
        RandomRun();
    }
    ASSERT_FALSE(HasFatalFailure());
  }
  CompareStates();
}

INSTANTIATE_TEST_SUITE_P(Models, CudaAgainstCpuTest,
                         ::testing::Values("tiny-elu-relu", "tiny-elu-learned-concat",
                                           "tiny-elu-sinusoidal", "tiny-rfa", "tiny-image"),
                         [](const auto& param) { return TestName(param.param, "mirror"); });

}  // namespace
}  // namespace rivulet::testing
