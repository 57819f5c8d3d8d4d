// SPDX-License-Identifier: Apache-2.0
#include "model/weights/safetensors_header.h"

#include <algorithm>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/base/checked.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"

namespace rivulet {
namespace {

constexpr size_t kMaxNameBytes = 512;
constexpr size_t kMaxDims = 8;
constexpr char kMetadata[] = "__metadata__";

absl::Status BadEntry(absl::string_view name, absl::string_view message) {
  return CorruptWeights(absl::StrCat("tensor ", Quoted(name), ": ", message));
}

absl::Status CheckMetadata(const JsonValue& value) {
  if (value.kind != JsonValue::Kind::kObject) {
    return CorruptWeights(absl::StrCat("header: __metadata__ is ", Describe(value),
                                       "; allowed: an object of strings"));
  }
  for (size_t i = 0; i < value.items.size(); ++i) {
    if (value.items[i].kind != JsonValue::Kind::kString) {
      return CorruptWeights(absl::StrCat("header: __metadata__ ", Quoted(value.keys[i]), " is ",
                                         Describe(value.items[i]), "; allowed: a string"));
    }
  }
  return absl::OkStatus();
}

// A non-negative integer of an array; `what` names the array.
absl::StatusOr<int64_t> Extent(absl::string_view name, absl::string_view what,
                               const JsonValue& value) {
  if (value.kind == JsonValue::Kind::kInteger && value.integer >= 0) return value.integer;
  return BadEntry(name, absl::StrCat(what, " holds ", Describe(value),
                                     "; allowed: integers from 0 to ", INT64_MAX));
}

absl::StatusOr<DType> ParseDType(absl::string_view name, const JsonValue& value) {
  if (value.kind == JsonValue::Kind::kString) {
    if (value.text == "F32") return DType::kF32;
    if (value.text == "F16") return DType::kF16;
    if (value.text == "BF16") return DType::kBF16;
  }
  return BadEntry(
      name, absl::StrCat("dtype is ", Describe(value), "; allowed: \"F32\", \"F16\" or \"BF16\""));
}

absl::Status ParseShape(absl::string_view name, const JsonValue& value, TensorEntry* entry) {
  if (value.kind != JsonValue::Kind::kArray) {
    return BadEntry(name, absl::StrCat("shape is ", Describe(value), "; allowed: an array"));
  }
  if (value.items.size() > kMaxDims) {
    return BadEntry(name, absl::StrCat("shape has ", value.items.size(),
                                       " dimensions; allowed: at most ", kMaxDims));
  }
  for (const JsonValue& item : value.items) {
    RIVULET_ASSIGN_OR_RETURN(const int64_t extent, Extent(name, "shape", item));
    entry->shape.push_back(extent);
  }
  return absl::OkStatus();
}

absl::Status ParseOffsets(absl::string_view name, const JsonValue& value, uint64_t data_bytes,
                          TensorEntry* entry) {
  if (value.kind != JsonValue::Kind::kArray || value.items.size() != 2) {
    return BadEntry(name, absl::StrCat("data_offsets is ", Describe(value),
                                       "; allowed: an array of 2 integers"));
  }
  RIVULET_ASSIGN_OR_RETURN(const int64_t begin, Extent(name, "data_offsets", value.items[0]));
  RIVULET_ASSIGN_OR_RETURN(const int64_t end, Extent(name, "data_offsets", value.items[1]));
  entry->begin = static_cast<uint64_t>(begin);
  entry->end = static_cast<uint64_t>(end);
  const std::string held = absl::StrCat("data_offsets is [", begin, ", ", end, "]; ");
  if (end < begin) return BadEntry(name, absl::StrCat(held, "the end lies before the begin"));
  if (entry->end > data_bytes) {
    return BadEntry(
        name, absl::StrCat(held, "the file holds only ", data_bytes, " bytes after its header"));
  }
  return absl::OkStatus();
}

// For a tensor of blocks, stored as bytes: sets the blocks' type and the weights' shape.
absl::Status SetBlocks(absl::string_view name, DType dtype, const JsonValue& stored,
                       TensorEntry* entry) {
  const DTypeLayout& layout = LayoutOf(dtype);
  const bool bytes = stored.kind == JsonValue::Kind::kString && stored.text == "U8";
  if (!bytes || entry->shape.size() != 3 || entry->shape[2] != int64_t(layout.bytes) ||
      entry->shape[1] > INT64_MAX / int64_t(layout.weights)) {
    return BadEntry(name, absl::StrCat("dtype is ", Describe(stored), " and shape ",
                                       ShapeText(entry->shape), "; a tensor of this name needs ",
                                       "\"U8\" and [rows, blocks, ", layout.bytes, "]"));
  }
  entry->dtype = dtype;
  entry->shape = {entry->shape[0], entry->shape[1] * int64_t(layout.weights)};
  return absl::OkStatus();
}

// Checks that the offsets span the bytes of dtype and shape.
absl::Status CheckSize(absl::string_view name, const TensorEntry& entry) {
  const DTypeLayout& layout = LayoutOf(entry.dtype);
  uint64_t bytes = layout.bytes;
  for (const int64_t extent : entry.shape) {
    const auto product = CheckedMul(bytes, static_cast<uint64_t>(extent));
    if (!product) {
      return BadEntry(name, absl::StrCat("shape ", ShapeText(entry.shape),
                                         " has more bytes than 64 bits can count"));
    }
    bytes = *product;
  }
  bytes /= layout.weights;
  if (bytes == 0) {
    return BadEntry(name, absl::StrCat("shape ", ShapeText(entry.shape), " holds no weight"));
  }
  if (bytes == entry.end - entry.begin) return absl::OkStatus();
  return BadEntry(name, absl::StrCat("data_offsets [", entry.begin, ", ", entry.end, "] span ",
                                     entry.end - entry.begin, " bytes; shape ",
                                     ShapeText(entry.shape), " and dtype need ", bytes));
}

absl::StatusOr<TensorEntry> ParseEntry(absl::string_view name, const JsonValue& value,
                                       uint64_t data_bytes) {
  if (value.kind != JsonValue::Kind::kObject) {
    return BadEntry(name, absl::StrCat("its entry is ", Describe(value), "; allowed: an object"));
  }
  for (const std::string& key : value.keys) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      return BadEntry(name, absl::StrCat("unknown field ", Quoted(key),
                                         "; allowed: dtype, shape, data_offsets"));
    }
  }
  const JsonValue* const dtype = value.Find("dtype");
  const JsonValue* const shape = value.Find("shape");
  const JsonValue* const offsets = value.Find("data_offsets");
  if (dtype == nullptr) return BadEntry(name, "dtype is missing");
  if (shape == nullptr) return BadEntry(name, "shape is missing");
  if (offsets == nullptr) return BadEntry(name, "data_offsets is missing");
  TensorEntry entry;
  RIVULET_RETURN_IF_ERROR(ParseShape(name, *shape, &entry));
  if (const std::optional<DType> block = BlockTypeOf(name)) {
    RIVULET_RETURN_IF_ERROR(SetBlocks(name, *block, *dtype, &entry));
  } else {
    RIVULET_ASSIGN_OR_RETURN(entry.dtype, ParseDType(name, *dtype));
  }
  RIVULET_RETURN_IF_ERROR(ParseOffsets(name, *offsets, data_bytes, &entry));
  RIVULET_RETURN_IF_ERROR(CheckSize(name, entry));
  return entry;
}

// Checks that the tensors, in the order of their offsets, fill the data exactly.
absl::Status CheckContiguous(const TensorEntries& entries, uint64_t data_bytes) {
  std::vector<TensorEntries::const_pointer> order;
  for (const auto& named : entries) order.push_back(&named);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  uint64_t filled = 0;
  for (const auto* named : order) {
    const TensorEntry& entry = named->second;
    if (entry.begin != filled) {
      return BadEntry(named->first,
                      absl::StrCat("data_offsets [", entry.begin, ", ", entry.end, "] leave ",
                                   entry.begin < filled ? "an overlap with the tensor before"
                                                        : "a gap before it",
                                   "; the tensor must begin at ", filled));
    }
    filled = entry.end;
  }
  if (filled == data_bytes) return absl::OkStatus();
  return CorruptWeights(absl::StrCat("the file holds ", data_bytes - filled,
                                     " bytes that belong to no tensor, after the last one"));
}

absl::Status CheckForm(absl::string_view header) {
  if (header.empty() || header.front() != '{') {
    return CorruptWeights(absl::StrCat("header: begins with ", Quoted(header.substr(0, 1)),
                                       "; allowed: \"{\", without white space before it"));
  }
  const size_t last = header.find_last_not_of(' ');
  if (header[last] != '}') {
    return CorruptWeights(absl::StrCat("header: ends with ", Quoted(header.substr(last, 1)),
                                       "; allowed: \"}\" and spaces after it"));
  }
  return absl::OkStatus();
}

// Checks a tensor, whose form and shape are valid.
using CheckEntry =
    absl::FunctionRef<absl::Status(const std::string& name, const TensorEntry& entry)>;

absl::StatusOr<TensorEntries> Parse(absl::string_view header, uint64_t data_bytes,
                                    absl::FunctionRef<absl::Status(const std::string&)> check_name,
                                    CheckEntry check) {
  RIVULET_RETURN_IF_ERROR(CheckForm(header));
  TensorEntries entries;
  const auto on_member = [&](const std::string& name, const JsonValue& value) -> absl::Status {
    if (name == kMetadata) return CheckMetadata(value);
    if (name.size() > kMaxNameBytes) {
      return BadEntry(name, absl::StrCat("its name has ", name.size(), " bytes; allowed: at most ",
                                         kMaxNameBytes));
    }
    std::string tensor = name;
    if (const std::optional<DType> block = BlockTypeOf(name)) {
      tensor.resize(name.size() - BlockSuffix(*block).size());
    }
    RIVULET_RETURN_IF_ERROR(check_name(tensor));
    RIVULET_ASSIGN_OR_RETURN(TensorEntry entry, ParseEntry(name, value, data_bytes));
    RIVULET_RETURN_IF_ERROR(check(tensor, entry));
    if (entries.emplace(tensor, std::move(entry)).second) return absl::OkStatus();
    return BadEntry(name, absl::StrCat("the file has ", Quoted(tensor), " in another type, too"));
  };
  const absl::Status parsed = ParseStrictJsonMembers(header, JsonLimits{}, on_member);
  if (absl::IsInvalidArgument(parsed)) {
    return CorruptWeights(absl::StrCat("header: ", parsed.message()));
  }
  RIVULET_RETURN_IF_ERROR(parsed);
  return entries;
}

}  // namespace

std::string ShapeText(std::span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape.begin(), shape.end(), ", "), "]");
}

absl::Status CorruptWeights(absl::string_view message) {
  return MakeError(absl::StatusCode::kDataLoss, message, {"CORRUPT_WEIGHTS", "", {}});
}

absl::StatusOr<TensorEntries> ParseSafetensorsHeader(absl::string_view header, uint64_t data_bytes,
                                                     std::span<const TensorSpec> expected) {
  std::map<absl::string_view, const TensorSpec*> specs;
  for (const TensorSpec& spec : expected) specs.emplace(spec.name, &spec);
  const auto check_name = [&specs](const std::string& name) {
    return specs.find(name) != specs.end() ? absl::OkStatus()
                                           : BadEntry(name, "the configuration has no such tensor");
  };
  const auto check = [&specs](const std::string& name, const TensorEntry& entry) {
    const std::vector<int64_t>& shape = specs.find(name)->second->shape;
    if (entry.shape == shape) return absl::OkStatus();
    return BadEntry(name, absl::StrCat("shape is ", ShapeText(entry.shape),
                                       "; the configuration needs ", ShapeText(shape)));
  };
  RIVULET_ASSIGN_OR_RETURN(TensorEntries entries, Parse(header, data_bytes, check_name, check));
  for (const TensorSpec& spec : expected) {
    if (entries.find(spec.name) == entries.end()) {
      return BadEntry(spec.name, "the file lacks it");
    }
  }
  RIVULET_RETURN_IF_ERROR(CheckContiguous(entries, data_bytes));
  return entries;
}

absl::StatusOr<TensorEntries> ParseSafetensorsHeader(absl::string_view header,
                                                     uint64_t data_bytes) {
  RIVULET_ASSIGN_OR_RETURN(
      TensorEntries entries,
      Parse(
          header, data_bytes, [](const std::string&) { return absl::OkStatus(); },
          [](const std::string&, const TensorEntry&) { return absl::OkStatus(); }));
  RIVULET_RETURN_IF_ERROR(CheckContiguous(entries, data_bytes));
  return entries;
}

}  // namespace rivulet
