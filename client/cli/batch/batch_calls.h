// SPDX-License-Identifier: Apache-2.0
// The calls of a batch that are in flight: generations over one Multiplex, scores as calls of their
// own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cli/batch/batch_input.h"
#include "client/cli/batch/batch_result.h"
#include "rivulet/client.h"
#include "rivulet/multiplex.h"

namespace rivulet {

// A line and its result.
struct BatchItem {
  NumberedLine in;
  BatchReply reply;       // of a generation
  v1::ScoreReply score;   // of a score
  int losses = 0;         // calls that ended with UNAVAILABLE while other lines succeeded
  int64_t succeeded = 0;  // lines that had succeeded when it was last lost
};

// Thread: one.
class BatchCalls {
 public:
  explicit BatchCalls(const Client& client);
  BatchCalls(const BatchCalls&) = delete;
  BatchCalls& operator=(const BatchCalls&) = delete;
  ~BatchCalls();  // cancels what is open

  // Sends the request of an item. The status of the call goes to `in.status`.
  void Start(std::unique_ptr<BatchItem> item);
  // Number of items that have been started and not returned by Wait().
  size_t open() const { return open_; }
  // Waits until a call has ended, at most until `until`. Returns the items whose calls have ended.
  std::vector<std::unique_ptr<BatchItem>> Wait(absl::Time until);
  int64_t tokens() const { return tokens_; }  // generated or scored, so far

 private:
  void StartScore(BatchItem* item);
  void StartGenerate(BatchItem* item, const v1::GenerateRequest& request);
  void End(BatchItem* item, const absl::Status& status);

  const Client& client_;
  size_t open_ = 0;
  std::stop_source stop_;
  std::atomic<int64_t> tokens_ = 0;
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<BatchItem>> ended_ ABSL_GUARDED_BY(mutex_);
  const std::unique_ptr<Multiplex> multiplex_;  // the last member: its callbacks use the others
};

}  // namespace rivulet
