// SPDX-License-Identifier: Apache-2.0
// OtlpExporter: sends spans to a collector by OTLP over gRPC, on a thread of its own. Spans wait in
// a bounded queue; the threads that add them never wait for the collector.
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
  std::string authorities;  // of the collector's certificate, PEM; "": the system's
  ResourceAttributes resource;
  size_t max_waiting = 8192;  // spans that wait to be sent; more are dropped
  // Spans in one message. With less than 1 KiB a span it stays far below gRPC's default of 4 MiB.
  size_t max_batch = 512;
  absl::Duration batch_delay = absl::Seconds(1);  // longest that a span waits for others
  absl::Duration call_timeout = absl::Seconds(10);
  // Wait between two tries to reach a collector that does not answer; doubles from first to last.
  absl::Duration first_retry = absl::Seconds(1), last_retry = absl::Seconds(5);
};

// Thread: any, but Stop and the destructor once each, in this order.
class OtlpExporter {
 public:
  explicit OtlpExporter(OtlpOptions options);
  // As Stop(now).
  ~OtlpExporter();

  // Takes spans that belong together: all of them, or none if there is no room for all.
  void Add(std::vector<Span> spans);
  // Sends waiting spans until `deadline` at most; the rest is dropped. If the collector does not
  // answer, all are dropped at once. Spans that are added later are dropped.
  void Stop(absl::Time deadline);

  // Spans since start, without those that still wait.
  struct Counts {
    int64_t sent = 0;
    int64_t dropped = 0;  // no room, or not sent by the end
    int64_t failed = 0;   // the collector refused them
  };
  Counts counts() const;

 private:
  void Run();
  // Waits for spans; empty once no more spans will come.
  std::vector<Span> NextBatch();
  // False where the exporter was stopped before the collector took or refused them.
  bool Deliver(const std::vector<Span>& batch);
  // Tries once. Returns how long to wait before the next try; nullopt: no next try makes sense.
  std::optional<absl::Duration> Try(const std::vector<Span>& batch);
  // Absent where the exporter was stopped and its time is over.
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
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;                   // the thread has ended
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mutex_) = nullptr;  // the running call
  std::atomic<int64_t> sent_ = 0, dropped_ = 0, failed_ = 0;

  // Used only by the thread.
  bool away_ = false;
  int64_t dropped_before_ = 0;  // dropped spans when it went away
  absl::Duration retry_;
  std::thread thread_;
};

}  // namespace rivulet
