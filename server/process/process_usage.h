// SPDX-License-Identifier: Apache-2.0
// What this process uses of the machine, according to the kernel.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace rivulet {

struct ProcessUsage {
  double cpu_seconds = 0;    // user and system
  double start_seconds = 0;  // since 1970
  int64_t resident_bytes = 0;
  int64_t virtual_bytes = 0;
  int64_t threads = 0;
};

// From /proc; nullopt where /proc cannot be read. The time of boot is read only once: it moves when
// the machine's clock is set, and the process would seem to have started again. Thread: any.
std::optional<ProcessUsage> GetProcessUsage();

// The same from the contents of /proc/self/stat. `boot_seconds`: since 1970; `ticks`: of the clock,
// per second.
std::optional<ProcessUsage> ParseProcessUsage(absl::string_view process, int64_t boot_seconds,
                                              int64_t ticks, int64_t page_bytes);

// The time of boot in seconds since 1970, from the contents of /proc/stat.
std::optional<int64_t> ParseBootTime(absl::string_view machine);

}  // namespace rivulet
