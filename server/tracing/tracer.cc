// SPDX-License-Identifier: Apache-2.0
#include "server/tracing/tracer.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "model/base/random_word.h"

namespace rivulet {
namespace {

// Codes that mean a failure of the server and not a bad request, as in OpenTelemetry's conventions
// for RPC.
bool IsFailure(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss:
      return true;
    default:
      return false;
  }
}

// The span of the whole request: what it was, and how it ended.
Span Whole(const RequestTrace& trace, const RequestLine& line) {
  Span span;
  span.trace_id = trace.trace_id;
  span.id = trace.span_id;
  span.parent_id = trace.parent_id;
  span.parent_elsewhere = trace.parent_elsewhere;
  span.server = true;
  span.start = line.begin;
  span.end = std::max(line.begin, line.end);  // the clock may be set back
  span.name = line.method;
  const auto put = [&span](const char* name, std::string text) {
    if (!text.empty()) span.attributes.emplace_back(name, std::move(text));
  };
  put("rpc.system", "grpc");
  if (!line.service.empty()) {
    span.name = absl::StrCat(line.service, "/", line.method);
    put("rpc.service", line.service);
    put("rpc.method", line.method);
  }
  const absl::StatusCode code = line.code.value_or(absl::StatusCode::kUnknown);
  span.attributes.emplace_back("rpc.grpc.status_code", static_cast<int64_t>(code));
  put("rivulet.request_id", line.request_id);
  put("rivulet.error_reason", line.reason);
  put("rivulet.model", line.model);
  put("rivulet.session", line.session);
  if (line.prompt_tokens)
    span.attributes.emplace_back("rivulet.prompt_tokens", *line.prompt_tokens);
  if (line.generated_tokens) {
    span.attributes.emplace_back("rivulet.generated_tokens", *line.generated_tokens);
  }
  span.failed = IsFailure(code);
  if (span.failed) span.problem = line.reason;
  return span;
}

}  // namespace

std::vector<Span> SpansOf(const RequestTrace& trace, const RequestLine& line) {
  std::vector<Span> spans = {Whole(trace, line)};
  if (!line.arrival) return spans;
  const absl::Time first = spans.front().start, last = spans.front().end;
  // No part leaves the whole, even if the clock was set in between.
  const auto after = [&](absl::Duration since_arrival) {
    return std::clamp(*line.arrival + since_arrival, first, last);
  };
  const auto add = [&](const char* name, absl::Duration from, absl::Duration to) {
    Span& span = spans.emplace_back();
    span.trace_id = trace.trace_id;
    span.id = NewSpanId();
    span.parent_id = trace.span_id;
    span.name = name;
    span.start = after(from);
    span.end = after(std::max(from, to));
  };
  const absl::Duration end = line.engine_time.value_or(absl::ZeroDuration());
  const absl::Duration admitted = line.queue_time.value_or(end);
  add("queue", absl::ZeroDuration(), admitted);
  // A request that ends in the queue has been queued to its end.
  if (admitted < end) add("prefill", admitted, line.first_token_time.value_or(end));
  if (line.first_token_time) add("decode", *line.first_token_time, end);
  return spans;
}

std::optional<RequestTrace> Tracer::Begin(const std::optional<TraceContext>& caller) const {
  if (caller) {
    if (!caller->sampled) return std::nullopt;
    return RequestTrace{caller->trace_id, NewSpanId(), caller->parent_id, true};
  }
  if (RandomFraction() >= sample_) return std::nullopt;
  return RequestTrace{NewTraceId(), NewSpanId(), "", false};
}

RequestTrace Tracer::BeginWithin(const RequestTrace& outer) {
  return {outer.trace_id, NewSpanId(), outer.span_id, false};
}

}  // namespace rivulet
