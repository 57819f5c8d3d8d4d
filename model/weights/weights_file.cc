// SPDX-License-Identifier: Apache-2.0
#include "model/weights/weights_file.h"

#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kernels/half.h"
#include "model/base/error.h"
#include "model/base/file.h"
#include "model/base/strict_json.h"

namespace rivulet {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr uint64_t kLengthBytes = 8;  // the header's length, before the header
constexpr size_t kPieceBytes = size_t{1} << 20;

int64_t MtimeNs(const struct stat& info) {
  return int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}

template <typename T>
T Load(const char* bytes, size_t index) {
  T value;
  std::memcpy(&value, bytes + index * sizeof(T), sizeof(T));
  return value;
}

// Decodes `count` weights at `bytes`; out[i] for i < count.
void Decode(DType dtype, const char* bytes, size_t count, float* out) {
  switch (dtype) {
    case DType::kF32:
      std::memcpy(out, bytes, count * sizeof(float));
      return;
    case DType::kF16:
      for (size_t i = 0; i < count; ++i) out[i] = kernels::F16ToF32(Load<uint16_t>(bytes, i));
      return;
    case DType::kBF16:
      for (size_t i = 0; i < count; ++i) out[i] = kernels::Bf16ToF32(Load<uint16_t>(bytes, i));
      return;
  }
}

// Whether any of the weights is not finite: whether any exponent is all ones.
template <typename T, T kExponent>
bool AnyNonFinite(const char* bytes, size_t count) {
  bool found = false;
  for (size_t i = 0; i < count; ++i) found |= (Load<T>(bytes, i) & kExponent) == kExponent;
  return found;
}

// OK, or an error that names the first weight that is not finite. `first_index` is that of the
// piece's first weight.
absl::Status CheckFinite(absl::string_view name, DType dtype, const char* bytes, size_t count,
                         uint64_t first_index) {
  bool bad = false;
  switch (dtype) {
    case DType::kF32:
      bad = AnyNonFinite<uint32_t, 0x7F800000u>(bytes, count);
      break;
    case DType::kF16:
      bad = AnyNonFinite<uint16_t, 0x7C00u>(bytes, count);
      break;
    case DType::kBF16:
      bad = AnyNonFinite<uint16_t, 0x7F80u>(bytes, count);
      break;
  }
  for (size_t i = 0; bad && i < count; ++i) {
    float value = 0;
    Decode(dtype, bytes + i * SizeOf(dtype), 1, &value);
    if (std::isfinite(value)) continue;
    return CorruptWeights(absl::StrCat("tensor ", Quoted(name), ": the weight at index ",
                                       first_index + i, " is ", value,
                                       "; allowed: finite numbers"));
  }
  return absl::OkStatus();
}

struct FreeDigest {
  void operator()(EVP_MD_CTX* digest) const { EVP_MD_CTX_free(digest); }
};

}  // namespace

absl::StatusOr<std::unique_ptr<WeightsFile>> WeightsFile::OpenOnly(const std::string& path) {
  struct stat info = {};
  RIVULET_ASSIGN_OR_RETURN(const int fd, OpenRegularFile(path, absl::StatusCode::kDataLoss, &info));
  auto file = std::unique_ptr<WeightsFile>(new WeightsFile);
  file->fd_ = fd;
  file->size_ = static_cast<uint64_t>(info.st_size);
  file->mtime_ns_ = MtimeNs(info);
  return file;
}

absl::StatusOr<std::vector<std::string>> WeightsFile::TensorNames(const std::string& path) {
  RIVULET_ASSIGN_OR_RETURN(const std::unique_ptr<WeightsFile> file, OpenOnly(path));
  RIVULET_ASSIGN_OR_RETURN(const std::string header, file->ReadHeader());
  std::vector<std::string> names;
  const auto on_member = [&names](const std::string& name, const JsonValue&) {
    names.push_back(name);
    return absl::OkStatus();
  };
  RIVULET_RETURN_IF_ERROR(ParseStrictJsonMembers(header, JsonLimits{}, on_member));
  return names;
}

absl::StatusOr<std::unique_ptr<WeightsFile>> WeightsFile::Open(
    const std::string& path, std::span<const TensorSpec> expected) {
  RIVULET_ASSIGN_OR_RETURN(std::unique_ptr<WeightsFile> file, OpenOnly(path));
  RIVULET_ASSIGN_OR_RETURN(const std::string header, file->ReadHeader());
  file->data_begin_ = kLengthBytes + header.size();
  RIVULET_ASSIGN_OR_RETURN(
      file->entries_, ParseSafetensorsHeader(header, file->size_ - file->data_begin_, expected));
  return file;
}

absl::StatusOr<std::unique_ptr<WeightsFile>> WeightsFile::OpenAny(const std::string& path) {
  RIVULET_ASSIGN_OR_RETURN(std::unique_ptr<WeightsFile> file, OpenOnly(path));
  RIVULET_ASSIGN_OR_RETURN(const std::string header, file->ReadHeader());
  file->data_begin_ = kLengthBytes + header.size();
  RIVULET_ASSIGN_OR_RETURN(file->entries_,
                           ParseSafetensorsHeader(header, file->size_ - file->data_begin_));
  return file;
}

WeightsFile::~WeightsFile() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<std::string> WeightsFile::ReadHeader() const {
  if (size_ < kLengthBytes) {
    return CorruptWeights(absl::StrCat("header: the file has ", size_,
                                       " bytes; allowed: at least 8, the length of the header"));
  }
  uint64_t length = 0;
  char bytes[kLengthBytes];
  RIVULET_RETURN_IF_ERROR(ReadBytes(0, bytes));
  std::memcpy(&length, bytes, sizeof(length));
  if (std::memcmp(bytes, "version ", sizeof(bytes)) == 0) {  // "version https://git-lfs..."
    return CorruptWeights(
        "this is a pointer of Git LFS, not the weights; \"git lfs pull\" fetches them");
  }
  if (length > kMaxHeaderBytes) {
    return CorruptWeights(absl::StrCat("header: its length is ", length,
                                       " bytes; allowed: at most ", kMaxHeaderBytes));
  }
  if (length > size_ - kLengthBytes) {
    return CorruptWeights(absl::StrCat("header: its length is ", length, " bytes, but only ",
                                       size_ - kLengthBytes, " follow in the file"));
  }
  std::string header(static_cast<size_t>(length), '\0');
  RIVULET_RETURN_IF_ERROR(ReadBytes(kLengthBytes, header));
  return header;
}

absl::Status WeightsFile::ReadBytes(uint64_t offset, std::span<char> out) const {
  for (size_t done = 0; done < out.size();) {
    const ssize_t got =
        pread(fd_, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (got > 0) {
      done += static_cast<size_t>(got);
    } else if (got == 0) {
      return CorruptWeights("the file became shorter while it was read");
    } else if (errno != EINTR) {
      return CorruptWeights(absl::StrCat("cannot be read: ", std::strerror(errno)));
    }
  }
  return CheckUnchanged();
}

absl::Status WeightsFile::CheckUnchanged() const {
  struct stat info = {};
  if (fstat(fd_, &info) != 0) return CorruptWeights(absl::StrCat("fstat: ", std::strerror(errno)));
  if (static_cast<uint64_t>(info.st_size) == size_ && MtimeNs(info) == mtime_ns_) {
    return absl::OkStatus();
  }
  return CorruptWeights("the file changed after it was opened");
}

absl::StatusOr<std::string> WeightsFile::Sha256() const {
  const std::unique_ptr<EVP_MD_CTX, FreeDigest> digest(EVP_MD_CTX_new());
  bool hashed = digest != nullptr && EVP_DigestInit_ex(digest.get(), EVP_sha256(), nullptr) == 1;
  std::vector<char> piece(kPieceBytes);
  const auto read = [&](uint64_t offset, size_t bytes) {
    const absl::Status status = ReadBytes(offset, std::span<char>(piece.data(), bytes));
    hashed = hashed && EVP_DigestUpdate(digest.get(), piece.data(), bytes) == 1;
    return status;
  };
  for (uint64_t offset = 0; offset < data_begin_;) {
    const size_t bytes = std::min<uint64_t>(kPieceBytes, data_begin_ - offset);
    RIVULET_RETURN_IF_ERROR(read(offset, bytes));
    offset += bytes;
  }
  // The tensors fill the rest of the file without a gap, so reading them in the order of their
  // offsets reads it all.
  std::vector<TensorEntries::const_pointer> order;
  for (const auto& named : entries_) order.push_back(&named);
  std::sort(order.begin(), order.end(),
            [](const auto* a, const auto* b) { return a->second.begin < b->second.begin; });
  for (const auto* named : order) {
    const TensorEntry& entry = named->second;
    for (uint64_t offset = entry.begin; offset < entry.end;) {
      const size_t bytes = std::min<uint64_t>(kPieceBytes, entry.end - offset);
      const size_t item = SizeOf(entry.dtype);
      RIVULET_RETURN_IF_ERROR(read(data_begin_ + offset, bytes));
      RIVULET_RETURN_IF_ERROR(CheckFinite(named->first, entry.dtype, piece.data(), bytes / item,
                                          (offset - entry.begin) / item));
      offset += bytes;
    }
  }
  unsigned char hash[EVP_MAX_MD_SIZE];
  unsigned int hash_bytes = 0;
  hashed = hashed && EVP_DigestFinal_ex(digest.get(), hash, &hash_bytes) == 1;
  if (!hashed) return absl::InternalError("SHA-256 is not available in this OpenSSL");
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(hash), hash_bytes));
}

DType WeightsFile::dtype(absl::string_view name) const { return entries_.find(name)->second.dtype; }

absl::Status WeightsFile::ReadFrom(absl::string_view name, size_t first,
                                   std::span<float> out) const {
  const TensorEntry& entry = entries_.find(name)->second;
  const size_t item = SizeOf(entry.dtype);
  std::vector<char> piece(std::min(kPieceBytes, out.size() * item));
  for (size_t done = 0; done < out.size();) {
    const size_t count = std::min(piece.size() / item, out.size() - done);
    RIVULET_RETURN_IF_ERROR(ReadBytes(data_begin_ + entry.begin + (first + done) * item,
                                      std::span<char>(piece.data(), count * item)));
    RIVULET_RETURN_IF_ERROR(CheckFinite(name, entry.dtype, piece.data(), count, first + done));
    Decode(entry.dtype, piece.data(), count, out.data() + done);
    done += count;
  }
  return absl::OkStatus();
}

}  // namespace rivulet
