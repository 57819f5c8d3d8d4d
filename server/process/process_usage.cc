// SPDX-License-Identifier: Apache-2.0
#include "server/process/process_usage.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "model/base/file.h"

namespace rivulet {
namespace {

// Indexes of the fields after the name of the program, which may hold blanks and parentheses: the
// third field of proc(5) has index 0 here.
constexpr size_t kUserTicks = 11, kSystemTicks = 12, kThreads = 17, kStartTicks = 19,
                 kVirtualBytes = 20, kResidentPages = 21;

}  // namespace

std::optional<ProcessUsage> ParseProcessUsage(absl::string_view process, int64_t boot_seconds,
                                              int64_t ticks, int64_t page_bytes) {
  const size_t name_end = process.rfind(") ");
  if (name_end == absl::string_view::npos || ticks <= 0) return std::nullopt;
  const std::vector<absl::string_view> fields =
      absl::StrSplit(process.substr(name_end + 2), ' ', absl::SkipEmpty());
  const auto field = [&fields](size_t place, int64_t* value) {
    return place < fields.size() && absl::SimpleAtoi(fields[place], value);
  };
  int64_t user = 0, system = 0, start = 0, pages = 0;
  ProcessUsage usage;
  if (!field(kUserTicks, &user) || !field(kSystemTicks, &system) ||
      !field(kThreads, &usage.threads) || !field(kStartTicks, &start) ||
      !field(kVirtualBytes, &usage.virtual_bytes) || !field(kResidentPages, &pages)) {
    return std::nullopt;
  }
  const auto seconds = [ticks](int64_t count) {
    return static_cast<double>(count) / static_cast<double>(ticks);
  };
  usage.cpu_seconds = seconds(user + system);
  usage.start_seconds = static_cast<double>(boot_seconds) + seconds(start);
  usage.resident_bytes = pages * page_bytes;
  return usage;
}

std::optional<int64_t> ParseBootTime(absl::string_view machine) {
  for (const absl::string_view line : absl::StrSplit(machine, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
    int64_t seconds = 0;
    if (words.size() == 2 && words[0] == "btime" && absl::SimpleAtoi(words[1], &seconds)) {
      return seconds;
    }
  }
  return std::nullopt;
}

std::optional<ProcessUsage> GetProcessUsage() {
  static const std::optional<int64_t> boot_seconds = ParseBootTime(ReadKernelFile("/proc/stat"));
  if (!boot_seconds) return std::nullopt;
  return ParseProcessUsage(ReadKernelFile("/proc/self/stat"), *boot_seconds, sysconf(_SC_CLK_TCK),
                           sysconf(_SC_PAGESIZE));
}

}  // namespace rivulet
