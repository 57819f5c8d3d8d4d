// SPDX-License-Identifier: Apache-2.0
// OtlpExporter: sends spans to a collector by OTLP over gRPC, on a thread of its own. Spans wait in
// a bounded queue; whoever adds them never waits for the collector.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "server/base/mutex.h"
#include "server/tracing/span.h"

namespace grpc {
class Channel;
class ClientContext;
class Status;
}  // namespace grpc

namespace rivulet {

struct OtlpOptions {
  std::string target;  // HOST:PORT
  bool tls = false;
  std::string authorities;  // of the collector's certificate, PEM; "": those of the system
  ResourceAttributes resource;
  size_t max_waiting = 8192;  // spans, those being sent not counted; more are dropped
  // In one message: with less than 1 KiB a span far below the 4 MiB that gRPC takes by default.
  size_t max_batch = 512;
  absl::Duration batch_delay = absl::Seconds(1);  // most that a span waits for others
  absl::Duration call_timeout = absl::Seconds(10);
  // Between two tries to reach a collector that is away: doubled from the first to the last.
  absl::Duration first_retry = absl::Seconds(1), last_retry = absl::Seconds(5);
};

// Thread: any, but Stop and the destructor once each, in this order.
class OtlpExporter {
 public:
  explicit OtlpExporter(OtlpOptions options);
  // As Stop(now).
  ~OtlpExporter();

  // Takes spans that belong together: all of them, or none where not all have room.
  void Add(std::vector<Span> spans);
  // Sends what waits, but no longer than until `deadline`; the rest is dropped, and at once where
  // the collector is away. Spans that are added later are dropped.
  void Stop(absl::Time deadline);

  // Spans since start; those that still wait are in none.
  struct Counts {
    int64_t sent = 0;
    int64_t dropped = 0;  // no room, or not sent by the end
    int64_t failed = 0;   // the collector refused them
  };
  Counts counts() const;

 private:
  void Run();
  // Waits for spans; empty once there will be none.
  std::vector<Span> NextBatch();
  // False where the exporter was stopped before the collector took or refused them.
  bool Deliver(const std::vector<Span>& batch);
  // Once; how long to wait before the next try, where that makes sense.
  std::optional<absl::Duration> Try(const std::vector<Span>& batch);
  // Absent where the time of a stopped exporter is over.
  template <typename Request, typename Reply>
  std::optional<grpc::Status> Call(const Request& request, Reply* reply);
  // False once the exporter is stopped.
  bool WaitToRetry(absl::Duration wait);
  void NoteAway(const grpc::Status& status);
  void NoteBack();

  const OtlpOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  Mutex mutex_;
  CondVar wake_;  // the thread
  CondVar idle_;  // Stop
  std::deque<Span> waiting_ ABSL_GUARDED_BY(mutex_);
  absl::Time oldest_ ABSL_GUARDED_BY(mutex_);  // when the first of waiting_ came
  std::optional<absl::Time> stop_by_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;                   // the thread has
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mutex_) = nullptr;  // that runs
  std::atomic<int64_t> sent_ = 0, dropped_ = 0, failed_ = 0;

  // The thread's.
  bool away_ = false;
  int64_t dropped_before_ = 0;  // when it went away
  absl::Duration retry_;
  std::thread thread_;
};

}  // namespace rivulet
