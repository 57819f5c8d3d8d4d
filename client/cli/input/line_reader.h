// SPDX-License-Identifier: Apache-2.0
// Lines of a file or pipe, and whether one can be read without waiting.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rivulet {

// Thread: one.
class LineReader {
 public:
  // "-" is stdin.
  explicit LineReader(const std::string& path);
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;
  ~LineReader();

  // False if the file cannot be opened; errno then says why.
  bool is_open() const { return fd_ >= 0; }

  // Whether Next() returns without waiting for the writer. Reads the available bytes.
  bool ready();

  // The next line without its newline, valid until the next call; nullopt at the end. Errors:
  // INVALID_ARGUMENT (cannot be read).
  absl::StatusOr<std::optional<absl::string_view>> Next();

 private:
  bool FindLine();
  void Fill();

  const std::string path_;
  const int fd_;
  std::string buffer_;
  size_t begin_ = 0;    // of the bytes that have not been returned
  size_t scanned_ = 0;  // no newline from begin_ to here
  bool ended_ = false;
  int error_ = 0;  // errno of the read that failed
};

}  // namespace rivulet
