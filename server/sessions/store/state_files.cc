// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/store/state_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "model/base/descriptor.h"
#include "model/base/error.h"
#include "model/base/thread.h"
#include "server/base/mutex.h"

namespace rivulet {
namespace {

constexpr char kLockName[] = "lock";
constexpr absl::string_view kSuffix = ".state";

std::string NameOf(uint64_t number) {
  return absl::StrCat(absl::Hex(number, absl::kZeroPad16), kSuffix);
}

bool IsStateName(absl::string_view name) {
  return name.size() == 16 + kSuffix.size() && absl::EndsWith(name, kSuffix) &&
         name.find_first_not_of("0123456789abcdef") == 16;
}

absl::Status FileError(absl::string_view what) {
  const int error = errno;
  return absl::UnavailableError(
      absl::StrCat("a state's file cannot be ", what, ": ", std::strerror(error)));
}

class DirectoryStateFiles final : public StateFiles {
 public:
  DirectoryStateFiles(int directory, int lock) : directory_(directory), lock_(lock) { RemoveAll(); }
  ~DirectoryStateFiles() override { RemoveAll(); }

  absl::Status Write(uint64_t number, absl::string_view bytes) override {
    const std::string name = NameOf(number);
    largest_ = std::max(largest_, bytes.size());
    Descriptor file(openat(directory_.get(), name.c_str(),
                           O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file.ok()) return FileError("made");
    if (WriteAll(file.get(), bytes) && file.Close()) return absl::OkStatus();
    const absl::Status status = FileError("written");
    Remove(number);
    return status;
  }

  absl::StatusOr<std::string> Read(uint64_t number) override {
    const std::string name = NameOf(number);
    const Descriptor file(
        openat(directory_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    struct stat info = {};
    if (!file.ok() || fstat(file.get(), &info) != 0) return FileError("opened");
    if (!S_ISREG(info.st_mode) || static_cast<size_t>(info.st_size) > largest_) {
      return absl::DataLossError("a state's file is not what was written");
    }
    std::string bytes(static_cast<size_t>(info.st_size), '\0');
    for (size_t size = 0; size < bytes.size();) {
      const ssize_t done = read(file.get(), bytes.data() + size, bytes.size() - size);
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) return FileError("read");
      if (done == 0) bytes.resize(size);  // shorter than it was a moment ago
      size += static_cast<size_t>(done);
    }
    return bytes;
  }

  void Remove(uint64_t number) override { unlinkat(directory_.get(), NameOf(number).c_str(), 0); }

 private:
  void RemoveAll() {
    const int copy = openat(directory_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR* const listing = copy < 0 ? nullptr : fdopendir(copy);
    if (listing == nullptr) {
      if (copy >= 0) close(copy);
      return;
    }
    while (const dirent* entry = readdir(listing)) {
      if (IsStateName(entry->d_name)) unlinkat(directory_.get(), entry->d_name, 0);
    }
    closedir(listing);
  }

  const Descriptor directory_, lock_;
  size_t largest_ = 0;  // file that was written
};

class BackgroundThread final : public Background {
 public:
  BackgroundThread() : thread_([this] { Loop(); }) {}
  ~BackgroundThread() override {
    {
      MutexLock lock(&mutex_);
      stop_ = true;
      changed_.NotifyOne();
    }
    thread_.join();
  }

  void Run(Kind kind, std::function<void()> work) override {
    MutexLock lock(&mutex_);
    (kind == Kind::kRead ? reads_ : others_).push_back(std::move(work));
    changed_.NotifyOne();
  }

 private:
  void Loop() {
    NameThread("state-files");
    while (true) {
      std::function<void()> work;
      {
        MutexLock lock(&mutex_);
        while (!stop_ && reads_.empty() && others_.empty()) changed_.Wait(&mutex_);
        if (stop_) return;
        auto& next = reads_.empty() ? others_ : reads_;
        work = std::move(next.front());
        next.pop_front();
      }
      work();
    }
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> reads_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::function<void()>> others_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: everything above exists when it starts
};

absl::Status BadDirectory(const std::string& directory, absl::string_view what) {
  const int error = errno;
  return InvalidField(
      "CONFIG_INVALID", "state-dir",
      absl::StrCat("state-dir: ", directory, " ", what, ": ", std::strerror(error)));
}

}  // namespace

absl::Status MakeStateDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return absl::OkStatus();
  return BadDirectory(path, "cannot be made");
}

absl::StatusOr<std::unique_ptr<StateFiles>> OpenStateDirectory(const std::string& path) {
  RIVULET_RETURN_IF_ERROR(MakeStateDirectory(path));
  const int directory = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return BadDirectory(path, "cannot be opened");
  const int lock =
      openat(directory, kLockName, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
  if (lock < 0) {
    const absl::Status status = BadDirectory(path, "cannot be written");
    close(directory);
    return status;
  }
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    close(lock);
    close(directory);
    ErrorDetail detail;
    detail.reason = "STATE_DIR_BUSY";
    detail.field = "state-dir";
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     absl::StrCat("state-dir: ", path, " is used by another running server"),
                     detail);
  }
  return std::make_unique<DirectoryStateFiles>(directory, lock);
}

std::unique_ptr<Background> StartBackgroundThread() { return std::make_unique<BackgroundThread>(); }

}  // namespace rivulet
