// SPDX-License-Identifier: Apache-2.0
// Tells whether a file has changed since it was read.
#pragma once

#include <cstdint>
#include <string>

namespace rivulet {

// What changes when a file is written or replaced. All 0 for a file that does not exist.
struct FileStamp {
  uint64_t inode = 0;
  int64_t size = 0;
  int64_t written_ns = 0;  // since 1970: when its content last changed
  int64_t changed_ns = 0;  // since 1970: when content, owner, mode or name last changed

  bool operator==(const FileStamp&) const = default;
};

// Take the stamp before reading the file: then the next comparison sees a change meanwhile. Thread:
// any.
FileStamp StampOf(const std::string& path);

}  // namespace rivulet
