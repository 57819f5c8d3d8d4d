// SPDX-License-Identifier: Apache-2.0
#include "server/tracing/otlp_message.h"

#include "absl/strings/escaping.h"
#include "absl/time/time.h"

namespace rivulet {
namespace {

namespace otlp = opentelemetry::proto;

// Bits of Span.flags: W3C's "sampled", which every sent span has, and two of OTLP.
constexpr uint32_t kSampled = 1, kOriginKnown = 256, kParentElsewhere = 512;

void AddAttribute(absl::string_view key, const Span::Value& value, otlp::common::v1::KeyValue* to) {
  to->set_key(std::string(key));
  if (const auto* number = std::get_if<int64_t>(&value)) {
    to->mutable_value()->set_int_value(*number);
  } else {
    to->mutable_value()->set_string_value(std::get<std::string>(value));
  }
}

uint64_t Nanoseconds(absl::Time time) { return static_cast<uint64_t>(absl::ToUnixNanos(time)); }

void ToOtlp(const Span& span, otlp::trace::v1::Span* to) {
  to->set_trace_id(absl::HexStringToBytes(span.trace_id));
  to->set_span_id(absl::HexStringToBytes(span.id));
  to->set_parent_span_id(absl::HexStringToBytes(span.parent_id));
  to->set_flags(kSampled | kOriginKnown | (span.parent_elsewhere ? kParentElsewhere : 0));
  to->set_name(span.name);
  to->set_kind(span.server ? otlp::trace::v1::Span::SPAN_KIND_SERVER
                           : otlp::trace::v1::Span::SPAN_KIND_INTERNAL);
  to->set_start_time_unix_nano(Nanoseconds(span.start));
  to->set_end_time_unix_nano(Nanoseconds(span.end));
  for (const auto& [key, value] : span.attributes) AddAttribute(key, value, to->add_attributes());
  if (!span.failed) return;
  to->mutable_status()->set_code(otlp::trace::v1::Status::STATUS_CODE_ERROR);
  to->mutable_status()->set_message(span.problem);
}

}  // namespace

otlp::collector::trace::v1::ExportTraceServiceRequest ToOtlp(const ResourceAttributes& resource,
                                                             std::span<const Span> spans) {
  otlp::collector::trace::v1::ExportTraceServiceRequest request;
  auto* const of_process = request.add_resource_spans();
  for (const auto& [key, value] : resource) {
    AddAttribute(key, value, of_process->mutable_resource()->add_attributes());
  }
  auto* const of_library = of_process->add_scope_spans();
  of_library->mutable_scope()->set_name("rivulet");
  of_library->mutable_scope()->set_version(RIVULET_VERSION);
  for (const Span& span : spans) ToOtlp(span, of_library->add_spans());
  return request;
}

}  // namespace rivulet
