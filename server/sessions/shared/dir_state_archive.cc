// SPDX-License-Identifier: Apache-2.0
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
#include "server/sessions/shared/check_write.h"
#include "server/sessions/shared/dir/files.h"
#include "server/sessions/shared/state_archive.h"
#include "server/sessions/store/state_files.h"

namespace rivulet {
namespace {

using dir_store::Files;

constexpr size_t kNameBytes = 64;  // of a SHA-256
constexpr absl::string_view kHex = "0123456789abcdef";
// What a process that ended has left behind is removed after so long.
constexpr absl::Duration kUnfinished = absl::Minutes(10);

// NAME, or NAME.HEX while it is written.
bool IsOurs(absl::string_view file) {
  const absl::string_view name = file.substr(0, kNameBytes), rest = file.substr(name.size());
  return name.size() == kNameBytes && name.find_first_not_of(kHex) == absl::string_view::npos &&
         (rest.empty() || (rest.size() > 1 && rest[0] == '.' &&
                           rest.find_first_not_of(kHex, 1) == absl::string_view::npos));
}

// A file is modified when it expires: so its expiry needs no place of its own.
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

class DirStateArchive final : public StateArchive {
 public:
  DirStateArchive(std::string directory, const StateArchiveLimits& limits)
      : directory_(std::move(directory)),
        limits_(limits),
        files_({}),
        reader_(StartBackgroundThread()),
        writer_(StartBackgroundThread()) {}

  void Put(std::function<ArchivedState()> state, absl::Duration expiry, PutDone done) override {
    auto ended = Ended(std::move(done));
    writer_->Run(Background::Kind::kWrite,
                 [this, state = std::move(state), expiry, ended = std::move(ended)] {
                   ended->End(Write(state(), expiry));
                 });
  }

  void Get(std::string name, GetDone done) override {
    auto ended = Ended(std::move(done));
    reader_->Run(Background::Kind::kRead, [this, name = std::move(name), ended = std::move(ended)] {
      ended->End(Read(name));
    });
  }

  void Drop(std::string name) override {
    writer_->Run(Background::Kind::kWrite,
                 [this, name = std::move(name)] { files_.Remove(PathOf(name)); });
  }

 private:
  // Calls `done` once, also where the work is dropped before it begins.
  template <typename Result>
  class Once {
   public:
    explicit Once(std::function<void(Result)> done) : done_(std::move(done)) {}
    ~Once() {
      if (done_ != nullptr) done_(absl::UnavailableError("the archive of states was closed"));
    }
    Once(const Once&) = delete;
    Once& operator=(const Once&) = delete;
    void End(Result result) { std::exchange(done_, nullptr)(std::move(result)); }

   private:
    std::function<void(Result)> done_;
  };
  template <typename Result>
  static std::shared_ptr<Once<Result>> Ended(std::function<void(Result)> done) {
    return std::make_shared<Once<Result>>(std::move(done));
  }

  std::string PathOf(absl::string_view file) const { return absl::StrCat(directory_, "/", file); }

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

  // Removes what has expired, and then what expires first, until so many bytes fit.
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
  const std::unique_ptr<Background> reader_, writer_;  // last: they use the rest
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
