// SPDX-License-Identifier: Apache-2.0
// Why the log has one order. Entry n is a file with the name n. link(2) gives this name to a file
// that was written before, and only one writer can give it. The writer of entry n has read all
// earlier entries, so its change was decided on the state that it changes. There is no lock: a
// process that is stopped anywhere does not hold up another.
//
// A number must not be given twice, although entries are removed at some time: a writer could read
// entry n - 1, sleep for an hour, and link n when the true n has come and gone. Therefore entries
// lie in segments, folders of a fixed number of entries, which are removed as a whole:
//  - The entries of a segment that the image still needs are first linked anew at the end of the
//    log. Then an entry is added that names the new *floor*. Only then the segments below the floor
//    are removed, the oldest first. The last segment is never removed.
//  - CatchUp ends with three checks. (1) The next entry is not there. (2) The segment after this
//    one is not there either. (3) The folder of this segment is still the open folder.
//    By (3) this segment was not removed, so no later segment was; by (2) no later segment was
//    made, so this one is the last, and it is not full; so (1) tells the true end of the log.
//    To enter the next segment also needs (3) after opening it: a process that slept may have made
//    a folder with that name after the true one was removed, but this segment was removed earlier.
//  - A floor that is found on the way lies at or before the end. If it is above the segment where
//    the reading began, that segment may have been in removal, and the entries that were read may
//    be false: the image is built anew. If not, the removal of that segment had not begun.
//  - After its link, a writer checks that the entry before its own is still there, the same file
//    that it read. Entries are removed in their order, so then its own number was not yet removed:
//    the number was free because it was never given, and the entry is true. Otherwise the writer
//    catches up. If its image goes on, its segment was not in removal, and the entry is true, too.
//    If the image had to be built anew, the writer cannot tell, unless its record is in the image.
//  - A false entry lies in a segment below the floor. A process that knows the floor does not read
//    it, and a process that builds an image reads all segments before it believes any.
// The first segment has no segment before it to check, so it is not made alone: a store is made
// with it under another name, and gets its own name by a rename, which fails if there is a store.
#include "server/sessions/dir/log.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "model/base/error.h"
#include "model/base/random_word.h"

namespace rivulet::dir_store {
namespace {

constexpr int kMostLoads = 10;  // in one CatchUp
// To make a store takes less, or its process is dead or finds that it must begin again.
constexpr absl::Duration kUnfinished = absl::Minutes(10);

std::string NumberName(uint64_t number) {
  return absl::StrCat(absl::Hex(number, absl::kZeroPad16));
}

std::optional<uint64_t> ParseNumber(absl::string_view name) {
  uint64_t number = 0;
  if (name.size() != 16 || !absl::SimpleHexAtoi(name, &number)) return std::nullopt;
  return number;
}

// "": it is no name of NewRecordFile, or the name of a sweep.
std::string SessionOfFile(absl::string_view name) {
  const absl::string_view hex = name.substr(0, name.find('.'));
  if (hex.size() % 2 != 0 || hex.find_first_not_of("0123456789abcdef") != hex.npos) return "";
  return absl::HexStringToBytes(hex);
}

}  // namespace

std::string Log::root() const { return path_ + "/sessions-1"; }

std::string Log::SegmentPath(uint64_t segment) const {
  return absl::StrCat(root(), "/log/", NumberName(segment));
}

std::string Log::EntryPath(uint64_t number) const {
  return absl::StrCat(SegmentPath(SegmentOf(number)), "/", NumberName(number));
}

std::string Log::NewRecordFile(absl::string_view session) {
  return absl::StrCat(absl::BytesToHexString(session), ".", NumberName(RandomWord()));
}

std::string Log::ChunkPath(const ChunkFile& chunk) const {
  return absl::StrCat(chunks_path(), "/", chunk.id, ".", NumberName(chunk.nonce));
}

bool Log::IsSegmentThere() const { return files_.IsNamed(folder_, SegmentPath(segment_)); }

bool Log::IsLastThere() const { return next_ > 0 && files_.IsNamed(last_, EntryPath(next_ - 1)); }

absl::Status Log::MakeStore() {
  const std::string made = absl::StrCat(path_, "/new-", NumberName(RandomWord()));
  const auto make = [&]() -> absl::Status {
    for (const char* folder : {"", "/log", "/records", "/chunks", "/log/0000000000000000"}) {
      RIVULET_RETURN_IF_ERROR(files_.MakeFolder(made + folder));
    }
    RIVULET_RETURN_IF_ERROR(files_.WriteNew(
        made + "/id", absl::StrCat(NumberName(RandomWord()), NumberName(RandomWord()), " ",
                                   new_segment_entries_)));
    RIVULET_RETURN_IF_ERROR(files_.SyncFolder(made + "/log"));
    RIVULET_RETURN_IF_ERROR(files_.SyncFolder(made));
    RIVULET_RETURN_IF_ERROR(files_.RenameFolder(made, root()).status());
    RIVULET_RETURN_IF_ERROR(files_.SyncFolder(path_));
    // The directory may be new as well. A process that may not read its parent did not make it.
    const FileHandle above = files_.OpenFolder(path_ + "/..");
    return above.ok() ? files_.Sync(above) : absl::OkStatus();
  };
  RIVULET_RETURN_IF_ERROR(files_.MakeFolder(path_));
  const absl::Status status = make();
  std::error_code none;
  std::filesystem::remove_all(made, none);
  return status;
}

absl::Status Log::ReadId() {
  RIVULET_ASSIGN_OR_RETURN(std::optional<std::string> text, files_.Read(AT_FDCWD, root() + "/id"));
  if (!text) {
    RIVULET_RETURN_IF_ERROR(MakeStore());
    RIVULET_ASSIGN_OR_RETURN(text, files_.Read(AT_FDCWD, root() + "/id"));
  }
  if (!text) {
    return absl::UnavailableError(
        "The session store has no file `id`: it is being removed, or damaged.");
  }
  const std::vector<std::string> parts = absl::StrSplit(*text, ' ');
  if (parts.size() != 2 || parts[0].size() != 32 ||
      !absl::SimpleAtoi(parts[1], &entries_per_segment_) || entries_per_segment_ == 0) {
    return absl::DataLossError("The session store's file `id` is damaged.");
  }
  store_id_ = parts[0];
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint64_t>> Log::ListSegments() const {
  RIVULET_ASSIGN_OR_RETURN(const std::vector<ListedFile> files, files_.List(root() + "/log"));
  std::vector<uint64_t> segments;
  for (const ListedFile& file : files) {
    if (const auto segment = ParseNumber(file.name)) segments.push_back(*segment);
  }
  std::sort(segments.begin(), segments.end());
  return segments;
}

// Builds the image anew, from all entries that lie at or above the floor. *problem: why the image
// is not loaded_ afterwards. This is no error yet, because the store may have been replaced
// meanwhile.
absl::Status Log::Load(absl::Status* problem) {
  ++loads_;
  RIVULET_RETURN_IF_ERROR(ReadId());
  RIVULET_ASSIGN_OR_RETURN(const std::vector<uint64_t> segments, ListSegments());
  if (segments.empty()) return absl::DataLossError("The session store's log is gone.");
  std::vector<std::pair<uint64_t, std::string>> entries;
  uint64_t floor = 0, expected = 0;
  std::optional<uint64_t> hole;  // the last number that is missing, though later ones are there
  for (const uint64_t segment : segments) {
    if (segment * entries_per_segment_ != expected) hole = segment * entries_per_segment_ - 1;
    expected = (segment + 1) * entries_per_segment_;
    segment_ = segment;
    folder_ = files_.OpenFolder(SegmentPath(segment));
    for (next_ = segment * entries_per_segment_; folder_.ok() && next_ < expected; ++next_) {
      RIVULET_ASSIGN_OR_RETURN(auto bytes, files_.Read(folder_.get(), NumberName(next_), &last_));
      if (!bytes) break;
      const auto entry = DecodeEntry(*bytes);
      if (entry.ok()) floor = std::max(floor, entry->floor);
      entries.emplace_back(next_, *std::move(bytes));
    }
    if (segment != segments.back() && next_ < expected) hole = next_;
  }
  if (!folder_.ok()) hole = next_;
  const std::string id = store_id_;
  RIVULET_RETURN_IF_ERROR(ReadId());
  if (id != store_id_) return absl::OkStatus();  // another store's entries
  if (hole && SegmentOf(*hole) >= floor) {
    *problem =
        absl::DataLossError(absl::StrCat("Entry ", *hole, " of the session store is missing."));
    return absl::OkStatus();
  }
  image_ = Image();
  for (const auto& [number, bytes] : entries) {
    if (SegmentOf(number) >= floor) RIVULET_RETURN_IF_ERROR(ApplyBytes(number, bytes));
  }
  loaded_ = true;
  return absl::OkStatus();
}

absl::Status Log::ApplyBytes(uint64_t number, const std::string& bytes) {
  const auto entry = DecodeEntry(bytes);
  if (!entry.ok()) return ApplyUnreadable(number);
  image_.Apply(number, *entry);
  return absl::OkStatus();
}

// The file of a session's newest entry also has a name in records/, which begins with the session.
// A file without a name there is not the newest entry of its session, and nothing is lost with it.
absl::Status Log::ApplyUnreadable(uint64_t number) {
  struct stat info = {};
  if (lstat(EntryPath(number).c_str(), &info) != 0) return absl::OkStatus();
  RIVULET_ASSIGN_OR_RETURN(const std::vector<ListedFile> files, files_.List(records_path()));
  for (const ListedFile& file : files) {
    if (file.inode != info.st_ino) continue;
    Image::Record record;
    record.number = number;
    record.file = file.name;
    record.expires = INT64_MAX;  // nobody knows
    const std::string session = SessionOfFile(file.name);
    if (!session.empty()) image_.ApplyDamaged(session, std::move(record));
  }
  return absl::OkStatus();
}

absl::StatusOr<Log::Step> Log::ReadNext() {
  if (SegmentOf(next_) != segment_) {
    FileHandle folder = files_.OpenFolder(SegmentPath(segment_ + 1));
    if (!folder.ok() && errno != ENOENT) {
      return absl::UnavailableError("The session store's log cannot be opened.");
    }
    if (!IsSegmentThere()) return Step::kStale;
    if (!folder.ok()) return Step::kEnd;
    folder_ = std::move(folder);
    ++segment_;
  }
  RIVULET_ASSIGN_OR_RETURN(auto bytes, files_.Read(folder_.get(), NumberName(next_), &last_));
  if (!bytes && files_.Exists(SegmentPath(segment_ + 1))) {
    // The entry came after the first look, or is gone with its segment.
    RIVULET_ASSIGN_OR_RETURN(bytes, files_.Read(folder_.get(), NumberName(next_), &last_));
    if (!bytes) return Step::kStale;
  }
  if (!bytes) return IsSegmentThere() ? Step::kEnd : Step::kStale;
  RIVULET_RETURN_IF_ERROR(ApplyBytes(next_, *bytes));
  ++next_;
  return Step::kApplied;
}

absl::Status Log::CatchUp() {
  absl::Status problem =
      absl::UnavailableError("The session store changes faster than it can be read.");
  for (int loads = 0; loads < kMostLoads; ++loads) {
    if (!loaded_) RIVULET_RETURN_IF_ERROR(Load(&problem));
    if (!loaded_) continue;
    const uint64_t begin = SegmentOf(next_);
    Step step = Step::kApplied;
    while (step == Step::kApplied) {
      RIVULET_ASSIGN_OR_RETURN(step, ReadNext());
    }
    if (step == Step::kEnd && image_.floor() <= begin) return absl::OkStatus();
    loaded_ = false;
  }
  return problem;
}

absl::StatusOr<Log::Appended> Log::Append(const std::string& path, bool lasts) {
  if (SegmentOf(next_) != segment_) {
    // No entry is on the disk before those that came earlier.
    RIVULET_RETURN_IF_ERROR(files_.Sync(folder_));
    RIVULET_RETURN_IF_ERROR(files_.MakeFolder(SegmentPath(segment_ + 1)));
    RIVULET_RETURN_IF_ERROR(files_.SyncFolder(root() + "/log"));
    RIVULET_RETURN_IF_ERROR(CatchUp());
    return Appended::kNot;  // the next try enters the segment, or finds that it was false
  }
  RIVULET_ASSIGN_OR_RETURN(const Linked linked,
                           files_.Link(path, folder_.get(), NumberName(next_)));
  if (linked != Linked::kDone) {
    RIVULET_RETURN_IF_ERROR(CatchUp());
    return linked == Linked::kGone ? Appended::kGone : Appended::kNot;
  }
  const bool is_true = IsLastThere();
  // The folder that has the entry; after CatchUp another one may be open.
  const FileHandle folder(fcntl(folder_.get(), F_DUPFD_CLOEXEC, 0));
  const uint64_t loads = loads_;
  absl::Status status = lasts ? files_.Sync(folder) : absl::OkStatus();
  status.Update(CatchUp());
  if (!status.ok()) return absl::UnavailableError(status.message());
  return is_true || loads == loads_ ? Appended::kDone : Appended::kUnknown;
}

void Log::RemoveOldSegments() {
  const auto segments = ListSegments();
  if (!segments.ok()) return;
  for (const uint64_t segment : *segments) {
    if (segment >= image_.floor()) return;
    auto files = files_.List(SegmentPath(segment));
    if (!files.ok()) return;
    std::sort(files->begin(), files->end(),
              [](const ListedFile& a, const ListedFile& b) { return a.name < b.name; });
    for (const ListedFile& file : *files) {
      files_.Remove(absl::StrCat(SegmentPath(segment), "/", file.name));
    }
    // A process that slept may have linked one more entry; then a later call removes it.
    if (!files_.RemoveFolder(SegmentPath(segment))) return;
  }
}

void Log::RemoveUnfinished() {
  const auto files = files_.List(path_);
  if (!files.ok()) return;
  for (const ListedFile& file : *files) {
    const std::string path = path_ + "/" + file.name;
    const bool unfinished =
        absl::StartsWith(file.name, "new-") && absl::Now() - files_.Changed(path) > kUnfinished;
    // The folder gets another name first, so that a process that still makes it cannot publish
    // half.
    const std::string dead = path_ + "/dead-" + file.name;
    std::error_code none;
    if (unfinished && files_.RenameFolder(path, dead).ok()) std::filesystem::remove_all(dead, none);
    if (absl::StartsWith(file.name, "dead-new-")) std::filesystem::remove_all(path, none);
  }
}

}  // namespace rivulet::dir_store
