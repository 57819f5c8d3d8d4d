// SPDX-License-Identifier: Apache-2.0
#include "server/engine/policy/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace rivulet {
namespace {

using ::testing::ElementsAre;

using enum Priority;

// Those that get slots now, in order.
std::vector<RequestId> All(Admission* admission, int free_slots) {
  std::vector<RequestId> ids;
  while (const auto id = admission->Next(free_slots, 0)) {
    ids.push_back(*id);
    --free_slots;
  }
  return ids;
}

TEST(AdmissionTest, OneTenantsEqualsGoInOrderOfArrivalWhileSlotsSuffice) {
  Admission admission;
  EXPECT_EQ(admission.Next(5, 0), std::nullopt);
  for (RequestId id = 1; id <= 3; ++id) admission.Add(id, "a", kNormal, 1);
  EXPECT_EQ(admission.Next(0, 0), std::nullopt);
  EXPECT_THAT(All(&admission, 2), ElementsAre(1, 2));
  EXPECT_EQ(admission.oldest(), 3u);
  EXPECT_THAT(All(&admission, 5), ElementsAre(3));
  EXPECT_TRUE(admission.empty());
}

TEST(AdmissionTest, NothingOvertakesALargeRequestThatIsNext) {
  Admission admission;
  admission.Add(1, "a", kNormal, 4);
  admission.Add(2, "a", kNormal, 1);
  EXPECT_EQ(admission.Next(3, 0), std::nullopt);
  admission.Add(3, "a", kHigh, 1);
  admission.Add(4, "b", kHigh, 1);
  EXPECT_EQ(admission.Next(3, 0), std::nullopt) << "it was next already";
  EXPECT_EQ(admission.Next(4, 0), 1u);
  EXPECT_EQ(admission.Next(1, 0), 4u) << "a holds four slots, b none";
}

TEST(AdmissionTest, ALargeRequestThatGoesAwayHoldsUpNobody) {
  Admission admission;
  admission.Add(1, "a", kNormal, 4);
  admission.Add(2, "a", kNormal, 1);
  EXPECT_EQ(admission.Next(3, 0), std::nullopt);
  admission.Remove(1);
  EXPECT_EQ(admission.Next(3, 0), 2u);
}

TEST(AdmissionTest, ATenantsManyRequestsDoNotDelayAnothersFirst) {
  Admission admission;
  RequestId id = 0;
  for (int i = 0; i < 10'000; ++i) admission.Add(++id, "crowd", kHigh, 1);
  EXPECT_EQ(All(&admission, 8).size(), 8u) << "alone it has all slots";
  admission.Add(++id, "other", kLow, 1);
  admission.GiveBack(3, 1);
  EXPECT_EQ(admission.Next(1, 0), id) << "the first slot that comes free";
  EXPECT_EQ(admission.tenants(), 2);
}

TEST(AdmissionTest, SlotsBecomeEvenBetweenTenantsThatAllWait) {
  Admission admission;
  RequestId id = 0;
  std::map<RequestId, std::string> tenants;
  const auto add = [&](const std::string& tenant, int count) {
    for (int i = 0; i < count; ++i) {
      admission.Add(++id, tenant, kNormal, 1);
      tenants[id] = tenant;
    }
  };
  add("a", 500);
  std::deque<RequestId> running;
  for (const RequestId first : All(&admission, 12)) running.push_back(first);
  add("b", 500);
  add("c", 500);
  // Slots come free in the order in which they were taken.
  for (int i = 0; i < 100; ++i) {
    admission.GiveBack(running.front(), 1);
    running.pop_front();
    running.push_back(*admission.Next(1, 0));
    if (i < 12) continue;
    for (const char* tenant : {"a", "b", "c"}) {
      const auto its_own = [&](RequestId one) { return tenants[one] == tenant; };
      EXPECT_EQ(std::count_if(running.begin(), running.end(), its_own), 4) << i;
    }
  }
}

TEST(AdmissionTest, MoreTenantsThanSlotsTakeTurns) {
  Admission admission;
  RequestId id = 0;
  std::map<RequestId, std::string> tenants;
  for (int i = 0; i < 5; ++i) {
    for (const char* tenant : {"a", "b", "c"}) {
      admission.Add(++id, tenant, kNormal, 1);
      tenants[id] = tenant;
    }
  }
  std::string order;
  for (int i = 0; i < 9; ++i) {
    const RequestId next = *admission.Next(1, 0);
    order += tenants[next];
    if (i == 4) {
      admission.Add(++id, "new", kHigh, 1);
      tenants[id] = "+";
    }
    admission.GiveBack(next, 1);
  }
  EXPECT_EQ(order, "abcabcab+") << "who comes anew goes behind those that wait";
}

TEST(AdmissionTest, ATenantsOwnRequestsGoByPriority) {
  Admission admission;
  admission.Add(1, "a", kLow, 1);
  admission.Add(2, "a", kNormal, 1);
  admission.Add(3, "a", kHigh, 1);
  admission.Add(4, "a", kHigh, 1);
  EXPECT_EQ(admission.slots_needed(kHigh), 2);
  EXPECT_THAT(All(&admission, 9), ElementsAre(3, 4, 2, 1));
  EXPECT_EQ(admission.slots_needed(kHigh), 0);
}

TEST(AdmissionTest, OfEveryEightTurnsOneIsTheOldestRequests) {
  Admission admission;
  admission.Add(1, "a", kLow, 1);
  admission.Add(2, "a", kLow, 1);
  std::vector<int> turns;  // at which the two low ones went
  RequestId id = 2;
  for (int turn = 1; turn <= 16; ++turn) {
    admission.Add(++id, "a", kHigh, 1);
    const RequestId next = *admission.Next(1, 0);
    if (next <= 2) turns.push_back(turn);
    admission.GiveBack(next, 1);
  }
  EXPECT_THAT(turns, ElementsAre(8, 16));
}

TEST(AdmissionTest, AnUrgentRequestComesBeforeOneThatNoSlotWasFreeFor) {
  Admission admission;
  admission.Add(1, "a", kLow, 1);
  EXPECT_EQ(admission.Next(0, 0), std::nullopt);
  admission.Add(2, "a", kHigh, 1);
  EXPECT_EQ(admission.Next(1, 0), 2u);
}

TEST(AdmissionTest, OneThatComesBackHasItsOldPlace) {
  Admission admission;
  for (RequestId id = 1; id <= 3; ++id) admission.Add(id, "a", kNormal, 1);
  EXPECT_EQ(admission.Next(1, 0), 1u);
  admission.GiveBack(1, 1);
  admission.Add(1, "a", kNormal, 1);
  EXPECT_EQ(admission.Next(1, 0), 1u);
}

TEST(AdmissionTest, AChoiceLooksAtOneOfTheTenantsThatAreAlike) {
  constexpr int kTenants = 1000, kTurns = 100;
  Admission admission({.slots = kTenants + 1});
  RequestId last = 0;
  const auto add = [&](int i) { admission.Add(++last, std::to_string(i), kNormal, 1); };
  for (int i = 0; i < kTenants; ++i) add(i);
  EXPECT_EQ(All(&admission, kTenants).size(), size_t{kTenants});
  // Each holds its share, so no claim of one is larger than another's: all are candidates.
  for (int i = 0; i < kTenants; ++i) add(i);
  const int64_t before = admission.looked_at();
  for (int turn = 0; turn < kTurns; ++turn) {
    const auto id = admission.Next(1, 0);
    ASSERT_TRUE(id);
    admission.GiveBack(*id, 1);
  }
  EXPECT_EQ(admission.looked_at() - before, kTurns);
}

// Against the rules, and everybody gets on and nothing is forgotten.
TEST(AdmissionTest, KeepsItsRulesUnderRandomOperations) {
  std::mt19937 random(5);
  auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
  struct Known {
    std::string tenant;
    Priority priority;
    int slots;
  };
  for (int round = 0; round < 100; ++round) {
    Admission admission;
    const int slots = 1 + below(8);
    int free = slots;
    std::map<RequestId, Known> waiting, running;
    std::map<std::string, int> held;
    RequestId id = 0;
    for (int op = 0; op < 400; ++op) {
      if (below(2) == 0) {
        const Known known = {std::string(1, static_cast<char>('a' + below(4))),
                             static_cast<Priority>(below(3)), 1 + below(std::min(3, slots))};
        waiting[++id] = known;
        admission.Add(id, known.tenant, known.priority, known.slots);
      }
      if (below(5) == 0 && !waiting.empty()) {
        const auto gone = std::next(waiting.begin(), below(static_cast<int>(waiting.size())));
        admission.Remove(gone->first);
        waiting.erase(gone);
      }
      if (below(2) == 0 && !running.empty()) {
        const auto done = std::next(running.begin(), below(static_cast<int>(running.size())));
        admission.GiveBack(done->first, done->second.slots);
        held[done->second.tenant] -= done->second.slots;
        free += done->second.slots;
        running.erase(done);
      }
      while (const auto next = admission.Next(free, 0)) {
        const Known known = waiting.at(*next);
        ASSERT_LE(known.slots, free);
        // First in, first out within a tenant's priority.
        for (const auto& [other, its] : waiting) {
          if (its.tenant == known.tenant && its.priority == known.priority) {
            ASSERT_GE(other, *next);
          }
        }
        free -= known.slots;
        held[known.tenant] += known.slots;
        running.insert(*waiting.find(*next));
        waiting.erase(*next);
      }
      ASSERT_EQ(admission.empty(), waiting.empty());
      if (!waiting.empty()) {
        ASSERT_EQ(admission.oldest(), waiting.begin()->first);
      }
      std::map<Priority, int> needed;
      std::map<std::string, bool> known_tenants;
      for (const auto& [other, its] : waiting) {
        needed[its.priority] += its.slots;
        known_tenants[its.tenant] = true;
      }
      for (const auto& [other, its] : running) known_tenants[its.tenant] = true;
      for (const Priority priority : {kHigh, kNormal, kLow}) {
        ASSERT_EQ(admission.slots_needed(priority), needed[priority]);
      }
      ASSERT_EQ(admission.tenants(), static_cast<int>(known_tenants.size()));
      // A free slot is idle only while a large request waits for more.
      if (free > 0 && !waiting.empty()) {
        ASSERT_TRUE(std::any_of(waiting.begin(), waiting.end(),
                                [&](const auto& entry) { return entry.second.slots > free; }));
      }
    }
  }
}

}  // namespace
}  // namespace rivulet
