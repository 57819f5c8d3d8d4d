// SPDX-License-Identifier: Apache-2.0
#include "model/base/memory.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "model/base/file.h"

namespace rivulet {
namespace {

// nullopt if the file is absent or holds no number, such as "max".
std::optional<int64_t> ReadNumber(const std::string& path) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(ReadKernelFile(path), &value)) return std::nullopt;
  return value;
}

// The number after `key` and white space at the beginning of a line.
std::optional<int64_t> NumberOf(const std::string& text, absl::string_view key) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t value = 0;
    if (words.size() >= 2 && words[0] == key && absl::SimpleAtoi(words[1], &value)) return value;
  }
  return std::nullopt;
}

// The names of files in the two versions of control groups.
struct Version {
  const char* mount;
  const char* limit;
  const char* usage;
  const char* file_caches[2];  // lines of memory.stat
};
constexpr Version kVersion1 = {"/sys/fs/cgroup/memory",
                               "memory.limit_in_bytes",
                               "memory.usage_in_bytes",
                               {"total_inactive_file", "total_active_file"}};
constexpr Version kVersion2 = {
    "/sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file", "active_file"}};

// Lowers *memory to the limit of the group in `directory`.
void LimitBy(const std::string& directory, const Version& version, HostMemory* memory) {
  const auto limit = ReadNumber(absl::StrCat(directory, "/", version.limit));
  const auto usage = ReadNumber(absl::StrCat(directory, "/", version.usage));
  if (!limit.has_value()) return;
  if (*limit < memory->total) {
    memory->total = *limit;
    memory->limited_by = "the control group";
  }
  int64_t used = usage.value_or(0);
  const std::string stat = ReadKernelFile(absl::StrCat(directory, "/memory.stat"));
  for (const char* cache : version.file_caches) used -= NumberOf(stat, cache).value_or(0);
  memory->available = std::min(memory->available, *limit - std::clamp(used, int64_t{0}, *limit));
}

// Applies the group at `path` and all its parents. In a container the path may be the host's, while
// the mount begins with the container's own group; the walk up ends there.
void LimitByAll(const std::string& root, absl::string_view path, const Version& version,
                HostMemory* memory) {
  std::vector<absl::string_view> parts = absl::StrSplit(path, '/', absl::SkipEmpty());
  if (std::find(parts.begin(), parts.end(), "..") != parts.end()) parts.clear();
  while (true) {
    std::string directory = absl::StrCat(root, version.mount);
    for (const absl::string_view part : parts) absl::StrAppend(&directory, "/", part);
    LimitBy(directory, version, memory);
    if (parts.empty()) return;
    parts.pop_back();
  }
}

}  // namespace

HostMemory ReadHostMemory(const std::string& root) {
  HostMemory memory;
  memory.total = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  memory.limited_by = "this machine";
  const std::string meminfo = ReadKernelFile(root + "/proc/meminfo");
  if (const auto kib = NumberOf(meminfo, "MemTotal:")) memory.total = *kib << 10;
  memory.available = memory.total;
  if (const auto kib = NumberOf(meminfo, "MemAvailable:")) memory.available = *kib << 10;
  // Lines "ID:CONTROLLERS:PATH"; version 2 has the ID 0 and no controllers.
  for (const absl::string_view line :
       absl::StrSplit(ReadKernelFile(root + "/proc/self/cgroup"), '\n')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    if (parts[0] == "0" && parts[1].empty()) LimitByAll(root, parts[2], kVersion2, &memory);
    for (const absl::string_view controller : absl::StrSplit(parts[1], ',')) {
      if (controller == "memory") LimitByAll(root, parts[2], kVersion1, &memory);
    }
  }
  return memory;
}

}  // namespace rivulet
