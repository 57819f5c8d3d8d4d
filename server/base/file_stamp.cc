// SPDX-License-Identifier: Apache-2.0
#include "server/base/file_stamp.h"

#include <sys/stat.h>

#include "absl/time/time.h"

namespace rivulet {

FileStamp StampOf(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return FileStamp();
  return {info.st_ino, info.st_size, absl::ToUnixNanos(absl::TimeFromTimespec(info.st_mtim)),
          absl::ToUnixNanos(absl::TimeFromTimespec(info.st_ctim))};
}

}  // namespace rivulet
