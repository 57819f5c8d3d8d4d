// SPDX-License-Identifier: Apache-2.0
// The table of metrics: every name that /metrics shows, with its type, its labels and a sentence.
// docs/metrics.md lists it; tests/lint/metrics_test.py writes that list, and checks that every
// name of collector.cc is in the table and none is unused.
#pragma once

#include <cstdint>
#include <span>

#include "absl/strings/string_view.h"

namespace rivulet {

enum class MetricKind : uint8_t { kCounter, kGauge, kHistogram };

struct MetricInfo {
  absl::string_view name;  // ends with its base unit (_seconds, _bytes); of a counter with _total
  MetricKind kind;
  absl::string_view labels;  // their names, in order, with commas between; "": none
  absl::string_view sentence;
};

// All metrics, in the order of the page. Thread: any.
std::span<const MetricInfo> Metrics();

}  // namespace rivulet
