// SPDX-License-Identifier: Apache-2.0
// Latency by percentile as an SVG picture, which any browser shows.
#pragma once

#include <span>
#include <string>

#include "absl/strings/string_view.h"
#include "client/cli/bench/bench_histogram.h"

namespace rivulet {

struct Curve {
  std::string label;
  const char* color;  // of SVG
  bool dashed;
  const BenchHistogram* histogram;  // outlives the curve; empty: left out
};

// Both axes are logarithmic. Horizontal: percentiles, with 90, 99 and 99.9 equally far apart, up to
// the largest that the number of values supports. Vertical: milliseconds. Below the curves is a
// table of their percentiles.
std::string PercentilePicture(absl::string_view title, absl::string_view subtitle,
                              std::span<const Curve> curves);

}  // namespace rivulet
