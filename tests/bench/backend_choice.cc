// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/backend_choice.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/cache_type.h"
#include "tests/bench/family_shape.h"
#include "tests/support/cuda_patience.h"
#include "tests/support/paths.h"
#include "tests/support/random_model.h"

namespace rivulet::bench {
namespace {

constexpr int kSkipped = 77;

CudaProductChoice ProductsOf(const std::string& name) {
  if (name == "own") return CudaProductChoice::kOwn;
  if (name != "auto") Fail("--products=auto|own", 2);
  return CudaProductChoice::kAuto;
}

bool IsOn(const char* flag, const char* value) {
  if (std::strcmp(value, "on") == 0) return true;
  if (std::strcmp(value, "off") != 0) Fail(absl::StrCat(flag, "on|off"), 2);
  return false;
}

bool Apply(const char* argument, Choice* choice) {
  if (const char* value = FlagValue(argument, "--backend=")) {
    choice->cuda = std::strcmp(value, "cuda") == 0;
    if (!choice->cuda && std::strcmp(value, "cpu") != 0) Fail("--backend=cpu|cuda", 2);
  } else if (const char* precision = FlagValue(argument, "--precision=")) {
    const bool full = std::strcmp(precision, "float32") == 0;
    if (!full && std::strcmp(precision, "default") != 0) Fail("--precision=default|float32", 2);
    choice->precision = full ? CudaPrecision::kFloat32 : CudaPrecision::kDefault;
  } else if (const char* kind = FlagValue(argument, "--products=")) {
    choice->products = ProductsOf(kind);
  } else if (const char* cache = FlagValue(argument, "--kv-cache=")) {
    const auto type = ParseCacheType(cache);
    if (!type.ok()) Fail(std::string(type.status().message()), 2);
    choice->cache = *type;
  } else if (const char* graphs = FlagValue(argument, "--graphs=")) {
    choice->graphs = IsOn("--graphs=", graphs);
  } else if (const char* overlap = FlagValue(argument, "--overlap=")) {
    choice->overlap = IsOn("--overlap=", overlap);
  } else if (const char* many_rows = FlagValue(argument, "--many-rows=")) {
    choice->many_rows = std::atoi(many_rows);
  } else if (const char* device = FlagValue(argument, "--device=")) {
    choice->device = std::atoi(device);
  } else if (const char* rate = FlagValue(argument, "--copy-gb-per-s=")) {
    choice->copy_gb_per_s = std::atof(rate);
  } else if (const char* rate_of = FlagValue(argument, "--matrix-tflop-per-s=")) {
    choice->matrix_tflop_per_s = std::atof(rate_of);
  } else if (const char* models = FlagValue(argument, "--models=")) {
    choice->models = models;
  } else if (const char* kept = FlagValue(argument, "--keep=")) {
    choice->kept = kept;
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

// GP-MoLFormer-Uniq, 46.8 M parameters.
ModelConfig Molformer() {
  ModelConfig config;
  config.vocab_size = 2362;
  config.bos_token_id = 0;
  config.hidden_size = config.ffn_size = 768;
  config.num_layers = config.num_heads = 12;
  config.key_dim = config.value_dim = 64;
  EncoderConfig& encoder = config.encoder();
  encoder.final_norm = encoder.transform = true;
  encoder.position = PositionType::kRotary;
  encoder.feature_map =
      testing::MakeFeatureMap(kernels::FeatureMapKind::kGeneralizedRandomRelu, 32);
  encoder.normalizer = Normalizer::kClampMin;
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
    options.max_context.tokens = choice.max_context;
    options.device = choice.device;
    options.products = choice.products;
    options.graphs = choice.graphs;
    options.overlap = choice.overlap;
    options.many_rows = choice.many_rows;
    options.patience = testing::Patience();
    backend = CreateCudaBackend(std::move(model), options);
  } else {
    CpuBackendOptions options;
    options.num_slots = num_slots;
    options.cache = choice.cache;
    options.max_context.tokens = choice.max_context;
    options.weights = weights;
    options.threads = threads;
    options.max_drafts = choice.max_drafts;
    backend = CreateCpuBackend(std::move(model), options);
  }
  if (backend.ok()) return *std::move(backend);
  const bool absent =
      absl::IsUnimplemented(backend.status()) || absl::IsUnavailable(backend.status());
  Fail(std::string(backend.status().message()), absent ? kSkipped : 1);
}

namespace {

using Writer = std::function<absl::Status(const std::string& directory)>;

absl::Status WriteEncoder(const std::string& directory, const std::string& name,
                          ModelConfig config) {
  config.name = name;
  return testing::WriteRandomModel(directory, config, 1, DType::kF16);
}

// What makes the models with random weights, by name.
const std::map<std::string, Writer>& Writers() {
  using Path = const std::string&;
  const auto rwkv7 = [](const Rwkv7Shape& shape) {
    return [=](Path to) { return WriteRwkv7(to, shape); };
  };
  static const std::map<std::string, Writer>* const writers = new std::map<std::string, Writer>{
      {"cifar-10", [](Path to) { return WriteEncoder(to, "cifar-10", Cifar10()); }},
      {"gp-molformer", [](Path to) { return WriteEncoder(to, "gp-molformer", Molformer()); }},
      {"110m", [](Path to) { return WriteEncoder(to, "110m", Language110M()); }},
      {"rwkv7-0.4b", rwkv7({.hidden = 1024, .layers = 24})},
      {"rwkv7-0.4b-zeros80", rwkv7({.hidden = 1024, .layers = 24, .zeros = 0.8})},
      {"rwkv7-0.4b-zeros95", rwkv7({.hidden = 1024, .layers = 24, .zeros = 0.95})},
      {"rwkv7-1.5b",
       rwkv7({.hidden = 2048, .layers = 24, .decay = 96, .rate = 96, .value = 64, .gate = 256})},
      {"rwkv7-7.2b",
       rwkv7({.hidden = 4096, .layers = 32, .decay = 128, .rate = 128, .value = 96, .gate = 480})},
      {"mamba2-130m", [](Path to) { return WriteMamba2(to, {.hidden = 768, .layers = 24}); }},
      {"granite-350m",
       [](Path to) {
         return WriteGranite(
             to, {.hidden = 768, .layers = 32, .heads = 12, .kv_heads = 4, .ffn = 2048});
       }},
      {"qwen3.5-0.8b",
       [](Path to) {
         return WriteQwen35(to, {.hidden = 1024,
                                 .layers = 24,
                                 .delta_heads = 16,
                                 .heads = 8,
                                 .kv_heads = 2,
                                 .ffn = 3584});
       }},
  };
  return *writers;
}

// Writes the model into `kept`, whole or not at all: it is renamed once it is complete. Another
// process may do the same at the same time.
absl::Status Keep(const Writer& write, const std::filesystem::path& kept) {
  std::error_code error;
  std::filesystem::create_directories(kept.parent_path(), error);
  std::string part = kept.string() + ".XXXXXX";
  if (mkdtemp(part.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot make ", part));
  }
  const absl::Status written = write(part);
  if (written.ok()) std::filesystem::rename(part, kept, error);
  std::filesystem::remove_all(part, error);
  if (!written.ok() || std::filesystem::is_directory(kept)) return written;
  return absl::UnavailableError(absl::StrCat("cannot rename ", part, " to ", kept.string()));
}

}  // namespace

std::shared_ptr<const Model> LoadModel(const Choice& choice, const std::string& name) {
  testing::TempDir scratch;
  std::string directory = choice.models + "/" + name;
  const auto writer = Writers().find(name);
  if (writer != Writers().end()) {
    const bool keep = !choice.kept.empty();
    directory = keep ? choice.kept + "/" + name : scratch.path();
    absl::Status made;
    if (!keep) made = writer->second(directory);
    if (keep && !std::filesystem::is_directory(directory)) made = Keep(writer->second, directory);
    if (!made.ok()) Fail(made.ToString(), 1);
  } else if (!std::filesystem::is_directory(directory)) {
    directory = name;
  }
  auto model = Model::Load(directory);
  if (!model.ok()) Fail(model.status().ToString(), 1);
  return *std::move(model);
}

}  // namespace rivulet::bench
