// SPDX-License-Identifier: Apache-2.0
// The log of a store in a directory: every change that the replicas made, in one order. log.cc
// explains why no change is lost or happens twice.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/sessions/dir/files.h"
#include "server/sessions/dir/image.h"

namespace rivulet::dir_store {

// Thread: one at a time.
class Log {
 public:
  // `path`: the directory, not touched yet; `segment_entries`: for a store that is made now.
  Log(const Files* files, std::string path, int64_t segment_entries)
      : files_(*files), path_(std::move(path)), new_segment_entries_(segment_entries) {}

  // Brings the image up to date: it has every entry that was there when the call began. Makes the
  // store where there is none. Errors: of Files; DATA_LOSS, where entries are missing.
  absl::Status CatchUp();
  // REQUIRES: CatchUp was OK.
  const Image& image() const { return image_; }
  // Differ from earlier values if the image was built anew or has one more sweep.
  std::pair<uint64_t, uint64_t> sweeps() const { return {loads_, image_.sweeps()}; }
  const std::string& store_id() const { return store_id_; }

  // Makes the file at `path` the next entry, if none came after the last CatchUp, and brings the
  // image up to date. If it `lasts`, the entry is on the disk when Append returns; if not, it is on
  // the disk before the next entry that lasts.
  enum class Appended : uint8_t {
    kDone,
    kNot,      // another entry came first
    kGone,     // as kNot, or the file is not there
    kUnknown,  // this process slept so long that it cannot tell
  };
  // Errors before the entry is made: of Files. Afterwards: UNAVAILABLE.
  absl::StatusOr<Appended> Append(const std::string& path, bool lasts);

  // The segment of an entry: a long log begins with a later segment.
  uint64_t SegmentOf(uint64_t number) const { return number / entries_per_segment_; }
  uint64_t last_segment() const { return segment_; }
  uint64_t entries_per_segment() const { return entries_per_segment_; }
  // Removes the segments before the floor.
  void RemoveOldSegments();
  // Removes unfinished stores of processes that died while they made them.
  void RemoveUnfinished();

  // A name that no file in records/ ever had. `session` is empty for a sweep.
  static std::string NewRecordFile(absl::string_view session);
  std::string EntryPath(uint64_t number) const;
  std::string RecordPath(const std::string& file) const { return root() + "/records/" + file; }
  std::string ChunkPath(const ChunkFile& chunk) const;
  std::string spare_path() const { return root() + "/spare"; }
  std::string records_path() const { return root() + "/records"; }
  std::string chunks_path() const { return root() + "/chunks"; }

 private:
  enum class Step : uint8_t { kApplied, kEnd, kStale };

  std::string root() const;
  std::string SegmentPath(uint64_t segment) const;
  absl::Status MakeStore();
  absl::Status ReadId();
  absl::Status Load(absl::Status* problem);
  absl::StatusOr<std::vector<uint64_t>> ListSegments() const;
  absl::StatusOr<Step> ReadNext();
  absl::Status ApplyBytes(uint64_t number, const std::string& bytes);
  absl::Status ApplyUnreadable(uint64_t number);
  // Whether the folder of segment_ is still where it was.
  bool IsSegmentThere() const;
  // Whether the entry before next_ is still where it was.
  bool IsLastThere() const;

  const Files& files_;
  const std::string path_;
  const int64_t new_segment_entries_;
  std::string store_id_;
  uint64_t entries_per_segment_ = 1;
  bool loaded_ = false;
  uint64_t loads_ = 0;
  Image image_;
  uint64_t next_ = 0;     // the next entry to read: in segment_, or the first after it
  uint64_t segment_ = 0;  // its folder is open
  FileHandle folder_;
  FileHandle
      last_;  // the entry before next_, if it was read; open, so that its inode is not reused
};

}  // namespace rivulet::dir_store
