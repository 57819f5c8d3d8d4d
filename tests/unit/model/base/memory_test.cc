// SPDX-License-Identifier: Apache-2.0
#include "model/base/memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/random_model.h"

namespace rivulet::testing {
namespace {

constexpr int64_t kMib = int64_t{1} << 20;

// Files of a kernel under a directory of our own.
class MemoryTest : public ::testing::Test {
 protected:
  MemoryTest() {
    Write("proc/meminfo", "MemTotal:        8192 kB\nMemFree: 1 kB\nMemAvailable:    6144 kB\n");
  }
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_.File(path);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void Expect(int64_t total, int64_t available, const std::string& limited_by) {
    const HostMemory memory = ReadHostMemory(root_.path());
    EXPECT_EQ(memory.total, total);
    EXPECT_EQ(memory.available, available);
    EXPECT_EQ(memory.limited_by, limited_by);
  }
  TempDir root_;
};

TEST_F(MemoryTest, WithoutALimitItIsTheMachines) {
  Expect(8 * kMib, 6 * kMib, "this machine");
  Write("proc/self/cgroup", "0::/user.slice\n");
  Write("sys/fs/cgroup/user.slice/memory.max", "max\n");
  Write("sys/fs/cgroup/user.slice/memory.current", "4096\n");
  Expect(8 * kMib, 6 * kMib, "this machine");
}

TEST_F(MemoryTest, AGroupOfVersion2LimitsAndItsFileCachesAreFree) {
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("sys/fs/cgroup/a/b/memory.max", "4194304\n");
  Write("sys/fs/cgroup/a/b/memory.current", "3145728\n");
  Write("sys/fs/cgroup/a/b/memory.stat", "anon 5\ninactive_file 1048576\nactive_file 524288\n");
  Expect(4 * kMib, 4 * kMib - 3 * kMib + kMib + kMib / 2, "the control group");
}

TEST_F(MemoryTest, TheTightestOfAGroupAndThoseItLiesInCounts) {
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("sys/fs/cgroup/a/b/memory.max", "4194304\n");
  Write("sys/fs/cgroup/a/b/memory.current", "0\n");
  Write("sys/fs/cgroup/a/memory.max", "2097152\n");
  Write("sys/fs/cgroup/a/memory.current", "1048576\n");
  Expect(2 * kMib, kMib, "the control group");
}

TEST_F(MemoryTest, InAContainerTheMountBeginsWithItsOwnGroup) {
  for (const std::string path : {"/docker/0123", "/../other"}) {
    Write("proc/self/cgroup", "0::" + path + "\n");
    Write("sys/fs/cgroup/memory.max", "3145728\n");
    Write("sys/fs/cgroup/memory.current", "2097152\n");
    Expect(3 * kMib, kMib, "the control group");
  }
}

TEST_F(MemoryTest, AGroupOfVersion1LimitsToo) {
  Write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/y\n0::/\n");
  Write("sys/fs/cgroup/memory/y/memory.limit_in_bytes", "5242880\n");
  Write("sys/fs/cgroup/memory/y/memory.usage_in_bytes", "4194304\n");
  Write("sys/fs/cgroup/memory/y/memory.stat", "total_inactive_file 1048576\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Expect(5 * kMib, 2 * kMib, "the control group");
}

TEST_F(MemoryTest, ThisProcessHasSome) {
  const HostMemory memory = ReadHostMemory();
  EXPECT_GT(memory.available, 0);
  EXPECT_LE(memory.available, memory.total);
}

}  // namespace
}  // namespace rivulet::testing
