// SPDX-License-Identifier: Apache-2.0
#include "server/process/descriptors.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

namespace rivulet {
namespace {

int64_t ToCount(rlim_t value) {
  constexpr auto kMost = static_cast<rlim_t>(std::numeric_limits<int64_t>::max());
  return static_cast<int64_t>(std::min(value, kMost));
}

}  // namespace

int64_t DescriptorLimit() {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? ToCount(limit.rlim_cur) : 0;
}

int64_t RaiseDescriptorLimit() {
  const int64_t before = DescriptorLimit();
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);  // callers that care read the limit again
  }
  return before;
}

int64_t OpenDescriptors() {
  DIR* directory = opendir("/proc/self/fd");
  if (directory == nullptr) return 0;
  int64_t entries = 0;
  while (readdir(directory) != nullptr) ++entries;
  closedir(directory);
  return entries - 3;  // ".", ".." and the directory itself
}

int64_t ConnectionsThatFit(int64_t limit, int64_t open, int each) {
  const int64_t reserve = std::min<int64_t>(limit / 4, 512);
  return std::max<int64_t>((limit - open - reserve) / each, 1);
}

SpareDescriptors::SpareDescriptors(int count) : count_(static_cast<size_t>(count)) { Refill(); }

SpareDescriptors::~SpareDescriptors() {
  while (Release()) {
  }
}

bool SpareDescriptors::Release() {
  MutexLock lock(&mutex_);
  if (spare_.empty()) return false;
  close(spare_.back());
  spare_.pop_back();
  return true;
}

void SpareDescriptors::Refill() {
  MutexLock lock(&mutex_);
  while (spare_.size() < count_) {
    const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    spare_.push_back(fd);
  }
}

}  // namespace rivulet
