// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/backend_choice.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "model/cache_type.h"
#include "tests/bench/family_shape.h"
#include "tests/support/cuda_patience.h"
#include "tests/support/paths.h"
#include "tests/support/random_model.h"

namespace rivulet::bench {
namespace {

constexpr int kSkipped = 77;

CudaPlan PlanOf(const std::string& name) {
  if (name == "latency") return CudaPlan::kLatency;
  if (name == "throughput") return CudaPlan::kThroughput;
  if (name != "auto") Fail("--plan=auto|latency|throughput", 2);
  return CudaPlan::kAuto;
}

CudaProductChoice ProductsOf(const std::string& name) {
  if (name == "own") return CudaProductChoice::kOwn;
  if (name != "auto") Fail("--products=auto|own", 2);
  return CudaProductChoice::kAuto;
}

bool Apply(const char* argument, Choice* choice) {
  if (const char* value = FlagValue(argument, "--backend=")) {
    choice->cuda = std::strcmp(value, "cuda") == 0;
    if (!choice->cuda && std::strcmp(value, "cpu") != 0) Fail("--backend=cpu|cuda", 2);
  } else if (const char* precision = FlagValue(argument, "--precision=")) {
    const bool full = std::strcmp(precision, "float32") == 0;
    if (!full && std::strcmp(precision, "default") != 0) Fail("--precision=default|float32", 2);
    choice->precision = full ? CudaPrecision::kFloat32 : CudaPrecision::kDefault;
  } else if (const char* plan = FlagValue(argument, "--plan=")) {
    choice->plan = PlanOf(plan);
  } else if (const char* kind = FlagValue(argument, "--products=")) {
    choice->products = ProductsOf(kind);
  } else if (const char* cache = FlagValue(argument, "--kv-cache=")) {
    const auto type = ParseCacheType(cache);
    if (!type.ok()) Fail(std::string(type.status().message()), 2);
    choice->cache = *type;
  } else if (const char* graphs = FlagValue(argument, "--graphs=")) {
    choice->graphs = std::strcmp(graphs, "on") == 0;
    if (!choice->graphs && std::strcmp(graphs, "off") != 0) Fail("--graphs=on|off", 2);
  } else if (const char* rows = FlagValue(argument, "--latency-rows=")) {
    choice->latency_rows = std::atoi(rows);
  } else if (const char* norm_rows = FlagValue(argument, "--norm-rows=")) {
    choice->norm_rows = std::atoi(norm_rows);
  } else if (const char* device = FlagValue(argument, "--device=")) {
    choice->device = std::atoi(device);
  } else if (const char* rate = FlagValue(argument, "--copy-gb-per-s=")) {
    choice->copy_gb_per_s = std::atof(rate);
  } else if (const char* rate_of = FlagValue(argument, "--matrix-tflop-per-s=")) {
    choice->matrix_tflop_per_s = std::atof(rate_of);
  } else if (const char* models = FlagValue(argument, "--models=")) {
    choice->models = models;
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
  config.encoder().final_norm = true;
  config.encoder().position = PositionType::kLearned;
  config.encoder().combine = PositionCombine::kAdd;
  config.max_positions = 3072;
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
  config.encoder().final_norm = true;
  return config;
}

}  // namespace

void Fail(const std::string& what, int code) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(code);
}

const char* FlagValue(const char* argument, const char* flag) {
  const size_t length = std::strlen(flag);
  return std::strncmp(argument, flag, length) == 0 ? argument + length : nullptr;
}

Choice ParseChoice(int* argc, char** argv, const std::function<bool(const char* argument)>& own) {
  Choice choice;
  choice.models = SourcePath("model/zoo");
  int kept = 1;
  for (int i = 1; i < *argc; ++i) {
    const bool taken = Apply(argv[i], &choice) || (own != nullptr && own(argv[i]));
    if (!taken) argv[kept++] = argv[i];
  }
  *argc = kept;
  return choice;
}

std::unique_ptr<Backend> NewBackend(const Choice& choice, std::shared_ptr<const Model> model,
                                    int num_slots, const WeightChoice& weights, int threads) {
  absl::StatusOr<std::unique_ptr<Backend>> backend = absl::UnknownError("");
  if (choice.cuda) {
    CudaBackendOptions options;
    options.num_slots = num_slots;
    options.max_rows = num_slots;  // every slot a row, however many
    options.precision = choice.precision;
    options.weights = weights;
    options.cache = choice.cache;
    options.device = choice.device;
    options.plan = choice.plan;
    options.products = choice.products;
    options.graphs = choice.graphs;
    options.latency_rows = choice.latency_rows;
    options.norm_rows = choice.norm_rows;
    options.patience = testing::Patience();
    backend = CreateCudaBackend(std::move(model), options);
  } else {
    backend = CreateCpuBackend(
        std::move(model),
        {.num_slots = num_slots, .cache = choice.cache, .weights = weights, .threads = threads});
  }
  if (backend.ok()) return *std::move(backend);
  const bool absent =
      absl::IsUnimplemented(backend.status()) || absl::IsUnavailable(backend.status());
  Fail(std::string(backend.status().message()), absent ? kSkipped : 1);
}

namespace {

// Writes a model of that name with random weights; false: there is none.
absl::StatusOr<bool> WriteShape(const std::string& name, const std::string& directory) {
  absl::Status written;
  if (name == "cifar-10" || name == "110m") {
    ModelConfig config = name == "110m" ? Language110M() : Cifar10();
    config.name = name;
    written = testing::WriteRandomModel(directory, config, 1, DType::kF16);
  } else if (name == "rwkv7-0.4b") {
    written = WriteRwkv7(directory, {.hidden = 1024, .layers = 24});
  } else if (name == "rwkv7-0.4b-zeros80" || name == "rwkv7-0.4b-zeros95") {
    const double zeros = name.ends_with("80") ? 0.8 : 0.95;
    written = WriteRwkv7(directory, {.hidden = 1024, .layers = 24, .zeros = zeros});
  } else if (name == "rwkv7-1.5b") {
    written = WriteRwkv7(
        directory,
        {.hidden = 2048, .layers = 24, .decay = 96, .rate = 96, .value = 64, .gate = 256});
  } else if (name == "mamba2-130m") {
    written = WriteMamba2(directory, {.hidden = 768, .layers = 24});
  } else if (name == "granite-350m") {
    written = WriteGranite(directory,
                           {.hidden = 768, .layers = 32, .heads = 12, .kv_heads = 4, .ffn = 2048});
  } else {
    return false;
  }
  if (!written.ok()) return written;
  return true;
}

}  // namespace

std::shared_ptr<const Model> LoadModel(const Choice& choice, const std::string& name) {
  testing::TempDir directory;
  const absl::StatusOr<bool> made = WriteShape(name, directory.path());
  if (!made.ok()) Fail(made.status().ToString(), 1);
  const std::string bundled = choice.models + "/" + name;
  const bool known = std::filesystem::is_directory(bundled);
  auto model = Model::Load(*made ? directory.path() : known ? bundled : name);
  if (!model.ok()) Fail(model.status().ToString(), 1);
  return *std::move(model);
}

}  // namespace rivulet::bench
