// SPDX-License-Identifier: Apache-2.0
// The report of a run of `rivulet bench`, for people and for programs.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "client/cli/bench/bench_load.h"
#include "client/cli/options/options.h"
#include "rivulet/v1/inference.pb.h"

namespace rivulet {

// The machine that sent the requests.
struct Machine {
  int cores = 0;    // number that this process may use
  std::string cpu;  // its name; empty: not known
};
Machine ThisMachine();

// The data of a report. The referenced objects must live longer.
struct BenchRun {
  const BenchOptions& options;
  const v1::GetModelReply& model;
  const Measurements& measured;
  absl::Time started;
  Machine machine;
};

// "closed loop of 8 workers, 100 requests": how the load was made.
std::string DescribeLoad(const BenchOptions& options);

// A table of several lines without the last newline; times in milliseconds.
std::string BenchTable(const BenchRun& run);

// One JSON object on one line, with a newline. client/README.md lists the fields.
std::string BenchJson(const BenchRun& run);

// "RESOURCE_EXHAUSTED QUEUE_FULL 3, UNAVAILABLE 1": failed requests by code and reason.
std::string DescribeErrors(const Measurements& measured);

}  // namespace rivulet
