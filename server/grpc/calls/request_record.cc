// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/calls/request_record.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/grpc/wire/status_map.h"
#include "server/sessions/session.h"

namespace rivulet {
RequestRecord::RequestRecord(const RequestRecord& call, uint64_t member) : sinks_(call.sinks_) {
  id_ = absl::StrCat(call.id_, "/", member);
  if (!sinks_.any()) return;
  if (call.caller_) {
    if (call.trace_) trace_ = Tracer::BeginWithin(*call.trace_);
  } else if (sinks_.tracer != nullptr) {
    trace_ = sinks_.tracer->Begin(std::nullopt);
  }
  caller_ = call.caller_;
  RequestLine line;
  {
    MutexLock lock(&call.mutex_);
    line.tenant = call.line_.tenant;
    line.key = call.line_.key;
    line.peer = call.line_.peer;
  }
  line.method = "Generate";
  Keep(std::move(line));
}

void RequestRecord::Begin(Start start) {
  id_ = std::move(start.id);
  if (!sinks_.any()) return;
  if (sinks_.tracer != nullptr) trace_ = sinks_.tracer->Begin(start.caller);
  caller_ = std::move(start.caller);
  RequestLine line;
  line.service = start.method.service;
  line.method = start.method.method;
  line.peer = std::move(start.peer);
  Keep(std::move(line));
}

void RequestRecord::Keep(RequestLine line) {
  kept_ = sinks_.log != nullptr || trace_.has_value();
  if (!kept_) return;
  line.begin = absl::Now();
  line.request_id = id_;
  if (trace_) {
    line.trace_id = trace_->trace_id;
  } else if (caller_) {
    line.trace_id = caller_->trace_id;
  }
  MutexLock lock(&mutex_);
  line_ = std::move(line);
}

void RequestRecord::SetCaller(const Caller& caller) {
  if (!kept_) return;
  MutexLock lock(&mutex_);
  line_.tenant = caller.tenant;
  if (caller.key != nullptr) line_.key = caller.key->name;
}

void RequestRecord::SetModel(absl::string_view name) {
  if (!kept_) return;
  MutexLock lock(&mutex_);
  line_.model = std::string(name);
}

void RequestRecord::SetSession(absl::string_view id) {
  if (!kept_ || !SessionId::Parse(id)) return;
  MutexLock lock(&mutex_);
  line_.session = std::string(id);
}

void RequestRecord::SetUsage(const Usage& usage) {
  SetScored(usage);
  if (!kept_) return;
  MutexLock lock(&mutex_);
  line_.generated_tokens = usage.completion_tokens;
  if (usage.first_token_time > absl::ZeroDuration())
    line_.first_token_time = usage.first_token_time;
}

void RequestRecord::SetScored(const Usage& usage) {
  if (!kept_) return;
  MutexLock lock(&mutex_);
  line_.prompt_tokens = usage.prompt_tokens;
  line_.arrival = usage.arrival;
  line_.queue_time = usage.queue_time;
  line_.engine_time = usage.total_time;
}

void RequestRecord::NoteEnd(const absl::Status& status) {
  if (!kept_) return;
  MutexLock lock(&mutex_);
  if (line_.code.value_or(absl::StatusCode::kOk) != absl::StatusCode::kOk) return;
  line_.code = WireCode(status);
  line_.reason = status.ok() ? "" : WireReason(status);
}

void RequestRecord::SetCut(absl::StatusCode code, absl::string_view reason) {
  if (!kept_) return;
  MutexLock lock(&mutex_);
  line_.code = code;
  line_.reason = std::string(reason);
}

grpc::Status RequestRecord::End(const absl::Status& status, ErrorCounts* errors) {
  NoteEnd(status);
  return ToGrpc(status, errors, id_);
}

void RequestRecord::End(const absl::Status& status, ErrorCounts* errors,
                        google::rpc::Status* wire) {
  NoteEnd(status);
  ToWire(status, errors, id_, wire);
}

void RequestRecord::Write() {
  if (!kept_) return;
  MutexLock lock(&mutex_);
  line_.end = absl::Now();
  if (trace_) sinks_.tracer->End(*trace_, line_);
  if (sinks_.log == nullptr || !sinks_.log->Takes(line_.code != absl::StatusCode::kOk)) return;
  sinks_.log->Add(std::move(line_));
}

}  // namespace rivulet
