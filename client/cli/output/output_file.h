// SPDX-License-Identifier: Apache-2.0
// A file that a command writes: whole or not at all, and never in place of anything but a regular
// file.
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace rivulet {

// OK if an OutputFile may be written at `path`: nothing is there, or a regular file that may be
// written, or a symlink to one. Leaves nothing behind. Errors: INVALID_ARGUMENT.
absl::Status CheckWritable(const std::string& path);

// A new file beside the one to come, so that a rename cannot cross file systems. It goes away with
// this object unless it was committed. Thread: one at a time.
class OutputFile {
 public:
  explicit OutputFile(std::string path) : path_(std::move(path)) {}
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  // Errors: those of CheckWritable.
  absl::Status Open();
  // REQUIRES: Open() was OK.
  std::FILE* file() const { return file_; }
  // Errors: INVALID_ARGUMENT. REQUIRES: Open() was OK.
  absl::Status Write(absl::string_view text);
  // Puts what was written at the path; a symlink stays and its target is replaced. Errors:
  // INVALID_ARGUMENT. REQUIRES: Open() was OK.
  absl::Status Commit();

 private:
  const std::string path_;
  std::string place_;      // `path_` without symlinks, where a file is there
  std::string temporary_;  // empty: not made
  std::FILE* file_ = nullptr;
};

// Writes `text` at `path`. Errors: those of CheckWritable.
absl::Status WriteTextFile(const std::string& path, absl::string_view text);

}  // namespace rivulet
