// SPDX-License-Identifier: Apache-2.0
// EngineMeters: what an engine counts and times for operators, beside EngineLoad. The loop writes
// relaxed atomics, so that readers never make it wait. Only the end of a request with an error
// takes a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/base/histogram.h"
#include "server/base/mutex.h"
#include "server/base/token_usage.h"
#include "server/engine/request.h"

namespace rivulet {

// The method of the API, for example "Generate".
absl::string_view MethodOf(RequestKind kind);

// Thread: any; the part for the loop: one.
class EngineMeters {
 public:
  EngineMeters();

  // Counts a request as started: it left the queue, or it needs no slot and ends at once.
  void CountStart(RequestKind kind) { Add(&of(kind).started, 1); }
  // Counts how a request ended. Each that was counted as started is counted here once.
  void CountEnd(RequestKind kind, const absl::Status& status);

  // For the loop.
  // How long a request has waited when it first gets slots.
  void NoteQueueTime(absl::Duration waited);
  void NoteFirstToken(absl::Duration since_arrival);
  // The time between two arrivals of tokens at one reply.
  void NoteReplyGap(absl::Duration gap);
  // The time from the arrival of a request to its end. Thread: any.
  void NoteDuration(absl::Duration total);
  // From a request's turn on its session until it has the session's claim, or is refused.
  void NoteSessionClaim(absl::Duration waited);
  // From the end of a request until the result is handed over, durable in the shared store or not.
  void NoteSessionSave(absl::Duration waited);
  void BeginRun(absl::Time now);
  void EndRun(absl::Time now, int rows);
  // The loop has nothing to run.
  void NoRun() { run_owed_since_.store(kNever, std::memory_order_relaxed); }
  void CountCachedTokens(int64_t tokens) { Add(&cached_tokens_, tokens); }

  // For readers.
  const Histogram& queue_time() const { return queue_time_; }    // seconds, all of them
  const Histogram& first_token() const { return first_token_; }  // of Generates
  const Histogram& reply_gap() const { return reply_gap_; }
  const Histogram& duration() const { return duration_; }
  const Histogram& session_claim() const { return session_claim_; }
  const Histogram& session_save() const { return session_save_; }
  const Histogram& run_duration() const { return run_duration_; }
  const Histogram& run_rows() const { return run_rows_; }  // rows

  // How long the loop has had something to run without completing a run; 0: nothing to run.
  absl::Duration run_age(absl::Time now) const;
  // Tokens by caller; requests count their own in it.
  TokenUsage* usage() const { return usage_.get(); }
  // Given tokens of ended requests that were not fed, because a kept state had seen them.
  int64_t cached_tokens() const { return cached_tokens_.load(std::memory_order_relaxed); }

  struct Errors {
    absl::StatusCode code;
    std::string reason;
    int64_t count;
  };
  int64_t started(RequestKind kind) const;
  int64_t ended_well(RequestKind kind) const;
  // Requests that ended with an error, by its code and reason.
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

  const std::unique_ptr<TokenUsage> usage_ = std::make_unique<TokenUsage>();
  std::array<Counts, kNumRequestKinds> counts_;
  Histogram queue_time_, first_token_, reply_gap_, duration_, session_claim_, session_save_;
  Histogram run_duration_, run_rows_;
  absl::Time run_began_;                          // the loop's
  std::atomic<int64_t> run_owed_since_ = kNever;  // ns since 1970
  std::atomic<int64_t> cached_tokens_ = 0;
  mutable Mutex mutex_;
  std::map<std::pair<absl::StatusCode, std::string>, int64_t>
      errors_[kNumRequestKinds] ABSL_GUARDED_BY(mutex_);
};

}  // namespace rivulet
