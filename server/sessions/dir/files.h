// SPDX-License-Identifier: Apache-2.0
// The file operations of a store in a directory. Each error is UNAVAILABLE, or RESOURCE_EXHAUSTED
// where the disk or the quota is full; no error names a path, because clients may see the error.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace rivulet::dir_store {

// A descriptor, closed by the destructor.
class FileHandle {
 public:
  explicit FileHandle(int fd = -1) : fd_(fd) {}
  ~FileHandle();
  FileHandle(FileHandle&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileHandle& operator=(FileHandle&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_;
};

struct ListedFile {
  std::string name;
  ino_t inode = 0;
};

enum class Linked : uint8_t {
  kDone,
  kTaken,  // the new name exists already
  kGone,   // the file or the folder does not exist
};

// Thread: one at a time.
class Files {
 public:
  // before_step: DirStoreOptions.
  explicit Files(std::function<int(absl::string_view)> before_step)
      : before_step_(std::move(before_step)) {}

  // Makes an owner-only file and syncs it to the disk. After an error it is not there.
  absl::Status WriteNew(const std::string& path, absl::string_view bytes) const;
  // Writes new bytes into a file of at least their size that nobody reads yet: they need no room.
  absl::Status Overwrite(const std::string& path, absl::string_view bytes) const;
  absl::Status Rename(const std::string& from, const std::string& to) const;
  bool Exists(const std::string& path) const;
  // nullopt: the file is not there. `folder`: a descriptor, or AT_FDCWD. *opened: stays open. Also
  // DATA_LOSS: it is not a file.
  absl::StatusOr<std::optional<std::string>> Read(int folder, const std::string& path,
                                                  FileHandle* opened = nullptr) const;
  // Whether `path` names the open file.
  bool IsNamed(const FileHandle& opened, const std::string& path) const;
  // When a file was written, or a name was added to a folder, by the machine's clock; now, if it
  // does not exist.
  absl::Time Changed(const std::string& path) const;
  // Links file `from` to `name` in `folder`, which must not have this name yet.
  absl::StatusOr<Linked> Link(const std::string& from, int folder, const std::string& name) const;
  // A file that cannot be removed stays.
  void Remove(const std::string& path) const;

  // Makes an owner-only folder where it is missing.
  absl::Status MakeFolder(const std::string& path) const;
  // Not ok(): errno says why.
  FileHandle OpenFolder(const std::string& path) const;
  // False: it is not empty or cannot be removed.
  bool RemoveFolder(const std::string& path) const;
  absl::Status SyncFolder(const std::string& path) const;
  absl::Status Sync(const FileHandle& folder) const;
  absl::StatusOr<std::vector<ListedFile>> List(const std::string& path) const;
  // Renames a folder to `to`, where nothing or an empty folder may be. False: another folder is
  // there.
  absl::StatusOr<bool> RenameFolder(const std::string& from, const std::string& to) const;

 private:
  // Whether the step may be done; if not, errno is set.
  bool Step(absl::string_view step) const;
  bool Fill(int fd, absl::string_view bytes) const;

  const std::function<int(absl::string_view)> before_step_;
};

}  // namespace rivulet::dir_store
