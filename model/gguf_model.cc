// SPDX-License-Identifier: Apache-2.0
#include "model/gguf_model.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "model/base/error.h"
#include "model/base/file.h"
#include "model/base/strict_json.h"
#include "model/gguf_settings.h"
#include "model/model_name.h"

namespace rivulet {
namespace {

constexpr int64_t kMaxParts = 1024;
constexpr char kSuffix[] = ".gguf";

using Shape = std::vector<int64_t>;

// llama.cpp's group norm has this epsilon whatever the file says; ours is head_dim * norm_eps, as
// in the checkpoint. Both are equal for all published models.
constexpr float kGroupNormEps = 64e-5f;

absl::StatusOr<std::string> Rwkv7Settings(GgufSettings* settings, const GgufTensors&,
                                          GgufSizes* sizes) {
  int64_t inside = 0, head = 0;
  float eps = 0;
  RIVULET_RETURN_IF_ERROR(settings->Int("feed_forward_length", 1, kMostGgufSize, &inside));
  RIVULET_RETURN_IF_ERROR(settings->Int("wkv.head_size", 1, kMostGgufSize, &head));
  RIVULET_RETURN_IF_ERROR(settings->Positive("attention.layer_norm_epsilon", &eps));
  RIVULET_RETURN_IF_ERROR(settings->Only("attention.head_count", 0));
  RIVULET_RETURN_IF_ERROR(settings->Only("token_shift_count", 2));
  // The ranks come from the tensors.
  settings->Known({"attention.decay_lora_rank", "attention.iclr_lora_rank",
                   "attention.value_residual_mix_lora_rank", "attention.gate_lora_rank"});
  if (sizes->hidden % head != 0) {
    return settings->Invalid("wkv.head_size",
                             absl::StrCat("is ", head, "; the embedding_length, ", sizes->hidden,
                                          ", does not divide by it"));
  }
  if (std::fabs(static_cast<float>(head) * eps / kGroupNormEps - 1) > 1e-3f) {
    return settings->Unsupported(
        "attention.layer_norm_epsilon",
        absl::StrCat("is ", eps, " for heads of ", head,
                     ": llama.cpp's group norm, whose epsilon is always 64e-5, would not be the "
                     "checkpoint's"));
  }
  sizes->heads = sizes->hidden / head;
  return absl::StrFormat(
      R"("intermediate_size": %d, "head_dim": %d, "norm_eps": %.9g, "norm_first": true, )"
      R"("norm_bias": true, "hidden_act": "sqrelu", )",
      inside, head, eps);
}

absl::StatusOr<std::string> Mamba2Settings(GgufSettings* settings, const GgufTensors& tensors,
                                           GgufSizes* sizes) {
  GgufSsm ssm;
  float eps = 0;
  RIVULET_RETURN_IF_ERROR(ReadGgufSsm(settings, &ssm));
  RIVULET_RETURN_IF_ERROR(settings->Positive("attention.layer_norm_rms_epsilon", &eps));
  RIVULET_RETURN_IF_ERROR(settings->Only("attention.head_count", 0));
  settings->Known({"feed_forward_length"});
  // So that hidden_size * expand, rounded down, is the inner size.
  const double expand = GgufShare(ssm.inner, sizes->hidden);
  const bool conv_bias = tensors.contains("blk.0.ssm_conv1d.bias");
  return absl::StrFormat(
      R"("num_heads": %d, "head_dim": %d, "state_size": %d, "n_groups": %d, "conv_kernel": %d, )"
      R"("expand": %.17g, "layer_norm_epsilon": %.9g, "use_conv_bias": %s, "use_bias": false, )",
      ssm.heads, ssm.inner / ssm.heads, ssm.state, ssm.groups, ssm.width, expand, eps,
      conv_bias ? "true" : "false");
}

constexpr GgufTensorName kRwkv7Outside[] = {
    {"token_embd.weight", "model.embeddings.weight"},
    {"token_embd_norm.weight", "model.layers.0.pre_norm.weight"},
    {"token_embd_norm.bias", "model.layers.0.pre_norm.bias"},
    {"output_norm.weight", "model.norm.weight"},
    {"output_norm.bias", "model.norm.bias"},
    {"output.weight", "lm_head.weight"},
};
constexpr GgufTensorName kRwkv7Inside[] = {
    {"attn_norm.weight", "attn_norm.weight"},
    {"attn_norm.bias", "attn_norm.bias"},
    {"attn_norm_2.weight", "ffn_norm.weight"},
    {"attn_norm_2.bias", "ffn_norm.bias"},
    {"time_mix_lerp_fused.weight", "attn.x_x"},
    {"time_mix_receptance.weight", "attn.r_proj.weight"},
    {"time_mix_key.weight", "attn.k_proj.weight"},
    {"time_mix_value.weight", "attn.v_proj.weight"},
    {"time_mix_output.weight", "attn.o_proj.weight"},
    {"time_mix_w0.weight", "attn.w_lora.lora.2.bias"},
    {"time_mix_w1.weight", "attn.w_lora.lora.0.weight"},
    {"time_mix_w2.weight", "attn.w_lora.lora.2.weight"},
    {"time_mix_a0.weight", "attn.a_lora.lora.2.bias"},
    {"time_mix_a1.weight", "attn.a_lora.lora.0.weight"},
    {"time_mix_a2.weight", "attn.a_lora.lora.2.weight"},
    {"time_mix_v0.weight", "attn.v_lora.lora.2.bias"},
    {"time_mix_v1.weight", "attn.v_lora.lora.0.weight"},
    {"time_mix_v2.weight", "attn.v_lora.lora.2.weight"},
    {"time_mix_g1.weight", "attn.g_lora.lora.0.weight"},
    {"time_mix_g2.weight", "attn.g_lora.lora.2.weight"},
    {"time_mix_k_k.weight", "attn.k_k"},
    {"time_mix_k_a.weight", "attn.k_a"},
    {"time_mix_r_k.weight", "attn.r_k"},
    {"time_mix_ln.weight", "attn.g_norm.weight"},
    {"time_mix_ln.bias", "attn.g_norm.bias"},
    {"channel_mix_lerp_k.weight", "ffn.x_k"},
    {"channel_mix_key.weight", "ffn.key.weight"},
    {"channel_mix_value.weight", "ffn.value.weight"},
};
constexpr GgufTensorName kMamba2Outside[] = {
    {"token_embd.weight", "backbone.embeddings.weight"},
    {"output_norm.weight", "backbone.norm_f.weight"},
    {"output.weight", "lm_head.weight"},
};
constexpr GgufTensorName kMamba2Inside[] = {{"attn_norm.weight", "norm.weight"}};

constexpr GgufArchitecture kOthers[] = {
    {"rwkv7", "rwkv7", Rwkv7Settings, "model.layers.", {kRwkv7Outside, kRwkv7Inside}},
    {"mamba2",
     "mamba2",
     Mamba2Settings,
     "backbone.layers.",
     {kMamba2Outside, kMamba2Inside, kGgufMamba},
     "mixer."},
};

std::vector<const GgufArchitecture*> Architectures() {
  std::vector<const GgufArchitecture*> all;
  for (const GgufArchitecture& architecture : kOthers) all.push_back(&architecture);
  for (const GgufArchitecture& architecture : GgufHybrids()) all.push_back(&architecture);
  return all;
}

// Reads the architecture, and the settings of every architecture.
absl::StatusOr<const GgufArchitecture*> ArchitectureOf(const GgufMetadata& metadata) {
  const auto text = [&](const char* key) -> std::optional<std::string> {
    const auto found = metadata.find(key);
    return found == metadata.end() ? std::nullopt : found->second.Text();
  };
  const std::optional<std::string> name = text("general.architecture");
  if (!name) {
    return InvalidField("INVALID_CONFIG", "general.architecture",
                        "general.architecture is missing, or no text");
  }
  const std::string type = text("general.type").value_or("model");
  if (type != "model") {
    return InvalidField("UNSUPPORTED_MODEL", "general.type",
                        absl::StrCat("general.type is ", Quoted(type), "; supported: \"model\""));
  }
  const auto version = metadata.find("general.quantization_version");
  if (version != metadata.end() && version->second.Integer() != 2) {
    return InvalidField("UNSUPPORTED_MODEL", "general.quantization_version",
                        absl::StrCat("general.quantization_version is ", version->second.Describe(),
                                     "; supported: 2"));
  }
  for (const GgufArchitecture* const architecture : Architectures()) {
    if (architecture->name == *name) return architecture;
  }
  return InvalidField("FOREIGN_CHECKPOINT", "model",
                      absl::StrCat("this is a GGUF file of the architecture ", Quoted(*name),
                                   "; served from GGUF: ", GgufArchitectures(),
                                   "; docs/models.md lists what is served"));
}

// N of "blk.N.", which is removed from *name; nullopt if there is no N below `blocks`.
std::optional<int64_t> TakeLayer(absl::string_view* name, int64_t blocks) {
  if (!absl::ConsumePrefix(name, "blk.")) return std::nullopt;
  const absl::string_view digits = name->substr(0, name->find('.'));
  int64_t layer = 0;
  if (!absl::SimpleAtoi(digits, &layer) || absl::StrCat(layer) != digits || layer < 0 ||
      layer >= blocks || digits.size() == name->size()) {
    return std::nullopt;
  }
  name->remove_prefix(digits.size() + 1);
  return layer;
}

// Our name of the tensor `gguf`; nullopt if the architecture has no such tensor.
std::optional<std::string> OurName(const GgufArchitecture& architecture, const GgufSizes& sizes,
                                   absl::string_view gguf) {
  const std::optional<int64_t> layer = TakeLayer(&gguf, sizes.blocks);
  if (layer && *layer >= sizes.layers) return absl::StrCat("mtp.", *layer, ".", gguf);
  const auto tables = std::span(architecture.names);
  for (const auto table : layer ? tables.subspan(1) : tables.first(1)) {
    for (const GgufTensorName& name : table) {
      if (name.gguf != gguf) continue;
      absl::string_view own = name.ours;
      std::string ours = layer ? absl::StrCat(architecture.layer_prefix, *layer, ".") : "";
      if (architecture.mixer != nullptr &&
          (absl::ConsumePrefix(&own, "mamba.") || absl::ConsumePrefix(&own, "self_attn."))) {
        ours += architecture.mixer;
      }
      absl::StrAppend(&ours, own);
      if (ours.back() != '#') return ours;
      ours.pop_back();
      return absl::StrCat(ours, sizes.ffn);
    }
  }
  return std::nullopt;
}

// Layer 0 of RWKV-7 has no value residual; the converter writes copies of other tensors in its
// place.
bool IsDummy(absl::string_view ours) {
  return absl::StartsWith(ours, "model.layers.0.attn.v_lora.");
}

// The converter flattens r_k, and gives each group of Mamba-2's norm a row.
Shape OurShape(absl::string_view gguf, const Shape& shape, const GgufSizes& sizes) {
  int64_t elements = 1;
  for (const int64_t extent : shape) elements *= extent;
  if (absl::EndsWith(gguf, ".ssm_norm.weight")) return {elements};
  if (absl::EndsWith(gguf, ".time_mix_r_k.weight") && elements == sizes.hidden) {
    return {sizes.heads, sizes.hidden / sizes.heads};
  }
  return shape;
}

// Files.

struct Part {
  std::string path, shown;  // shown: for messages
  std::unique_ptr<WeightsFile> file;
  GgufMetadata metadata;
};

absl::StatusOr<Part> OpenPart(const std::string& path, GgufMetadataCheck check) {
  Part part;
  part.path = path;
  part.shown = absl::Utf8SafeCHexEscape(path);
  auto file = WeightsFile::OpenGguf(path, check, &part.metadata);
  if (!file.ok()) return Annotate(file.status(), part.shown);
  part.file = *std::move(file);
  return part;
}

absl::Status BadParts(const Part& part, absl::string_view what) {
  return Annotate(CorruptWeights(what), part.shown);
}

// `split.NAME`, or `missing`.
int64_t SplitKey(const Part& part, const char* name, int64_t missing) {
  const auto found = part.metadata.find(absl::StrCat("split.", name));
  if (found == part.metadata.end()) return missing;
  return found->second.Integer().value_or(-1);
}

std::string PartSuffix(int64_t number, int64_t count) {
  return absl::StrFormat("-%05d-of-%05d%s", number, count, kSuffix);
}

// Opens the file and, if it is the first of several parts, the other parts.
absl::StatusOr<std::vector<Part>> OpenParts(const std::string& path) {
  std::vector<Part> parts(1);
  // Checks the architecture first: errors about tensors matter only if it is supported.
  const auto check = [](const GgufMetadata& metadata) { return ArchitectureOf(metadata).status(); };
  RIVULET_ASSIGN_OR_RETURN(parts[0], OpenPart(path, check));
  const int64_t count = SplitKey(parts[0], "count", 1), number = SplitKey(parts[0], "no", 0);
  const int64_t tensors = SplitKey(parts[0], "tensors.count", -1);
  if (count == 0 || count == 1) return parts;
  if (count < 0 || count > kMaxParts) {
    return BadParts(parts[0],
                    absl::StrCat("split.count is ", count, "; allowed: 1 to ", kMaxParts));
  }
  if (number < 0 || number >= count) {
    return BadParts(parts[0], absl::StrCat("split.no is ", number, "; allowed: 0 to ", count - 1));
  }
  absl::string_view stem = path;
  if (number != 0 || !absl::ConsumeSuffix(&stem, PartSuffix(1, count))) {
    return Annotate(InvalidField("INVALID_CONFIG", "model",
                                 absl::StrCat("this is part ", number + 1, " of ", count,
                                              "; --model takes the first, which is called NAME",
                                              PartSuffix(1, count))),
                    parts[0].shown);
  }
  size_t found = parts[0].file->tensors().size();
  for (int64_t i = 1; i < count; ++i) {
    RIVULET_ASSIGN_OR_RETURN(Part part,
                             OpenPart(absl::StrCat(stem, PartSuffix(i + 1, count)),
                                      [](const GgufMetadata&) { return absl::OkStatus(); }));
    if (SplitKey(part, "no", -1) != i || SplitKey(part, "count", -1) != count) {
      return BadParts(part, absl::StrCat("split.no and split.count do not say part ", i + 1, " of ",
                                         count, " (they count from 0)"));
    }
    if (SplitKey(part, "tensors.count", tensors) != tensors) {
      return BadParts(part, "split.tensors.count differs from that of the first part");
    }
    found += part.file->tensors().size();
    part.metadata.clear();  // only the first part's metadata is used
    parts.push_back(std::move(part));
  }
  if (tensors >= 0 && static_cast<size_t>(tensors) != found) {
    return BadParts(parts[0], absl::StrCat("split.tensors.count is ", tensors,
                                           ", but the parts hold ", found, " tensors"));
  }
  return parts;
}

absl::StatusOr<GgufTensors> TensorsOf(const std::vector<Part>& parts) {
  GgufTensors all;
  for (const Part& part : parts) {
    for (const auto& [name, entry] : part.file->tensors()) {
      if (all.emplace(name, entry).second) continue;
      return BadParts(part, absl::StrCat("tensor ", Quoted(name), " is in another part too"));
    }
  }
  return all;
}

// Letters, digits, '.', '_' and '-', which need no escape in config.json; '-' for other characters.
std::string PlainName(absl::string_view text) {
  std::string plain;
  for (const char c : text.substr(0, 96)) {
    const bool fits = absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_';
    plain += fits ? c : '-';
  }
  return plain;
}

absl::StatusOr<std::string> ConfigOf(const GgufArchitecture& architecture,
                                     const GgufMetadata& metadata, const GgufTensors& tensors,
                                     GgufSizes* sizes) {
  GgufSettings settings(metadata, architecture.name);
  RIVULET_RETURN_IF_ERROR(settings.Int("embedding_length", 1, kMostGgufSize, &sizes->hidden));
  RIVULET_RETURN_IF_ERROR(settings.Int("block_count", 1, 4096, &sizes->blocks));
  sizes->layers = sizes->blocks;
  settings.Known({"context_length", "vocab_size"});
  RIVULET_ASSIGN_OR_RETURN(const std::string own, architecture.settings(&settings, tensors, sizes));
  RIVULET_RETURN_IF_ERROR(settings.CheckNoOthers());
  // The list of tokens may be longer, because it is padded.
  const auto embedding = tensors.find("token_embd.weight");
  if (embedding == tensors.end() || embedding->second.shape.size() != 2 ||
      embedding->second.shape[0] > kMostGgufSize) {
    return CorruptWeights("tensor \"token_embd.weight\" is missing, or no table of tokens");
  }
  const auto name = metadata.find("general.name");
  return absl::StrFormat(
      R"({"model_type": "%s", "hidden_size": %d, "num_hidden_layers": %d, "vocab_size": %d, )"
      R"(%s"tie_word_embeddings": %s, "_name_or_path": "%s"})",
      architecture.model_type, sizes->hidden, sizes->layers, embedding->second.shape[0], own,
      tensors.contains("output.weight") ? "false" : "true",
      name == metadata.end() ? "" : PlainName(name->second.Text().value_or("")));
}

absl::StatusOr<GgufModel> Assemble(std::vector<Part> parts, const GgufTensors& tensors) {
  RIVULET_ASSIGN_OR_RETURN(const GgufArchitecture* architecture, ArchitectureOf(parts[0].metadata));
  GgufModel model;
  GgufSizes sizes;
  RIVULET_ASSIGN_OR_RETURN(model.config,
                           ConfigOf(*architecture, parts[0].metadata, tensors, &sizes));
  using Presented = CheckpointTensors::Presented;
  std::map<std::string, Presented> presented;
  for (const auto& [name, entry] : tensors) {
    const std::optional<std::string> ours = OurName(*architecture, sizes, name);
    if (!ours) {
      return CorruptWeights(absl::StrCat("tensor ", Quoted(name), ": ", architecture->name, " of ",
                                         sizes.layers, " layers has no such tensor"));
    }
    if (IsDummy(*ours)) continue;
    if (!presented.emplace(*ours, Presented{name, OurShape(name, entry.shape, sizes)}).second) {
      return CorruptWeights(absl::StrCat("tensor ", Quoted(name), ": the file has it twice, under ",
                                         "another name, too"));
    }
  }
  model.metadata = std::move(parts[0].metadata);
  CheckpointTensors::GgufFiles files;
  for (Part& part : parts) files.emplace_back(part.shown, std::move(part.file));
  model.tensors = CheckpointTensors::OfGguf(std::move(files), presented);
  return model;
}

}  // namespace

bool IsGgufFile(const std::string& path) {
  struct stat info = {};
  const auto fd = OpenRegularFile(path, absl::StatusCode::kInvalidArgument, &info);
  if (!fd.ok()) return false;
  char magic[4] = {};
  const ssize_t got = pread(*fd, magic, sizeof(magic), 0);
  close(*fd);
  return got == 4 && absl::string_view(magic, 4) == "GGUF";
}

std::string GgufStem(absl::string_view path) {
  std::string stem = std::filesystem::path(std::string(path)).filename().string();
  if (!absl::EndsWith(stem, kSuffix)) return stem;
  stem.resize(stem.size() - (sizeof(kSuffix) - 1));
  constexpr size_t kPart = 15;  // -00001-of-00002
  if (stem.size() > kPart && stem[stem.size() - kPart] == '-' &&
      stem.substr(stem.size() - kPart + 6, 4) == "-of-") {
    int64_t number = 0, count = 0;
    const absl::string_view part = absl::string_view(stem).substr(stem.size() - kPart);
    if (absl::SimpleAtoi(part.substr(1, 5), &number) && absl::SimpleAtoi(part.substr(10), &count)) {
      stem.resize(stem.size() - kPart);
    }
  }
  return stem;
}

std::string FindGgufFile(const std::string& directory, absl::string_view name) {
  std::string first;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string path = entry->path().string();
    if (!absl::EndsWith(path, kSuffix) || NameOfPath(GgufStem(path)) != name) continue;
    if (first.empty() || path < first) first = path;
  }
  return first;
}

std::string GgufArchitectures() {
  std::vector<std::string> names;
  for (const GgufArchitecture* const architecture : Architectures()) {
    names.emplace_back(architecture->name);
  }
  return absl::StrJoin(names, ", ");
}

absl::StatusOr<GgufModel> OpenGgufModel(const std::string& path) {
  RIVULET_ASSIGN_OR_RETURN(std::vector<Part> parts, OpenParts(path));
  RIVULET_ASSIGN_OR_RETURN(const GgufTensors tensors, TensorsOf(parts));
  absl::StatusOr<GgufModel> model = Assemble(std::move(parts), tensors);
  if (model.ok()) return model;
  return Annotate(model.status(), absl::Utf8SafeCHexEscape(path));
}

}  // namespace rivulet
