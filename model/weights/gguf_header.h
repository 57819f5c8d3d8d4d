// SPDX-License-Identifier: Apache-2.0
// The header of a GGUF file (versions 2 and 3): its metadata, and the table of the tensors' places.
// The file is untrusted: each count, length, size and offset is compared with the size of the file
// before it is used.
// Tested by: tests/unit/model/weights/gguf_header_test.cc, tests/fuzz/fuzz_gguf.cc
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/weights/safetensors_header.h"

namespace rivulet {

// Arrays stay in the file's form until a caller asks for them; their elements were checked.
class GgufValue {
 public:
  enum class Type : uint32_t {
    kUint8,
    kInt8,
    kUint16,
    kInt16,
    kUint32,
    kInt32,
    kFloat32,
    kBool,
    kString,
    kArray,
    kUint64,
    kInt64,
    kFloat64
  };

  // nullopt if the value is of another type, or does not fit.
  std::optional<int64_t> Integer() const;
  std::optional<double> Number() const;  // of a float or an integer; finite
  std::optional<bool> Bool() const;
  std::optional<std::string> Text() const;
  // The elements of an array of texts, integers or booleans; nullopt also if it has more than
  // kMaxValues.
  static constexpr uint64_t kMaxValues = 2'000'000;
  std::optional<std::vector<std::string>> Texts() const;
  std::optional<std::vector<int64_t>> Integers() const;
  std::optional<std::vector<bool>> Bools() const;
  // Describes it, for messages: "the text \"abc\"", "the number 1.5", "an array of 3 values".
  std::string Describe() const;

 private:
  friend class GgufParser;
  bool IsInteger() const;

  Type type_ = Type::kUint8;
  Type element_ = Type::kUint8;  // of an array
  uint64_t count_ = 1;           // of an array's elements
  std::string bytes_;            // as in the file; for a text without its length
};

using GgufMetadata = std::map<std::string, GgufValue, std::less<>>;

struct GgufHeader {
  GgufMetadata metadata;
  TensorEntries tensors;    // shapes row-major, so in the reverse order of the file
  uint64_t data_begin = 0;  // offset of the data, in bytes from the beginning of the file
};

// Checks the metadata before the tensors are parsed. An error that it returns ends the parse.
using GgufMetadataCheck = absl::FunctionRef<absl::Status(const GgufMetadata&)>;

// Parses the header at the beginning of a file of `file_size` bytes, of which `bytes` are the
// first. nullopt: the header does not end in `bytes`; parse again with more of the file. The
// tensors fill the data in the order of their offsets; between them, and behind the last, are fewer
// bytes than the alignment. Takes memory in proportion to the header. Errors: DATA_LOSS
// (CORRUPT_WEIGHTS) naming the key, the tensor or the rule; an unsupported type of tensor is
// UNSUPPORTED_MODEL (INVALID_ARGUMENT), by name.
absl::StatusOr<std::optional<GgufHeader>> ParseGgufHeader(absl::string_view bytes,
                                                          uint64_t file_size,
                                                          GgufMetadataCheck check);

}  // namespace rivulet
