// SPDX-License-Identifier: Apache-2.0
// CheckpointTensors: the tensors of a directory in the layout of save_pretrained, in one
// model.safetensors or in the shards that model.safetensors.index.json lists; or the tensors of a
// GGUF file or its parts, under the names that such a directory has.
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
  // messages. Errors: NOT_FOUND (no safetensors file; says what to do with a pytorch_model.bin),
  // DATA_LOSS (a header; an index that names a file outside the directory or a tensor that its
  // shard lacks, or omits a tensor of a shard).
  static absl::StatusOr<std::unique_ptr<const CheckpointTensors>> Open(const std::string& directory,
                                                                       const std::string& shown);

  // The tensors of model.safetensors alone, whose names and shapes must be exactly `expected`.
  // Errors: NOT_FOUND, DATA_LOSS.
  static absl::StatusOr<std::unique_ptr<const CheckpointTensors>> OpenOwn(
      const std::string& directory, const std::string& shown, std::span<const TensorSpec> expected);

  // The tensors of GGUF files, each with its path for messages, in the order of their parts.
  // `tensors`: from the name here to the tensor's name in the files, and its shape here. A tensor
  // of the files that is not in `tensors` is omitted. REQUIRES: the files have all of them.
  struct Presented {
    std::string name;            // in the files
    std::vector<int64_t> shape;  // for the same elements in the same order
  };
  using GgufFiles = std::vector<std::pair<std::string, std::unique_ptr<WeightsFile>>>;
  static std::unique_ptr<const CheckpointTensors> OfGguf(
      GgufFiles files, const std::map<std::string, Presented>& tensors);

  // Null if there is no such tensor. Valid as long as this object.
  const TensorEntry* Find(absl::string_view name) const;
  std::vector<std::string> names() const;
  int64_t num_parameters() const;  // elements of all tensors

  // Decodes a tensor to float32, row-major. REQUIRES: Find(name) != nullptr, and out.size() is its
  // element count. Errors: as WeightsFile::Read.
  absl::Status Read(absl::string_view name, std::span<float> out) const;
  // Read for out.size() elements, from element `first` on. REQUIRES: the tensor has them.
  absl::Status ReadFrom(absl::string_view name, size_t first, std::span<float> out) const;

  // Reads the raw bytes of a tensor, out.size() bytes from its block `first` on (the blocks of its
  // dtype, dtype.h), for callers that keep blocks undecoded. REQUIRES: the tensor has these bytes.
  // Errors: as WeightsFile::Read.
  absl::Status ReadBlocks(absl::string_view name, size_t first, std::span<char> out) const;

  // Reads everything once and checks every weight. Returns the SHA-256 of the file, or, for shards,
  // the SHA-256 of their hex digests in the order of the file names; lower-case hex. Errors: as
  // WeightsFile::Sha256.
  absl::StatusOr<std::string> Sha256() const;
  // WeightsFile's Pace of each file, if together they have more than `most` bytes, and its EndPace.
  void Pace(uint64_t most, uint64_t lead) const;
  void EndPace() const;

 private:
  struct Tensor {
    const WeightsFile* file;
    std::string name;  // in the file
    TensorEntry entry;
  };
  CheckpointTensors() = default;
  absl::Status Add(absl::StatusOr<std::unique_ptr<WeightsFile>> file, const std::string& name);

  std::string shown_;  // the directory; "" if the files' names are paths
  bool sharded_ = false;
  std::map<std::string, std::unique_ptr<WeightsFile>> files_;  // by file name
  std::map<std::string, Tensor, std::less<>> by_tensor_;
};

}  // namespace rivulet
