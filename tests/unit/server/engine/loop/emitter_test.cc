// SPDX-License-Identifier: Apache-2.0
#include "server/engine/loop/emitter.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "server/engine/reply.h"

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

// Counts what it has in common with others of its batch once for all of them.
class GroupedOutlet final : public Outlet {
 public:
  GroupedOutlet(std::vector<int>* groups, int* moved) : groups_(groups), moved_(moved) {}
  void OnReady() override { Tell(); }
  void OnEnd() override { Tell(); }

 private:
  void Tell() {
    if (++*moved_ > 1) return;
    RunAfterBatch(
        [groups = groups_, moved = moved_] { groups->push_back(std::exchange(*moved, 0)); });
  }
  std::vector<int>* const groups_;
  int* const moved_;
};

TEST(EmitterTest, WhatIsForAfterTheBatchComesWhenAllOfItWasTold) {
  std::vector<int> groups;
  int moved = 0;
  Emitter emitter;
  for (const int size : {3, 1, 5}) {
    Emitter::Batch batch;
    std::vector<std::unique_ptr<GroupedOutlet>> ready;
    for (int i = 0; i < size; ++i) {
      ready.push_back(std::make_unique<GroupedOutlet>(&groups, &moved));
      batch.ready.push_back(ready.back().get());
    }
    batch.ended.push_back(std::make_unique<GroupedOutlet>(&groups, &moved));
    emitter.Hand(&batch);
    emitter.Flush();
  }
  EXPECT_EQ(groups, (std::vector<int>{4, 2, 6}));
  RunAfterBatch([&moved] { moved = 7; });  // no batch: at once
  EXPECT_EQ(moved, 7);
}

}  // namespace
}  // namespace rivulet
