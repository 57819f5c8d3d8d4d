// SPDX-License-Identifier: Apache-2.0
#include "model/weights/gguf_header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"

namespace rivulet {
namespace {

using Type = GgufValue::Type;

constexpr uint64_t kMaxKeyBytes = 65535;
constexpr uint64_t kMaxTensorNameBytes = 63;  // as in ggml
constexpr uint32_t kMaxTensorDims = 4;
constexpr uint64_t kDefaultAlignment = 32, kMaxAlignment = uint64_t{1} << 20;
// The least bytes of an entry in the file: in the metadata, in the table of tensors.
constexpr uint64_t kLeastKeyBytes = 8 + 1 + 4 + 1, kLeastTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;
// More than any model has. This bounds memory: entries in memory may be larger than in the file.
constexpr uint64_t kMaxKeys = 4096, kMaxTensors = uint64_t{1} << 18;

// Bytes of a value; 0 for texts and arrays, and for unknown types.
uint64_t SizeOfType(uint32_t type) {
  constexpr uint8_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < std::size(kSizes) ? kSizes[type] : 0;
}

// GGUF's names of the types of tensors, by number, or "". Types with a DType are supported.
struct TensorType {
  const char* name;
  std::optional<DType> dtype;
};
constexpr std::array<TensorType, 43> kTensorTypes = {{
    {"F32", DType::kF32},
    {"F16", DType::kF16},
    {"Q4_0", DType::kQ4_0},
    {"Q4_1", DType::kQ4_1},
    {"Q4_2", {}},
    {"Q4_3", {}},
    {"Q5_0", DType::kQ5_0},
    {"Q5_1", DType::kQ5_1},
    {"Q8_0", DType::kQ8_0},
    {"Q8_1", {}},
    {"Q2_K", {}},
    {"Q3_K", DType::kQ3_K},
    {"Q4_K", DType::kQ4_K},
    {"Q5_K", DType::kQ5_K},
    {"Q6_K", DType::kQ6_K},
    {"Q8_K", {}},
    {"IQ2_XXS", {}},
    {"IQ2_XS", {}},
    {"IQ3_XXS", {}},
    {"IQ1_S", {}},
    {"IQ4_NL", DType::kIQ4_NL},
    {"IQ3_S", {}},
    {"IQ2_S", {}},
    {"IQ4_XS", DType::kIQ4_XS},
    {"I8", {}},
    {"I16", {}},
    {"I32", {}},
    {"I64", {}},
    {"F64", {}},
    {"IQ1_M", {}},
    {"BF16", DType::kBF16},
    {"Q4_0_4_4", {}},
    {"Q4_0_4_8", {}},
    {"Q4_0_8_8", {}},
    {"TQ1_0", {}},
    {"TQ2_0", {}},
    {"IQ4_NL_4_4", {}},
    {"IQ4_NL_4_8", {}},
    {"IQ4_NL_8_8", {}},
    {"MXFP4", {}},
    {"NVFP4", {}},
    {"Q1_0", {}},
    {"Q2_0", {}},
}};

absl::Status BadTensor(absl::string_view name, absl::string_view what) {
  return CorruptWeights(absl::StrCat("tensor ", Quoted(name), ": ", what));
}

absl::Status BadKey(absl::string_view key, absl::string_view what) {
  return CorruptWeights(absl::StrCat("key ", Quoted(key), ": ", what));
}

absl::Status UnknownTensorType(absl::string_view name, uint32_t type) {
  if (type >= kTensorTypes.size()) {
    return BadTensor(name, absl::StrCat("its type is ", type, ", which is none of GGUF's"));
  }
  std::string supported;
  for (const TensorType& known : kTensorTypes) {
    if (!known.dtype) continue;
    absl::StrAppend(&supported, supported.empty() ? "" : ", ", known.name);
  }
  return InvalidField(
      "UNSUPPORTED_MODEL", "model",
      absl::StrCat("tensor ", Quoted(name), " has the type ", kTensorTypes[type].name,
                   "; supported: ", supported, " (docs/models.md)"));
}

template <typename T>
T LoadAt(absl::string_view bytes, uint64_t index = 0) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

// Element `index` of the integers of type `type` at `bytes`; nullopt if int64 cannot hold it.
std::optional<int64_t> IntegerAt(Type type, absl::string_view bytes, uint64_t index) {
  switch (type) {
    case Type::kUint8:
      return LoadAt<uint8_t>(bytes, index);
    case Type::kInt8:
      return LoadAt<int8_t>(bytes, index);
    case Type::kUint16:
      return LoadAt<uint16_t>(bytes, index);
    case Type::kInt16:
      return LoadAt<int16_t>(bytes, index);
    case Type::kUint32:
      return LoadAt<uint32_t>(bytes, index);
    case Type::kInt32:
      return LoadAt<int32_t>(bytes, index);
    case Type::kInt64:
      return LoadAt<int64_t>(bytes, index);
    case Type::kUint64: {
      const auto value = LoadAt<uint64_t>(bytes, index);
      if (value > uint64_t{std::numeric_limits<int64_t>::max()}) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

}  // namespace

// Reads one value after the other. A value beyond the end of the file is an error. A value within
// the file but beyond the bytes given here sets `short_`, and the caller parses again with more
// bytes.
class GgufParser {
 public:
  GgufParser(absl::string_view bytes, uint64_t file_size, GgufMetadataCheck check)
      : bytes_(bytes), file_size_(file_size), check_(check) {}

  absl::StatusOr<std::optional<GgufHeader>> Parse() {
    const absl::Status status = ParseAll();
    if (short_) return std::nullopt;
    RIVULET_RETURN_IF_ERROR(status);
    return std::move(header_);
  }

 private:
  uint64_t left() const { return file_size_ - at_; }  // in the file

  // The next `size` bytes. `what`: their name, for the error.
  absl::StatusOr<absl::string_view> Take(uint64_t size, absl::string_view what) {
    if (size > left()) {
      return CorruptWeights(absl::StrCat(what, " takes ", size, " bytes at byte ", at_,
                                         ", but only ", left(), " follow in the file"));
    }
    if (at_ + size > kMaxHeaderBytes) {
      return CorruptWeights(absl::StrCat(what, " ends at byte ", at_ + size,
                                         "; allowed: a header of at most ", kMaxHeaderBytes));
    }
    if (at_ + size > bytes_.size()) {
      short_ = true;
      return absl::OutOfRangeError("more of the file is needed");
    }
    const absl::string_view taken = bytes_.substr(at_, size);
    at_ += size;
    return taken;
  }

  template <typename T>
  absl::Status TakeNumber(absl::string_view what, T* out) {
    RIVULET_ASSIGN_OR_RETURN(const absl::string_view bytes, Take(sizeof(T), what));
    *out = LoadAt<T>(bytes);
    return absl::OkStatus();
  }

  absl::StatusOr<absl::string_view> TakeText(absl::string_view what) {
    uint64_t length = 0;
    RIVULET_RETURN_IF_ERROR(TakeNumber(absl::StrCat("the length of ", what), &length));
    return Take(length, what);
  }

  absl::Status ParseAll();
  absl::Status ParseBeginning(uint64_t* tensors, uint64_t* keys);
  absl::Status ParseKey(uint64_t index);
  absl::Status ParseValue(absl::string_view key, GgufValue* value);
  absl::Status ParseArray(absl::string_view key, GgufValue* value);
  absl::Status CheckBools(absl::string_view key, absl::string_view bytes) const;
  absl::Status ParseAlignment(uint64_t* alignment) const;
  absl::Status ParseTensor(uint64_t index, uint64_t alignment);
  absl::Status ParseShape(const std::string& name, TensorEntry* entry, uint64_t* elements);
  absl::Status CheckLayout(uint64_t alignment);

  const absl::string_view bytes_;
  const uint64_t file_size_;
  const GgufMetadataCheck check_;
  uint64_t at_ = 0;
  bool short_ = false;
  GgufHeader header_;
};

absl::Status GgufParser::ParseBeginning(uint64_t* tensors, uint64_t* keys) {
  RIVULET_ASSIGN_OR_RETURN(const absl::string_view magic, Take(4, "the magic"));
  if (magic != "GGUF") {
    return CorruptWeights(absl::StrCat("the file begins with ", Quoted(magic), ", not GGUF"));
  }
  uint32_t version = 0;
  RIVULET_RETURN_IF_ERROR(TakeNumber("the version", &version));
  if ((version & 0xFFFF) == 0 && version != 0) {
    return CorruptWeights("the file is big-endian; only little-endian ones are read");
  }
  if (version != 2 && version != 3) {
    return CorruptWeights(absl::StrCat("the version is ", version, "; allowed: 2 and 3"));
  }
  RIVULET_RETURN_IF_ERROR(TakeNumber("the number of tensors", tensors));
  RIVULET_RETURN_IF_ERROR(TakeNumber("the number of keys", keys));
  const auto check = [this](const char* what, uint64_t count, uint64_t most, uint64_t least) {
    if (count > left() / least) {
      return CorruptWeights(
          absl::StrCat("the number of ", what, " is ", count, ", more than the file can hold"));
    }
    if (count <= most) return absl::OkStatus();
    return CorruptWeights(
        absl::StrCat("the number of ", what, " is ", count, "; allowed: at most ", most));
  };
  RIVULET_RETURN_IF_ERROR(check("tensors", *tensors, kMaxTensors, kLeastTensorBytes));
  return check("keys", *keys, kMaxKeys, kLeastKeyBytes);
}

absl::Status GgufParser::CheckBools(absl::string_view key, absl::string_view bytes) const {
  for (const char byte : bytes) {
    if (byte == 0 || byte == 1) continue;
    return BadKey(key,
                  absl::StrCat("a boolean is ", static_cast<uint8_t>(byte), "; allowed: 0 and 1"));
  }
  return absl::OkStatus();
}

absl::Status GgufParser::ParseArray(absl::string_view key, GgufValue* value) {
  const std::string what = absl::StrCat("key ", Quoted(key), ": its array");
  uint32_t element = 0;
  RIVULET_RETURN_IF_ERROR(TakeNumber(what, &element));
  RIVULET_RETURN_IF_ERROR(TakeNumber(what, &value->count_));
  if (element == static_cast<uint32_t>(Type::kArray)) {
    return BadKey(key, "it is an array of arrays; allowed: arrays of numbers or texts");
  }
  const bool texts = element == static_cast<uint32_t>(Type::kString);
  const uint64_t size = texts ? 8 : SizeOfType(element);
  if (size == 0) {
    return BadKey(
        key, absl::StrCat("its array has elements of type ", element, ", which is none of GGUF's"));
  }
  if (value->count_ > left() / size) {
    return BadKey(key, absl::StrCat("its array has ", value->count_,
                                    " elements, more than the file can hold"));
  }
  value->element_ = static_cast<Type>(element);
  const uint64_t begin = at_;
  if (!texts) {
    RIVULET_ASSIGN_OR_RETURN(const absl::string_view bytes, Take(value->count_ * size, what));
    if (value->element_ == Type::kBool) RIVULET_RETURN_IF_ERROR(CheckBools(key, bytes));
  }
  for (uint64_t i = 0; texts && i < value->count_; ++i) {
    RIVULET_RETURN_IF_ERROR(TakeText(absl::StrCat(what, "'s text ", i)).status());
  }
  value->bytes_ = std::string(bytes_.substr(begin, at_ - begin));
  return absl::OkStatus();
}

absl::Status GgufParser::ParseValue(absl::string_view key, GgufValue* value) {
  const std::string what = absl::StrCat("key ", Quoted(key), ": its value");
  uint32_t type = 0;
  RIVULET_RETURN_IF_ERROR(TakeNumber(what, &type));
  value->type_ = static_cast<Type>(type);
  if (value->type_ == Type::kArray) return ParseArray(key, value);
  if (value->type_ == Type::kString) {
    RIVULET_ASSIGN_OR_RETURN(const absl::string_view text, TakeText(what));
    value->bytes_ = std::string(text);
    return absl::OkStatus();
  }
  const uint64_t size = SizeOfType(type);
  if (size == 0) {
    return BadKey(key, absl::StrCat("its type is ", type, ", which is none of GGUF's"));
  }
  RIVULET_ASSIGN_OR_RETURN(const absl::string_view bytes, Take(size, what));
  value->bytes_ = std::string(bytes);
  return value->type_ == Type::kBool ? CheckBools(key, bytes) : absl::OkStatus();
}

absl::Status GgufParser::ParseKey(uint64_t index) {
  RIVULET_ASSIGN_OR_RETURN(const absl::string_view key, TakeText(absl::StrCat("key ", index)));
  if (key.empty() || key.size() > kMaxKeyBytes) {
    return CorruptWeights(
        absl::StrCat("key ", index, " has ", key.size(), " bytes; allowed: 1 to ", kMaxKeyBytes));
  }
  GgufValue value;
  RIVULET_RETURN_IF_ERROR(ParseValue(key, &value));
  if (!header_.metadata.emplace(std::string(key), std::move(value)).second) {
    return BadKey(key, "the file has it twice");
  }
  return absl::OkStatus();
}

absl::Status GgufParser::ParseAlignment(uint64_t* alignment) const {
  constexpr char kKey[] = "general.alignment";
  *alignment = kDefaultAlignment;
  const auto found = header_.metadata.find(kKey);
  if (found == header_.metadata.end()) return absl::OkStatus();
  const GgufValue* const value = &found->second;
  const std::optional<int64_t> given = value->Integer();
  if (!given || *given < 1 || *given > int64_t{kMaxAlignment} ||
      !std::has_single_bit(static_cast<uint64_t>(*given))) {
    return BadKey(kKey, absl::StrCat("it is ", value->Describe(), "; allowed: powers of two up to ",
                                     kMaxAlignment));
  }
  *alignment = static_cast<uint64_t>(*given);
  return absl::OkStatus();
}

absl::Status GgufParser::ParseShape(const std::string& name, TensorEntry* entry,
                                    uint64_t* elements) {
  uint32_t dims = 0;
  RIVULET_RETURN_IF_ERROR(
      TakeNumber(absl::StrCat("tensor ", Quoted(name), ": its number of dimensions"), &dims));
  if (dims < 1 || dims > kMaxTensorDims) {
    return BadTensor(name,
                     absl::StrCat("it has ", dims, " dimensions; allowed: 1 to ", kMaxTensorDims));
  }
  *elements = 1;
  for (uint32_t i = 0; i < dims; ++i) {
    uint64_t extent = 0;
    RIVULET_RETURN_IF_ERROR(
        TakeNumber(absl::StrCat("tensor ", Quoted(name), ": its shape"), &extent));
    if (extent == 0) return BadTensor(name, "it has a dimension of 0");
    // So that the product of elements and bytes of a block stays in range, too.
    if (extent > (uint64_t{1} << 48) / *elements) {
      return BadTensor(name, "its shape has more elements than any file can hold");
    }
    *elements *= extent;
    entry->shape.push_back(static_cast<int64_t>(extent));
  }
  return absl::OkStatus();
}

absl::Status GgufParser::ParseTensor(uint64_t index, uint64_t alignment) {
  const std::string what = absl::StrCat("tensor ", index);
  RIVULET_ASSIGN_OR_RETURN(const absl::string_view text, TakeText(what + "'s name"));
  if (text.empty() || text.size() > kMaxTensorNameBytes) {
    return CorruptWeights(absl::StrCat(what, "'s name has ", text.size(), " bytes; allowed: 1 to ",
                                       kMaxTensorNameBytes));
  }
  const std::string name(text);
  TensorEntry entry;
  uint64_t elements = 0, offset = 0;
  RIVULET_RETURN_IF_ERROR(ParseShape(name, &entry, &elements));
  uint32_t type = 0;
  RIVULET_RETURN_IF_ERROR(TakeNumber(absl::StrCat("tensor ", Quoted(name), ": its type"), &type));
  if (type >= kTensorTypes.size() || !kTensorTypes[type].dtype) {
    return UnknownTensorType(name, type);
  }
  entry.dtype = *kTensorTypes[type].dtype;
  const DTypeLayout& layout = LayoutOf(entry.dtype);
  if (static_cast<uint64_t>(entry.shape[0]) % layout.weights != 0) {
    return BadTensor(name, absl::StrCat("its rows have ", entry.shape[0], " weights; ", layout.name,
                                        " needs a multiple of ", layout.weights));
  }
  std::reverse(entry.shape.begin(), entry.shape.end());
  RIVULET_RETURN_IF_ERROR(
      TakeNumber(absl::StrCat("tensor ", Quoted(name), ": its offset"), &offset));
  const uint64_t bytes = elements / layout.weights * layout.bytes;
  if (offset % alignment != 0) {
    return BadTensor(
        name, absl::StrCat("its offset is ", offset, ", no multiple of the alignment ", alignment));
  }
  if (offset > file_size_ || bytes > file_size_ - offset) {
    return BadTensor(name, absl::StrCat("its ", bytes, " bytes from offset ", offset,
                                        " end behind the file, which has ", file_size_));
  }
  entry.begin = offset;
  entry.end = offset + bytes;
  if (!header_.tensors.emplace(name, std::move(entry)).second) {
    return BadTensor(name, "the file has it twice");
  }
  return absl::OkStatus();
}

absl::Status GgufParser::CheckLayout(uint64_t alignment) {
  const auto aligned = [alignment](uint64_t at) {
    return (at + alignment - 1) / alignment * alignment;
  };
  header_.data_begin = header_.tensors.empty() ? at_ : aligned(at_);
  if (header_.data_begin > file_size_) {
    return CorruptWeights(absl::StrCat("the data begins at byte ", header_.data_begin,
                                       ", behind the end of the file at ", file_size_));
  }
  std::vector<TensorEntries::const_pointer> order;
  for (const auto& named : header_.tensors) order.push_back(&named);
  std::sort(order.begin(), order.end(),
            [](const auto* a, const auto* b) { return a->second.begin < b->second.begin; });
  uint64_t end = 0;
  for (const auto* named : order) {
    if (named->second.begin != aligned(end)) {
      return BadTensor(named->first,
                       absl::StrCat("its offset is ", named->second.begin, ", but the tensors ",
                                    "before it end at ", end, ": ",
                                    named->second.begin < end ? "they overlap" : "there is a gap"));
    }
    end = named->second.end;
  }
  const uint64_t data = file_size_ - header_.data_begin;
  if (data < end) {
    return BadTensor(order.back()->first, absl::StrCat("it ends at byte ", end, " of the data, ",
                                                       "of which the file has ", data));
  }
  if (data >= end + alignment) {
    return CorruptWeights(absl::StrCat("behind the last tensor are ", data - end,
                                       " more bytes; allowed: fewer than the alignment ",
                                       alignment));
  }
  return absl::OkStatus();
}

absl::Status GgufParser::ParseAll() {
  uint64_t tensors = 0, keys = 0, alignment = 0;
  RIVULET_RETURN_IF_ERROR(ParseBeginning(&tensors, &keys));
  for (uint64_t i = 0; i < keys; ++i) RIVULET_RETURN_IF_ERROR(ParseKey(i));
  RIVULET_RETURN_IF_ERROR(check_(header_.metadata));
  RIVULET_RETURN_IF_ERROR(ParseAlignment(&alignment));
  for (uint64_t i = 0; i < tensors; ++i) RIVULET_RETURN_IF_ERROR(ParseTensor(i, alignment));
  return CheckLayout(alignment);
}

bool GgufValue::IsInteger() const {
  return SizeOfType(static_cast<uint32_t>(type_)) > 0 && type_ != Type::kFloat32 &&
         type_ != Type::kFloat64 && type_ != Type::kBool;
}

std::optional<int64_t> GgufValue::Integer() const {
  return IsInteger() ? IntegerAt(type_, bytes_, 0) : std::nullopt;
}

std::optional<double> GgufValue::Number() const {
  double value = 0;
  if (type_ == Type::kFloat32) {
    value = double{LoadAt<float>(bytes_)};
  } else if (type_ == Type::kFloat64) {
    value = LoadAt<double>(bytes_);
  } else {
    const std::optional<int64_t> integer = Integer();
    if (!integer) return std::nullopt;
    value = static_cast<double>(*integer);
  }
  return std::isfinite(value) ? std::optional<double>(value) : std::nullopt;
}

std::optional<bool> GgufValue::Bool() const {
  if (type_ != Type::kBool) return std::nullopt;
  return bytes_[0] != 0;
}

std::optional<std::string> GgufValue::Text() const {
  if (type_ != Type::kString) return std::nullopt;
  return bytes_;
}

std::optional<std::vector<std::string>> GgufValue::Texts() const {
  if (type_ != Type::kArray || element_ != Type::kString || count_ > kMaxValues) {
    return std::nullopt;
  }
  std::vector<std::string> texts;
  texts.reserve(count_);
  absl::string_view rest = bytes_;
  for (uint64_t i = 0; i < count_; ++i) {
    const auto length = LoadAt<uint64_t>(rest);
    texts.emplace_back(rest.substr(8, length));
    rest.remove_prefix(8 + length);
  }
  return texts;
}

std::optional<std::vector<int64_t>> GgufValue::Integers() const {
  if (type_ != Type::kArray || count_ > kMaxValues) return std::nullopt;
  std::vector<int64_t> integers;
  for (uint64_t i = 0; i < count_; ++i) {
    const std::optional<int64_t> integer = IntegerAt(element_, bytes_, i);
    if (!integer) return std::nullopt;
    integers.push_back(*integer);
  }
  return integers;
}

std::optional<std::vector<bool>> GgufValue::Bools() const {
  if (type_ != Type::kArray || element_ != Type::kBool || count_ > kMaxValues) return std::nullopt;
  return std::vector<bool>(bytes_.begin(), bytes_.end());
}

std::string GgufValue::Describe() const {
  if (type_ == Type::kArray) return absl::StrCat("an array of ", count_, " values");
  if (type_ == Type::kString) return absl::StrCat("the text ", Quoted(bytes_));
  if (type_ == Type::kBool) return bytes_[0] != 0 ? "true" : "false";
  if (const auto integer = Integer()) return absl::StrCat("the number ", *integer);
  if (type_ == Type::kUint64) return absl::StrCat("the number ", LoadAt<uint64_t>(bytes_));
  if (type_ == Type::kFloat32) return absl::StrCat("the number ", LoadAt<float>(bytes_));
  return absl::StrCat("the number ", LoadAt<double>(bytes_));
}

absl::StatusOr<std::optional<GgufHeader>> ParseGgufHeader(absl::string_view bytes,
                                                          uint64_t file_size,
                                                          GgufMetadataCheck check) {
  return GgufParser(bytes, file_size, check).Parse();
}

}  // namespace rivulet
