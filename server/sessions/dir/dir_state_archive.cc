// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/dir/dir_state_archive.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/base/random_word.h"
#include "server/base/timed_calls.h"
#include "server/sessions/dir/files.h"
#include "server/sessions/replicated/check_write.h"

namespace rivulet {
namespace {

using dir_store::Files;

constexpr size_t kNameBytes = 64;  // of a SHA-256
constexpr absl::string_view kHex = "0123456789abcdef";
// Files that an ended process has left behind are removed after this time.
constexpr absl::Duration kUnfinished = absl::Minutes(10);

// NAME, or NAME.HEX while it is written.
bool IsOurs(absl::string_view file) {
  const absl::string_view name = file.substr(0, kNameBytes), rest = file.substr(name.size());
  return name.size() == kNameBytes && name.find_first_not_of(kHex) == absl::string_view::npos &&
         (rest.empty() || (rest.size() > 1 && rest[0] == '.' &&
                           rest.find_first_not_of(kHex, 1) == absl::string_view::npos));
}

// The modification time of a file is its expiry, so the expiry needs no other place.
void SetExpiry(const std::string& path, absl::Time expires) {
  const timespec time = absl::ToTimespec(expires);
  const timespec times[] = {time, time};
  utimensat(AT_FDCWD, path.c_str(), times, 0);  // one that stays as it is expires sooner
}

struct KeptFile {
  std::string path;
  absl::Time expires;
  int64_t bytes = 0;
  bool whole = false;
};

// The files. Thread: two, one that reads and one that writes.
class StateDirectory {
 public:
  StateDirectory(std::string directory, const StateArchiveLimits& limits)
      : directory_(std::move(directory)), limits_(limits), files_({}) {}

  absl::StatusOr<int64_t> Write(const ArchivedState& state, absl::Duration expiry) {
    const std::string path = PathOf(state.name);
    const absl::Time expires = absl::Now() + absl::Milliseconds(StoreMilliseconds(expiry));
    struct stat there;
    if (stat(path.c_str(), &there) == 0) {
      if (absl::TimeFromTimespec(there.st_mtim) < expires) SetExpiry(path, expires);
      return 0;
    }
    RIVULET_RETURN_IF_ERROR(MakeRoom(state.size));
    const std::string unfinished = absl::StrCat(path, ".", absl::Hex(RandomWord()));
    RIVULET_RETURN_IF_ERROR(files_.WriteNew(unfinished, state.bytes()));
    SetExpiry(unfinished, expires);
    const absl::Status renamed = files_.Rename(unfinished, path);
    if (renamed.ok()) return state.size;
    files_.Remove(unfinished);
    return renamed;
  }

  absl::StatusOr<std::string> Read(const std::string& name) {
    RIVULET_ASSIGN_OR_RETURN(std::optional<std::string> bytes, files_.Read(AT_FDCWD, PathOf(name)));
    return std::move(bytes).value_or("");
  }

  void Remove(const std::string& name) { files_.Remove(PathOf(name)); }

 private:
  std::string PathOf(absl::string_view file) const { return absl::StrCat(directory_, "/", file); }

  // Removes expired files, and then the files that expire first, until `bytes` bytes fit.
  absl::Status MakeRoom(int64_t bytes) {
    if (bytes > limits_.max_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "a state of ", bytes, " bytes; allowed for all together: ", limits_.max_bytes));
    }
    std::vector<KeptFile> kept;
    RIVULET_ASSIGN_OR_RETURN(const auto listed, files_.List(directory_));
    const absl::Time now = absl::Now();
    int64_t total = bytes, states = 1;
    for (const dir_store::ListedFile& file : listed) {
      if (!IsOurs(file.name)) continue;
      KeptFile found;
      found.path = PathOf(file.name);
      found.whole = file.name.size() == kNameBytes;
      struct stat info;
      if (stat(found.path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
      found.expires = absl::TimeFromTimespec(info.st_mtim);
      found.bytes = info.st_size;
      if (found.expires < (found.whole ? now : now - kUnfinished)) {
        files_.Remove(found.path);
        continue;
      }
      total += found.bytes;
      ++states;
      kept.push_back(std::move(found));
    }
    std::sort(kept.begin(), kept.end(),
              [](const KeptFile& a, const KeptFile& b) { return a.expires < b.expires; });
    for (const KeptFile& file : kept) {
      if (total <= limits_.max_bytes && states <= limits_.max_states) break;
      if (!file.whole) continue;  // another replica writes it
      files_.Remove(file.path);
      total -= file.bytes;
      --states;
    }
    return absl::OkStatus();
  }

  const std::string directory_;
  const StateArchiveLimits limits_;
  const Files files_;
};

class DirStateArchive final : public StateArchive {
 public:
  DirStateArchive(const std::string& directory, const StateArchiveLimits& limits)
      : directory_(std::make_shared<StateDirectory>(directory, limits)),
        reader_(OptionsOf("states-read", limits)),
        writer_(OptionsOf("states-write", limits)) {}

  void Put(std::function<ArchivedState()> state, absl::Duration expiry, PutDone done) override {
    writer_.Push(std::move(done), [directory = directory_, state = std::move(state), expiry] {
      return directory->Write(state(), expiry);
    });
  }
  void Get(std::string name, GetDone done) override {
    reader_.Push(std::move(done), [directory = directory_, name = std::move(name)] {
      return directory->Read(name);
    });
  }
  void Drop(std::string name) override {
    writer_.Push(std::function<void(absl::Status)>([](const absl::Status&) {}),
                 [directory = directory_, name = std::move(name)] {
                   directory->Remove(name);
                   return absl::OkStatus();
                 });
  }

 private:
  static TimedCallsOptions OptionsOf(const char* thread, const StateArchiveLimits& limits) {
    // A state has thousands of parts, whose calls come together, so the time counts from the begin
    // of a call.
    return {.name = thread,
            .whose = "The archive of states",
            .most_waiting = 64 << 10,
            .since_begin = limits.call_time};
  }

  const std::shared_ptr<StateDirectory> directory_;
  TimedCalls reader_, writer_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StateArchive>> OpenDirStateArchive(
    const std::string& directory, const StateArchiveLimits& limits) {
  const auto refused = [&](absl::string_view why) {
    return InvalidField("CONFIG_INVALID", "session-states",
                        absl::StrCat("session-states: the directory ", directory, " ", why));
  };
  if (mkdir(directory.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
    return refused(absl::StrCat("cannot be made: ", std::strerror(errno)));
  }
  if (access(directory.c_str(), R_OK | W_OK | X_OK) != 0) {
    return refused(absl::StrCat("cannot be used: ", std::strerror(errno)));
  }
  return std::make_unique<DirStateArchive>(directory, limits);
}

}  // namespace rivulet
