// SPDX-License-Identifier: Apache-2.0
// The output file of `rivulet batch`, and the file beside it, OUT.batch, which says what batch it
// belongs to. A process that is killed leaves both so that the same command continues: a line of
// output is whole or, as the last one, cut off. One that was interrupted also leaves, at the end,
// results that were there before those of earlier lines.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cli/batch/batch_input.h"

namespace rivulet {

// What OUT.batch holds.
struct BatchRecord {
  std::string input_sha256;
  std::map<std::string, std::string> options;  // all on which results depend, by name
  uint64_t seed = 0;                           // line N without a seed of its own has seed + N
  int64_t created = 0;                         // seconds since 1970
};

// Thread: one.
class BatchOutput {
 public:
  // Begins the batch, with `record`, or continues it: takes seed and time from OUT.batch, and cuts
  // off an unfinished last line and results that have not the order of the input. Locks the file.
  // `blank`: BatchInput::blank(). Errors: FAILED_PRECONDITION (the file is that of another batch or
  // of another program, a line of it was changed, or another process writes it), INVALID_ARGUMENT
  // (cannot be read or written).
  static absl::StatusOr<std::unique_ptr<BatchOutput>> Open(const std::string& path,
                                                           const BatchRecord& record,
                                                           const std::vector<bool>& blank);
  BatchOutput(const BatchOutput&) = delete;
  BatchOutput& operator=(const BatchOutput&) = delete;
  ~BatchOutput();

  const BatchRecord& record() const { return record_; }
  // Whether line `number` of the input was answered before this was opened, or is blank.
  bool IsAnswered(int64_t number) const { return answered_[static_cast<size_t>(number)] != 0; }
  // OK if the result that was there is one of `line`. Errors: FAILED_PRECONDITION.
  // REQUIRES: IsAnswered(line.number).
  absl::Status CheckAnswer(const NumberedLine& line) const;
  // Of the input: lines that are not blank, those that were answered, and those whose results are
  // not in the file, with those of TakeLater().
  int64_t lines() const { return lines_; }
  int64_t num_answered() const { return lines_ - num_left_ + static_cast<int64_t>(later_.size()); }
  int64_t num_left() const { return num_left_; }
  // Results that were cut off, by line: the caller appends them when it is their turn.
  std::map<int64_t, std::string> TakeLater() { return std::exchange(later_, {}); }

  // Appends whole lines. Errors: INVALID_ARGUMENT; then the last line may be cut off, and nothing
  // is appended any more.
  absl::Status Append(absl::string_view lines);
  // Waits until what was written is on the disk. Errors: INVALID_ARGUMENT.
  absl::Status Sync();

 private:
  BatchOutput(std::string path, const std::vector<bool>& blank);
  std::string RecordPath() const { return path_ + ".batch"; }
  absl::Status OpenFile();
  absl::Status Begin(const BatchRecord& record, bool is_empty);
  absl::Status ReadAnswered();
  absl::Status Mark(absl::string_view line);
  absl::Status CutAt(int64_t bytes);
  absl::Status Failed(absl::string_view what) const;

  const std::string path_;
  int fd_ = -1;
  absl::Status appended_;
  BatchRecord record_;
  // By number of line: 0, or the hash of the result's custom_id; of a blank line not 0.
  std::vector<uint64_t> answered_;
  int64_t lines_ = 0, num_left_ = 0;
  int64_t next_ = 1;  // no line before it is without an answer
  std::map<int64_t, std::string> later_;
};

}  // namespace rivulet
