// SPDX-License-Identifier: Apache-2.0
// RequestRecord: what is known of one request, for whoever reports errors, for the request log and
// for tracing.
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
#include "server/tracing/tracer.h"

namespace rivulet {

// Of what service; "" for a request of Multiplex and for a method that no service has. Both live
// for ever.
struct MethodName {
  const char* service;
  const char* method;
};

// Where neither the log nor a trace takes it, it keeps the id alone. Thread: any, but Begin, which
// comes first.
class RequestRecord {
 public:
  // What `sinks` names outlives this.
  explicit RequestRecord(const RequestSinks& sinks) : sinks_(sinks) {}
  // Of a request `member` within `call`, a call that has begun; a Generate. It begins now. Its id
  // is "<id of the call>/<member>"; caller and peer are those of the call. It is part of the call's
  // trace where the client began that; else it is traced or not as a call without traceparent.
  RequestRecord(const RequestRecord& call, uint64_t member);

  // What the record of a request begins with.
  struct Start {
    std::string id;
    MethodName method = {"", ""};
    std::optional<TraceContext> caller;  // its traceparent
    std::string peer;
  };
  void Begin(Start start);

  const RequestSinks& sinks() const { return sinks_; }
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

  // Records the end. Returns the status for the client, as ToGrpc and ToWire (status_map.h) with
  // the id of the request. Of several ends the first error counts.
  grpc::Status End(const absl::Status& status, ErrorCounts* errors);
  void End(const absl::Status& status, ErrorCounts* errors, google::rpc::Status* wire);

  // Its client was cut off, and sees this error in place of the end that it has been given.
  void SetCut(absl::StatusCode code, absl::string_view reason);

  // All is said and done: tells the log and the trace, unless the request has not begun.
  void Write();

 private:
  void Keep(RequestLine line);
  void NoteEnd(const absl::Status& status);

  const RequestSinks sinks_;
  std::string id_;
  std::optional<TraceContext> caller_;
  std::optional<RequestTrace> trace_;  // absent: not traced
  bool kept_ = false;                  // the log or the trace takes it
  mutable Mutex mutex_;
  RequestLine line_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rivulet
