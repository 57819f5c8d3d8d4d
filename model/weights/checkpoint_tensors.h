// SPDX-License-Identifier: Apache-2.0
// CheckpointTensors: the tensors of a directory as save_pretrained writes it, in one
// model.safetensors or in the shards that model.safetensors.index.json lists; or those of a GGUF
// file or its parts, under the names that such a directory has.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/weights/weights_file.h"

namespace rivulet {

// Thread: const after Open; Read may be called from several threads at once.
class CheckpointTensors {
 public:
  // Opens the files and checks their headers; no weight is read. `shown`: the directory, for
  // messages. Errors: NOT_FOUND (no safetensors file; says what to do where there is a
  // pytorch_model.bin), DATA_LOSS (a header; an index that names a file outside the directory, a
  // tensor that its shard lacks, or leaves one out).
  static absl::StatusOr<std::unique_ptr<const CheckpointTensors>> Open(const std::string& directory,
                                                                       const std::string& shown);

  // The tensors of model.safetensors alone, whose names and shapes must be exactly `expected`.
  // Errors: NOT_FOUND, DATA_LOSS.
  static absl::StatusOr<std::unique_ptr<const CheckpointTensors>> OpenOwn(
      const std::string& directory, const std::string& shown, std::span<const TensorSpec> expected);

  // The tensors of GGUF files, each with its path for messages, in the order of their parts.
  // `tensors`: what each is called and how it is shaped here. A tensor of the files that none of
  // them stands for is left out. REQUIRES: the files have them.
  struct Presented {
    std::string name;            // as the files have it
    std::vector<int64_t> shape;  // with as many elements, in the same order
  };
  using GgufFiles = std::vector<std::pair<std::string, std::unique_ptr<WeightsFile>>>;
  static std::unique_ptr<const CheckpointTensors> OfGguf(
      GgufFiles files, const std::map<std::string, Presented>& tensors);

  // Null where there is no such tensor. Valid while this is.
  const TensorEntry* Find(absl::string_view name) const;
  std::vector<std::string> names() const;
  int64_t num_parameters() const;  // elements of all tensors

  // Decodes a tensor to float32, row-major. REQUIRES: Find(name) != nullptr, and out.size() is its
  // element count. Errors: as WeightsFile::Read.
  absl::Status Read(absl::string_view name, std::span<float> out) const;
  // The same for out.size() elements, from element `first` on. REQUIRES: the tensor has them.
  absl::Status ReadFrom(absl::string_view name, size_t first, std::span<float> out) const;

  // The bytes of a tensor as they lie in its file, out.size() bytes from its block `first` on (the
  // blocks of its dtype, dtype.h), for those who keep blocks without decoding them. REQUIRES: the
  // tensor has them. Errors: as WeightsFile::Read.
  absl::Status ReadBlocks(absl::string_view name, size_t first, std::span<char> out) const;

  // Reads everything once and checks every weight. Returns the SHA-256 of the file, or, of shards,
  // the SHA-256 of their hex digests in the order of the file names; lower-case hex. Errors: as
  // WeightsFile::Sha256.
  absl::StatusOr<std::string> Sha256() const;

 private:
  struct Tensor {
    const WeightsFile* file;
    std::string name;  // in the file
    TensorEntry entry;
  };
  CheckpointTensors() = default;
  absl::Status Add(absl::StatusOr<std::unique_ptr<WeightsFile>> file, const std::string& name);

  std::string shown_;  // the directory; "" where the files' names are paths
  bool sharded_ = false;
  std::map<std::string, std::unique_ptr<WeightsFile>> files_;  // by file name
  std::map<std::string, Tensor, std::less<>> by_tensor_;
};

}  // namespace rivulet
