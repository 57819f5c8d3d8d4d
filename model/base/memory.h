// SPDX-License-Identifier: Apache-2.0
// The memory that this process may use.
#pragma once

#include <cstdint>
#include <string>

namespace rivulet {

// Bytes.
struct HostMemory {
  // The machine's, or the limit of a control group (a container's, for example) where that is less.
  int64_t total = 0;
  // What of it is free now; memory that only caches files counts as free.
  int64_t available = 0;
  std::string limited_by;  // what sets `total`: "this machine" or "the control group"
};

// Reads /proc and /sys under `root`, which only tests set. Control groups of both versions count,
// and so do the groups that they are in. A limit that cannot be read does not count.
HostMemory ReadHostMemory(const std::string& root = "");

}  // namespace rivulet
