// SPDX-License-Identifier: Apache-2.0
#include "model/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

const char* KindOf(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

absl::Status BadFile(absl::StatusCode code, absl::string_view message) {
  return MakeError(code, message, {"BAD_FILE", "", {}});
}

}  // namespace

absl::StatusOr<int> OpenRegularFile(const std::string& path, absl::StatusCode code,
                                    struct stat* info) {
  // O_NONBLOCK: a FIFO without a writer would hold an ordinary open for ever.
  const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) {
    const int error = errno;
    if (error == ENOENT || error == ENOTDIR) {
      return MakeError(absl::StatusCode::kNotFound, "no such file", {"NO_SUCH_FILE", "", {}});
    }
    return BadFile(code, absl::StrCat("cannot be opened: ", std::strerror(error)));
  }
  if (fstat(fd, info) != 0 || !S_ISREG(info->st_mode)) {
    close(fd);
    return BadFile(code, absl::StrCat("must be a regular file, it is ", KindOf(info->st_mode)));
  }
  return fd;
}

}  // namespace rivulet
