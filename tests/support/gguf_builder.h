// SPDX-License-Identifier: Apache-2.0
// Writes GGUF files for tests, also invalid ones: nothing is checked.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace rivulet::testing {

// Little-endian bytes.
template <typename T>
std::string Raw(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}
// Its length, then `text`.
inline std::string RawText(absl::string_view text) {
  return Raw(uint64_t{text.size()}) + std::string(text);
}

// The types of values, and the encoding of their bytes.
inline std::string RawU32(uint32_t value) { return Raw(uint32_t{4}) + Raw(value); }
inline std::string RawI32(int32_t value) { return Raw(uint32_t{5}) + Raw(value); }
inline std::string RawF32(float value) { return Raw(uint32_t{6}) + Raw(value); }
inline std::string RawBool(uint8_t value) { return Raw(uint32_t{7}) + Raw(value); }
inline std::string RawString(absl::string_view text) { return Raw(uint32_t{8}) + RawText(text); }
// `bytes`: of all elements.
inline std::string RawArray(uint32_t element, uint64_t count, const std::string& bytes) {
  return Raw(uint32_t{9}) + Raw(element) + Raw(count) + bytes;
}
inline std::string RawTexts(const std::vector<std::string>& texts) {
  std::string bytes;
  for (const std::string& text : texts) bytes += RawText(text);
  return RawArray(8, texts.size(), bytes);
}
inline std::string RawI32s(const std::vector<int32_t>& values) {
  std::string bytes;
  for (const int32_t value : values) bytes += Raw(value);
  return RawArray(5, values.size(), bytes);
}

struct GgufTensor {
  std::string name;
  std::vector<uint64_t> extents;  // in GGUF's order: the row's length first
  uint32_t type = 0;              // F32
  std::string bytes;
  int64_t offset = -1;  // -1: after the tensor before, aligned
};

// A file. Every member may be set to an invalid value.
struct GgufFile {
  std::string magic = "GGUF";
  uint32_t version = 3;
  int64_t num_tensors = -1, num_keys = -1;                    // -1: the real numbers
  std::vector<std::pair<std::string, std::string>> metadata;  // keys, and values with their types
  std::vector<GgufTensor> tensors;
  uint64_t alignment = 32;
  std::string tail;     // behind the last tensor
  bool padded = false;  // the last tensor, too

  void Set(const std::string& key, const std::string& value) {
    for (auto& [name, held] : metadata) {
      if (name == key) {
        held = value;
        return;
      }
    }
    metadata.emplace_back(key, value);
  }
  // The tensor of this name. REQUIRES: there is one.
  GgufTensor& Tensor(absl::string_view name) {
    for (GgufTensor& tensor : tensors) {
      if (tensor.name == name) return tensor;
    }
    return tensors.front();
  }
  void Erase(absl::string_view name) {
    std::erase_if(tensors, [&](const GgufTensor& tensor) { return tensor.name == name; });
    std::erase_if(metadata, [&](const auto& entry) { return entry.first == name; });
  }

  std::string Bytes() const {
    const auto count = [](int64_t given, size_t held) {
      return Raw(given < 0 ? uint64_t{held} : static_cast<uint64_t>(given));
    };
    std::string file = magic + Raw(version) + count(num_tensors, tensors.size()) +
                       count(num_keys, metadata.size());
    for (const auto& [key, value] : metadata) file += RawText(key) + value;
    std::string data;
    const auto pad = [this](std::string* bytes) {
      bytes->resize((bytes->size() + alignment - 1) / alignment * alignment);
    };
    for (const GgufTensor& tensor : tensors) {
      pad(&data);
      file += RawText(tensor.name) + Raw(static_cast<uint32_t>(tensor.extents.size()));
      for (const uint64_t extent : tensor.extents) file += Raw(extent);
      file += Raw(tensor.type) +
              Raw(tensor.offset < 0 ? uint64_t{data.size()} : static_cast<uint64_t>(tensor.offset));
      data += tensor.bytes;
    }
    if (padded) pad(&data);
    if (!tensors.empty()) pad(&file);
    return file + data + tail;
  }
};

}  // namespace rivulet::testing
