// SPDX-License-Identifier: Apache-2.0
#include "client/cli/output/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace rivulet {
namespace {

absl::Status CannotWrite(const std::string& path, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be written: ", why));
}

// An existing file may be a device or a pipe, which a rename would remove.
struct Place {
  std::string path;    // without symlinks, if a file is there
  mode_t mode = 0666;  // of the existing file
};

absl::StatusOr<Place> FindPlace(const std::string& path) {
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0) {
    if (errno != ENOENT) return CannotWrite(path, std::strerror(errno));
    if (lstat(path.c_str(), &found) == 0) return CannotWrite(path, "a symlink to nothing");
    return Place{path};
  }
  if (S_ISDIR(found.st_mode)) return CannotWrite(path, "a directory");
  if (!S_ISREG(found.st_mode)) return CannotWrite(path, "not a regular file");
  if (access(path.c_str(), W_OK) != 0) return CannotWrite(path, std::strerror(errno));
  char* const target = realpath(path.c_str(), nullptr);
  if (target == nullptr) return CannotWrite(path, std::strerror(errno));
  Place place{target, found.st_mode & 0777};
  std::free(target);
  return place;
}

}  // namespace

absl::Status CheckWritable(const std::string& path) { return OutputFile(path).Open(); }

OutputFile::~OutputFile() {
  if (file_ != nullptr) std::fclose(file_);
  if (!temporary_.empty()) std::remove(temporary_.c_str());
}

absl::Status OutputFile::Open() {
  absl::StatusOr<Place> place = FindPlace(path_);
  if (!place.ok()) return place.status();
  place_ = std::move(place->path);
  const std::string temporary = absl::StrCat(place_, ".", getpid());
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, place->mode);
  if (fd < 0) return CannotWrite(path_, std::strerror(errno));
  temporary_ = temporary;
  file_ = fdopen(fd, "wb");
  if (file_ == nullptr) return CannotWrite(path_, std::strerror(errno));
  return absl::OkStatus();
}

absl::Status OutputFile::Write(absl::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), file_) == text.size()) return absl::OkStatus();
  return CannotWrite(path_, std::strerror(errno));
}

absl::Status OutputFile::Commit() {
  if (std::fclose(std::exchange(file_, nullptr)) != 0 ||
      std::rename(temporary_.c_str(), place_.c_str()) != 0) {
    return CannotWrite(path_, std::strerror(errno));
  }
  temporary_.clear();
  return absl::OkStatus();
}

absl::Status WriteTextFile(const std::string& path, absl::string_view text) {
  OutputFile file(path);
  if (absl::Status status = file.Open(); !status.ok()) return status;
  if (absl::Status status = file.Write(text); !status.ok()) return status;
  return file.Commit();
}

}  // namespace rivulet
