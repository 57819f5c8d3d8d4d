// SPDX-License-Identifier: Apache-2.0
// A file that a command writes: whole or not at all. It replaces nothing but a regular file.
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace rivulet {

// OK if an OutputFile may be written at `path`: nothing is there, or a writable regular file, or a
// symlink to one of these. Leaves no file behind. Errors: INVALID_ARGUMENT.
absl::Status CheckWritable(const std::string& path);

// A temporary file beside the final one, so that the rename does not cross file systems. The
// destructor removes it unless it was committed. Thread: one at a time.
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
  // Moves the written file to the path; a symlink stays and its target is replaced. Errors:
  // INVALID_ARGUMENT. REQUIRES: Open() was OK.
  absl::Status Commit();

 private:
  const std::string path_;
  std::string place_;      // `path_` without symlinks, if a file is there
  std::string temporary_;  // empty: not created
  std::FILE* file_ = nullptr;
};

// Writes `text` at `path`. Errors: those of CheckWritable.
absl::Status WriteTextFile(const std::string& path, absl::string_view text);

}  // namespace rivulet
