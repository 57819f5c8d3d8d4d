// SPDX-License-Identifier: Apache-2.0
#include "server/engine/loop/emitter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/engine/reply.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

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
  emitter.PutReady(outlet.get());
  emitter.HandReady();
  emitter.Flush();
  EXPECT_EQ(counts.ready, 1);
  EXPECT_TRUE(counts.on_own_thread);
  emitter.PutEnd(std::move(outlet));
  EXPECT_TRUE(emitter.HandAll());
  emitter.Flush();
  EXPECT_EQ(counts.ended, 1);
  EXPECT_EQ(counts.destroyed, 1);
}

TEST(EmitterTest, TellsEveryBatchInOrderAndTheRestWhenDestroyed) {
  Counts counts;
  constexpr int kOutlets = 200;
  {
    Emitter emitter;
    for (int i = 0; i < kOutlets; ++i) {
      auto outlet = std::make_unique<CountingOutlet>(&counts);
      emitter.PutReady(outlet.get());
      emitter.HandReady();
      emitter.PutEnd(std::move(outlet));
      emitter.HandAll();
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
  void OnReady() override { Count(); }
  void OnEnd() override { Count(); }

 private:
  void Count() {
    if (++*moved_ > 1) return;
    RunAfterBatch(
        [groups = groups_, moved = moved_] { groups->push_back(std::exchange(*moved, 0)); });
  }
  std::vector<int>* const groups_;
  int* const moved_;
};

TEST(EmitterTest, WhatIsForAfterTheBatchComesWhenAllOfItWasDelivered) {
  std::vector<int> groups;
  int moved = 0;
  Emitter emitter;
  for (const int size : {3, 1, 5}) {
    std::vector<std::unique_ptr<GroupedOutlet>> ready;
    for (int i = 0; i < size; ++i) {
      ready.push_back(std::make_unique<GroupedOutlet>(&groups, &moved));
      emitter.PutReady(ready.back().get());
    }
    emitter.PutEnd(std::make_unique<GroupedOutlet>(&groups, &moved));
    emitter.HandAll();
    emitter.Flush();
  }
  EXPECT_EQ(groups, (std::vector<int>{4, 2, 6}));
  RunAfterBatch([&moved] { moved = 7; });  // no batch: at once
  EXPECT_EQ(moved, 7);
}

// Notes its calls: its number, and "2 ended" last.
class NotingOutlet final : public Outlet {
 public:
  NotingOutlet(int number, std::vector<std::string>* calls)
      : name_(std::to_string(number)), calls_(calls) {}
  void OnReady() override { calls_->push_back(name_); }
  void OnEnd() override { calls_->push_back(name_ + " ended"); }

 private:
  const std::string name_;
  std::vector<std::string>* const calls_;
};

class EmitterOrderTest : public ::testing::Test {
 protected:
  std::unique_ptr<NotingOutlet> Make(int number) {
    return std::make_unique<NotingOutlet>(number, &calls_);
  }
  // The calls since the last one of this.
  std::vector<std::string> Delivered() {
    emitter_.Deliver();
    return std::exchange(calls_, {});
  }

  std::vector<std::string> calls_;
  Emitter emitter_{Emitter::Threads::kNone};
};

TEST_F(EmitterOrderTest, WhatGotSomethingIsToldOnce) {
  const auto one = Make(1), two = Make(2);
  emitter_.PutReady(one.get());
  emitter_.PutReady(two.get());
  emitter_.PutReady(one.get());
  EXPECT_THAT(Delivered(), IsEmpty());  // nothing was handed over
  emitter_.HandReady();
  emitter_.PutReady(one.get());  // its call is on its way
  EXPECT_THAT(Delivered(), ElementsAre("1", "2"));
  emitter_.HandReady();
  EXPECT_THAT(Delivered(), IsEmpty());
  emitter_.PutReady(one.get());
  EXPECT_FALSE(emitter_.HandAll());
  EXPECT_THAT(Delivered(), ElementsAre("1"));
}

TEST_F(EmitterOrderTest, EndsAreHandedOverBetweenRunsOnly) {
  auto one = Make(1);
  emitter_.PutReady(one.get());
  emitter_.PutEnd(std::move(one));
  EXPECT_TRUE(emitter_.has_ends());
  emitter_.HandReady();  // a run is on: its tokens go out, its end waits
  EXPECT_THAT(Delivered(), ElementsAre("1"));
  EXPECT_TRUE(emitter_.HandAll());
  EXPECT_FALSE(emitter_.has_ends());
  EXPECT_THAT(Delivered(), ElementsAre("1 ended"));
  EXPECT_FALSE(emitter_.HandAll());
}

TEST_F(EmitterOrderTest, AnEndTellsOfTheLastTokensToo) {
  auto one = Make(1);
  const auto two = Make(2);
  emitter_.PutReady(one.get());
  emitter_.PutReady(two.get());
  emitter_.PutEnd(std::move(one));
  EXPECT_TRUE(emitter_.HandAll());
  EXPECT_THAT(Delivered(), ElementsAre("2", "1 ended"));
}

}  // namespace
}  // namespace rivulet
