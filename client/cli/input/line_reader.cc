// SPDX-License-Identifier: Apache-2.0
#include "client/cli/input/line_reader.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace rivulet {

LineReader::LineReader(const std::string& path)
    : path_(path), fd_(path == "-" ? STDIN_FILENO : open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}

LineReader::~LineReader() {
  if (fd_ > STDIN_FILENO) close(fd_);
}

bool LineReader::ready() {
  while (!FindLine() && !ended_) {
    pollfd waiting = {fd_, POLLIN, 0};
    if (poll(&waiting, 1, 0) <= 0) return false;
    Fill();
  }
  return true;
}

absl::StatusOr<std::optional<absl::string_view>> LineReader::Next() {
  while (!FindLine() && !ended_) Fill();
  if (scanned_ == buffer_.size() && error_ != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": cannot be read: ", std::strerror(error_)));
  }
  if (begin_ == buffer_.size()) return std::optional<absl::string_view>();
  const absl::string_view line = absl::string_view(buffer_).substr(begin_, scanned_ - begin_);
  // Past the newline, which the last line may lack.
  begin_ = scanned_ = std::min(scanned_ + 1, buffer_.size());
  return std::optional<absl::string_view>(line);
}

// Whether a newline is at scanned_.
bool LineReader::FindLine() {
  scanned_ = std::min(buffer_.find('\n', scanned_), buffer_.size());
  return scanned_ < buffer_.size();
}

// REQUIRES: no whole line is in the buffer, so that few bytes are moved.
void LineReader::Fill() {
  constexpr size_t kChunk = 1 << 16;
  buffer_.erase(0, begin_);
  scanned_ -= begin_;
  begin_ = 0;
  const size_t held = buffer_.size();
  buffer_.resize(held + kChunk);
  const ssize_t bytes = read(fd_, &buffer_[held], kChunk);
  const int error = errno;
  buffer_.resize(held + static_cast<size_t>(std::max<ssize_t>(bytes, 0)));
  if (bytes > 0) return;
  if (bytes < 0 && error == EINTR) return;
  if (bytes < 0 && error == EAGAIN) {
    // The caller gave us a non-blocking descriptor.
    pollfd waiting = {fd_, POLLIN, 0};
    poll(&waiting, 1, -1);
    return;
  }
  ended_ = true;
  if (bytes < 0) error_ = error;
}

}  // namespace rivulet
