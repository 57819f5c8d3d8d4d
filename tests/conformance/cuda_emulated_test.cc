// SPDX-License-Identifier: Apache-2.0
// The CUDA backend where only the emulator can look: errors at every call of the runtime, hung
// kernels, devices that are small or absent.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "model/base/error.h"
#include "model/base/file.h"
#include "model/cuda/cuda_backend.h"
#include "model/cuda/cuda_need.h"
#include "model/cuda/cuda_outputs.h"
#include "tests/support/cuda_emulator/cuda_emulator.h"
#include "tests/support/cuda_patience.h"
#include "tests/support/paths.h"
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
    options.patience = Patience();
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
  for (const absl::Time late = absl::Now() + absl::Minutes(2); absl::Now() < late;
       absl::SleepFor(absl::Microseconds(100))) {  // other tests have the core while a kernel hangs
    RIVULET_ASSIGN_OR_RETURN(const bool complete, backend.Poll(records));
    if (complete) return absl::OkStatus();
  }
  return absl::DeadlineExceededError("a run that never ends");
}

// Slot 1 is fed three tokens and draws eight.
rivulet::Run EightDraws() {
  static const std::vector<int32_t> prompt = {0, 1, 2};
  rivulet::Run run;
  run.num_steps = 8;
  run.rows.resize(1);
  run.rows[0].slot = 1;
  run.rows[0].tokens = prompt;
  run.rows[0].sample = true;
  run.rows[0].max_samples = 8;
  return run;
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
  const rivulet::Run run;  // the poison comes before any other objection
  std::vector<float> state(1);
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
    for (int n = 1; n <= calls; n += sticky ? 3 : 1) {
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
  options.patience = absl::Seconds(5);  // a start on a busy machine takes seconds
  auto unharmed = New();
  const int64_t at_start = emulator::Count().kernels;
  ASSERT_EQ(UseEverything(*unharmed, model_->config()), absl::OkStatus());
  const int64_t at_end = emulator::Count().kernels;
  unharmed.reset();
  for (const int64_t n : {int64_t{1}, at_start + 1, (at_start + at_end) / 2, at_end}) {
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
    EXPECT_THAT(std::string(status.message()), HasSubstr("5s"));
  }
}

TEST_F(CudaEmulatedTest, DestructionWithARunInFlightIsCleanAndSoItIsWithAHungOne) {
  const rivulet::Run run = EightDraws();
  const size_t before = emulator::Count().device_bytes;  // abandoned by other tests
  auto backend = New();
  ASSERT_TRUE(backend->Submit(run).ok());
  backend.reset();
  EXPECT_EQ(emulator::Count().device_bytes, before);
  CudaBackendOptions options = Options();
  options.patience = absl::Seconds(5);  // a start on a busy machine takes seconds
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
  std::unique_ptr<Backend> backends[2];
  for (options.device = 0; options.device < 2; ++options.device) {
    backends[options.device] = New(options);
  }
  for (const int device : {1, 0, 1}) {  // one thread uses them in turn
    EXPECT_EQ(UseEverything(*backends[device], model_->config()), absl::OkStatus());
    int current = -1;
    EXPECT_EQ(cudaGetDevice(&current), cudaSuccess);
    EXPECT_EQ(current, device);
  }
  for (const int device : {-1, 2}) {
    options.device = device;
    const absl::Status status = CreateCudaBackend(model_, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(GetErrorDetail(status).field, "device");
    EXPECT_THAT(std::string(status.message()), HasSubstr("2 CUDA devices"));
  }
}

TEST_F(CudaEmulatedTest, TwoBackendsOnOneDeviceDoNotDisturbEachOther) {
  const rivulet::Run run = EightDraws();
  std::unique_ptr<Backend> backends[] = {New(), New()};
  std::vector<Record> records[2];
  for (auto& backend : backends) ASSERT_TRUE(backend->SetSampler(1, Sampler(5)).ok());
  for (auto& backend : backends) ASSERT_TRUE(backend->Submit(run).ok());
  for (int done = 0; done != 3;) {
    for (int i = 0; i < 2; ++i) done |= *backends[i]->Poll(&records[i]) ? 1 << i : 0;
  }
  ASSERT_EQ(records[0].size(), 8u);
  ASSERT_EQ(records[1].size(), 8u);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(records[0][i].token, records[1][i].token);
}

TEST_F(CudaEmulatedTest, SlotsThatAreNotGivenTakeHalfOfWhatTheDeviceHasLeft) {
  CudaBackendOptions options = Options();
  options.num_slots = 1;
  const size_t before = emulator::Count().device_bytes;
  emulator::Options machine;
  const auto begin = [&](size_t bytes) {
    machine.memory_bytes = before + bytes;
    emulator::Reset(machine);
  };
  begin(size_t{64} << 20);
  options.max_rows = 4;
  ASSERT_NE(New(options), nullptr);
  options.num_slots = std::nullopt;
  auto backend = New(options);
  ASSERT_NE(backend, nullptr);
  EXPECT_EQ(backend->limits().num_slots, 256);
  EXPECT_EQ(backend->limits().slots_choice, "auto: at most 256");
  backend.reset();
  // Less and less memory: fewer slots, until not even one fits. Twice as many would still fit.
  int last = 256;
  for (size_t bytes = size_t{6} << 20; last > 1 || bytes > (size_t{1} << 20); bytes -= 128 << 10) {
    begin(bytes);
    auto fewer = CreateCudaBackend(model_, options);
    if (!fewer.ok()) {
      EXPECT_EQ(GetErrorDetail(fewer.status()).reason, "OUT_OF_MEMORY") << fewer.status();
      break;
    }
    const int slots = (*fewer)->limits().num_slots;
    EXPECT_LE(slots, last);
    EXPECT_GE(slots, 1);
    if (slots < 256) {
      EXPECT_THAT((*fewer)->limits().slots_choice, HasSubstr("auto: half of the "));
      fewer->reset();
      CudaBackendOptions given = options;
      given.num_slots = 2 * slots;
      if (slots > 1) {
        EXPECT_NE(New(given), nullptr) << slots;
      }
      given.num_slots = 2 * slots + 2;
      EXPECT_FALSE(CreateCudaBackend(model_, given).ok()) << slots;
    }
    last = slots;
  }
  EXPECT_LT(last, 256);
}

TEST_F(CudaEmulatedTest, HeadOutputsAreMadeForAllRowsOfAStepAtOnceWhereTheyFit) {
  // Outputs and what sampling makes of them: 512 KiB a row.
  ModelConfig config = TinyConfig();
  config.vocab_size = 65536;
  BackendLimits limits;
  limits.max_rows = 1024;
  limits.max_tokens = 8192;
  const auto head_rows = [&](size_t rows_that_fit) {
    return CudaOutputs::HeadRows(config, limits, rows_that_fit * (size_t{512} << 10));
  };
  EXPECT_EQ(head_rows(5000), 1024);
  EXPECT_EQ(head_rows(300), 300);
  EXPECT_EQ(head_rows(0), 128);
  config.vocab_size = 256;  // 32 MiB of outputs are many rows
  EXPECT_EQ(head_rows(0), 8192);

  // A piece is a product and a launch of the sampling.
  const auto kernels_of_step = [&](int given) {
    CudaBackendOptions options = Options();
    options.head_rows = given;
    auto backend = New(options);
    EXPECT_EQ(backend->limits().head_rows, given > 0 ? given : options.max_tokens);
    const std::vector<int32_t> token = {1};
    rivulet::Run run;
    run.num_steps = 1;
    run.rows.resize(2);
    for (int i = 0; i < 2; ++i) {
      run.rows[size_t(i)].slot = i + 1;
      run.rows[size_t(i)].tokens = token;
      run.rows[size_t(i)].sample = true;
      run.rows[size_t(i)].max_samples = 1;
      EXPECT_EQ(backend->SetSampler(i + 1, Sampler(1)), absl::OkStatus());
    }
    std::vector<Record> records;
    const auto kernels_of_run = [&] {
      const int64_t before = emulator::Count().kernels;
      EXPECT_EQ(Complete(*backend, run, &records), absl::OkStatus());
      return emulator::Count().kernels - before;
    };
    kernels_of_run();  // prepares the slots, too
    return kernels_of_run();
  };
  EXPECT_EQ(kernels_of_step(1), kernels_of_step(0) + 2);
}

TEST_F(CudaEmulatedTest, HeadOutputsTakeA32ndOfWhatIsLeftAndNothingThatSlotsNeed) {
  CudaNeed need;
  need.total = need.free = size_t{64} << 30;  // of which 63 are usable
  need.weights = size_t{30} << 30;
  need.work = size_t{1} << 30;
  need.slot = size_t{1} << 20;
  need.num_slots = 1023;
  CudaBackendOptions options;
  options.num_slots = std::nullopt;
  EXPECT_EQ(need.HeadBytes(options), size_t{1} << 30);
  options.num_slots = 1023;
  EXPECT_EQ(need.HeadBytes(options), size_t{1} << 30);
  options.num_slots = need.num_slots = 32 * 1024 - 101;  // and the guard slot
  EXPECT_EQ(need.HeadBytes(options), size_t{100} << 20);
  options.num_slots = need.num_slots = 40 * 1024;
  EXPECT_EQ(need.HeadBytes(options), 0u);
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
  for (const char* word : {"weights of", "100000 slots of", "free of", "slots would fit"}) {
    EXPECT_THAT(message, HasSubstr(word));
  }
  // What is said to fit does.
  const size_t end = message.find(" slots would fit");
  const size_t begin = message.rfind(' ', end - 1) + 1;
  options.num_slots = std::atoi(message.substr(begin, end - begin).c_str());
  ASSERT_GT(*options.num_slots, 0) << message;
  ASSERT_NE(New(options), nullptr) << message;
  // And a failure behind the arithmetic's back says the same.
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
    return GetErrorDetail(CreateCudaBackend(model_, options).status()).field;
  };
  EXPECT_EQ(field([](auto* o) { o->num_slots = 0; }), "num_slots");
  EXPECT_EQ(field([](auto* o) { o->max_rows = -1; }), "max_rows");
  EXPECT_EQ(field([](auto* o) { o->max_tokens = -1; }), "max_tokens");
  EXPECT_EQ(field([](auto* o) { o->max_steps = 0; }), "max_steps");
  EXPECT_EQ(field([](auto* o) { o->preferred_steps = 9; }), "preferred_steps");
  EXPECT_EQ(field([](auto* o) { o->patience = absl::ZeroDuration(); }), "patience");
}

TEST_F(CudaEmulatedTest, AHeadOfSoftmaxAttentionThatIsTooLongIsRefusedByName) {
  for (const char* name : {"key_dim", "value_dim"}) {
    ModelConfig config = TinyConfig();
    config.encoder().softmax = true;
    config.SetDefaultContext();
    (std::string(name) == "key_dim" ? config.key_dim : config.value_dim) = 257;
    TempDir directory;
    ASSERT_TRUE(WriteRandomModel(directory.path(), config, 3).ok());
    const auto model = Model::Load(directory.path());
    ASSERT_TRUE(model.ok()) << model.status();
    const absl::Status status = CreateCudaBackend(*model, Options()).status();
    EXPECT_EQ(GetErrorDetail(status).reason, "MODEL_UNSUPPORTED") << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(name, " of softmax")));
    EXPECT_THAT(std::string(status.message()), HasSubstr("257; allowed: 1 to 256"));
  }
}

TEST_F(CudaEmulatedTest, KeysAndValuesOf16BitsAreRefusedByName) {
  CudaBackendOptions options = Options();
  options.cache = kernels::CacheType::kBf16;
  const auto softmax = Model::Load(SourcePath("tests/conformance/softmax/full"));
  ASSERT_TRUE(softmax.ok()) << softmax.status();
  const absl::Status status = CreateCudaBackend(*softmax, options).status();
  EXPECT_EQ(GetErrorDetail(status).reason, "OPTION_OUT_OF_RANGE") << status;
  EXPECT_EQ(status.message(), "kv-cache is \"bf16\"; allowed on a GPU: f32");
  EXPECT_TRUE(CreateCudaBackend(model_, options).ok()) << "of a model that keeps none";
}

TEST_F(CudaEmulatedTest, TheNumericsIdNamesPrecisionPlanAndArchitecture) {
  using ::testing::MatchesRegex;
  EXPECT_THAT(New()->limits().numerics_id, MatchesRegex("cuda-float32-graph-sm90-[0-9]+"));
  CudaBackendOptions options = Options();
  options.precision = CudaPrecision::kDefault;
  EXPECT_THAT(New(options)->limits().numerics_id, MatchesRegex("cuda-default-graph-sm90-[0-9]+"));
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

}  // namespace
}  // namespace rivulet::testing
