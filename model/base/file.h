// SPDX-License-Identifier: Apache-2.0
// Opens untrusted files.
#pragma once

#include <sys/stat.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace rivulet {

// Opens `path` for reading if it is a regular file; never blocks, whatever it is. Returns the
// descriptor, which the caller closes, and fills *info. Errors: NOT_FOUND, or `code` if it is not a
// readable regular file.
absl::StatusOr<int> OpenRegularFile(const std::string& path, absl::StatusCode code,
                                    struct stat* info);

// The bytes of a regular file of at most `max_bytes`. Errors: NOT_FOUND, or INVALID_ARGUMENT (no
// regular file, larger, unreadable).
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes);

// The contents of a file of the kernel, as under /proc, whose size is unknown before it is read; ""
// if the file does not exist.
std::string ReadKernelFile(const std::string& path);

}  // namespace rivulet
