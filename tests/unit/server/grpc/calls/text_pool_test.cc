// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/calls/text_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "model/base/error.h"
#include "server/base/mutex.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Event {
 public:
  void Notify() {
    MutexLock lock(&mutex_);
    happened_ = true;
    changed_.NotifyAll();
  }
  void Await() {
    MutexLock lock(&mutex_);
    while (!happened_) changed_.Wait(&mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool happened_ ABSL_GUARDED_BY(mutex_) = false;
};

// What has been run, in its order, with how each ended.
class Journal {
 public:
  // A turn that notes `name` and its Check.
  std::shared_ptr<TextTurn> Turn(std::string name, TextTurn::Order order) {
    return std::make_shared<TextTurn>(std::move(order), [this, name](const TextTurn& turn) {
      const absl::Status status = turn.Check();
      MutexLock lock(&mutex_);
      runs_.push_back(status.ok() ? name : name + " " + GetErrorDetail(status).reason);
      changed_.NotifyAll();
    });
  }
  std::vector<std::string> Await(size_t count) {
    MutexLock lock(&mutex_);
    while (runs_.size() < count) changed_.Wait(&mutex_);
    return runs_;
  }
  std::vector<std::string> runs() { return Await(0); }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::string> runs_ ABSL_GUARDED_BY(mutex_);
};

// A turn that keeps its thread until it is released.
struct Blocker {
  Event begun, release;
  std::shared_ptr<TextTurn> turn;

  explicit Blocker(TextTurn::Order order)
      : turn(std::make_shared<TextTurn>(std::move(order), [this](const TextTurn&) {
          begun.Notify();
          release.Await();
        })) {}
};

TEST(TextLaneTest, TenantsTakeTurns) {
  Journal journal;
  Blocker blocker({.tenant = "a", .bytes = 1});
  TextLane lane({.threads = 1, .waiting_bytes = 8000, .memory_bytes = 100});
  ASSERT_TRUE(lane.Add(blocker.turn).ok());
  blocker.begun.Await();
  for (const char* const name : {"a1", "a2", "a3", "b1", "b2", "c1"}) {
    ASSERT_TRUE(lane.Add(journal.Turn(name, {.tenant = std::string(name, 1), .bytes = 10})).ok());
  }
  blocker.release.Notify();
  EXPECT_THAT(journal.Await(6), ElementsAre("a1", "b1", "c1", "a2", "b2", "a3"));
}

TEST(TextLaneTest, ATenantThatFillsTheQueueLeavesRoomForOthers) {
  Journal journal;
  {
    Blocker blocker({.tenant = "a", .bytes = 1});
    TextLane lane({.threads = 1, .waiting_bytes = 800, .memory_bytes = 100});
    ASSERT_TRUE(lane.Add(blocker.turn).ok());
    blocker.begun.Await();
    int accepted = 0;
    absl::Status refused;
    while ((refused = lane.Add(journal.Turn("a", {.tenant = "a", .bytes = 10}))).ok()) ++accepted;
    EXPECT_EQ(accepted, 70);
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(GetErrorDetail(refused).reason, "TEXT_QUEUE_FULL");
    EXPECT_GT(GetErrorDetail(refused).retry_after, absl::ZeroDuration());
    EXPECT_THAT(std::string(refused.message()), HasSubstr("700 of them this tenant's"));
    EXPECT_TRUE(lane.Add(journal.Turn("b", {.tenant = "b", .bytes = 10})).ok());
    blocker.release.Notify();
    EXPECT_EQ(journal.Await(71)[1], "b");
  }
  EXPECT_EQ(journal.runs().size(), 71U);
}

TEST(TextLaneTest, ATextLargerThanTheQueueHasItAlone) {
  Journal journal;
  Blocker blocker({.tenant = "a", .bytes = 1});
  TextLane lane({.threads = 1, .waiting_bytes = 100, .memory_bytes = 100});
  ASSERT_TRUE(lane.Add(blocker.turn).ok());
  blocker.begun.Await();
  ASSERT_TRUE(lane.Add(journal.Turn("large", {.tenant = "a", .bytes = 5000})).ok());
  EXPECT_FALSE(lane.Add(journal.Turn("small", {.tenant = "b", .bytes = 1})).ok());
  blocker.release.Notify();
  EXPECT_THAT(journal.Await(1), ElementsAre("large"));
}

TEST(TextLaneTest, NoMoreAreConvertedAtOnceThanHaveMemory) {
  Journal journal;
  Blocker first({.tenant = "a", .bytes = 1, .memory_bytes = 60});
  Blocker second({.tenant = "a", .bytes = 1, .memory_bytes = 40});
  TextLane lane({.threads = 3, .waiting_bytes = 1000, .memory_bytes = 100});
  ASSERT_TRUE(lane.Add(first.turn).ok());
  ASSERT_TRUE(lane.Add(second.turn).ok());
  first.begun.Await();
  second.begun.Await();
  // It would fit beside neither, and runs alone although it needs more than there is.
  ASSERT_TRUE(lane.Add(journal.Turn("x", {.tenant = "a", .bytes = 1, .memory_bytes = 101})).ok());
  first.release.Notify();
  EXPECT_THAT(journal.runs(), IsEmpty());
  second.release.Notify();
  EXPECT_THAT(journal.Await(1), ElementsAre("x"));
}

TEST(TextLaneTest, ItsEndRefusesThoseThatWait) {
  Journal journal;
  Blocker blocker({.tenant = "a", .bytes = 1});
  std::thread releaser;
  {
    TextLane lane({.threads = 1, .waiting_bytes = 100, .memory_bytes = 100});
    ASSERT_TRUE(lane.Add(blocker.turn).ok());
    blocker.begun.Await();
    ASSERT_TRUE(lane.Add(journal.Turn("waits", {.tenant = "a", .bytes = 1})).ok());
    releaser = std::thread([&] {
      journal.Await(1);
      blocker.release.Notify();
    });
  }
  EXPECT_THAT(journal.runs(), ElementsAre("waits DRAINING"));
  releaser.join();
}

TEST(TextPoolTest, SmallAndRefusedTextsAreRunByTheCaller) {
  TextPool pool;
  std::thread::id ran_on;
  absl::Status status;
  const auto turn = [&](int64_t bytes) {
    return std::make_shared<TextTurn>(TextTurn::Order{.tenant = "a", .bytes = bytes},
                                      [&](const TextTurn& own) {
                                        ran_on = std::this_thread::get_id();
                                        status = own.Check();
                                      });
  };
  pool.Run(turn(TextPool::kInlineBytes), absl::OkStatus());
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  EXPECT_TRUE(status.ok());
  ran_on = {};
  pool.Run(turn(int64_t{1} << 20), absl::ResourceExhaustedError("no"));
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  EXPECT_EQ(status.message(), "no");
}

TEST(TextPoolTest, LongTextsDoNotHoldUpShortOnes) {
  Journal journal;
  std::vector<std::unique_ptr<Blocker>> blockers;
  TextPool pool;
  for (int i = 0; i < 16; ++i) {
    blockers.push_back(std::make_unique<Blocker>(
        TextTurn::Order{.tenant = "a", .bytes = TextPool::kShortBytes + 1}));
    pool.Run(blockers.back()->turn, absl::OkStatus());
  }
  blockers.front()->begun.Await();
  pool.Run(journal.Turn("short", {.tenant = "a", .bytes = TextPool::kShortBytes}),
           absl::OkStatus());
  EXPECT_THAT(journal.Await(1), ElementsAre("short"));
  for (const auto& blocker : blockers) blocker->release.Notify();
}

TEST(TextPoolTest, ACancelledTextThatWaitsEndsAtOnce) {
  Journal journal;
  std::vector<std::unique_ptr<Blocker>> blockers;
  TextPool pool;
  for (int i = 0; i < 16; ++i) {
    blockers.push_back(std::make_unique<Blocker>(
        TextTurn::Order{.tenant = "a", .bytes = TextPool::kShortBytes + 1}));
    pool.Run(blockers.back()->turn, absl::OkStatus());
  }
  const auto waits = journal.Turn("waits", {.tenant = "a", .bytes = int64_t{1} << 20});
  pool.Run(waits, absl::OkStatus());
  EXPECT_THAT(journal.runs(), IsEmpty());
  pool.Cancel(waits);
  EXPECT_THAT(journal.runs(), ElementsAre("waits CANCELLED"));
  pool.Cancel(waits);  // again: no effect
  const auto before = journal.Turn("before", {.tenant = "a", .bytes = int64_t{1} << 20});
  before->Cancel();
  pool.Run(before, absl::OkStatus());
  EXPECT_THAT(journal.runs(), ElementsAre("waits CANCELLED", "before CANCELLED"));
  for (const auto& blocker : blockers) blocker->release.Notify();
}

TEST(TextPoolTest, ATextThatIsBeingConvertedLearnsThatItIsToEnd) {
  Event begun, ended;
  absl::Status why;
  TextPool pool;
  const auto turn = std::make_shared<TextTurn>(
      TextTurn::Order{.tenant = "a", .bytes = int64_t{1} << 20}, [&](const TextTurn& own) {
        begun.Notify();
        do {  // piece by piece
          why = own.Check();
        } while (why.ok());
        ended.Notify();
      });
  pool.Run(turn, absl::OkStatus());
  begun.Await();
  pool.Cancel(turn);
  ended.Await();
  EXPECT_EQ(GetErrorDetail(why).reason, "CANCELLED");
}

TEST(TextPoolTest, ADeadlineEndsATextBetweenPieces) {
  Event ended;
  absl::Status why;
  TextPool pool;
  const auto turn =
      std::make_shared<TextTurn>(TextTurn::Order{.tenant = "a",
                                                 .bytes = int64_t{1} << 20,
                                                 .deadline = absl::Now() + absl::Milliseconds(5)},
                                 [&](const TextTurn& own) {
                                   do {
                                     why = own.Check();
                                   } while (why.ok());
                                   ended.Notify();
                                 });
  pool.Run(turn, absl::OkStatus());
  ended.Await();
  EXPECT_EQ(GetErrorDetail(why).reason, "DEADLINE_EXCEEDED");
}

}  // namespace
}  // namespace rivulet
