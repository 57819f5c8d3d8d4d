// SPDX-License-Identifier: Apache-2.0
// Sections: the parts of our state files, each with a checksum. Numbers are little-endian.
//
//   type u32  length u64  payload[length]  crc32c u32 (of type, length and payload)
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rivulet {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they lie");

// Bytes of a section beside its payload.
inline constexpr size_t kSectionOverhead = sizeof(uint32_t) + sizeof(uint64_t) + sizeof(uint32_t);

class SectionWriter {
 public:
  template <typename T>
  void Number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  // The length of `text` in 4 bytes, then its bytes.
  void Text(absl::string_view text) {
    Number(static_cast<uint32_t>(text.size()));
    bytes_.append(text.data(), text.size());
  }
  void Bytes(const void* data, size_t size) { bytes_.append(static_cast<const char*>(data), size); }
  void AddSection(uint32_t type, absl::string_view payload);
  void Reserve(size_t size) { bytes_.reserve(size); }
  const std::string& bytes() const { return bytes_; }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Takes values from the front. Beyond the end the values are 0 or empty, and ok() is false.
class SectionReader {
 public:
  explicit SectionReader(absl::string_view bytes) : all_(bytes), left_(bytes) {}

  template <typename T>
  T Number() {
    T value{};
    const absl::string_view bytes = Bytes(sizeof value);
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  std::string Text() { return std::string(Bytes(Number<uint32_t>())); }
  absl::string_view Bytes(uint64_t size);
  // The payload of the next section. DATA_LOSS, with a message that says what is wrong, unless the
  // section is of this type and matches its checksum.
  absl::StatusOr<absl::string_view> Section(uint32_t type);

  bool ok() const { return !short_; }
  bool at_end() const { return left_.empty(); }
  // The bytes taken so far.
  absl::string_view taken() const { return all_.substr(0, all_.size() - left_.size()); }

 private:
  const absl::string_view all_;
  absl::string_view left_;
  bool short_ = false;
};

}  // namespace rivulet
