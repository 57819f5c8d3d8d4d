// SPDX-License-Identifier: Apache-2.0
#include "server/keys/key_file.h"

#include <fcntl.h>
#include <openssl/rand.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "model/base/descriptor.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

absl::Status CannotWrite(const std::string& path, absl::string_view what, int error) {
  return MakeError(
      absl::StatusCode::kInvalidArgument,
      absl::StrCat("keys-file ", path, " cannot be written: ", what, ": ", std::strerror(error)),
      {"BAD_FILE", "keys-file", {}});
}

// `place` is the path without symlinks.
absl::Status Replace(const std::string& path, const std::string& place, absl::string_view text) {
  std::string fresh = place + ".XXXXXX";
  const int fd = mkostemp(fresh.data(), O_CLOEXEC);  // mode 0600
  if (fd < 0) return CannotWrite(path, "its directory", errno);
  const auto end = [&](absl::string_view what) {
    const int error = errno;
    close(fd);
    unlink(fresh.c_str());
    return CannotWrite(path, what, error);
  };
  struct stat before {};
  const bool exists = stat(place.c_str(), &before) == 0;
  const bool same_owner = before.st_uid == geteuid() && before.st_gid == getegid();
  // Else a server that runs as the file's owner could no longer read it.
  if (exists && !same_owner && fchown(fd, before.st_uid, before.st_gid) != 0) {
    return end("its owner cannot be kept");
  }
  if (!WriteAll(fd, text) || fsync(fd) != 0) return end("writing");
  if (rename(fresh.c_str(), place.c_str()) != 0) return end("replacing");
  close(fd);
  return absl::OkStatus();
}

}  // namespace

absl::Status EditKeys(const std::string& path, bool make,
                      const std::function<absl::Status(std::vector<ApiKey>* keys)>& edit) {
  std::error_code ignored;
  const bool exists = std::filesystem::exists(path, ignored);
  const std::filesystem::path real = std::filesystem::canonical(path, ignored);
  const std::string place = exists ? real.string() : path;
  // The lock is not on the file itself, because each edit replaces the file.
  const std::string directory = std::filesystem::path(place).parent_path().string();
  const int lock =
      open(directory.empty() ? "." : directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock < 0) return CannotWrite(path, "its directory", errno);
  const absl::Cleanup unlock = [lock] { close(lock); };
  while (flock(lock, LOCK_EX) != 0) {
    if (errno != EINTR) return CannotWrite(path, "locking its directory", errno);
  }
  absl::StatusOr<std::vector<ApiKey>> keys = ReadKeys(path);
  if (make && absl::IsNotFound(keys.status())) keys = std::vector<ApiKey>();
  RIVULET_RETURN_IF_ERROR(keys.status());
  RIVULET_RETURN_IF_ERROR(edit(&*keys));
  return Replace(path, place, KeysToJson(*keys));
}

std::string NewKey() {
  std::array<unsigned char, 32> bits{};
  if (RAND_bytes(bits.data(), static_cast<int>(bits.size())) != 1) std::abort();
  return absl::StrCat("rivulet_", absl::WebSafeBase64Escape(absl::string_view(
                                      reinterpret_cast<const char*>(bits.data()), bits.size())));
}

}  // namespace rivulet
