// SPDX-License-Identifier: Apache-2.0
#include "server/engine/emitter.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace rivulet {
namespace {

struct Counts {
  std::atomic<int> ready{0}, ended{0}, destroyed{0};
  std::atomic<bool> ready_after_end{false};
  std::atomic<bool> on_own_thread{true};
  std::thread::id test_thread = std::this_thread::get_id();
};

class CountingOutlet final : public Outlet {
 public:
  explicit CountingOutlet(Counts* counts) : counts_(counts) {}
  ~CountingOutlet() override { ++counts_->destroyed; }
  void OnReady() override {
    if (counts_->ended > 0) counts_->ready_after_end = true;
    if (std::this_thread::get_id() == counts_->test_thread) counts_->on_own_thread = false;
    ++counts_->ready;
  }
  void OnEnd() override { ++counts_->ended; }

 private:
  Counts* const counts_;
};

TEST(EmitterTest, CallsOnItsOwnThreadAndDestroysAfterTheEnd) {
  Counts counts;
  Emitter emitter;
  auto outlet = std::make_unique<CountingOutlet>(&counts);
  Emitter::Batch batch;
  ASSERT_TRUE(outlet->MarkReady());
  batch.ready.push_back(outlet.get());
  emitter.Hand(&batch);
  EXPECT_TRUE(batch.empty());
  emitter.Flush();
  EXPECT_EQ(counts.ready, 1);
  EXPECT_TRUE(counts.on_own_thread);
  batch.ended.push_back(std::move(outlet));
  emitter.Hand(&batch);
  emitter.Flush();
  EXPECT_EQ(counts.ended, 1);
  EXPECT_EQ(counts.destroyed, 1);
}

TEST(EmitterTest, MarksReadyOnceUntilItIsCalled) {
  Counts counts;
  Emitter emitter;
  auto outlet = std::make_unique<CountingOutlet>(&counts);
  EXPECT_TRUE(outlet->MarkReady());
  EXPECT_FALSE(outlet->MarkReady());
  Emitter::Batch batch;
  batch.ready.push_back(outlet.get());
  emitter.Hand(&batch);
  emitter.Flush();
  EXPECT_TRUE(outlet->MarkReady());
}

TEST(EmitterTest, TellsEveryBatchInOrderAndTheRestWhenDestroyed) {
  Counts counts;
  constexpr int kOutlets = 200;
  {
    Emitter emitter;
    for (int i = 0; i < kOutlets; ++i) {
      Counts* own = &counts;
      auto outlet = std::make_unique<CountingOutlet>(own);
      Emitter::Batch batch;
      if (outlet->MarkReady()) batch.ready.push_back(outlet.get());
      emitter.Hand(&batch);
      batch.ended.push_back(std::move(outlet));
      emitter.Hand(&batch);
    }
  }
  EXPECT_EQ(counts.ready, kOutlets);
  EXPECT_EQ(counts.ended, kOutlets);
  EXPECT_EQ(counts.destroyed, kOutlets);
}

}  // namespace
}  // namespace rivulet
