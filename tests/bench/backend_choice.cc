// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/backend_choice.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/bench/rwkv7_shape.h"
#include "tests/support/cuda_patience.h"
#include "tests/support/paths.h"
#include "tests/support/random_model.h"

namespace rivulet::bench {
namespace {

constexpr int kSkipped = 77;

[[noreturn]] void Fail(const std::string& what, int code) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(code);
}

// The value of `flag` ("--name=") where `argument` sets it.
const char* Value(const char* argument, const char* flag) {
  const size_t length = std::strlen(flag);
  return std::strncmp(argument, flag, length) == 0 ? argument + length : nullptr;
}

CudaPlan PlanOf(const std::string& name) {
  if (name == "latency") return CudaPlan::kLatency;
  if (name == "throughput") return CudaPlan::kThroughput;
  if (name != "auto") Fail("--plan=auto|latency|throughput", 2);
  return CudaPlan::kAuto;
}

CudaProductChoice ProductsOf(const std::string& name) {
  if (name == "cublaslt") return CudaProductChoice::kCublasLt;
  if (name == "own") return CudaProductChoice::kOwn;
  if (name != "auto") Fail("--products=auto|cublaslt|own", 2);
  return CudaProductChoice::kAuto;
}

bool Apply(const char* argument, Choice* choice) {
  if (const char* value = Value(argument, "--backend=")) {
    choice->cuda = std::strcmp(value, "cuda") == 0;
    if (!choice->cuda && std::strcmp(value, "cpu") != 0) Fail("--backend=cpu|cuda", 2);
  } else if (const char* precision = Value(argument, "--precision=")) {
    const bool full = std::strcmp(precision, "float32") == 0;
    if (!full && std::strcmp(precision, "default") != 0) Fail("--precision=default|float32", 2);
    choice->precision = full ? CudaPrecision::kFloat32 : CudaPrecision::kDefault;
  } else if (const char* plan = Value(argument, "--plan=")) {
    choice->plan = PlanOf(plan);
  } else if (const char* kind = Value(argument, "--products=")) {
    choice->products = ProductsOf(kind);
  } else if (const char* rows = Value(argument, "--latency-rows=")) {
    choice->latency_rows = std::atoi(rows);
  } else if (const char* device = Value(argument, "--device=")) {
    choice->device = std::atoi(device);
  } else if (const char* rate = Value(argument, "--copy-gb-per-s=")) {
    choice->copy_gb_per_s = std::atof(rate);
  } else if (const char* rate_of = Value(argument, "--matrix-tflop-per-s=")) {
    choice->matrix_tflop_per_s = std::atof(rate_of);
  } else if (const char* models = Value(argument, "--models=")) {
    choice->models = models;
  } else if (const char* model = Value(argument, "--model=")) {
    choice->model = model;
  } else {
    return false;
  }
  return true;
}

ModelConfig Cifar10() {
  ModelConfig config;
  config.vocab_size = 257;
  config.bos_token_id = 256;
  config.hidden_size = 256;
  config.num_layers = 16;
  config.num_heads = 8;
  config.key_dim = config.value_dim = 32;
  config.ffn_size = 1024;
  config.final_norm = true;
  config.position = {PositionType::kLearned, PositionCombine::kAdd, 3072};
  config.output.type = OutputType::kMixtureOfLogistics;
  config.output.num_mixtures = 10;
  config.output.num_levels = 256;
  config.content.type = ContentType::kImage;
  config.content.height = config.content.width = 32;
  config.content.channels = 3;
  return config;
}

ModelConfig Language110M() {
  ModelConfig config;
  config.vocab_size = 16384;
  config.bos_token_id = 0;
  config.hidden_size = 768;
  config.num_layers = 12;
  config.num_heads = 12;
  config.key_dim = config.value_dim = 64;
  config.ffn_size = 3072;
  config.final_norm = true;
  return config;
}

}  // namespace

Choice ParseChoice(int* argc, char** argv) {
  Choice choice;
  choice.models = SourcePath("model/zoo");
  int kept = 1;
  for (int i = 1; i < *argc; ++i) {
    if (!Apply(argv[i], &choice)) argv[kept++] = argv[i];
  }
  *argc = kept;
  if (choice.cuda && !choice.model.empty()) Fail("--model measures the CPU: not --backend=cuda", 2);
  return choice;
}

std::unique_ptr<Backend> NewBackend(const Choice& choice, std::shared_ptr<const Model> model,
                                    int num_slots, WeightPrecision weights, int threads) {
  absl::StatusOr<std::unique_ptr<Backend>> backend = absl::UnknownError("");
  if (choice.cuda) {
    CudaBackendOptions options;
    options.num_slots = num_slots;
    options.max_rows = num_slots;  // every slot a row, however many
    options.precision = choice.precision;
    options.device = choice.device;
    options.plan = choice.plan;
    options.products = choice.products;
    options.latency_rows = choice.latency_rows;
    options.patience = testing::Patience();
    backend = CreateCudaBackend(std::move(model), options);
  } else {
    backend = CreateCpuBackend(std::move(model),
                               {.num_slots = num_slots, .weights = weights, .threads = threads});
  }
  if (backend.ok()) return *std::move(backend);
  const bool absent =
      absl::IsUnimplemented(backend.status()) || absl::IsUnavailable(backend.status());
  Fail(std::string(backend.status().message()), absent ? kSkipped : 1);
}

namespace {

// Null: no such shape.
const Rwkv7Shape* FindRwkv7(const std::string& name) {
  static const std::pair<std::string, Rwkv7Shape> kShapes[] = {
      {"rwkv7-0.4b", {.hidden = 1024, .layers = 24}},
      {"rwkv7-1.5b",
       {.hidden = 2048, .layers = 24, .decay = 96, .rate = 96, .value = 64, .gate = 256}}};
  for (const auto& [known, shape] : kShapes) {
    if (known == name) return &shape;
  }
  return nullptr;
}

}  // namespace

std::shared_ptr<const Model> LoadShape(const Choice& choice, const std::string& name) {
  testing::TempDir directory;
  std::string path = choice.models + "/" + name;
  if (name == "cifar-10" || name == "110m") {
    ModelConfig config = name == "110m" ? Language110M() : Cifar10();
    config.name = name;
    path = directory.path();
    const absl::Status written = testing::WriteRandomModel(path, config, 1, DType::kF16);
    if (!written.ok()) Fail(written.ToString(), 1);
  } else if (const Rwkv7Shape* const shape = FindRwkv7(name)) {
    path = directory.path();
    const absl::Status written = WriteRwkv7(path, *shape);
    if (!written.ok()) Fail(written.ToString(), 1);
  }
  return LoadDirectory(path);
}

std::shared_ptr<const Model> LoadDirectory(const std::string& path) {
  auto model = Model::Load(path);
  if (!model.ok()) Fail(model.status().ToString(), 1);
  return *std::move(model);
}

}  // namespace rivulet::bench
