// SPDX-License-Identifier: Apache-2.0
// RequestRecord: what is known about one request, for its errors, the request log and tracing.
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

// A method and its service; the service is "" for a request of Multiplex and for an unknown method.
// Both texts live for ever.
struct MethodName {
  const char* service;
  const char* method;
};

// If neither the log nor a trace takes the record, it keeps only the id. Thread: any; Begin comes
// first.
class RequestRecord {
 public:
  // The sinks outlive this.
  explicit RequestRecord(const RequestSinks& sinks) : sinks_(sinks) {}
  // Begins the record of a Generate, the request `member` of `call`, which has begun. Its id is
  // "<id of the call>/<member>"; caller and peer are the call's. If the client began the trace of
  // the call, the request is part of that trace; else chance decides, as for a call without
  // traceparent.
  RequestRecord(const RequestRecord& call, uint64_t member);

  // The content of a record at its beginning.
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
  // The name of a served model, or any valid name of a model.
  void SetModel(absl::string_view name);
  // A text that is not the id of a session may be anything, and is not kept.
  void SetSession(absl::string_view id);
  // The usage of a Generate that the engine has ended.
  void SetUsage(const Usage& usage);
  // The usage of a Score or an Append.
  void SetScored(const Usage& usage);

  // Records the end. Returns the status for the client, as ToGrpc and ToWire (status_map.h) with
  // the id of the request. With several ends the first error counts.
  grpc::Status End(const absl::Status& status, ErrorCounts* errors);
  void End(const absl::Status& status, ErrorCounts* errors, google::rpc::Status* wire);

  // The server has ended the call early: the client sees this error in place of the recorded end.
  void SetCut(absl::StatusCode code, absl::string_view reason);

  // Gives the finished record to the log and the trace, unless the request never began.
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
