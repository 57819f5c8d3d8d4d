// SPDX-License-Identifier: Apache-2.0
// WeightsFile: a checked safetensors or GGUF file. Opening reads and checks the header only;
// weights are read in pieces of at most 1 MiB, straight into the caller's memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/config.h"
#include "model/weights/gguf_header.h"
#include "model/weights/safetensors_header.h"

namespace rivulet {

// Thread: const after Open; Read may be called from several threads at once (it uses pread).
class WeightsFile {
 public:
  // Opens `path` (a regular file), checks the header completely (model/FORMAT.md lists every rule)
  // and that names, shapes and dtypes are exactly `expected`. Errors: NOT_FOUND, or DATA_LOSS that
  // names the tensor. Sizes in the header are compared with the file's size before memory is taken
  // for them.
  static absl::StatusOr<std::unique_ptr<WeightsFile>> Open(const std::string& path,
                                                           std::span<const TensorSpec> expected);
  // Open for a file that may hold any tensors.
  static absl::StatusOr<std::unique_ptr<WeightsFile>> OpenAny(const std::string& path);
  // A GGUF file, which may hold any tensors; its metadata is put into *metadata. Errors: those of
  // ParseGgufHeader, and NOT_FOUND.
  static absl::StatusOr<std::unique_ptr<WeightsFile>> OpenGguf(const std::string& path,
                                                               GgufMetadataCheck check,
                                                               GgufMetadata* metadata);
  // The names of the tensors in the header of any safetensors file, without other checks. Errors:
  // NOT_FOUND, DATA_LOSS, INVALID_ARGUMENT (no JSON).
  static absl::StatusOr<std::vector<std::string>> TensorNames(const std::string& path);

  ~WeightsFile();
  WeightsFile(const WeightsFile&) = delete;
  WeightsFile& operator=(const WeightsFile&) = delete;

  // Reads the whole file once, in pieces, checks every weight and returns the file's SHA-256 in
  // lower-case hex. Errors: DATA_LOSS for a non-finite weight (names tensor and index) or a file
  // that changed since Open.
  absl::StatusOr<std::string> Sha256() const;

  // Sha256, which is called later and by another thread, stays at most `lead` bytes ahead of what
  // ReadFrom and ReadBlocks have read since, until EndPace. So the page cache need not hold the
  // whole file for both to find it there.
  void Pace(uint64_t lead) const { allowed_ = lead; }
  // Sha256 no longer waits. Thread: any.
  void EndPace() const {
    allowed_ = kUnpaced;
    allowed_.notify_all();
  }

  uint64_t bytes() const { return size_; }  // of the file

  // The file's tensors, by name.
  const TensorEntries& tensors() const { return entries_; }

  // The dtype `name` has in the file. REQUIRES: `name` is one of tensors().
  DType dtype(absl::string_view name) const;

  // Decodes a tensor to float32 (as dtype.h says), row-major. REQUIRES: `name` is one of
  // tensors() and out.size() is its element count. Errors: DATA_LOSS for a non-finite weight
  // (names tensor and index) or a file that changed since Open.
  absl::Status Read(absl::string_view name, std::span<float> out) const {
    return ReadFrom(name, 0, out);
  }
  // Read for out.size() elements, from element `first` on. REQUIRES: the tensor has them.
  absl::Status ReadFrom(absl::string_view name, size_t first, std::span<float> out) const;
  // Reads the raw bytes of a tensor, from its block `first` on: out.size() bytes, whole blocks.
  // REQUIRES: the tensor has them. Errors: as Read.
  absl::Status ReadBlocks(absl::string_view name, size_t first, std::span<char> out) const;

 private:
  WeightsFile() = default;
  // Opens the file; nothing is read.
  static absl::StatusOr<std::unique_ptr<WeightsFile>> OpenOnly(const std::string& path);
  // The text of a safetensors header. Errors name the rule.
  absl::StatusOr<std::string> ReadHeader() const;
  absl::StatusOr<GgufHeader> ReadGgufHeader(GgufMetadataCheck check) const;
  // Reads exactly out.size() bytes from `offset` and checks that the file has not changed since
  // Open.
  absl::Status ReadBytes(uint64_t offset, std::span<char> out) const;
  absl::Status CheckUnchanged() const;

  static constexpr uint64_t kUnpaced = uint64_t{1} << 62;  // the sum of all reads is far below

  int fd_ = -1;
  uint64_t size_ = 0;
  int64_t mtime_ns_ = 0;
  uint64_t data_begin_ = 0;  // offset of the data, in bytes from the beginning of the file
  TensorEntries entries_;
  mutable std::atomic<uint64_t> allowed_{kUnpaced};  // of the file's bytes, for Sha256
};

}  // namespace rivulet
