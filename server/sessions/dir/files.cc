// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/dir/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace rivulet::dir_store {
namespace {

// The error for errno.
absl::Status StepError(absl::string_view what) {
  const int error = errno;
  const std::string message =
      absl::StrCat("The session store's ", what, ": ", std::strerror(error));
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return absl::ResourceExhaustedError(message);
  }
  return absl::UnavailableError(message);
}

}  // namespace

FileHandle::~FileHandle() {
  if (fd_ >= 0) close(fd_);
}

bool Files::Step(absl::string_view step) const {
  errno = before_step_ == nullptr ? 0 : before_step_(step);
  return errno == 0;
}

bool Files::Fill(int fd, absl::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t done = Step("write") ? write(fd, bytes.data(), bytes.size()) : -1;
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(done));
  }
  return Step("sync file") && fsync(fd) == 0;
}

absl::Status Files::WriteNew(const std::string& path, absl::string_view bytes) const {
  const FileHandle file(
      Step("make file")
          ? open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600)
          : -1);
  if (!file.ok()) return StepError("file cannot be made");
  if (Fill(file.get(), bytes)) return absl::OkStatus();
  const absl::Status status = StepError("file cannot be written");
  unlink(path.c_str());
  return status;
}

absl::Status Files::Overwrite(const std::string& path, absl::string_view bytes) const {
  const FileHandle file(Step("make file") ? open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC)
                                          : -1);
  if (!file.ok() || ftruncate(file.get(), static_cast<off_t>(bytes.size())) != 0 ||
      !Fill(file.get(), bytes)) {
    return StepError("file cannot be written");
  }
  return absl::OkStatus();
}

absl::Status Files::Rename(const std::string& from, const std::string& to) const {
  if (Step("rename") && rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  return StepError("file cannot be renamed");
}

bool Files::Exists(const std::string& path) const {
  struct stat info = {};
  return lstat(path.c_str(), &info) == 0;
}

absl::StatusOr<std::optional<std::string>> Files::Read(int folder, const std::string& path,
                                                       FileHandle* opened) const {
  FileHandle file(Step("read")
                      ? openat(folder, path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK)
                      : -1);
  if (!file.ok() && errno == ENOENT) return std::nullopt;
  struct stat info = {};
  if (!file.ok() || fstat(file.get(), &info) != 0) return StepError("file cannot be opened");
  if (!S_ISREG(info.st_mode)) {
    return absl::DataLossError("Something in the session store is not a file.");
  }
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  for (size_t size = 0; size < bytes.size();) {
    const ssize_t done = read(file.get(), bytes.data() + size, bytes.size() - size);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return StepError("file cannot be read");
    if (done == 0) bytes.resize(size);  // shorter than it was a moment ago
    size += static_cast<size_t>(done);
  }
  if (opened != nullptr) *opened = std::move(file);
  return bytes;
}

bool Files::IsNamed(const FileHandle& opened, const std::string& path) const {
  struct stat open_one = {}, named = {};
  return fstat(opened.get(), &open_one) == 0 && lstat(path.c_str(), &named) == 0 &&
         open_one.st_dev == named.st_dev && open_one.st_ino == named.st_ino;
}

absl::Time Files::Changed(const std::string& path) const {
  struct stat info = {};
  return lstat(path.c_str(), &info) == 0 ? absl::TimeFromTimespec(info.st_mtim) : absl::Now();
}

absl::StatusOr<Linked> Files::Link(const std::string& from, int folder,
                                   const std::string& name) const {
  if (Step("link") && linkat(AT_FDCWD, from.c_str(), folder, name.c_str(), 0) == 0) {
    return Linked::kDone;
  }
  if (errno == EEXIST) return Linked::kTaken;
  if (errno == ENOENT) return Linked::kGone;
  return StepError("entry cannot be made");
}

void Files::Remove(const std::string& path) const {
  if (Step("remove")) unlink(path.c_str());
}

absl::Status Files::MakeFolder(const std::string& path) const {
  if (Step("make folder") && (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST)) {
    return absl::OkStatus();
  }
  return StepError("folder cannot be made");
}

FileHandle Files::OpenFolder(const std::string& path) const {
  return FileHandle(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

bool Files::RemoveFolder(const std::string& path) const {
  return Step("remove folder") && (rmdir(path.c_str()) == 0 || errno == ENOENT);
}

absl::Status Files::SyncFolder(const std::string& path) const {
  const FileHandle folder = OpenFolder(path);
  if (!folder.ok()) return StepError("folder cannot be opened");
  return Sync(folder);
}

absl::Status Files::Sync(const FileHandle& folder) const {
  if (Step("sync folder") && fsync(folder.get()) == 0) return absl::OkStatus();
  return StepError("folder cannot be written");
}

absl::StatusOr<std::vector<ListedFile>> Files::List(const std::string& path) const {
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(opendir(path.c_str()), closedir);
  if (listing == nullptr) return StepError("folder cannot be listed");
  std::vector<ListedFile> files;
  errno = 0;
  while (const dirent* const entry = readdir(listing.get())) {
    const absl::string_view name = entry->d_name;
    if (name != "." && name != "..") files.push_back({std::string(name), entry->d_ino});
  }
  if (errno != 0) return StepError("folder cannot be listed");
  return files;
}

absl::StatusOr<bool> Files::RenameFolder(const std::string& from, const std::string& to) const {
  if (Step("rename") && rename(from.c_str(), to.c_str()) == 0) return true;
  if (errno == EEXIST || errno == ENOTEMPTY) return false;
  return StepError("folder cannot be renamed");
}

}  // namespace rivulet::dir_store
