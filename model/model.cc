// SPDX-License-Identifier: Apache-2.0
#include "model/model.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/base/file.h"
#include "model/base/strict_json.h"
#include "model/weights/foreign_checkpoint.h"

namespace rivulet {
namespace {

constexpr size_t kMaxConfigBytes = size_t{1} << 20;

absl::Status CheckDirectory(const std::string& directory) {
  struct stat info = {};
  const bool exists = stat(directory.c_str(), &info) == 0;
  if (exists && S_ISDIR(info.st_mode)) return absl::OkStatus();
  const std::string why = exists ? "it is not a directory" : std::strerror(errno);
  return MakeError(absl::StatusCode::kNotFound, absl::StrCat("no such model directory: ", why),
                   {"NO_SUCH_FILE", "", {}});
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Model>> Model::Load(const std::string& directory) {
  // A path may hold control characters, and a message is one line.
  const std::string shown = absl::Utf8SafeCHexEscape(directory);
  const absl::Status is_directory = CheckDirectory(directory);
  if (!is_directory.ok()) return Annotate(is_directory, shown);
  absl::StatusOr<std::shared_ptr<const Model>> model = LoadFrom(directory, shown);
  if (model.ok()) return model;
  const std::optional<ForeignCheckpoint> foreign = RecognizeCheckpointIn(directory);
  if (!foreign.has_value()) return model.status();
  return MakeError(absl::StatusCode::kInvalidArgument,
                   absl::StrCat(shown, ": this looks like a ", foreign->family, " checkpoint of ",
                                foreign->library, ", which is not supported (it has the tensor ",
                                Quoted(foreign->tensor), "); README.md lists what is served"),
                   {"FOREIGN_CHECKPOINT", "model", {}});
}

absl::StatusOr<std::shared_ptr<const Model>> Model::LoadFrom(const std::string& directory,
                                                             const std::string& shown) {
  auto model = std::shared_ptr<Model>(new Model);
  model->directory_ = directory;

  const std::string config_name = absl::StrCat(shown, "/config.json");
  auto text = ReadSmallFile(directory + "/config.json", kMaxConfigBytes);
  if (!text.ok()) return Annotate(text.status(), config_name);
  auto config = ParseModelConfig(*text);
  if (!config.ok()) return Annotate(config.status(), config_name);
  model->config_text_ = *std::move(text);
  model->config_ = *std::move(config);
  if (model->config_.content.type == ContentType::kText) {
    RIVULET_ASSIGN_OR_RETURN(model->tokenizer_,
                             Tokenizer::CreateChar(model->config_.content.alphabet));
  }

  const std::string weights_name = absl::StrCat(shown, "/model.safetensors");
  auto weights =
      WeightsFile::Open(directory + "/model.safetensors", ExpectedTensors(model->config_));
  if (!weights.ok()) return Annotate(weights.status(), weights_name);
  model->weights_ = *std::move(weights);
  auto sha256 = model->weights_->Sha256();
  if (!sha256.ok()) return Annotate(sha256.status(), weights_name);
  model->sha256_ = *std::move(sha256);
  return std::shared_ptr<const Model>(std::move(model));
}

}  // namespace rivulet
