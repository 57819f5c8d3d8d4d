// SPDX-License-Identifier: Apache-2.0
// The output file of `rivulet batch`, and the file beside it, OUT.batch, which identifies the
// batch. After a process is killed, the same command continues from both files: every line of
// output is whole, except that the last line may be cut off. An interrupted process also writes, at
// the end, results that it had before the results of earlier lines.
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
  std::map<std::string, std::string> options;  // all options that change results, by name
  uint64_t seed = 0;                           // line N without a seed of its own has seed + N
  int64_t created = 0;                         // seconds since 1970
};

// Thread: one.
class BatchOutput {
 public:
  // Begins the batch, with `record`, or continues it: takes seed and time from OUT.batch, and cuts
  // off an unfinished last line and results that are not in the order of the input. Locks the file.
  // `blank`: BatchInput::blank(). Errors: FAILED_PRECONDITION (the file belongs to another batch or
  // program, a line was changed, or another process writes the file), INVALID_ARGUMENT (cannot be
  // read or written).
  static absl::StatusOr<std::unique_ptr<BatchOutput>> Open(const std::string& path,
                                                           const BatchRecord& record,
                                                           const std::vector<bool>& blank);
  BatchOutput(const BatchOutput&) = delete;
  BatchOutput& operator=(const BatchOutput&) = delete;
  ~BatchOutput();

  const BatchRecord& record() const { return record_; }
  // Whether line `number` of the input was answered before Open, or is blank.
  bool IsAnswered(int64_t number) const { return answered_[static_cast<size_t>(number)] != 0; }
  // OK if the result in the file belongs to `line`. Errors: FAILED_PRECONDITION. REQUIRES:
  // IsAnswered(line.number).
  absl::Status CheckAnswer(const NumberedLine& line) const;
  // Numbers of lines of the input: not blank; answered before Open; and without a result in the
  // file, which includes the lines of TakeLater().
  int64_t lines() const { return lines_; }
  int64_t num_answered() const { return lines_ - num_left_ + static_cast<int64_t>(later_.size()); }
  int64_t num_left() const { return num_left_; }
  // Results that Open cut off, by line. The caller appends them in the order of the lines.
  std::map<int64_t, std::string> TakeLater() { return std::exchange(later_, {}); }

  // Appends whole lines. Errors: INVALID_ARGUMENT. After an error the last line may be cut off, and
  // later calls append nothing.
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
  // By number of line: 0 (no answer), or the hash of the result's custom_id; not 0 for a blank
  // line.
  std::vector<uint64_t> answered_;
  int64_t lines_ = 0, num_left_ = 0;
  int64_t next_ = 1;  // no line before it is without an answer
  std::map<int64_t, std::string> later_;
};

}  // namespace rivulet
