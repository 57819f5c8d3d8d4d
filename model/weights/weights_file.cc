// SPDX-License-Identifier: Apache-2.0
#include "model/weights/weights_file.h"

#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/base/file.h"
#include "model/base/strict_json.h"

namespace rivulet {
namespace {

constexpr uint64_t kLengthBytes = 8;  // the header's length, before the header
constexpr size_t kPieceBytes = size_t{1} << 20;

int64_t MtimeNs(const struct stat& info) {
  return int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}

// OK, or an error that names the first of `blocks` blocks with a weight that is not finite.
// `first_block` is the number of the piece's first block.
absl::Status CheckFinite(absl::string_view name, DType dtype, const char* bytes, size_t blocks,
                         uint64_t first_block) {
  const std::optional<size_t> bad = FindNonFinite(dtype, bytes, blocks);
  if (!bad) return absl::OkStatus();
  const DTypeLayout& layout = LayoutOf(dtype);
  const uint64_t index = (first_block + *bad) * layout.weights;
  if (layout.weights > 1) {
    return CorruptWeights(absl::StrCat("tensor ", Quoted(name), ": a scale of the block at index ",
                                       index, " is not finite"));
  }
  float value = 0;
  DecodeBlocks(dtype, bytes + *bad * layout.bytes, 1, &value);
  return CorruptWeights(absl::StrCat("tensor ", Quoted(name), ": the weight at index ", index,
                                     " is ", value, "; allowed: finite numbers"));
}

// Decodes the `count` blocks at `bytes`, blocks `block` onwards of a tensor, to their place in
// `out`. `out` holds the tensor's weights from `first` on and may begin or end within a block.
void DecodeOverlap(DType dtype, const char* bytes, size_t block, size_t count, size_t first,
                   std::span<float> out) {
  const DTypeLayout& layout = LayoutOf(dtype);
  const size_t end = first + out.size();
  for (size_t i = 0; i < count;) {
    const size_t begin = (block + i) * layout.weights;
    const char* const at = bytes + i * layout.bytes;
    if (begin >= first && begin + layout.weights <= end) {
      const size_t whole = std::min(count - i, (end - begin) / layout.weights);
      DecodeBlocks(dtype, at, whole, out.data() + (begin - first));
      i += whole;
      continue;
    }
    float weights[kMaxBlockWeights];
    DecodeBlocks(dtype, at, 1, weights);
    const size_t from = std::max(begin, first), to = std::min(begin + layout.weights, end);
    std::copy(weights + (from - begin), weights + (to - begin), out.data() + (from - first));
    ++i;
  }
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

absl::StatusOr<std::unique_ptr<WeightsFile>> WeightsFile::OpenGguf(const std::string& path,
                                                                   GgufMetadataCheck check,
                                                                   GgufMetadata* metadata) {
  RIVULET_ASSIGN_OR_RETURN(std::unique_ptr<WeightsFile> file, OpenOnly(path));
  RIVULET_ASSIGN_OR_RETURN(GgufHeader header, file->ReadGgufHeader(check));
  file->data_begin_ = header.data_begin;
  file->entries_ = std::move(header.tensors);
  *metadata = std::move(header.metadata);
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

absl::StatusOr<GgufHeader> WeightsFile::ReadGgufHeader(GgufMetadataCheck check) const {
  std::string bytes;
  // The end of the header is known only after reading it.
  for (uint64_t size = kPieceBytes;; size *= 2) {
    const size_t had = bytes.size();
    bytes.resize(static_cast<size_t>(std::min(size, size_)));
    RIVULET_RETURN_IF_ERROR(ReadBytes(had, std::span<char>(bytes).subspan(had)));
    RIVULET_ASSIGN_OR_RETURN(std::optional<GgufHeader> header,
                             ParseGgufHeader(bytes, size_, check));
    if (header) return *std::move(header);
  }
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
    for (uint64_t now = allowed_; offset + bytes > now; now = allowed_) allowed_.wait(now);
    const absl::Status status = ReadBytes(offset, std::span<char>(piece.data(), bytes));
    hashed = hashed && EVP_DigestUpdate(digest.get(), piece.data(), bytes) == 1;
    return status;
  };
  // The bytes outside tensors: the header, and the padding of GGUF.
  uint64_t at = 0;
  const auto read_up_to = [&](uint64_t end) -> absl::Status {
    while (at < end) {
      const size_t bytes = std::min<uint64_t>(kPieceBytes, end - at);
      RIVULET_RETURN_IF_ERROR(read(at, bytes));
      at += bytes;
    }
    return absl::OkStatus();
  };
  std::vector<TensorEntries::const_pointer> order;
  for (const auto& named : entries_) order.push_back(&named);
  std::sort(order.begin(), order.end(),
            [](const auto* a, const auto* b) { return a->second.begin < b->second.begin; });
  for (const auto* named : order) {
    const TensorEntry& entry = named->second;
    const DTypeLayout& layout = LayoutOf(entry.dtype);
    const size_t piece_bytes = kPieceBytes / layout.bytes * layout.bytes;
    RIVULET_RETURN_IF_ERROR(read_up_to(data_begin_ + entry.begin));
    for (uint64_t offset = entry.begin; offset < entry.end;) {
      const size_t bytes = std::min<uint64_t>(piece_bytes, entry.end - offset);
      RIVULET_RETURN_IF_ERROR(read(at, bytes));
      RIVULET_RETURN_IF_ERROR(CheckFinite(named->first, entry.dtype, piece.data(),
                                          bytes / layout.bytes,
                                          (offset - entry.begin) / layout.bytes));
      offset += bytes;
      at += bytes;
    }
  }
  RIVULET_RETURN_IF_ERROR(read_up_to(size_));
  unsigned char hash[EVP_MAX_MD_SIZE];
  unsigned int hash_bytes = 0;
  hashed = hashed && EVP_DigestFinal_ex(digest.get(), hash, &hash_bytes) == 1;
  if (!hashed) return absl::InternalError("SHA-256 is not available in this OpenSSL");
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(hash), hash_bytes));
}

DType WeightsFile::dtype(absl::string_view name) const { return entries_.find(name)->second.dtype; }

absl::Status WeightsFile::ReadBlocks(absl::string_view name, size_t first,
                                     std::span<char> out) const {
  const TensorEntry& entry = entries_.find(name)->second;
  const size_t bytes = LayoutOf(entry.dtype).bytes;
  RIVULET_RETURN_IF_ERROR(ReadBytes(data_begin_ + entry.begin + first * bytes, out));
  allowed_ += out.size();
  allowed_.notify_all();
  return CheckFinite(name, entry.dtype, out.data(), out.size() / bytes, first);
}

absl::Status WeightsFile::ReadFrom(absl::string_view name, size_t first,
                                   std::span<float> out) const {
  const TensorEntry& entry = entries_.find(name)->second;
  const DTypeLayout& layout = LayoutOf(entry.dtype);
  size_t block = first / layout.weights;
  const size_t end = (first + out.size() + layout.weights - 1) / layout.weights;
  std::vector<char> piece(std::min(kPieceBytes / layout.bytes, end - block) * layout.bytes);
  while (block < end) {
    const size_t count = std::min(piece.size() / layout.bytes, end - block);
    RIVULET_RETURN_IF_ERROR(ReadBlocks(name, block, std::span(piece).first(count * layout.bytes)));
    DecodeOverlap(entry.dtype, piece.data(), block, count, first, out);
    block += count;
  }
  return absl::OkStatus();
}

}  // namespace rivulet
