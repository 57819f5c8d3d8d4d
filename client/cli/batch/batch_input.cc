// SPDX-License-Identifier: Apache-2.0
#include "client/cli/batch/batch_input.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"

namespace rivulet {
namespace {

struct FileDigest {
  std::string sha256;
  int64_t lines = 0;
};

absl::Status CannotRead(const std::string& path) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read: ", std::strerror(errno)));
}

absl::StatusOr<FileDigest> DigestOf(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
  if (file == nullptr) return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> digest(EVP_MD_CTX_new(),
                                                                  &EVP_MD_CTX_free);
  bool hashed = digest != nullptr && EVP_DigestInit_ex(digest.get(), EVP_sha256(), nullptr) == 1;
  FileDigest found;
  std::vector<char> chunk(size_t{1} << 20);
  char last = '\n';
  while (const size_t bytes = std::fread(chunk.data(), 1, chunk.size(), file.get())) {
    hashed = hashed && EVP_DigestUpdate(digest.get(), chunk.data(), bytes) == 1;
    const char* const begin = chunk.data();
    found.lines += std::count(begin, begin + bytes, '\n');
    last = chunk[bytes - 1];
  }
  if (std::ferror(file.get()) != 0) return CannotRead(path);
  if (last != '\n') ++found.lines;
  unsigned char hash[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  if (!hashed || EVP_DigestFinal_ex(digest.get(), hash, &size) != 1) {
    return absl::InternalError("SHA-256 cannot be computed");
  }
  found.sha256 =
      absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(hash), size));
  return found;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BatchInput>> BatchInput::Open(const std::string& path,
                                                             BatchDefaults defaults) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": is no regular file; a batch that is continued reads its input again"));
  }
  RIVULET_ASSIGN_OR_RETURN(FileDigest digest, DigestOf(path));
  std::unique_ptr<BatchInput> input(new BatchInput(path, std::move(defaults)));
  if (!input->reader_.is_open()) return CannotRead(path);
  input->sha256_ = std::move(digest.sha256);
  input->lines_ = digest.lines;
  return input;
}

absl::StatusOr<std::optional<NumberedLine>> BatchInput::Next() {
  RIVULET_ASSIGN_OR_RETURN(const std::optional<absl::string_view> text, reader_.Next());
  if (!text.has_value()) return std::optional<NumberedLine>();
  NumberedLine next;
  next.number = ++number_;
  next.status = ParseBatchLine(*text, defaults_, &next.line);
  if (next.line.custom_id.has_value()) {
    const auto [first, is_new] = ids_.try_emplace(*next.line.custom_id, next.number);
    if (!is_new) {
      next.status = InvalidField("CUSTOM_ID_REPEATED", "custom_id",
                                 absl::StrCat("custom_id is ", Quoted(*next.line.custom_id),
                                              ", which line ", first->second, " has too"));
    }
  }
  return std::optional<NumberedLine>(std::move(next));
}

}  // namespace rivulet
