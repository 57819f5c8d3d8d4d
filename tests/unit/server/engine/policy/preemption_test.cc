// SPDX-License-Identifier: Apache-2.0
// Who gives up slots for whom.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "server/engine/loop/host_memory.h"
#include "server/engine/policy/admission.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kFloorQuantum = 10;

// Slots and runs around an Admission, as the loop has them.
class Floor {
 public:
  struct Known {
    std::string tenant;
    int slots;
    Priority priority;
    uint64_t since;  // run in which it came, or got its slots
    int others = 0;  // tenants there when it came, its own counted
    bool first = false;
  };

  explicit Floor(int slots, int64_t max_begun = 0, int max_tenant_slots = 1000)
      : slots_(slots),
        admission_({.slots = slots,
                    .max_tenant_slots = max_tenant_slots,
                    .max_begun = max_begun > 0 ? max_begun : 2 * slots,
                    .quantum = kFloorQuantum}) {}

  RequestId Add(const std::string& tenant, int slots = 1, Priority priority = Priority::kNormal) {
    const bool first = Held(tenant) == 0 && !Waits(tenant);
    for (auto& [id, known] : waiting_) {  // a more urgent one goes before it
      if (known.tenant == tenant && priority < known.priority) known.first = false;
    }
    admission_.Add(++last_, tenant, priority, slots);
    waiting_[last_] = {tenant, slots, priority, run_, admission_.tenants(), first};
    return last_;
  }
  void End(RequestId id) {
    admission_.GiveBack(id, running_.at(id).slots);
    running_.erase(id);
  }
  void Leave(RequestId id) {
    admission_.Remove(id);
    waiting_.erase(id);
    preempted_.erase(id);
  }
  // What is done between two runs. Returns those that were preempted.
  std::vector<RequestId> Turn() {
    const std::vector<RequestId> victims = admission_.Victims(free(), run_);
    for (const RequestId id : victims) {
      admission_.Preempt(id);
      Known known = running_.at(id);
      EXPECT_TRUE(run_ - known.since >= kFloorQuantum || paused_.contains(id)) << id;
      known.first = false;
      waiting_[id] = known;
      running_.erase(id);
      preempted_.insert(id);
    }
    while (const auto id = admission_.Next(free(), run_)) {
      Known known = waiting_.at(*id);
      longest_ = std::max(longest_, known.first ? run_ - known.since : 0);
      late_ += known.first && run_ - known.since > uint64_t{kFloorQuantum} * known.others ? 1 : 0;
      known.since = run_;
      waiting_.erase(*id);
      running_[*id] = known;
      preempted_.erase(*id);
      paused_.erase(*id);
    }
    EXPECT_GE(free(), 0);
    return victims;
  }
  std::vector<RequestId> Runs(int runs) {
    std::vector<RequestId> victims;
    for (int i = 0; i < runs; ++i) {
      for (const RequestId id : Turn()) victims.push_back(id);
      ++run_;
    }
    return victims;
  }
  void Pause(RequestId id) {
    admission_.EndQuantum(id);
    paused_.insert(id);
  }

  int Held(const std::string& tenant) const { return Sum(running_, tenant); }
  bool Waits(const std::string& tenant) const { return Sum(waiting_, tenant) > 0; }
  int Begun(const std::string& tenant) const {
    int begun = Held(tenant);
    for (const RequestId id : preempted_) {
      if (waiting_.at(id).tenant == tenant) begun += waiting_.at(id).slots;
    }
    return begun;
  }
  int begun() const {
    int begun = slots_ - free();
    for (const RequestId id : preempted_) begun += waiting_.at(id).slots;
    return begun;
  }
  int free() const {
    int free = slots_;
    for (const auto& [id, known] : running_) free -= known.slots;
    return free;
  }
  const std::map<RequestId, Known>& running() const { return running_; }
  const std::map<RequestId, Known>& waiting() const { return waiting_; }
  const Admission& admission() const { return admission_; }
  uint64_t longest() const { return longest_; }  // wait of a tenant's first, in runs
  int late() const { return late_; }             // firsts that waited for longer than promised

 private:
  static int Sum(const std::map<RequestId, Known>& all, const std::string& tenant) {
    int sum = 0;
    for (const auto& [id, known] : all) sum += known.tenant == tenant ? known.slots : 0;
    return sum;
  }
  const int slots_;
  Admission admission_;
  uint64_t run_ = 0;
  RequestId last_ = 0;
  std::map<RequestId, Known> waiting_, running_;
  std::set<RequestId> preempted_, paused_;
  uint64_t longest_ = 0;
  int late_ = 0;
};

TEST(PreemptionTest, ALoneTenantIsNotPreempted) {
  Floor floor(4);
  for (int i = 0; i < 9; ++i) floor.Add("a");
  EXPECT_THAT(floor.Runs(50), IsEmpty());
  EXPECT_EQ(floor.Held("a"), 4);
}

TEST(PreemptionTest, ATenantGetsItsShareFromThoseThatRanLongest) {
  Floor floor(4);
  const RequestId first = floor.Add("a"), second = floor.Add("a");
  floor.Runs(1);
  floor.Add("a");
  floor.Add("a");
  floor.Runs(2);
  for (int i = 0; i < 9; ++i) floor.Add("b");
  EXPECT_THAT(floor.Runs(7), IsEmpty()) << "the first two have had their slots for ten runs then";
  EXPECT_THAT(floor.Runs(1), ElementsAre(first));
  EXPECT_THAT(floor.Runs(1), ElementsAre(second));
  EXPECT_EQ(floor.Held("b"), 2);
  EXPECT_THAT(floor.Runs(100), IsEmpty()) << "each has its share";
  EXPECT_EQ(floor.admission().preempted(), 2);
  floor.End(3);
  floor.Turn();
  EXPECT_TRUE(floor.running().contains(first)) << "it goes on, before those that have not begun";
}

TEST(PreemptionTest, WhatOneTenantCannotUseTheOthersKeep) {
  Floor floor(8);
  for (int i = 0; i < 20; ++i) floor.Add("a");
  floor.Runs(20);
  floor.Add("b");
  EXPECT_EQ(floor.Runs(100).size(), 1u);
  EXPECT_EQ(floor.Held("a"), 7);
}

TEST(PreemptionTest, TheTenantThatHoldsMostGivesFirst) {
  Floor floor(6);
  const RequestId a = floor.Add("a");
  floor.Runs(1);
  for (int i = 0; i < 5; ++i) floor.Add("b");
  floor.Runs(20);
  floor.Add("c");
  EXPECT_THAT(floor.Runs(1), ElementsAre(a + 1));
}

TEST(PreemptionTest, FirstRequestsThatAreLargerThanTheirSharesTakeTurns) {
  Floor floor(4);
  const RequestId a = floor.Add("a", 4);
  floor.Runs(50);
  const RequestId b = floor.Add("b", 3);
  for (int i = 0; i < 5; ++i) {
    EXPECT_THAT(floor.Runs(1), ElementsAre(a));
    EXPECT_THAT(floor.Runs(9), IsEmpty());
    EXPECT_THAT(floor.Runs(1), ElementsAre(b));
    EXPECT_THAT(floor.Runs(9), IsEmpty());
  }
}

TEST(PreemptionTest, MoreTenantsThanSlotsTakeTurns) {
  Floor floor(1, /*max_begun=*/3);
  for (const char* tenant : {"a", "b", "c"}) floor.Add(tenant);
  EXPECT_THAT(floor.Runs(61), ElementsAre(1, 2, 3, 1, 2, 3));
}

TEST(PreemptionTest, NoTenantFallsBelowItsShareForOneThatHoldsSome) {
  Floor floor(4);
  const RequestId a = floor.Add("a", 3);
  floor.Runs(20);
  floor.Add("b");
  floor.Runs(1);
  floor.Add("b");
  EXPECT_THAT(floor.Runs(100), IsEmpty());
  EXPECT_TRUE(floor.running().contains(a));
}

TEST(PreemptionTest, AllThatAreNeededGiveUpTheirSlotsAtOnceOrNone) {
  Floor floor(4);
  for (int i = 0; i < 2; ++i) floor.Add("a");
  floor.Runs(5);
  for (int i = 0; i < 2; ++i) floor.Add("a");
  floor.Runs(5);
  floor.Add("b", 3);
  EXPECT_THAT(floor.Runs(5), IsEmpty());
  EXPECT_THAT(floor.Runs(1), ElementsAre(1, 2, 3));
}

TEST(PreemptionTest, ASmallOneKeepsItsSlotWhereALargeOneMustGoAnyway) {
  Floor floor(5);
  floor.Add("a");
  floor.Runs(1);
  const RequestId large = floor.Add("a", 4);
  floor.Runs(20);
  floor.Add("b", 3);
  EXPECT_THAT(floor.Runs(1), ElementsAre(large));
}

TEST(PreemptionTest, OneThatCannotUseItsSlotsGivesThemUpAtOnce) {
  Floor floor(2);
  floor.Add("a");
  const RequestId paused = floor.Add("a");
  floor.Runs(1);
  floor.Pause(paused);
  floor.Add("b");
  EXPECT_THAT(floor.Runs(1), ElementsAre(paused));
}

TEST(PreemptionTest, ALargeRequestThatIsNextHoldsUpNobodyWithAClaim) {
  Floor floor(8);
  for (int i = 0; i < 7; ++i) floor.Add("a");
  floor.Runs(1);
  floor.Add("a", 4);
  floor.Runs(20);
  EXPECT_EQ(floor.free(), 1) << "the large one waits for more";
  const RequestId b = floor.Add("b");
  floor.Turn();
  EXPECT_TRUE(floor.running().contains(b));
}

TEST(PreemptionTest, ATenantsLimitHolds) {
  Floor floor(8, 0, /*max_tenant_slots=*/3);
  for (int i = 0; i < 5; ++i) floor.Add("a");
  floor.Add("a", 2);
  floor.Runs(50);
  EXPECT_EQ(floor.Held("a"), 3);
  floor.Add("b", 3);
  floor.Turn();
  EXPECT_EQ(floor.Held("b"), 3);
}

TEST(PreemptionTest, WhatHasBegunIsBoundedAndLeavesRoomForOthers) {
  Floor floor(8);  // 16 may have begun
  std::vector<int> begun;
  for (const char* tenant : {"a", "b", "c", "d", "e", "f"}) {
    for (int i = 0; i < 40; ++i) floor.Add(tenant);
    floor.Runs(200);
    begun.push_back(floor.Begun(tenant));
  }
  EXPECT_THAT(begun, ElementsAre(8, 4, 2, 1, 1, 0)) << "each half of what was left";
  EXPECT_EQ(floor.free(), 0);
}

TEST(PreemptionTest, WhereNothingMoreMayBeginItWaitsForAnEnd) {
  Floor floor(2, /*max_begun=*/3);
  floor.Add("a", 2);
  floor.Runs(20);
  floor.Add("b");
  floor.Runs(1);
  const RequestId c = floor.Add("c");
  EXPECT_EQ(floor.begun(), 3);
  floor.Runs(100);
  EXPECT_TRUE(floor.waiting().contains(c));
  floor.Leave(floor.waiting().contains(1) ? 1 : 2);
  floor.Runs(20);
  EXPECT_TRUE(floor.running().contains(c));
}

// Requests of any size that end or leave at any time, or never: nothing gets lost, and while there
// is room for all that one tenant may begin a tenant's first waits no longer than promised.
TEST(PreemptionTest, KeepsItsBoundsUnderRandomOperations) {
  std::mt19937 random(7);
  auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
  uint64_t longest = 0;
  size_t preemptions = 0;
  for (int round = 0; round < 300; ++round) {
    const int slots = 1 + below(8), tenants = 2 + below(4);
    const bool room_for_all = below(2) == 0;
    const int64_t max_begun = room_for_all ? tenants * slots : 2 * slots;
    Floor floor(slots, max_begun);
    const int one_in = 2 + below(60);
    for (int op = 0; op < 400; ++op) {
      if (below(3) == 0) {
        floor.Add(std::string(1, static_cast<char>('a' + below(tenants))),
                  1 + below(std::min(3, slots)), static_cast<Priority>(below(3)));
      }
      if (below(one_in) == 0 && !floor.running().empty()) {
        const int index = below(static_cast<int>(floor.running().size()));
        floor.End(std::next(floor.running().begin(), index)->first);
      }
      if (below(one_in) == 0 && !floor.waiting().empty()) {
        const int index = below(static_cast<int>(floor.waiting().size()));
        floor.Leave(std::next(floor.waiting().begin(), index)->first);
      }
      preemptions += floor.Runs(1).size();
      ASSERT_LE(floor.begun(), max_begun);
      for (int i = 0; i < tenants; ++i) {
        ASSERT_LE(floor.Begun(std::string(1, static_cast<char>('a' + i))), slots);
      }
    }
    if (room_for_all) {
      ASSERT_EQ(floor.late(), 0) << "round " << round;
    }
    longest = std::max(longest, floor.longest());
    while (!floor.running().empty()) floor.End(floor.running().begin()->first);
    while (!floor.waiting().empty()) floor.Leave(floor.waiting().begin()->first);
    ASSERT_EQ(floor.admission().tenants(), 0);
    ASSERT_EQ(floor.admission().preempted(), 0);
  }
  EXPECT_GT(preemptions, 1000u);
  EXPECT_GT(longest, uint64_t{2 * kFloorQuantum}) << "else the bound means nothing";
}

TEST(StateMemoryTest, HoldsAllSlotsTwiceForPreemptionAndTheRestIsForReaders) {
  BackendLimits limits;
  limits.num_slots = 10;
  limits.bytes_per_slot = 1 << 20;
  EXPECT_EQ(LeastHostBytes(limits), 20 << 20);
  const auto room = [&](int64_t mib) {
    const StateMemory of = StateMemoryOf(mib << 20, limits);
    return std::pair(of.begun, of.reader_bytes >> 20);
  };
  EXPECT_EQ(room(20), std::pair(int64_t{20}, int64_t{0}));
  EXPECT_EQ(room(30), std::pair(int64_t{20}, int64_t{10}));
  EXPECT_EQ(room(90), std::pair(int64_t{60}, int64_t{30}));
  EXPECT_EQ(room(0), std::pair(int64_t{20}, int64_t{256})) << "by default";
  limits.num_slots = 300;
  EXPECT_EQ(room(0), std::pair(int64_t{600}, int64_t{300}));
}

}  // namespace
}  // namespace rivulet
