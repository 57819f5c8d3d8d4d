// SPDX-License-Identifier: Apache-2.0
// Spans in the messages of OTLP, the protocol of OpenTelemetry's collectors.
#pragma once

#include <span>

#include "opentelemetry/proto/collector/trace/v1/trace_service.pb.h"
#include "server/tracing/span.h"

namespace rivulet {

// The request that hands `spans` to a collector.
opentelemetry::proto::collector::trace::v1::ExportTraceServiceRequest ToOtlp(
    const ResourceAttributes& resource, std::span<const Span> spans);

}  // namespace rivulet
