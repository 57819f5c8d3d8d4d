// SPDX-License-Identifier: Apache-2.0
#include "model/base/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

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
  // O_NONBLOCK: an ordinary open of a FIFO without a writer would wait for ever.
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

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes) {
  struct stat info = {};
  RIVULET_ASSIGN_OR_RETURN(const int fd,
                           OpenRegularFile(path, absl::StatusCode::kInvalidArgument, &info));
  // One byte more than allowed, to notice also a file that grows meanwhile.
  std::string text(max_bytes + 1, '\0');
  size_t size = 0;
  int error = 0;
  while (size < text.size()) {
    const ssize_t got = read(fd, text.data() + size, text.size() - size);
    if (got == 0) break;
    if (got > 0) {
      size += static_cast<size_t>(got);
    } else if (errno != EINTR) {
      error = errno;
      break;
    }
  }
  close(fd);
  if (error != 0) {
    return BadFile(absl::StatusCode::kInvalidArgument,
                   absl::StrCat("cannot be read: ", std::strerror(error)));
  }
  if (size > max_bytes) {
    return BadFile(absl::StatusCode::kInvalidArgument,
                   absl::StrCat("the file has more than the allowed ", max_bytes, " bytes"));
  }
  text.resize(size);
  return text;
}

std::string ReadKernelFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace rivulet
