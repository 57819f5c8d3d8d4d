// SPDX-License-Identifier: Apache-2.0
#include "model/weights/foreign_checkpoint.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "model/base/file.h"
#include "model/base/strict_json.h"
#include "model/weights/weights_file.h"

namespace rivulet {
namespace {

constexpr size_t kMaxForeignIndexBytes = size_t{16} << 20;
constexpr char kFla[] = "flash-linear-attention", kTransformers[] = "transformers";

// A family has all tensors of `has` and none of `lacks`; "*" stands for the layer's number.
struct Family {
  const char* name;
  const char* library;
  std::vector<const char*> has;
  std::vector<const char*> lacks = {};
  bool served = false;
};

const std::vector<Family>& Families() {
  static const auto* const families = new std::vector<Family>{
      {"GLA", kFla, {"model.layers.*.attn.gk_proj.0.weight"}, {}, true},
      {"KDA", kFla, {"model.layers.*.attn.f_proj.0.weight", "model.layers.*.attn.A_log"}, {}, true},
      {"GatedDeltaNet",
       kFla,
       {"model.layers.*.attn.a_proj.weight", "model.layers.*.attn.A_log"},
       {},
       true},
      {"DeltaNet",
       kFla,
       {"model.layers.*.attn.b_proj.weight", "model.layers.*.attn.q_proj.weight"},
       {"model.layers.*.attn.A_log"},
       true},
      {"HGRN2",
       kFla,
       {"model.layers.*.attn.f_proj.weight", "model.layers.*.attn.i_proj.weight"},
       {},
       true},
      {"RetNet",
       kFla,
       {"model.layers.*.attn.g_norm.weight", "model.layers.*.attn.g_proj.weight",
        "model.layers.*.attn.q_proj.weight"},
       {"model.layers.*.attn.gk_proj.0.weight", "model.layers.*.attn.A_log"},
       true},
      {"RWKV-7", kFla, {"model.layers.*.attn.r_k", "model.layers.*.attn.x_r"}, {}, true},
      {"RWKV-7", "RWKV-LM", {"blocks.*.att.r_k", "blocks.*.att.x_r"}},
      {"RWKV", "RWKV-LM", {"blocks.*.att.time_decay"}},
      {"RWKV", kTransformers, {"rwkv.blocks.*.attention.time_decay"}},
      {"Mamba-2",
       kTransformers,
       {"backbone.layers.*.mixer.A_log", "backbone.layers.*.mixer.dt_bias"},
       {},
       true},
      {"MoLFormer",
       kTransformers,
       {"molformer.encoder.layer.*.attention.self.query.weight"},
       {},
       true},
      {"Mamba",
       kTransformers,
       {"backbone.layers.*.mixer.A_log", "backbone.layers.*.mixer.x_proj.weight"}},
      {"GatedDeltaNet", kTransformers, {"model.layers.*.linear_attn.A_log"}},
      {"softmax transformer", kTransformers, {"model.layers.*.self_attn.q_proj.weight"}},
  };
  return *families;
}

// "model.layers.*.attn.f_proj.0.weight" of "model.layers.7.attn.f_proj.0.weight".
std::string WithoutLayer(absl::string_view name) {
  std::vector<absl::string_view> parts = absl::StrSplit(name, '.');
  for (absl::string_view& part : parts) {
    if (part.empty() || part.find_first_not_of("0123456789") != part.npos) continue;
    part = "*";
    break;
  }
  return absl::StrJoin(parts, ".");
}

std::vector<std::string> NamesOfIndex(const std::string& path) {
  std::vector<std::string> names;
  const auto text = ReadSmallFile(path, kMaxForeignIndexBytes);
  if (!text.ok()) return names;
  const auto on_member = [&names](const std::string& key, const JsonValue& value) {
    if (key == "weight_map") names = value.keys;
    return absl::OkStatus();
  };
  const JsonLimits limits{.max_values = size_t{1} << 20};
  if (!ParseStrictJsonMembers(*text, limits, on_member).ok()) names.clear();
  return names;
}

}  // namespace

std::optional<ForeignCheckpoint> RecognizeCheckpoint(std::span<const std::string> tensor_names) {
  std::map<std::string, absl::string_view, std::less<>> known;  // by name without the layer
  for (const std::string& name : tensor_names) known.emplace(WithoutLayer(name), name);
  const auto is_there = [&known](const char* name) { return known.find(name) != known.end(); };
  for (const Family& family : Families()) {
    if (!std::all_of(family.has.begin(), family.has.end(), is_there)) continue;
    if (std::any_of(family.lacks.begin(), family.lacks.end(), is_there)) continue;
    return ForeignCheckpoint{family.name, family.library,
                             std::string(known.find(family.has.front())->second), family.served};
  }
  return std::nullopt;
}

std::optional<ForeignCheckpoint> RecognizeCheckpointIn(const std::string& directory) {
  auto names = WeightsFile::TensorNames(directory + "/model.safetensors");
  return RecognizeCheckpoint(
      names.ok() ? *std::move(names) : NamesOfIndex(directory + "/model.safetensors.index.json"));
}

}  // namespace rivulet
