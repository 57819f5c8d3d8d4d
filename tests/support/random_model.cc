// SPDX-License-Identifier: Apache-2.0
#include "tests/support/random_model.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/half.h"

namespace rivulet::testing {
namespace {

using kernels::FeatureMapKind;

template <typename T>
void AppendRaw(T value, std::string* out) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out->append(bytes, sizeof(T));
}

std::string JsonString(absl::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      absl::StrAppend(&out, "\\", std::string(1, c));
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(&out, "\\u%04x", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string JsonFloat(float value) { return absl::StrFormat("%.9g", value); }

std::string JsonId(const std::optional<int32_t>& id) {
  return id.has_value() ? absl::StrCat(*id) : "null";
}

std::string PositionJson(const ModelConfig& config) {
  const EncoderConfig& encoder = config.encoder();
  if (encoder.position == PositionType::kNone) return R"({"type":"none"})";
  if (encoder.position == PositionType::kRotary) {
    return absl::StrCat(R"({"type":"rotary","base":10000,"pairs":")",
                        encoder.rope.interleaved ? "interleaved" : "halves", "\"}");
  }
  return absl::StrCat(
      R"({"type":")", encoder.position == PositionType::kLearned ? "learned" : "sinusoidal",
      R"(","combine":")", encoder.combine == PositionCombine::kAdd ? "add" : "concat",
      R"(","max_length":)", config.max_positions, "}");
}

std::string FeatureMapJson(const FeatureMapConfig& map) {
  const std::string dims = absl::StrCat(R"(","n_dims":)", map.n_dims, R"(,"softmax_temp":)",
                                        JsonFloat(map.softmax_temp));
  switch (map.kind) {
    case FeatureMapKind::kElu:
      return R"({"type":"elu"})";
    case FeatureMapKind::kRandomFourier:
      return absl::StrCat(R"({"type":"random_fourier)", dims, "}");
    case FeatureMapKind::kSmoothedRandomFourier:
      return absl::StrCat(R"({"type":"smoothed_random_fourier)", dims, R"(,"smoothing":)",
                          JsonFloat(map.smoothing), "}");
    case FeatureMapKind::kFavor:
      return absl::StrCat(R"({"type":"favor)", dims, "}");
    case FeatureMapKind::kGeneralizedRandomRelu:
      return absl::StrCat(R"({"type":"generalized_random)", dims, R"(,"kernel":"relu"})");
    case FeatureMapKind::kRfa:
      return absl::StrCat(R"({"type":"rfa","num_features":)", map.columns, "}");
  }
  return "";
}

std::string OutputJson(const ModelConfig& config) {
  const OutputConfig& output = config.output;
  const std::string transform = config.encoder().transform ? R"("transform":"gelu",)" : "";
  if (output.type == OutputType::kCategorical) {
    return absl::StrCat("{", transform, R"("type":"categorical"})");
  }
  return absl::StrCat("{", transform, R"("type":"mixture_of_logistics","num_mixtures":)",
                      output.num_mixtures, R"(,"num_levels":)", output.num_levels, R"(,"scale":")",
                      output.scale == MixtureScale::kExp ? "exp" : "elu", "\"}");
}

std::string ContentJson(const ContentConfig& content) {
  switch (content.type) {
    case ContentType::kTokens:
      return R"({"type":"tokens"})";
    case ContentType::kImage:
      return absl::StrCat(R"({"type":"image","height":)", content.height, R"(,"width":)",
                          content.width, R"(,"channels":)", content.channels, "}");
    case ContentType::kText:
      if (content.alphabet.empty()) {
        return R"({"type":"text","tokenizer":{"type":"tokenizer.json"}})";
      }
      return absl::StrCat(R"({"type":"text","tokenizer":{"type":"char","alphabet":)",
                          JsonString(content.alphabet), "}}");
  }
  return "";
}

// Draws in [-1, 1) from the generator's upper bits: the standard's distributions differ between
// libraries.
class Uniform {
 public:
  explicit Uniform(uint64_t seed) : generator_(seed) {}
  float operator()() {
    return static_cast<float>(static_cast<double>(generator_() >> 11) * 0x1p-52 - 1.0);
  }

 private:
  std::mt19937_64 generator_;
};

float Weight(const TensorSpec& spec, float unit) {
  const bool norm = absl::StrContains(spec.name, "norm");
  const bool bias = absl::EndsWith(spec.name, ".bias");
  if (absl::EndsWith(spec.name, ".sigma") || (norm && !bias)) return 1 + 0.1f * unit;
  if (bias) return 0.1f * unit;
  if (absl::EndsWith(spec.name, "omega") || absl::EndsWith(spec.name, "embedding.weight") ||
      absl::EndsWith(spec.name, "position.weight")) {
    return unit;
  }
  return unit / std::sqrt(static_cast<float>(spec.shape.back()));
}

}  // namespace

TempDir::TempDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "rivulet-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) std::abort();
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TempDir::File(absl::string_view name) const { return absl::StrCat(path_, "/", name); }

absl::Status WriteFile(const std::string& path, absl::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (file) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(path, ": cannot be written"));
}

RawTensor MakeTensor(std::string name, std::vector<int64_t> shape, DType dtype,
                     std::span<const float> values) {
  RawTensor tensor;
  tensor.name = std::move(name);
  tensor.dtype = LayoutOf(dtype).name;
  tensor.shape = std::move(shape);
  tensor.bytes.reserve(values.size() * LayoutOf(dtype).bytes);
  for (const float value : values) {
    if (dtype == DType::kF32) AppendRaw(value, &tensor.bytes);
    if (dtype == DType::kF16) AppendRaw(kernels::F32ToF16(value), &tensor.bytes);
    if (dtype == DType::kBF16) AppendRaw(kernels::F32ToBf16(value), &tensor.bytes);
  }
  return tensor;
}

std::string WriteSafetensors(std::span<const RawTensor> tensors) {
  std::string header = R"({"__metadata__":{"format":"pt"})", data;
  for (const RawTensor& tensor : tensors) {
    absl::StrAppend(&header, ",", JsonString(tensor.name), R"(:{"dtype":)",
                    JsonString(tensor.dtype), R"(,"shape":[)", absl::StrJoin(tensor.shape, ","),
                    R"(],"data_offsets":[)", data.size(), ",", data.size() + tensor.bytes.size(),
                    "]}");
    data += tensor.bytes;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return WriteSafetensors(header, data);
}

std::string WriteSafetensors(absl::string_view header, absl::string_view data) {
  std::string out;
  AppendRaw(uint64_t{header.size()}, &out);
  absl::StrAppend(&out, header, data);
  return out;
}

ModelConfig TinyConfig() {
  ModelConfig config;
  config.name = "tiny";
  config.vocab_size = 11;
  config.bos_token_id = 0;
  config.hidden_size = 8;
  config.num_layers = 2;
  config.num_heads = 2;
  config.key_dim = 4;
  config.value_dim = 4;
  config.ffn_size = 12;
  config.encoder().final_norm = true;
  return config;
}

FeatureMapConfig MakeFeatureMap(FeatureMapKind kind, int n_dims, float softmax_temp,
                                float smoothing) {
  FeatureMapConfig map;
  map.kind = kind;
  if (kind == FeatureMapKind::kElu) return map;
  map.n_dims = n_dims;
  map.columns = n_dims;
  if (kind == FeatureMapKind::kRfa) return map;
  map.softmax_temp = softmax_temp;
  if (kind == FeatureMapKind::kSmoothedRandomFourier) {
    map.smoothing = smoothing;
    map.columns = (n_dims - 1) / 2;
  } else if (kind != FeatureMapKind::kGeneralizedRandomRelu) {
    map.columns = n_dims / 2;
  }
  return map;
}

namespace {

std::string AttentionJson(const EncoderConfig& config) {
  if (config.softmax) {
    const std::string window =
        config.window == 0 ? "" : absl::StrCat(R"(,"window":)", config.window);
    return absl::StrCat(R"({"type":"softmax")", window, "}");
  }
  return absl::StrCat(
      R"({"feature_map":)", FeatureMapJson(config.feature_map), R"(,"gate":")",
      config.gate == Gate::kRfa ? "rfa" : "none", R"(","normalizer":{"type":")",
      config.normalizer == Normalizer::kAddEps ? R"(add_eps","eps":)" : R"(clamp_min","min":)",
      JsonFloat(config.normalizer_value), "}}");
}

}  // namespace

std::string ConfigJson(const ModelConfig& config) {
  return absl::StrCat(
      R"({"format":"rivulet-model","format_version":1,"name":)", JsonString(config.name),
      R"(,"vocab_size":)", config.vocab_size, R"(,"bos_token_id":)", JsonId(config.bos_token_id),
      R"(,"eos_token_id":)", JsonId(config.eos_token_id), R"(,"hidden_size":)", config.hidden_size,
      R"(,"num_layers":)", config.num_layers, R"(,"num_heads":)", config.num_heads,
      R"(,"key_dim":)", config.key_dim, R"(,"value_dim":)", config.value_dim, R"(,"ffn_size":)",
      config.ffn_size, R"(,"activation":")",
      config.encoder().activation == Activation::kRelu ? "relu" : "gelu", R"(","layer_norm_eps":)",
      JsonFloat(config.norm_eps), R"(,"final_norm":)",
      config.encoder().final_norm ? "true" : "false", R"(,"position":)", PositionJson(config),
      R"(,"attention":)", AttentionJson(config.encoder()), R"(,"output":)", OutputJson(config),
      R"(,"content":)", ContentJson(config.content), "}");
}

std::vector<RawTensor> RandomTensors(const ModelConfig& config, uint64_t seed, DType dtype) {
  Uniform uniform(seed);
  std::vector<RawTensor> tensors;
  for (const TensorSpec& spec : ExpectedTensors(config)) {
    int64_t count = 1;
    for (const int64_t extent : spec.shape) count *= extent;
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = Weight(spec, uniform());
    tensors.push_back(MakeTensor(spec.name, spec.shape, dtype, values));
  }
  return tensors;
}

absl::Status WriteRandomModel(const std::string& directory, const ModelConfig& config,
                              uint64_t seed, DType dtype) {
  std::error_code ignored;
  std::filesystem::create_directories(directory, ignored);
  const absl::Status status = WriteFile(directory + "/config.json", ConfigJson(config));
  if (!status.ok()) return status;
  return WriteFile(directory + "/model.safetensors",
                   WriteSafetensors(RandomTensors(config, seed, dtype)));
}

}  // namespace rivulet::testing
