// SPDX-License-Identifier: Apache-2.0
// EngineMeters: what an engine counts and times for its operators beside EngineLoad. The loop
// writes relaxed atomics; whoever reads never makes it wait, except for the end of a request in an
// error, which takes a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/base/histogram.h"
#include "server/base/mutex.h"
#include "server/engine/request.h"

namespace rivulet {

// The method of the API that asks for it, as "Generate".
absl::string_view MethodOf(RequestKind kind);

// Thread: any, except the loop's own part, which is of one thread.
class EngineMeters {
 public:
  EngineMeters();

  // A request was taken from the queue, or needs no slot and ends at once.
  void CountStart(RequestKind kind) { Add(&of(kind).started, 1); }
  // It ended, in this way. Every request that was counted as started is counted here once.
  void CountEnd(RequestKind kind, const absl::Status& status);

  // The loop's part.
  // Of a request that waited for slots, when it first gets them.
  void NoteQueueTime(absl::Duration waited);
  void NoteFirstToken(absl::Duration since_arrival);
  // Between two arrivals of tokens at the same reply.
  void NoteReplyGap(absl::Duration gap);
  // Of a request that ended, since its arrival. Thread: any.
  void NoteDuration(absl::Duration total);
  void BeginRun(absl::Time now);
  void EndRun(absl::Time now, int rows);
  // There was nothing to run.
  void NoRun() { run_owed_since_.store(kNever, std::memory_order_relaxed); }
  void CountCachedTokens(int64_t tokens) { Add(&cached_tokens_, tokens); }

  // For reading.
  const Histogram& queue_time() const { return queue_time_; }    // seconds, all of them
  const Histogram& first_token() const { return first_token_; }  // of Generates
  const Histogram& reply_gap() const { return reply_gap_; }
  const Histogram& duration() const { return duration_; }
  const Histogram& run_duration() const { return run_duration_; }
  const Histogram& run_rows() const { return run_rows_; }  // rows

  // For how long the loop has had something to run without completing a run; 0 where it has
  // nothing.
  absl::Duration run_age(absl::Time now) const;
  // Given tokens that a kept state had seen, of requests that ended.
  int64_t cached_tokens() const { return cached_tokens_.load(std::memory_order_relaxed); }

  struct Errors {
    absl::StatusCode code;
    std::string reason;
    int64_t count;
  };
  int64_t started(RequestKind kind) const;
  int64_t ended_well(RequestKind kind) const;
  // How many ended in an error, by its code and reason.
  std::vector<Errors> errors(RequestKind kind) const;

 private:
  static constexpr int64_t kNever = 0;
  struct Counts {
    std::atomic<int64_t> started = 0, ended_well = 0;
  };
  static void Add(std::atomic<int64_t>* count, int64_t by) {
    count->fetch_add(by, std::memory_order_relaxed);
  }
  Counts& of(RequestKind kind) { return counts_[static_cast<size_t>(kind)]; }
  const Counts& of(RequestKind kind) const { return counts_[static_cast<size_t>(kind)]; }

  std::array<Counts, kNumRequestKinds> counts_;
  Histogram queue_time_, first_token_, reply_gap_, duration_, run_duration_, run_rows_;
  absl::Time run_began_;                          // the loop's
  std::atomic<int64_t> run_owed_since_ = kNever;  // ns since 1970
  std::atomic<int64_t> cached_tokens_ = 0;
  mutable Mutex mutex_;
  std::map<std::pair<absl::StatusCode, std::string>, int64_t>
      errors_[kNumRequestKinds] ABSL_GUARDED_BY(mutex_);
};

}  // namespace rivulet
