// SPDX-License-Identifier: Apache-2.0
// RequestRecord: what is known of one request, for whoever reports errors and for the request log.
#pragma once

#include <grpcpp/support/status.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "google/rpc/status.pb.h"
#include "server/base/mutex.h"
#include "server/engine/request.h"
#include "server/grpc/calls/caller.h"
#include "server/grpc/calls/server_calls.h"
#include "server/request_log/request_log.h"
#include "server/tracing/trace_context.h"

namespace rivulet {

// Without a log it keeps the id alone. Thread: any, but Begin, which comes first.
class RequestRecord {
 public:
  // `log` is borrowed and outlives this; null: there is none.
  explicit RequestRecord(RequestLog* log) : log_(log) {}
  // Of a request `member` within `call`, a call that has begun; a Generate. It begins now. Its id
  // is "<id of the call>/<member>"; caller, trace and peer are those of the call.
  RequestRecord(const RequestRecord& call, uint64_t member);

  // What the record of a request begins with. `method`: a literal.
  struct Start {
    std::string id;
    const char* method = "";
    std::optional<TraceContext> trace;
    std::string peer;
  };
  void Begin(Start start);

  RequestLog* log() const { return log_; }
  // "" before Begin.
  const std::string& id() const { return id_; }

  void SetCaller(const Caller& caller);
  // Of a model that is served, or at least a name that a model can have.
  void SetModel(absl::string_view name);
  // Text that is no id of a session is not kept: it may be anything.
  void SetSession(absl::string_view id);
  // Of a Generate that the engine has ended.
  void SetUsage(const Usage& usage);
  // Of a Score or an Append.
  void SetScored(const Usage& usage);

  // It ended so: what its client is told, as ToGrpc and ToWire (status_map.h) with its id. Of
  // several ends the first error counts.
  grpc::Status End(const absl::Status& status, ErrorCounts* errors);
  void End(const absl::Status& status, ErrorCounts* errors, google::rpc::Status* wire);

  // Its client was cut off, and sees this error in place of the end that it has been given.
  void SetCut(absl::StatusCode code, absl::string_view reason);

  // All is said and done: adds the line to the log, unless the request has not begun.
  void Write();

 private:
  void NoteEnd(const absl::Status& status);

  RequestLog* const log_;
  std::string id_;
  mutable Mutex mutex_;
  RequestLine line_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rivulet
