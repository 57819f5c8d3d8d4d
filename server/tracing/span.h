// SPDX-License-Identifier: Apache-2.0
// Span: one interval of a trace, in the form in which a collector gets it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/time.h"

namespace rivulet {

// Ids are lower-case hexadecimal digits, as in the header traceparent: a trace has 32, a span 16.
struct Span {
  using Value = std::variant<std::string, int64_t>;

  std::string trace_id, id;
  std::string parent_id;          // "": the first span of its trace
  bool parent_elsewhere = false;  // the parent is a span of another process
  bool server = false;            // kind SERVER: a whole request; else INTERNAL
  std::string name;
  absl::Time start, end;
  std::vector<std::pair<const char*, Value>> attributes;  // names are literals
  bool failed = false;
  std::string problem;  // the error; "": none
};

// Describes the process to a collector: names and values such as {"service.name", "..."}.
using ResourceAttributes = std::vector<std::pair<std::string, std::string>>;

// Random ids. Thread: any.
std::string NewTraceId();
std::string NewSpanId();

}  // namespace rivulet
