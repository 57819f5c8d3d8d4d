// SPDX-License-Identifier: Apache-2.0
#include "model/foreign_model.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/base/error.h"
#include "model/base/file.h"
#include "model/base/strict_json.h"
#include "model/block_settings.h"
#include "model/weights/foreign_checkpoint.h"
#include "model/weights/weights_file.h"

namespace rivulet {
namespace {

constexpr char kSavePretrained[] =
    "a model of transformers or flash-linear-attention becomes a model directory by "
    "save_pretrained(DIR)";
constexpr char kConvert[] =
    "rivulet-convert FILE DIR makes a model directory of RWKV-7 as its author publishes it (.pth), "
    "or of pytorch-fast-transformers";

// `to_do`: "" if nothing helps.
absl::Status Foreign(absl::string_view where, absl::string_view what, absl::string_view to_do) {
  return MakeError(absl::StatusCode::kInvalidArgument,
                   absl::StrCat(where, ": ", what, to_do.empty() ? "" : "; ", to_do,
                                "; docs/models.md lists what is served"),
                   {"FOREIGN_CHECKPOINT", "model", {}});
}

// Files.

struct FileKind {
  std::string what;   // "a GGUF file"
  std::string to_do;  // a clause
};

// The first bytes of a regular file; "" if it is not one or cannot be read.
std::string Beginning(const std::string& path) {
  struct stat info = {};
  const auto fd = OpenRegularFile(path, absl::StatusCode::kInvalidArgument, &info);
  if (!fd.ok()) return "";
  std::string bytes(128, '\0');
  const ssize_t got = pread(*fd, bytes.data(), bytes.size(), 0);
  close(*fd);
  bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return bytes;
}

// torch.save writes a zip archive whose first entry is NAME/data.pkl; old versions write a pickle.
bool IsOfTorch(const std::string& path, absl::string_view bytes) {
  constexpr size_t kEntryName = 30;  // in a zip archive
  const bool is_zip = absl::StartsWith(bytes, "PK\3\4");
  if (is_zip && absl::StrContains(bytes.substr(std::min(bytes.size(), kEntryName)), "/data.pkl")) {
    return true;
  }
  constexpr std::array kSuffixes = {".pth", ".pt", ".bin", ".ckpt"};
  return (is_zip || absl::StartsWith(bytes, "\x80")) &&
         std::any_of(kSuffixes.begin(), kSuffixes.end(),
                     [&path](const char* suffix) { return absl::EndsWith(path, suffix); });
}

std::optional<FileKind> KindOfFile(const std::string& path) {
  const std::string bytes = Beginning(path);
  if (absl::StartsWith(bytes, "version https://git-lfs")) {
    return FileKind{"a pointer of Git LFS", "\"git lfs pull\" fetches the file"};
  }
  if (absl::StartsWith(bytes, "GGUF")) {
    return FileKind{"a GGUF file", "--model takes the file itself, of several parts the first"};
  }
  if (IsOfTorch(path, bytes)) {
    return FileKind{"a PyTorch checkpoint, which is not read, as it can hold code",
                    absl::StrCat(kConvert, ", and ", kSavePretrained)};
  }
  const auto names = WeightsFile::TensorNames(path);
  if (!names.ok()) return std::nullopt;
  const std::optional<ForeignCheckpoint> known = RecognizeCheckpoint(*names);
  return FileKind{
      absl::StrCat(
          "a safetensors file",
          known ? absl::StrCat(" of a ", known->family, " checkpoint of ", known->library) : ""),
      absl::StrCat("--model takes the directory that holds it and its config.json: ",
                   kSavePretrained)};
}

struct NamedFile {
  std::string name;
  FileKind kind;
};

// The first file of `directory`, by name, that is of another program.
std::optional<NamedFile> ForeignFileIn(const std::string& directory) {
  constexpr size_t kMost = 64;  // files that are opened
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  names.resize(std::min(names.size(), kMost));
  for (std::string& name : names) {
    std::optional<FileKind> kind = KindOfFile(absl::StrCat(directory, "/", name));
    if (kind) return NamedFile{std::move(name), *std::move(kind)};
  }
  return std::nullopt;
}

// config.json.

// The settings in config.json; nullopt if they are missing or cannot be read.
std::optional<JsonValue> SettingsIn(const std::string& directory) {
  constexpr size_t kMost = size_t{1} << 20;
  const auto text = ReadSmallFile(directory + "/config.json", kMost);
  if (!text.ok()) return std::nullopt;
  absl::StatusOr<JsonValue> json = ParseSettings(*text);
  if (!json.ok() || json->kind != JsonValue::Kind::kObject) return std::nullopt;
  return *std::move(json);
}

// Whether it is meant to be in our own format: it names a format, or has no member at all.
bool IsOurs(const JsonValue& config) {
  return config.keys.empty() || config.Find("format") != nullptr ||
         config.Find("format_version") != nullptr;
}

absl::Status RefuseConfig(const JsonValue& config, const std::string& shown) {
  const std::string where = shown + "/config.json";
  const std::string architectures = ArchitecturesOf(config);
  if (!architectures.empty()) {
    return Foreign(where,
                   absl::StrCat("this is a configuration of transformers with architectures ",
                                architectures, ", but without a model_type"),
                   kSavePretrained);
  }
  if (config.Find("ssm_cfg") != nullptr) {
    return Foreign(where, "this is a configuration of mamba_ssm (it has ssm_cfg)",
                   "rivulet-convert DIR OUT makes a model directory of it if it is a Mamba-2");
  }
  constexpr size_t kShown = 4;
  std::vector<std::string> keys;
  for (size_t i = 0; i < std::min(kShown, config.keys.size()); ++i) {
    keys.push_back(Quoted(config.keys[i]));
  }
  return Foreign(where,
                 absl::StrCat("this is a configuration of another program (it has ",
                              absl::StrJoin(keys, ", "), " and no model_type)"),
                 kSavePretrained);
}

// `foreign` is in a directory without a config.json with a model_type.
absl::Status RefuseTensors(const ForeignCheckpoint& foreign, const std::string& shown) {
  const std::string what =
      absl::StrCat("this looks like a ", foreign.family, " checkpoint of ", foreign.library,
                   foreign.served ? "" : ", which is not supported", " (it has the tensor ",
                   Quoted(foreign.tensor), ")");
  if (foreign.served) {
    return Foreign(shown, what,
                   absl::StrCat("to be served it needs the config.json that ", foreign.library,
                                " wrote beside it, with its model_type"));
  }
  return Foreign(shown, what, absl::string_view(foreign.library) == "RWKV-LM" ? kConvert : "");
}

}  // namespace

absl::Status RefuseFile(const std::string& path, const std::string& shown) {
  if (const std::optional<FileKind> kind = KindOfFile(path)) {
    return Foreign(shown, absl::StrCat("this is ", kind->what), kind->to_do);
  }
  const bool is_config = std::filesystem::path(path).filename() == "config.json";
  return MakeError(
      absl::StatusCode::kNotFound,
      absl::StrCat(shown, ": no such model directory: it is not a directory, nor a GGUF file",
                   is_config ? "; --model takes the directory that holds it" : ""),
      {"NO_SUCH_FILE", "", {}});
}

absl::Status ExplainDirectory(const std::string& directory, const std::string& shown,
                              const absl::Status& status) {
  const std::optional<JsonValue> config = SettingsIn(directory);
  if (config && HasModelType(*config)) return status;  // `status` is about config.json
  if (const std::optional<ForeignCheckpoint> tensors = RecognizeCheckpointIn(directory)) {
    return RefuseTensors(*tensors, shown);
  }
  if (config) return IsOurs(*config) ? status : RefuseConfig(*config, shown);
  std::error_code error;
  if (std::filesystem::exists(directory + "/config.json", error)) return status;
  const std::optional<NamedFile> file = ForeignFileIn(directory);
  if (!file) return status;
  return Foreign(
      shown,
      absl::StrCat("there is no config.json, and ", Quoted(file->name), " is ", file->kind.what),
      file->kind.to_do);
}

}  // namespace rivulet
