// SPDX-License-Identifier: Apache-2.0
#include "model/model.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "model/base/error.h"
#include "model/base/file.h"
#include "model/base/memory.h"
#include "model/base/strict_json.h"
#include "model/base/thread.h"
#include "model/block_settings.h"
#include "model/foreign_model.h"
#include "model/gguf_model.h"
#include "model/gguf_text.h"
#include "model/model_name.h"
#include "model/text/char_tokenizer.h"

namespace rivulet {
namespace {

constexpr size_t kMaxConfigBytes = size_t{1} << 20;

// OWNER/NAME, the form of names of Hugging Face's repositories.
bool LooksLikeRepository(absl::string_view directory) {
  const auto fits = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  };
  const std::vector<absl::string_view> parts = absl::StrSplit(directory, '/');
  return parts.size() == 2 && std::all_of(parts.begin(), parts.end(), [&](absl::string_view part) {
           return !part.empty() && part[0] != '.' && std::all_of(part.begin(), part.end(), fits);
         });
}

absl::Status CheckDirectory(const std::string& directory, const std::string& shown) {
  struct stat info = {};
  const bool exists = stat(directory.c_str(), &info) == 0;
  if (exists && S_ISDIR(info.st_mode)) return absl::OkStatus();
  if (exists) return RefuseFile(directory, shown);
  std::string why = std::strerror(errno);
  if (LooksLikeRepository(directory)) {
    absl::StrAppend(&why, "; models are not downloaded, but this does it: hf download ", directory,
                    " --local-dir DIR");
  }
  return MakeError(absl::StatusCode::kNotFound,
                   absl::StrCat(shown, ": no such model directory: ", why),
                   {"NO_SUCH_FILE", "", {}});
}

// Token 0 ends a text in the World vocabulary, whatever config.json says.
constexpr int32_t kWorldEnd = 0;

void AddEnd(int32_t id, ModelConfig* config) {
  std::vector<int32_t>& more = config->more_eos_token_ids;
  if (!config->eos_token_id) {
    config->eos_token_id = id;
  } else if (config->eos_token_id != id && std::find(more.begin(), more.end(), id) == more.end()) {
    more.push_back(id);
  }
}

// Reads the tokens that end a generation from generation_config.json, if it has them; its other
// defaults are for clients.
absl::Status ReadGenerationConfig(const std::string& directory, ModelConfig* config) {
  constexpr char kName[] = "generation_config.json";
  const auto text = ReadSmallFile(absl::StrCat(directory, "/", kName), kMaxConfigBytes);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  if (!text.ok()) return Annotate(text.status(), kName);
  const absl::StatusOr<JsonValue> json = ParseSettings(*text);
  if (!json.ok()) return Annotate(json.status(), kName);
  const auto ids = ParseEosTokenIds(*json, config->vocab_size);
  if (!ids.ok()) return Annotate(ids.status(), kName);
  config->SetEnds(*ids);
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> ParseAnyConfig(const std::string& text, const std::string& directory,
                                           std::string* name_source) {
  const absl::StatusOr<JsonValue> json = ParseSettings(text);
  if (!json.ok() || !HasModelType(*json)) {
    *name_source = "name of config.json";
    return ParseModelConfig(text);
  }
  RIVULET_ASSIGN_OR_RETURN(ModelConfig config, ParseBlockConfig(*json));
  RIVULET_RETURN_IF_ERROR(ReadGenerationConfig(directory, &config));
  ModelNameChoice choice = ChooseModelName(directory, *json);
  config.name = std::move(choice.name);
  *name_source = std::move(choice.source);
  return config;
}

// `text`: from gguf_model.h, for the file `path`.
absl::StatusOr<ModelConfig> ParseGgufConfig(const std::string& text, const std::string& path,
                                            std::string* name_source) {
  RIVULET_ASSIGN_OR_RETURN(const JsonValue json, ParseSettings(text));
  RIVULET_ASSIGN_OR_RETURN(ModelConfig config, ParseBlockConfig(json));
  const std::filesystem::path file(path);
  config.name = ChooseModelName((file.parent_path() / GgufStem(path)).string(), json).name;
  *name_source = "the GGUF file";
  return config;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Model>> Model::Load(const std::string& directory,
                                                         absl::string_view name) {
  RIVULET_ASSIGN_OR_RETURN(auto model, StartLoad(directory, name));
  RIVULET_RETURN_IF_ERROR(model->CheckWeights());
  return model;
}

absl::StatusOr<std::shared_ptr<const Model>> Model::StartLoad(const std::string& directory,
                                                              absl::string_view name) {
  return OpenAs(directory, name, /*hash=*/true);
}

void Model::StartHash() {
  // Weights take about the bytes of their files. What remains of the memory caches the files.
  constexpr uint64_t kLead = uint64_t{1} << 30;
  tensors_->Pace(uint64_t(ReadHostMemory().available) / 2, kLead);
  const auto hash = [tensors = tensors_.get()] {
    NameThread("hash-weights");
    return tensors->Sha256();
  };
  hash_ = std::async(std::launch::async, hash).share();
}

const absl::StatusOr<std::string>& Model::Hash() const {
  tensors_->EndPace();
  return hash_.get();
}

Model::~Model() {
  if (tensors_ != nullptr) tensors_->EndPace();
}

absl::Status Model::CheckWeights() const {
  if (!hash_.valid() || Hash().ok()) return absl::OkStatus();
  if (IsGgufFile(directory_)) return Hash().status();
  return ExplainDirectory(directory_, absl::Utf8SafeCHexEscape(directory_), Hash().status());
}

const std::string& Model::weights_sha256() const {
  static const std::string kNone;
  return hash_.valid() && Hash().ok() ? *Hash() : kNone;
}

absl::StatusOr<std::shared_ptr<const Model>> Model::Open(const std::string& directory,
                                                         absl::string_view name) {
  return OpenAs(directory, name, /*hash=*/false);
}

absl::StatusOr<std::shared_ptr<const Model>> Model::OpenAs(const std::string& directory,
                                                           absl::string_view name, bool hash) {
  // A path may hold control characters, and a message is one line.
  const std::string shown = absl::Utf8SafeCHexEscape(directory);
  const bool gguf = IsGgufFile(directory);
  if (!gguf) RIVULET_RETURN_IF_ERROR(CheckDirectory(directory, shown));
  absl::StatusOr<std::shared_ptr<Model>> model =
      gguf ? LoadGguf(directory, shown, hash) : LoadFrom(directory, shown, hash);
  if (model.ok()) {
    if (!name.empty()) {
      (*model)->config_.name = std::string(name);
      (*model)->name_source_ = "NAME=DIR or LoadModel";
    }
    return std::shared_ptr<const Model>(*std::move(model));
  }
  return gguf ? model.status() : ExplainDirectory(directory, shown, model.status());
}

absl::StatusOr<std::shared_ptr<Model>> Model::LoadFrom(const std::string& directory,
                                                       const std::string& shown, bool hash) {
  auto model = std::shared_ptr<Model>(new Model);
  model->directory_ = directory;

  const std::string config_name = absl::StrCat(shown, "/config.json");
  auto text = ReadSmallFile(directory + "/config.json", kMaxConfigBytes);
  if (!text.ok()) return Annotate(text.status(), config_name);
  auto config = ParseAnyConfig(*text, directory, &model->name_source_);
  if (!config.ok()) return Annotate(config.status(), config_name);
  model->config_text_ = *std::move(text);
  model->config_ = *std::move(config);
  if (!model->config_.own_format()) {
    RIVULET_RETURN_IF_ERROR(model->OpenCheckpoint(shown));
  } else {
    model->own_name_ = model->config_.name;
    RIVULET_RETURN_IF_ERROR(model->OpenWeights(shown));
  }
  if (hash) model->StartHash();
  return model;
}

absl::StatusOr<std::shared_ptr<Model>> Model::LoadGguf(const std::string& path,
                                                       const std::string& shown, bool hash) {
  auto model = std::shared_ptr<Model>(new Model);
  model->directory_ = path;
  RIVULET_ASSIGN_OR_RETURN(GgufModel gguf, OpenGgufModel(path));
  auto config = ParseGgufConfig(gguf.config, path, &model->name_source_);
  if (!config.ok()) return Annotate(config.status(), shown);
  auto text = ReadGgufText(gguf.metadata);
  if (!text.ok()) return Annotate(text.status(), shown);
  model->config_ = *std::move(config);
  model->config_text_ = std::move(gguf.config);
  model->tensors_ = std::move(gguf.tensors);
  model->text_ = std::move(text->text);
  for (const int32_t id : text->ends) {
    if (id < model->config_.vocab_size) AddEnd(id, &model->config_);
  }
  model->FinishText();
  if (hash) model->StartHash();
  return model;
}

absl::Status Model::OpenWeights(const std::string& shown) {
  if (config_.content.type == ContentType::kText && config_.content.alphabet.empty()) {
    RIVULET_ASSIGN_OR_RETURN(text_, LoadModelText(directory_, shown));
    if (text_.tokenizer_kind != "tokenizer.json") {
      return MakeError(absl::StatusCode::kNotFound,
                       absl::StrCat(shown,
                                    "/tokenizer.json: there is no such file, and "
                                    "content.tokenizer.type of config.json names it"),
                       {"NO_SUCH_FILE", "", {}});
    }
  } else if (config_.content.type == ContentType::kText) {
    RIVULET_ASSIGN_OR_RETURN(text_.tokenizer, CreateCharTokenizer(config_.content.alphabet));
    text_.tokenizer_kind = "char";
  }

  RIVULET_ASSIGN_OR_RETURN(tensors_,
                           CheckpointTensors::OpenOwn(directory_, shown, ExpectedTensors(config_)));
  return absl::OkStatus();
}

absl::Status Model::OpenCheckpoint(const std::string& shown) {
  RIVULET_ASSIGN_OR_RETURN(text_, LoadModelText(directory_, shown));
  if (text_.tokenizer == nullptr) {
    text_.why_none = ": its directory has neither tokenizer.json nor rwkv_vocab_v20230424.txt";
  }
  FinishText();
  RIVULET_ASSIGN_OR_RETURN(tensors_, CheckpointTensors::Open(directory_, shown));
  return absl::OkStatus();
}

void Model::FinishText() {
  if (text_.tokenizer != nullptr) config_.content.type = ContentType::kText;
  if (text_.tokenizer_kind == "world") AddEnd(kWorldEnd, &config_);
  if (!text_.response_template.json.empty()) return;
  std::string shown = text_.chat_template;
  for (const SpecialToken& token : text_.special_tokens)
    absl::StrAppend(&shown, "\n", token.content);
  text_.response_template =
      BuiltInResponseTemplate(config_.kind(), shown).value_or(ResponseTemplate());
}

}  // namespace rivulet
