// SPDX-License-Identifier: Apache-2.0
#include "model/loading/quantize_directory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/half.h"
#include "kernels/quantized.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"
#include "model/gguf_model.h"
#include "model/loading/packed_weights.h"
#include "model/loading/tensor_packer.h"
#include "model/model.h"

namespace rivulet {
namespace {

namespace fs = std::filesystem;
using kernels::WeightType;

constexpr char kWeightsName[] = "model.safetensors";

absl::Status CannotWrite(const fs::path& path, absl::string_view why) {
  return absl::UnavailableError(absl::StrCat(Quoted(path.string()), " cannot be written: ", why));
}

// A tensor of the new file: rows of a tensor of the old file.
struct Output {
  TensorRows rows;
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // as in the file
  size_t bytes = 0;
  bool rounded = false;
};

size_t Count(const std::vector<int64_t>& shape) {
  size_t count = 1;
  for (const int64_t extent : shape) count *= size_t(extent);
  return count;
}

// The type in a file for a type in memory; the file's own type if it was kept without loss.
DType FileType(WeightType type, const TensorEntry& entry) {
  switch (type) {
    case WeightType::kInt8:
      return DType::kQ8_0;
    case WeightType::kInt4:
      return DType::kQ4_1;
    case WeightType::kQ4K:
      return DType::kQ4_K;
    case WeightType::kF16:
      return DType::kF16;
    case WeightType::kBF16:
      return DType::kBF16;
    default:
      return entry.dtype;
  }
}

Output OutputOf(const TensorRows& rows, const TensorEntry& entry, WeightType type) {
  Output output;
  output.rows = rows;
  output.name = rows.of == 0 ? rows.name : RowsName(rows);
  output.dtype = FileType(type, entry);
  output.shape = entry.shape;
  const int64_t k = entry.shape.empty() ? 1 : entry.shape.back();
  if (rows.of != 0) output.shape[0] = rows.rows;
  const DTypeLayout& layout = LayoutOf(output.dtype);
  if (layout.weights > 1 && k % int64_t(layout.weights) != 0) output.dtype = entry.dtype;
  output.rounded = output.dtype != entry.dtype;
  output.bytes =
      Count(output.shape) / LayoutOf(output.dtype).weights * LayoutOf(output.dtype).bytes;
  output.name += BlockSuffix(output.dtype);
  if (LayoutOf(output.dtype).weights > 1) {
    output.shape = {int64_t(Count(output.shape)) / k, k / int64_t(layout.weights),
                    int64_t(layout.bytes)};
  }
  return output;
}

// All tensors of the new file. A tensor with a rounded and an unrounded part becomes two tensors.
absl::StatusOr<std::vector<Output>> Plan(const Model& model, const WeightChoice& choice) {
  RIVULET_ASSIGN_OR_RETURN(WeightPlan plan, PackedWeights::Plan(model, choice));
  std::vector<PackedRows>& packed = plan.matrices;
  std::stable_sort(packed.begin(), packed.end(), [](const PackedRows& a, const PackedRows& b) {
    return a.rows.name < b.rows.name;
  });
  std::vector<Output> outputs;
  for (const std::string& name : model.tensors().names()) {
    const TensorEntry& entry = *model.tensors().Find(name);
    const auto begin = std::find_if(packed.begin(), packed.end(),
                                    [&](const PackedRows& p) { return p.rows.name == name; });
    if (begin == packed.end()) {  // of no matrix
      outputs.push_back(OutputOf({name, 0}, entry, WeightType::kF32));
      continue;
    }
    if (begin->rows.stacked > 0) {  // experts: all parts have one type
      outputs.push_back(OutputOf({name, 0}, entry, begin->type));
      continue;
    }
    for (auto part = begin; part != packed.end() && part->rows.name == name; ++part) {
      outputs.push_back(OutputOf(part->rows, entry, part->type));
    }
  }
  return outputs;
}

std::string Header(const std::vector<Output>& outputs, const Model& model,
                   const WeightChoice& choice) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"},
                            {"rivulet.weights", WeightChoiceName(choice)},
                            {"rivulet.source_sha256", model.weights_sha256()}};
  size_t at = 0;
  for (const Output& output : outputs) {
    const DTypeLayout& layout = LayoutOf(output.dtype);
    header[output.name] = {{"dtype", layout.weights > 1 ? "U8" : layout.name},
                           {"shape", output.shape},
                           {"data_offsets", {at, at + output.bytes}}};
    at += output.bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

void AppendHalf(uint16_t half, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&half), sizeof(half));
}

// A block of Q8_0, Q4_1 or Q4_K (dtype.h). Its numbers of F16 may be infinite.
void AppendBlock(DType dtype, const float* w, std::string* bytes) {
  kernels::QuantizedGroup groups[kernels::kMostGroups];
  std::ignore = kernels::RoundToBlock(*PackedTypeOf(dtype), w, groups);
  const kernels::QuantizedGroup& first = groups[0];
  AppendHalf(kernels::F32ToF16(first.d), bytes);
  if (dtype == DType::kQ8_0) {
    bytes->append(reinterpret_cast<const char*>(first.q), sizeof(first.q));
    return;
  }
  const bool k = dtype == DType::kQ4_K;
  AppendHalf(kernels::F32ToF16(k ? first.e : -first.e), bytes);
  const auto append = [bytes](int low, int high) { bytes->push_back(char(low | high << 4)); };
  if (!k) {
    for (size_t i = 0; i < 16; ++i) append(first.q[i], first.q[i + 16]);
    return;
  }
  for (int g = 0; g < 4; ++g) append(groups[g].u[0], groups[g + 4].u[0] >> 4 << 2);
  for (int g = 0; g < 4; ++g) append(groups[g].v, groups[g + 4].v >> 4 << 2);
  for (int g = 4; g < 8; ++g) append(groups[g].u[0] & 15, groups[g].v & 15);
  for (int g = 0; g < 8; g += 2) {
    for (size_t i = 0; i < 32; ++i) append(groups[g].q[i], groups[g + 1].q[i]);
  }
}

absl::StatusOr<std::string> Rounded(const Model& model, const Output& output, size_t first,
                                    size_t count) {
  std::vector<float> weights(count);
  RIVULET_RETURN_IF_ERROR(model.tensors().ReadFrom(output.rows.name, first, weights));
  std::string bytes;
  const DTypeLayout& layout = LayoutOf(output.dtype);
  for (size_t i = 0; i < count; i += layout.weights) {
    if (layout.weights > 1) {
      AppendBlock(output.dtype, &weights[i], &bytes);
    } else {
      AppendHalf(output.dtype == DType::kF16 ? kernels::F32ToF16(weights[i])
                                             : kernels::F32ToBf16(weights[i]),
                 &bytes);
    }
  }
  if (FindNonFinite(output.dtype, bytes.data(), count / layout.weights)) {
    return WeightTooLarge(output.rows.name);
  }
  return bytes;
}

absl::StatusOr<std::string> BytesOf(const Model& model, const Output& output, size_t first,
                                    size_t count) {
  const DTypeLayout& layout = LayoutOf(model.tensors().Find(output.rows.name)->dtype);
  if (output.rounded) return Rounded(model, output, first, count);
  std::string bytes(count / layout.weights * layout.bytes, '\0');
  RIVULET_RETURN_IF_ERROR(
      model.tensors().ReadBlocks(output.rows.name, first / layout.weights, bytes));
  return bytes;
}

// Calls `write` with the bytes of the tensor, in pieces.
absl::Status ForEachPiece(const Model& model, const Output& output,
                          absl::FunctionRef<absl::Status(absl::string_view bytes)> write) {
  constexpr size_t kPiece = size_t{1} << 24;  // weights: whole blocks
  const TensorEntry& entry = *model.tensors().Find(output.rows.name);
  const size_t row = Count(entry.shape) / size_t(entry.shape.empty() ? 1 : entry.shape[0]);
  const size_t first = size_t(output.rows.first) * row;
  const size_t count = output.rows.of == 0 ? Count(entry.shape) : size_t(output.rows.rows) * row;
  for (size_t at = 0; at < count; at += kPiece) {
    RIVULET_ASSIGN_OR_RETURN(const std::string bytes,
                             BytesOf(model, output, first + at, std::min(kPiece, count - at)));
    RIVULET_RETURN_IF_ERROR(write(bytes));
  }
  return absl::OkStatus();
}

bool IsWeights(const std::string& name) {
  for (const char* ending : {".safetensors", ".safetensors.index.json", ".safetensors.xz", ".bin",
                             ".gguf", ".pth", ".pt", ".onnx", ".h5", ".log"}) {
    if (absl::EndsWith(name, ending)) return true;
  }
  return name == "golden.json";  // outputs of the original weights
}

// Copies everything except weights and logs: configuration, tokenizer, templates.
absl::Status CopyOthers(const fs::path& from, const fs::path& out) {
  std::error_code listed;
  fs::directory_iterator entry(from, listed);
  for (; !listed && entry != fs::directory_iterator(); entry.increment(listed)) {
    const std::string name = entry->path().filename().string();
    std::error_code error;
    if (IsWeights(name) || !entry->is_regular_file(error)) continue;
    fs::copy_file(entry->path(), out / name, error);
    if (error) return CannotWrite(out / name, error.message());
  }
  if (!listed) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(Quoted(from.string()), " cannot be listed: ", listed.message()));
}

absl::Status CheckPlaces(const std::string& from, const fs::path& out, const WeightChoice& choice) {
  std::error_code error;
  if (!choice.quantized()) {
    return InvalidField("CONFIG_INVALID", "weights",
                        absl::StrCat("weights is ", Quoted(WeightChoiceName(choice)),
                                     "; allowed here: int8 or int4"));
  }
  if (!fs::is_directory(from, error)) {
    return InvalidField(
        "CONFIG_INVALID", "model",
        absl::StrCat(Quoted(from), IsGgufFile(from)
                                       ? " is a GGUF file; quantize takes a model directory"
                                       : " is no model directory"));
  }
  if (fs::exists(out, error) && !fs::is_empty(out, error)) {
    return InvalidField("CONFIG_INVALID", "out",
                        absl::StrCat(Quoted(out.string()), " exists and is not empty"));
  }
  return absl::OkStatus();
}

// The written bytes are on the disk when this returns.
absl::Status Sync(const fs::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool synced = fd >= 0 && fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  return synced ? absl::OkStatus() : CannotWrite(path, std::strerror(error));
}

absl::StatusOr<QuantizedDirectory> WriteWeights(
    const Model& model, const std::vector<Output>& outputs, const WeightChoice& choice,
    const fs::path& path, absl::FunctionRef<void(int64_t done, int64_t all)> progress) {
  QuantizedDirectory made;
  for (const std::string& name : model.tensors().names()) {
    const TensorEntry& entry = *model.tensors().Find(name);
    made.bytes_before += int64_t(entry.end - entry.begin);
  }
  int64_t all = 0;
  for (const Output& output : outputs) all += int64_t(output.bytes);
  std::ofstream file(path, std::ios::binary);
  const std::string header = Header(outputs, model, choice);
  const uint64_t length = header.size();
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file.write(header.data(), std::streamsize(header.size()));
  for (const Output& output : outputs) {
    RIVULET_RETURN_IF_ERROR(ForEachPiece(model, output, [&](absl::string_view bytes) {
      file.write(bytes.data(), std::streamsize(bytes.size()));
      if (!file.good()) return CannotWrite(path, std::strerror(errno));
      made.bytes_after += int64_t(bytes.size());
      progress(made.bytes_after, all);
      return absl::OkStatus();
    }));
    ++(output.rounded ? made.rounded : made.kept);
  }
  file.close();
  if (!file.good()) return CannotWrite(path, std::strerror(errno));
  RIVULET_RETURN_IF_ERROR(Sync(path));
  return made;
}

absl::StatusOr<QuantizedDirectory> WriteDirectory(
    const Model& model, const fs::path& from, const fs::path& out, const WeightChoice& choice,
    absl::FunctionRef<void(int64_t done, int64_t all)> progress) {
  RIVULET_ASSIGN_OR_RETURN(const std::vector<Output> outputs, Plan(model, choice));
  std::error_code error;
  fs::create_directories(out, error);
  if (error) return CannotWrite(out, error.message());
  RIVULET_RETURN_IF_ERROR(CopyOthers(from, out));
  const fs::path part = out / absl::StrCat(kWeightsName, ".part");
  RIVULET_ASSIGN_OR_RETURN(const QuantizedDirectory made,
                           WriteWeights(model, outputs, choice, part, progress));
  fs::rename(part, out / kWeightsName, error);
  if (error) return CannotWrite(out, error.message());
  RIVULET_RETURN_IF_ERROR(Sync(out));
  return made;
}

}  // namespace

absl::StatusOr<QuantizedDirectory> QuantizeDirectory(
    const std::string& from, const std::string& out, const WeightChoice& choice,
    absl::FunctionRef<void(int64_t done, int64_t all)> progress) {
  RIVULET_RETURN_IF_ERROR(CheckPlaces(from, out, choice));
  RIVULET_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> model, Model::Load(from));
  if (HasBlocks(model->tensors())) {
    return InvalidField("CONFIG_INVALID", "model",
                        absl::StrCat(Quoted(from),
                                     " holds weights of few bits already; give the "
                                     "directory that they were made of"));
  }
  auto made = WriteDirectory(*model, from, out, choice, progress);
  if (made.ok()) return made;
  // It was empty, or did not exist.
  std::error_code error;
  fs::directory_iterator entry(out, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    fs::remove(entry->path(), ignored);
  }
  return made;
}

}  // namespace rivulet
