// SPDX-License-Identifier: Apache-2.0
#include "server/base/file_watch.h"

#include <gtest/gtest.h>

#include <memory>

#include "absl/base/thread_annotations.h"
#include "server/base/mutex.h"

namespace rivulet {
namespace {

// What a `look` did, and a gate that keeps it as a file system that hangs does.
struct Looks {
  Mutex mutex;
  CondVar changed;
  int begun ABSL_GUARDED_BY(mutex) = 0, asked ABSL_GUARDED_BY(mutex) = 0;
  bool hangs ABSL_GUARDED_BY(mutex) = false;

  void Look(bool was_asked) {
    MutexLock lock(&mutex);
    ++begun;
    if (was_asked) ++asked;
    changed.NotifyAll();
    while (hangs) changed.Wait(&mutex);
  }
};

TEST(FileWatchTest, LooksOnceAPeriodAndWhenAsked) {
  const auto looks = std::make_shared<Looks>();
  {
    const FileWatch often("often", absl::Milliseconds(1),
                          [looks](bool asked) { looks->Look(asked); });
    MutexLock lock(&looks->mutex);
    while (looks->begun < 3) looks->changed.Wait(&looks->mutex);
    EXPECT_EQ(looks->asked, 0);
  }
  FileWatch seldom("seldom", absl::Hours(1), [looks](bool asked) { looks->Look(asked); });
  seldom.Ask();
  MutexLock lock(&looks->mutex);
  while (looks->asked == 0) looks->changed.Wait(&looks->mutex);
}

TEST(FileWatchTest, ALookThatHangsIsNotWaitedFor) {
  const auto looks = std::make_shared<Looks>();
  {
    MutexLock lock(&looks->mutex);
    looks->hangs = true;
  }
  auto watch = std::make_unique<FileWatch>("hangs", absl::Milliseconds(1),
                                           [looks](bool asked) { looks->Look(asked); });
  {
    MutexLock lock(&looks->mutex);
    while (looks->begun == 0) looks->changed.Wait(&looks->mutex);
  }
  watch->Ask();
  watch.reset();  // else for ever
  MutexLock lock(&looks->mutex);
  EXPECT_EQ(looks->begun, 1);
  looks->hangs = false;
  looks->changed.NotifyAll();
}

}  // namespace
}  // namespace rivulet
