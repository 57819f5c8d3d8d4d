// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/calls/request_record.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/grpc/wire/status_map.h"
#include "server/sessions/session.h"

namespace rivulet {
namespace {

constexpr char kOk[] = "OK";

}  // namespace

RequestRecord::RequestRecord(const RequestRecord& call, uint64_t member)
    : log_(call.log_), id_(absl::StrCat(call.id_, "/", member)) {
  if (log_ == nullptr) return;
  RequestLine line;
  {
    MutexLock lock(&call.mutex_);
    line.tenant = call.line_.tenant;
    line.key = call.line_.key;
    line.trace_id = call.line_.trace_id;
    line.peer = call.line_.peer;
  }
  line.begin = absl::Now();
  line.request_id = id_;
  line.method = "Generate";
  MutexLock lock(&mutex_);
  line_ = std::move(line);
}

void RequestRecord::Begin(Start start) {
  id_ = std::move(start.id);
  if (log_ == nullptr) return;
  MutexLock lock(&mutex_);
  line_.begin = absl::Now();
  line_.request_id = id_;
  line_.method = start.method;
  if (start.trace) line_.trace_id = std::move(start.trace->trace_id);
  line_.peer = std::move(start.peer);
}

void RequestRecord::SetCaller(const Caller& caller) {
  if (log_ == nullptr) return;
  MutexLock lock(&mutex_);
  line_.tenant = caller.tenant;
  if (caller.key != nullptr) line_.key = caller.key->name;
}

void RequestRecord::SetModel(absl::string_view name) {
  if (log_ == nullptr) return;
  MutexLock lock(&mutex_);
  line_.model = std::string(name);
}

void RequestRecord::SetSession(absl::string_view id) {
  if (log_ == nullptr || !SessionId::Parse(id)) return;
  MutexLock lock(&mutex_);
  line_.session = std::string(id);
}

void RequestRecord::SetUsage(const Usage& usage) {
  SetScored(usage);
  if (log_ == nullptr) return;
  MutexLock lock(&mutex_);
  line_.generated_tokens = usage.completion_tokens;
  if (usage.first_token_time > absl::ZeroDuration())
    line_.first_token_time = usage.first_token_time;
}

void RequestRecord::SetScored(const Usage& usage) {
  if (log_ == nullptr) return;
  MutexLock lock(&mutex_);
  line_.prompt_tokens = usage.prompt_tokens;
  line_.queue_time = usage.queue_time;
}

void RequestRecord::NoteEnd(const absl::Status& status) {
  if (log_ == nullptr) return;
  MutexLock lock(&mutex_);
  if (!line_.code.empty() && line_.code != kOk) return;
  line_.code = absl::StatusCodeToString(WireCode(status));
  line_.reason = status.ok() ? "" : WireReason(status);
}

void RequestRecord::SetCut(absl::StatusCode code, absl::string_view reason) {
  if (log_ == nullptr) return;
  MutexLock lock(&mutex_);
  line_.code = absl::StatusCodeToString(code);
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
  if (log_ == nullptr || id_.empty()) return;
  MutexLock lock(&mutex_);
  if (!log_->Takes(line_.code != kOk)) return;
  line_.end = absl::Now();
  log_->Add(std::move(line_));
}

}  // namespace rivulet
