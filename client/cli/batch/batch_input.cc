// SPDX-License-Identifier: Apache-2.0
#include "client/cli/batch/batch_input.h"

#include <openssl/evp.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"

namespace rivulet {
namespace {

constexpr absl::string_view kBlank = " \t\r";

struct FileDigest {
  std::string sha256;
  std::vector<bool> blank = {true};  // BatchInput::blank
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
  bool blank = true;  // the last line, as far as it was read
  char last = '\n';
  while (const size_t bytes = std::fread(chunk.data(), 1, chunk.size(), file.get())) {
    hashed = hashed && EVP_DigestUpdate(digest.get(), chunk.data(), bytes) == 1;
    for (const char c : absl::string_view(chunk.data(), bytes)) {
      if (c == '\n') {
        found.blank.push_back(std::exchange(blank, true));
      } else {
        blank = blank && absl::StrContains(kBlank, c);
      }
    }
    last = chunk[bytes - 1];
  }
  if (std::ferror(file.get()) != 0) return CannotRead(path);
  if (last != '\n') found.blank.push_back(blank);
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
  input->blank_ = std::move(digest.blank);
  return input;
}

absl::StatusOr<std::optional<NumberedLine>> BatchInput::Next() {
  std::optional<absl::string_view> text;
  do {
    RIVULET_ASSIGN_OR_RETURN(text, reader_.Next());
    if (!text.has_value()) return std::optional<NumberedLine>();
    ++number_;
  } while (text->find_first_not_of(kBlank) == absl::string_view::npos);
  NumberedLine next;
  next.number = number_;
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
