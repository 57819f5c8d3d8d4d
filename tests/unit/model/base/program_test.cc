// SPDX-License-Identifier: Apache-2.0
#include "model/base/program.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "model/base/descriptor.h"

namespace rivulet {
namespace {

std::string FileOf(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

TEST(ProgramTest, FilesMayTakeTheNumbersOfEachOther) {
  const Descriptor a(memfd_create("a", 0)), b(memfd_create("b", 0)), out(memfd_create("out", 0));
  ASSERT_TRUE(WriteAll(a.get(), "a") && WriteAll(b.get(), "b"));
  const GivenFile given[] = {
      {a.get(), STDIN_FILENO}, {out.get(), STDOUT_FILENO}, {b.get(), a.get()}, {a.get(), b.get()}};
  pid_t pid = 0;
  const std::string first = FileOf(a.get()), second = FileOf(b.get());
  ASSERT_EQ(StartProgram({"cat", first.c_str(), second.c_str(), nullptr}, given, &pid), 0);
  int status = -1;
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  char text[3] = {};
  EXPECT_EQ(pread(out.get(), text, 2, 0), 2);
  EXPECT_STREQ(text, "ba");
}

}  // namespace
}  // namespace rivulet
