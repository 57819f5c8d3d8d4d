// SPDX-License-Identifier: Apache-2.0
// The settings of an architecture of GGUF, and the description of an architecture that is served:
// how its settings become a config.json, and the names of its tensors here.
// Tested by: tests/unit/model/gguf_model_test.cc
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/weights/gguf_header.h"
#include "model/weights/safetensors_header.h"

namespace rivulet {

inline constexpr int64_t kMostGgufSize = int64_t{1} << 24;  // as in block_settings.cc

// Reads the keys of one architecture, and records which keys were read. A getter that has a
// `fallback` sets it if the key is missing. Errors name the key: INVALID_ARGUMENT.
class GgufSettings {
 public:
  GgufSettings(const GgufMetadata& metadata, std::string architecture)
      : metadata_(metadata), architecture_(std::move(architecture)) {}

  // Null if it is missing.
  const GgufValue* Find(absl::string_view key);
  // Keys that have no effect.
  void Known(std::initializer_list<absl::string_view> keys) {
    for (const absl::string_view key : keys) Find(key);
  }
  absl::Status Int(absl::string_view key, int64_t low, int64_t high, int64_t* out,
                   std::optional<int64_t> fallback = std::nullopt);
  // A number above 0 that float32 can hold.
  absl::Status Positive(absl::string_view key, float* out,
                        std::optional<float> fallback = std::nullopt);
  absl::Status Bool(absl::string_view key, bool* out, bool fallback);
  // An array with a size, 0 allowed, for each of `layers` layers, or one size for all.
  absl::Status PerLayer(absl::string_view key, int64_t layers, std::vector<int64_t>* out);
  absl::Status PerLayer(absl::string_view key, int64_t layers, std::vector<bool>* out);
  // A key that may be missing but, if present, has this value.
  absl::Status Only(absl::string_view key, int64_t only);
  // An error for the first key of the architecture that was not read.
  absl::Status CheckNoOthers() const;

  absl::Status Invalid(absl::string_view key, absl::string_view what) const {
    return About("INVALID_CONFIG", key, what);
  }
  absl::Status Unsupported(absl::string_view key, absl::string_view what) const {
    return About("UNSUPPORTED_MODEL", key, what);
  }

 private:
  absl::Status About(absl::string_view reason, absl::string_view key, absl::string_view what) const;

  const GgufMetadata& metadata_;
  const std::string architecture_;
  std::map<std::string, bool, std::less<>> known_;
};

// Mamba-2, or what stands in its keys: `heads` divide `inner`.
struct GgufSsm {
  int64_t inner = 0, heads = 0, groups = 0, state = 0, width = 0;
};
absl::Status ReadGgufSsm(GgufSettings* settings, GgufSsm* ssm);

// The least share of which floor(of * share) is `n`.
double GgufShare(int64_t n, int64_t of);

using GgufTensors = std::map<std::string, TensorEntry, std::less<>>;  // of all parts

struct GgufSizes {
  int64_t hidden = 0, layers = 0, heads = 0;
  int64_t blocks = 0;  // layers, and behind them those of multi-token prediction
  int64_t ffn = 0;     // of hybrids
};

// The name of a tensor in GGUF and in our checkpoints. Names in a layer are without "blk.N." and
// without the layer's prefix. "#" at the end of our name stands for GgufSizes::ffn.
struct GgufTensorName {
  const char* gguf;
  const char* ours;
};

struct GgufArchitecture {
  const char* name;
  const char* model_type;  // of the checkpoint as which it is presented
  // The members of config.json beside the common ones, each with a comma behind it.
  absl::StatusOr<std::string> (*settings)(GgufSettings*, const GgufTensors&, GgufSizes*);
  const char* layer_prefix;
  // First of the tensors outside layers; then of those in layers.
  std::span<const GgufTensorName> names[4];
  const char* mixer = nullptr;  // in the place of "mamba." and "self_attn."; null: these
};

// Of Mamba-2.
inline constexpr GgufTensorName kGgufMamba[] = {
    {"ssm_in.weight", "mamba.in_proj.weight"}, {"ssm_conv1d.weight", "mamba.conv1d.weight"},
    {"ssm_conv1d.bias", "mamba.conv1d.bias"},  {"ssm_dt.bias", "mamba.dt_bias"},
    {"ssm_a", "mamba.minus_exp_A_log"},        {"ssm_d", "mamba.D"},
    {"ssm_norm.weight", "mamba.norm.weight"},  {"ssm_out.weight", "mamba.out_proj.weight"},
};

// Of hybrids (gguf_hybrids.cc).
std::span<const GgufArchitecture> GgufHybrids();

}  // namespace rivulet
