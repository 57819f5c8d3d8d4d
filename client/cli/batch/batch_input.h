// SPDX-License-Identifier: Apache-2.0
// The input file of `rivulet batch`, line by line.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/batch/batch_line.h"
#include "client/cli/input/line_reader.h"

namespace rivulet {

struct NumberedLine {
  int64_t number = 0;  // from 1
  BatchLine line;
  absl::Status status;  // of ParseBatchLine(), or: another line has this custom_id
};

// Thread: one.
class BatchInput {
 public:
  // Reads the file once, for its digest and its size. Errors: NOT_FOUND, INVALID_ARGUMENT (cannot
  // be read, or is not a regular file and so cannot be read a second time).
  static absl::StatusOr<std::unique_ptr<BatchInput>> Open(const std::string& path,
                                                          BatchDefaults defaults);

  const std::string& sha256() const { return sha256_; }  // lower-case hex
  // By number of line, from 1: whether the line is blank. A blank line has no result.
  const std::vector<bool>& blank() const { return blank_; }

  // The next line that is not blank; nullopt at the end. Errors: INVALID_ARGUMENT (cannot be read).
  absl::StatusOr<std::optional<NumberedLine>> Next();

 private:
  BatchInput(const std::string& path, BatchDefaults defaults)
      : defaults_(std::move(defaults)), reader_(path) {}

  const BatchDefaults defaults_;
  LineReader reader_;
  std::string sha256_;
  std::vector<bool> blank_;
  int64_t number_ = 0;
  absl::flat_hash_map<std::string, int64_t> ids_;  // custom_id to its first line
};

}  // namespace rivulet
