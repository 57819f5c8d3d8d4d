// SPDX-License-Identifier: Apache-2.0
#include "model/weights/checkpoint_tensors.h"

#include <sys/stat.h>

#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/base/file.h"
#include "model/base/sha256.h"
#include "model/base/strict_json.h"
#include "model/weights/safetensors_header.h"

namespace rivulet {
namespace {

constexpr size_t kMaxIndexBytes = size_t{64} << 20;
constexpr char kOneFile[] = "model.safetensors", kIndex[] = "model.safetensors.index.json";

bool Exists(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0;
}

// From tensor to file name, from the index.
using WeightMap = std::map<std::string, std::string>;

absl::StatusOr<WeightMap> ReadIndex(const std::string& path) {
  RIVULET_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path, kMaxIndexBytes));
  WeightMap map;
  const auto on_member = [&map](const std::string& key, const JsonValue& value) -> absl::Status {
    if (key != "weight_map") return absl::OkStatus();
    if (value.kind != JsonValue::Kind::kObject) {
      return CorruptWeights(absl::StrCat("weight_map is ", Describe(value), ", not an object"));
    }
    for (size_t i = 0; i < value.items.size(); ++i) {
      const std::string& file = value.items[i].text;
      // The name of a file in this directory.
      if (!absl::EndsWith(file, ".safetensors") || absl::StrContains(file, '/')) {
        return CorruptWeights(absl::StrCat("weight_map: tensor ", Quoted(value.keys[i]), " is in ",
                                           Describe(value.items[i]),
                                           "; allowed: a file of this directory, *.safetensors"));
      }
      map.emplace(value.keys[i], file);
    }
    return absl::OkStatus();
  };
  const JsonLimits limits{.max_values = size_t{1} << 20};
  const absl::Status parsed = ParseStrictJsonMembers(text, limits, on_member);
  if (absl::IsInvalidArgument(parsed)) return CorruptWeights(parsed.message());
  RIVULET_RETURN_IF_ERROR(parsed);
  if (map.empty()) return CorruptWeights("weight_map is missing or empty");
  return map;
}

// OK unless the directory has its weights only as the repository holds those of the bundled models.
absl::Status CheckUnpacked(const std::string& directory) {
  const std::string file = absl::StrCat(directory, "/", kOneFile);
  if (Exists(file) || !Exists(file + ".xz")) return absl::OkStatus();
  return MakeError(absl::StatusCode::kNotFound,
                   "model.safetensors is packed, as model.safetensors.xz; model/zoo/unpack.py "
                   "unpacks the bundled models",
                   {"NO_SUCH_FILE", "", {}});
}

absl::Status NoWeights(const std::string& directory) {
  RIVULET_RETURN_IF_ERROR(CheckUnpacked(directory));
  if (Exists(directory + "/pytorch_model.bin") ||
      Exists(directory + "/pytorch_model.bin.index.json")) {
    return MakeError(absl::StatusCode::kNotFound,
                     "there is no model.safetensors, and pytorch_model.bin is not read, as it can "
                     "hold code; load it with transformers and write it again with "
                     "save_pretrained(DIR, safe_serialization=True); rivulet-convert DIR OUT does "
                     "it for GP-MoLFormer",
                     {"NO_SUCH_FILE", "", {}});
  }
  return MakeError(absl::StatusCode::kNotFound,
                   "there is neither model.safetensors nor model.safetensors.index.json",
                   {"NO_SUCH_FILE", "", {}});
}

}  // namespace

absl::Status CheckpointTensors::Add(absl::StatusOr<std::unique_ptr<WeightsFile>> file,
                                    const std::string& name) {
  if (!file.ok()) return Annotate(file.status(), absl::StrCat(shown_, "/", name));
  for (const auto& [tensor, entry] : (*file)->tensors()) {
    if (!by_tensor_.emplace(tensor, Tensor{file->get(), tensor, entry}).second) {
      return Annotate(
          CorruptWeights(absl::StrCat("tensor ", Quoted(tensor), " is in another shard too")),
          absl::StrCat(shown_, "/", name));
    }
  }
  files_.emplace(name, *std::move(file));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<const CheckpointTensors>> CheckpointTensors::OpenOwn(
    const std::string& directory, const std::string& shown, std::span<const TensorSpec> expected) {
  auto checkpoint = std::unique_ptr<CheckpointTensors>(new CheckpointTensors);
  checkpoint->shown_ = shown;
  RIVULET_RETURN_IF_ERROR(Annotate(CheckUnpacked(directory), shown));
  RIVULET_RETURN_IF_ERROR(checkpoint->Add(
      WeightsFile::Open(absl::StrCat(directory, "/", kOneFile), expected), kOneFile));
  return std::unique_ptr<const CheckpointTensors>(std::move(checkpoint));
}

absl::StatusOr<std::unique_ptr<const CheckpointTensors>> CheckpointTensors::Open(
    const std::string& directory, const std::string& shown) {
  auto checkpoint = std::unique_ptr<CheckpointTensors>(new CheckpointTensors);
  checkpoint->shown_ = shown;
  const auto add = [&](const std::string& name) {
    return checkpoint->Add(WeightsFile::OpenAny(absl::StrCat(directory, "/", name)), name);
  };
  if (Exists(absl::StrCat(directory, "/", kOneFile))) {
    RIVULET_RETURN_IF_ERROR(add(kOneFile));
    return std::unique_ptr<const CheckpointTensors>(std::move(checkpoint));
  }
  const std::string index = absl::StrCat(directory, "/", kIndex);
  if (!Exists(index)) return Annotate(NoWeights(directory), shown);
  const std::string index_shown = absl::StrCat(shown, "/", kIndex);
  auto map = ReadIndex(index);
  if (!map.ok()) return Annotate(map.status(), index_shown);
  checkpoint->sharded_ = true;
  std::set<std::string> shards;
  for (const auto& [tensor, file] : *map) shards.insert(file);
  for (const std::string& shard : shards) RIVULET_RETURN_IF_ERROR(add(shard));
  for (const auto& [tensor, file] : *map) {
    const auto found = checkpoint->by_tensor_.find(tensor);
    const WeightsFile* const shard = checkpoint->files_.at(file).get();
    if (found == checkpoint->by_tensor_.end() || found->second.file != shard) {
      return Annotate(
          CorruptWeights(absl::StrCat("tensor ", Quoted(tensor), " is not in ", Quoted(file))),
          index_shown);
    }
  }
  for (const auto& [tensor, file] : checkpoint->by_tensor_) {
    if (map->find(tensor) != map->end()) continue;
    return Annotate(CorruptWeights(absl::StrCat("a shard holds tensor ", Quoted(tensor),
                                                ", which weight_map does not list")),
                    index_shown);
  }
  return std::unique_ptr<const CheckpointTensors>(std::move(checkpoint));
}

std::unique_ptr<const CheckpointTensors> CheckpointTensors::OfGguf(
    GgufFiles files, const std::map<std::string, Presented>& tensors) {
  auto checkpoint = std::unique_ptr<CheckpointTensors>(new CheckpointTensors);
  checkpoint->sharded_ = files.size() > 1;
  for (const auto& [name, as] : tensors) {
    for (const auto& [file_name, file] : files) {
      const auto found = file->tensors().find(as.name);
      if (found == file->tensors().end()) continue;
      Tensor tensor = {file.get(), as.name, found->second};
      tensor.entry.shape = as.shape;
      checkpoint->by_tensor_.emplace(name, std::move(tensor));
    }
  }
  for (auto& file : files) checkpoint->files_.emplace(file.first, std::move(file.second));
  return checkpoint;
}

const TensorEntry* CheckpointTensors::Find(absl::string_view name) const {
  const auto found = by_tensor_.find(name);
  if (found == by_tensor_.end()) return nullptr;
  return &found->second.entry;
}

std::vector<std::string> CheckpointTensors::names() const {
  std::vector<std::string> names;
  names.reserve(by_tensor_.size());
  for (const auto& [name, file] : by_tensor_) names.push_back(name);
  return names;
}

int64_t CheckpointTensors::num_parameters() const {
  int64_t total = 0;
  for (const auto& [name, file] : by_tensor_) {
    int64_t elements = 1;
    for (const int64_t size : Find(name)->shape) elements *= size;
    total += elements;
  }
  return total;
}

absl::Status CheckpointTensors::Read(absl::string_view name, std::span<float> out) const {
  return ReadFrom(name, 0, out);
}

absl::Status CheckpointTensors::ReadFrom(absl::string_view name, size_t first,
                                         std::span<float> out) const {
  const Tensor& tensor = by_tensor_.find(name)->second;
  return tensor.file->ReadFrom(tensor.name, first, out);
}

absl::Status CheckpointTensors::ReadBlocks(absl::string_view name, size_t first,
                                           std::span<char> out) const {
  const Tensor& tensor = by_tensor_.find(name)->second;
  return tensor.file->ReadBlocks(tensor.name, first, out);
}

void CheckpointTensors::Pace(uint64_t most, uint64_t lead) const {
  uint64_t bytes = 0;
  for (const auto& [name, file] : files_) bytes += file->bytes();
  for (const auto& [name, file] : files_) {
    if (bytes > most) file->Pace(lead);
  }
}

void CheckpointTensors::EndPace() const {
  for (const auto& [name, file] : files_) file->EndPace();
}

absl::StatusOr<std::string> CheckpointTensors::Sha256() const {
  std::string digests;
  for (const auto& [name, file] : files_) {
    auto digest = file->Sha256();
    if (!digest.ok()) {
      return Annotate(digest.status(), shown_.empty() ? name : absl::StrCat(shown_, "/", name));
    }
    digests += *digest;
  }
  if (!sharded_) return digests;
  return Sha256Hex(digests);
}

}  // namespace rivulet
