// SPDX-License-Identifier: Apache-2.0
// Tracer: decides which requests are traced, and makes the spans of traced requests.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/request_log/request_log.h"
#include "server/tracing/otlp_exporter.h"
#include "server/tracing/span.h"
#include "server/tracing/trace_context.h"

namespace rivulet {

// The place of a traced request in its trace.
struct RequestTrace {
  std::string trace_id, span_id;
  std::string parent_id;          // "": it begins the trace
  bool parent_elsewhere = false;  // the parent is a span of the caller
};

// The span of a request and, if an engine took it, the spans of its parts: "queue" until it has
// slots, "prefill" until its first token or its end, "decode" until its end. Without prompts.
std::vector<Span> SpansOf(const RequestTrace& trace, const RequestLine& line);

// Thread: any, but Stop as OtlpExporter.
class Tracer {
 public:
  // `sample`: the share of the requests without a traceparent that is traced, 0 to 1.
  Tracer(OtlpOptions options, double sample) : sample_(sample), exporter_(std::move(options)) {}

  // A request begins. `caller`: its traceparent, whose flag decides; absent: chance decides.
  // Returns nullopt if the request is not traced.
  std::optional<RequestTrace> Begin(const std::optional<TraceContext>& caller) const;
  // The same for a request within a traced request.
  static RequestTrace BeginWithin(const RequestTrace& outer);

  // A traced request has ended. Never waits.
  void End(const RequestTrace& trace, const RequestLine& line) {
    exporter_.Add(SpansOf(trace, line));
  }

  void Stop(absl::Time deadline) { exporter_.Stop(deadline); }
  OtlpExporter::Counts counts() const { return exporter_.counts(); }

 private:
  const double sample_;
  OtlpExporter exporter_;
};

}  // namespace rivulet
