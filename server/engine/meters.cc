// SPDX-License-Identifier: Apache-2.0
#include "server/engine/meters.h"

#include <algorithm>

#include "model/base/error.h"

namespace rivulet {
namespace {

// Upper ends of buckets. Requests take from a millisecond to minutes, runs and calls of a shared
// store from a tenth of a millisecond to seconds.
constexpr double kRequestSeconds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                      0.5,   1,      2.5,   5,    10,    30,   60,  300};
constexpr double kRunSeconds[] = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
                                  0.05,   0.1,     0.25,   0.5,   1,      2.5,   10};
constexpr double kRows[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};

}  // namespace

absl::string_view MethodOf(RequestKind kind) {
  switch (kind) {
    case RequestKind::kGenerate:
      return "Generate";
    case RequestKind::kScore:
      return "Score";
    case RequestKind::kAppend:
      return "Append";
    case RequestKind::kOpenSession:
      return "OpenSession";
    case RequestKind::kForkSession:
      return "ForkSession";
    case RequestKind::kRewindSession:
      return "RewindSession";
    case RequestKind::kSnapshotSession:
      return "SnapshotSession";
    case RequestKind::kRestoreSession:
      return "RestoreSession";
    case RequestKind::kCloseSession:
      return "CloseSession";
    case RequestKind::kGetSession:
      return "GetSession";
    case RequestKind::kListSessions:
      return "ListSessions";
  }
  return "";
}

EngineMeters::EngineMeters()
    : queue_time_(kRequestSeconds),
      first_token_(kRequestSeconds),
      reply_gap_(kRunSeconds),
      duration_(kRequestSeconds),
      session_claim_(kRunSeconds),
      session_save_(kRunSeconds),
      run_duration_(kRunSeconds),
      run_rows_(kRows) {}

void EngineMeters::CountEnd(RequestKind kind, const absl::Status& status) {
  if (status.ok()) return Add(&of(kind).ended_well, 1);
  std::string reason = GetErrorDetail(status).reason;
  if (reason.empty()) reason = absl::StatusCodeToString(status.code());
  MutexLock lock(&mutex_);
  ++errors_[static_cast<size_t>(kind)][{status.code(), std::move(reason)}];
}

void EngineMeters::NoteQueueTime(absl::Duration waited) {
  queue_time_.Observe(absl::ToDoubleSeconds(waited));
}

void EngineMeters::NoteFirstToken(absl::Duration since_arrival) {
  first_token_.Observe(absl::ToDoubleSeconds(since_arrival));
}

void EngineMeters::NoteReplyGap(absl::Duration gap) {
  reply_gap_.Observe(absl::ToDoubleSeconds(gap));
}

void EngineMeters::NoteDuration(absl::Duration total) {
  const MutexLock lock(&mutex_);  // a histogram has one writer at a time
  duration_.Observe(absl::ToDoubleSeconds(total));
}

void EngineMeters::NoteSessionClaim(absl::Duration waited) {
  session_claim_.Observe(absl::ToDoubleSeconds(waited));
}

void EngineMeters::NoteSessionSave(absl::Duration waited) {
  session_save_.Observe(absl::ToDoubleSeconds(waited));
}

void EngineMeters::BeginRun(absl::Time now) {
  run_began_ = now;
  if (run_owed_since_.load(std::memory_order_relaxed) != kNever) return;
  run_owed_since_.store(absl::ToUnixNanos(now), std::memory_order_relaxed);
}

void EngineMeters::EndRun(absl::Time now, int rows) {
  run_duration_.Observe(absl::ToDoubleSeconds(now - run_began_));
  run_rows_.Observe(rows);
  run_owed_since_.store(absl::ToUnixNanos(now), std::memory_order_relaxed);
}

absl::Duration EngineMeters::run_age(absl::Time now) const {
  const int64_t since = run_owed_since_.load(std::memory_order_relaxed);
  if (since == kNever) return absl::ZeroDuration();
  return std::max(absl::ZeroDuration(), now - absl::FromUnixNanos(since));
}

int64_t EngineMeters::started(RequestKind kind) const {
  return of(kind).started.load(std::memory_order_relaxed);
}

int64_t EngineMeters::ended_well(RequestKind kind) const {
  return of(kind).ended_well.load(std::memory_order_relaxed);
}

std::vector<EngineMeters::Errors> EngineMeters::errors(RequestKind kind) const {
  std::vector<Errors> errors;
  MutexLock lock(&mutex_);
  for (const auto& [key, count] : errors_[static_cast<size_t>(kind)]) {
    errors.push_back({key.first, key.second, count});
  }
  return errors;
}

}  // namespace rivulet
