// SPDX-License-Identifier: Apache-2.0
// The output file of `rivulet batch`, and the file beside it, OUT.batch, which says what batch it
// belongs to. A process that is killed leaves both so that the same command continues: a line of
// output is whole or, as the last one, cut off.
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
  // Begins the batch, with `record`, or continues it: cuts an unfinished last line off and takes
  // seed and time from OUT.batch. Locks the file. `lines`: of the input. Errors:
  // FAILED_PRECONDITION (the file is that of another batch or of another program, a line of it was
  // changed, or another process writes it), INVALID_ARGUMENT (cannot be read or written).
  static absl::StatusOr<std::unique_ptr<BatchOutput>> Open(const std::string& path,
                                                           const BatchRecord& record,
                                                           int64_t lines);
  BatchOutput(const BatchOutput&) = delete;
  BatchOutput& operator=(const BatchOutput&) = delete;
  ~BatchOutput();

  const BatchRecord& record() const { return record_; }
  // Whether line `number` of the input was answered before this was opened.
  bool IsAnswered(int64_t number) const { return answered_[static_cast<size_t>(number)] != 0; }
  // OK if the result that was there is one of `line`. Errors: FAILED_PRECONDITION.
  // REQUIRES: IsAnswered(line.number).
  absl::Status CheckAnswer(const NumberedLine& line) const;
  int64_t num_answered() const { return num_answered_; }

  // Appends whole lines. Errors: INVALID_ARGUMENT.
  absl::Status Append(absl::string_view lines);
  // Waits until what was written is on the disk. Errors: INVALID_ARGUMENT.
  absl::Status Sync();

 private:
  BatchOutput(std::string path, int64_t lines)
      : path_(std::move(path)), answered_(static_cast<size_t>(lines) + 1) {}
  std::string RecordPath() const { return path_ + ".batch"; }
  absl::Status OpenFile();
  absl::Status Begin(const BatchRecord& record, bool is_empty);
  absl::Status ReadAnswered();
  absl::Status Mark(absl::string_view line);
  absl::Status CutAt(int64_t bytes);
  absl::Status Failed(absl::string_view what) const;

  const std::string path_;
  int fd_ = -1;
  BatchRecord record_;
  // By number of line: 0, or the hash of the result's custom_id.
  std::vector<uint64_t> answered_;
  int64_t num_answered_ = 0;
};

}  // namespace rivulet
