// SPDX-License-Identifier: Apache-2.0
// The memory that this process may use.
#pragma once

#include <cstdint>
#include <string>

namespace rivulet {

// Bytes.
struct HostMemory {
  // The machine's memory, or the limit of a control group (such as a container) if that is less.
  int64_t total = 0;
  // The free part of it; memory that only caches files counts as free.
  int64_t available = 0;
  std::string limited_by;  // the source of `total`: "this machine" or "the control group"
};

// Reads /proc and /sys under `root`, which only tests set. Control groups of both versions and
// their parents count. A limit that cannot be read does not.
HostMemory ReadHostMemory(const std::string& root = "");

}  // namespace rivulet
