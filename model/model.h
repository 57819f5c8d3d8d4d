// SPDX-License-Identifier: Apache-2.0
// Model: a loaded model directory or GGUF file. Every fault of its files is returned as a Status.
#pragma once

#include <future>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/config.h"
#include "model/model_text.h"
#include "model/weights/checkpoint_tensors.h"
#include "model/weights/weights_file.h"

namespace rivulet {

// Thread: immutable, any thread. Shared by backend, engine and service.
class Model {
 public:
  // Loads DIR/config.json, then opens DIR/model.safetensors and hashes it. A config.json with a
  // `model_type` describes a model of the family (block_settings.h), whose weights may be in
  // shards; model_name.h says how it gets its name, model_text.h how it gets its tokenizer. Errors
  // name file, field or tensor: NOT_FOUND (no such directory or file), INVALID_ARGUMENT (config,
  // tokenizer; FOREIGN_CHECKPOINT: a file, tensors or a config.json of another program), DATA_LOSS
  // (weights). The weights are decoded later, by the backend.
  //
  // `directory` may be a GGUF file, or the first of its parts (gguf_model.h). Name, settings,
  // tensors and tokenizer are then all from that file.
  //
  // `name` replaces the name from the directory (IsModelName); "": keep that name.
  static absl::StatusOr<std::shared_ptr<const Model>> Load(const std::string& directory,
                                                           absl::string_view name = "");
  // Load, while a thread of its own still reads the weights to hash and check them: what else reads
  // them meanwhile finds them in the page cache. Where files do not fit into memory beside the
  // weights, that thread stays near those reads until CheckWeights or weights_sha256. Call
  // CheckWeights before the model is used.
  static absl::StatusOr<std::shared_ptr<const Model>> StartLoad(const std::string& directory,
                                                                absl::string_view name = "");
  ~Model();  // waits for that thread

  // Waits for that thread. Errors: those of Load about the weights.
  absl::Status CheckWeights() const;
  // Load without the weights: reads only their headers, and weights_sha256() is "".
  static absl::StatusOr<std::shared_ptr<const Model>> Open(const std::string& directory,
                                                           absl::string_view name = "");

  const ModelConfig& config() const { return config_; }
  // The `name` of config.json; "" for a model of the family, whose config.json has none.
  const std::string& own_name() const { return own_name_; }
  // The source of config().name, for logs.
  const std::string& name_source() const { return name_source_; }
  // The text of config.json, or the config.json made from a GGUF file.
  const std::string& config_text() const { return config_text_; }
  const CheckpointTensors& tensors() const { return *tensors_; }
  // Lower-case hex; waits as CheckWeights does. "": an error, or Open.
  const std::string& weights_sha256() const;
  const std::string& directory() const { return directory_; }  // for logs; never sent to clients
  // Null if the content is not text.
  const TextTokenizer* tokenizer() const { return text_.tokenizer.get(); }
  const ModelText& text() const { return text_; }

 private:
  Model() = default;
  static absl::StatusOr<std::shared_ptr<const Model>> OpenAs(const std::string& directory,
                                                             absl::string_view name, bool hash);
  // `shown`: the directory, for messages.
  static absl::StatusOr<std::shared_ptr<Model>> LoadFrom(const std::string& directory,
                                                         const std::string& shown, bool hash);
  static absl::StatusOr<std::shared_ptr<Model>> LoadGguf(const std::string& path,
                                                         const std::string& shown, bool hash);
  absl::Status OpenWeights(const std::string& shown);
  absl::Status OpenCheckpoint(const std::string& shown);
  void StartHash();
  // Waits. REQUIRES: hash_ is valid.
  const absl::StatusOr<std::string>& Hash() const;
  // Applies the tokenizer's properties to the configuration, and the configuration's to the text.
  void FinishText();

  std::string directory_;
  std::string own_name_, name_source_;
  std::string config_text_;
  ModelConfig config_;
  std::unique_ptr<const CheckpointTensors> tensors_;
  ModelText text_;
  // Of weights_sha256; not valid after Open. Its thread reads tensors_.
  std::shared_future<absl::StatusOr<std::string>> hash_;
};

}  // namespace rivulet
