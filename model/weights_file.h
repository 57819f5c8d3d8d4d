// SPDX-License-Identifier: Apache-2.0
// WeightsFile: a checked safetensors file. Opening reads and checks the header only; tensors are decoded one at
// a time, so the memory taken while loading is that of one tensor.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/config.h"

namespace rivulet {

enum class DType : uint8_t { kF32, kF16, kBF16 };
constexpr size_t SizeOf(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

// Thread: const after Open; Read may be called from several threads at once (it uses pread).
class WeightsFile {
 public:
  // Opens `path` (a regular file), checks the header completely (model/FORMAT.md lists every rule) and that names,
  // shapes and dtypes are exactly `expected`. Errors: NOT_FOUND, or DATA_LOSS that names the tensor. No memory is
  // taken in proportion to what the header claims: claims are compared with the file's size first.
  static absl::StatusOr<std::unique_ptr<WeightsFile>> Open(const std::string& path,
                                                           std::span<const TensorSpec> expected);
  ~WeightsFile();
  WeightsFile(const WeightsFile&) = delete;
  WeightsFile& operator=(const WeightsFile&) = delete;

  // Lower-case hex SHA-256 of the whole file. Reads the file once; DATA_LOSS if it changed since Open.
  absl::StatusOr<std::string> Sha256() const;

  // The dtype `name` has in the file. REQUIRES: `name` was among `expected`.
  DType dtype(absl::string_view name) const;

  // Decodes a tensor to float32 (exact for every dtype), row-major. REQUIRES: `name` was among `expected` and
  // out.size() is its element count. Errors: DATA_LOSS for a non-finite weight (names tensor and index) or a file
  // that changed since Open.
  absl::Status Read(absl::string_view name, std::span<float> out) const;

 private:
  struct Entry {
    DType dtype;
    std::vector<int64_t> shape;
    uint64_t begin, end;  // bytes from the beginning of the file
  };
  WeightsFile() = default;
  absl::Status CheckUnchanged() const;

  std::string path_;
  int fd_ = -1;
  uint64_t size_ = 0;
  int64_t mtime_ns_ = 0;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace rivulet
