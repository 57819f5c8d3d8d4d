// SPDX-License-Identifier: Apache-2.0
#include "server/process/crash_handler.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "model/base/thread.h"
#include "server/engine/loop/activity.h"
#include "server/process/call_note.h"

namespace rivulet {
namespace {

using ::testing::KilledBySignal;

// Of a line, as a regular expression of gtest.
constexpr char kBegin[] =
    R"(^\{"ts":"2[0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z",)"
    R"("level":"error","event":"crash","signal":)";

std::string Line(const std::string& rest) { return kBegin + rest + "\n$"; }

// Fills the stack with frames that the compiler cannot fold into one.
int Overflow(int depth) {
  volatile char frame[1024];
  frame[depth % 1024] = static_cast<char>(depth);
  return depth < 0 ? 0 : Overflow(depth + 1) + frame[depth % 1024];
}

class CrashHandlerDeathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (RIVULET_SANITIZED) GTEST_SKIP() << "sanitizers report crashes themselves";
  }
};

TEST_F(CrashHandlerDeathTest, ANullPointerIsToldWithThreadAndMethod) {
  EXPECT_EXIT(
      {
        InstallCrashHandler();
        std::thread([] {
          NameThread("crash-test");
          const CallNote note("Generate");
          volatile int* volatile null = nullptr;
          *null = 1;
        }).join();
      },
      KilledBySignal(SIGSEGV),
      Line(R"("SIGSEGV","cause":"null pointer","thread":"crash-test","method":"Generate",)"
           R"("loops":\[\]\})"));
}

TEST_F(CrashHandlerDeathTest, AFullStackIsTold) {
  EXPECT_EXIT(
      {
        InstallCrashHandler();
        std::thread([] {
          NameThread("deep");
          std::exit(Overflow(0));
        }).join();
      },
      KilledBySignal(SIGSEGV), Line(R"("SIGSEGV","cause":"stack overflow","thread":"deep",.*)"));
}

TEST_F(CrashHandlerDeathTest, EveryLoopIsTold) {
  EXPECT_EXIT(
      {
        InstallCrashHandler();
        const LoopActivity activity("a \"model\"\n");
        NoteRun(3, 8);
        NoteRun(4, 16);
        NotePhase(LoopPhase::kSubmit);
        std::abort();
      },
      KilledBySignal(SIGABRT),
      Line(
          R"("SIGABRT","cause":"this process","thread":".*","method":"",)"
          R"("loops":\[\{"model":"a \?model\?\?","phase":"submit","rows":4,"steps":16,"runs":2\}\]\})"));
}

TEST_F(CrashHandlerDeathTest, OtherSignalsAreTold) {
  EXPECT_EXIT(
      {
        InstallCrashHandler();
        void* page = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        *static_cast<volatile int*>(page) = 1;
      },
      KilledBySignal(SIGSEGV), Line(R"("SIGSEGV","cause":"access not allowed",.*)"));
  EXPECT_EXIT(
      {
        InstallCrashHandler();
        raise(SIGFPE);
      },
      KilledBySignal(SIGFPE), Line(R"("SIGFPE","cause":"this process",.*)"));
}

TEST(ActivityTest, APlaceIsGivenBack) {
  LoopState state;
  for (size_t i = 0; i < 3 * LoopActivity::kMaxLoops; ++i) {
    const LoopActivity activity("model");
    NotePhase(LoopPhase::kPoll);
    ASSERT_TRUE(ReadLoop(0, &state));
    EXPECT_STREQ(state.model, "model");
    EXPECT_EQ(state.phase, LoopPhase::kPoll);
    EXPECT_EQ(state.runs, 0);
    NoteRun(1, 1);
  }
  EXPECT_FALSE(ReadLoop(0, &state));
  NotePhase(LoopPhase::kPoll);  // without a place: nothing
  NoteRun(1, 1);
}

}  // namespace
}  // namespace rivulet
