// SPDX-License-Identifier: Apache-2.0
// Slots that the requests of an API key may hold at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "server/engine/policy/admission.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;

using enum Priority;

TEST(AdmissionKeyTest, AKeyHoldsNoMoreThanItMay) {
  Admission admission;
  const KeyShare two{.key = "k", .most = 2};
  for (RequestId id = 1; id <= 4; ++id) admission.Add(id, "a", kNormal, 1, two);
  EXPECT_EQ(admission.Next(8, 0), 1u);
  EXPECT_EQ(admission.Next(7, 0), 2u);
  EXPECT_EQ(admission.Next(6, 0), std::nullopt);
  admission.GiveBack(1, 1);
  EXPECT_EQ(admission.Next(7, 0), 3u);
  EXPECT_EQ(admission.Next(6, 0), std::nullopt);
  admission.Remove(4);
  admission.GiveBack(2, 1);
  admission.Add(5, "a", kNormal, 1, two);
  EXPECT_EQ(admission.Next(8, 0), 5u);
  EXPECT_TRUE(admission.empty());
}

TEST(AdmissionKeyTest, WhatWaitsForItsKeyHoldsUpNobodyElse) {
  Admission admission;
  const KeyShare one{.key = "k", .most = 1};
  for (RequestId id = 1; id <= 3; ++id) admission.Add(id, "a", kHigh, 1, one);
  admission.Add(4, "a", kLow, 1, {.key = "other of the tenant", .most = 5});
  admission.Add(5, "a", kLow, 1);  // without a key
  admission.Add(6, "b", kLow, 1, {.key = "of another tenant", .most = 5});
  std::vector<RequestId> order;
  for (int free = 8; const auto id = admission.Next(free, 0); --free) order.push_back(*id);
  EXPECT_THAT(order, ElementsAre(1, 6, 4, 5));
}

TEST(AdmissionKeyTest, ALargeRequestOfAKeyIsNotOvertakenWithinTheKey) {
  Admission admission;
  const KeyShare four{.key = "k", .most = 4};
  admission.Add(1, "a", kNormal, 2, four);
  EXPECT_EQ(admission.Next(8, 0), 1u);
  admission.Add(2, "a", kNormal, 3, four);
  admission.Add(3, "a", kNormal, 1, four);
  EXPECT_EQ(admission.Next(6, 0), std::nullopt) << "2 and 3 are more than 4; 3 came later";
  admission.GiveBack(1, 1);
  EXPECT_EQ(admission.Next(7, 0), 2u);
  EXPECT_EQ(admission.Next(4, 0), std::nullopt);
  admission.GiveBack(1, 1);
  EXPECT_EQ(admission.Next(5, 0), 3u);
}

TEST(AdmissionKeyTest, UrgentRequestsOfOneKeyDoNotKeepOutThoseOfAnother) {
  Admission admission;
  admission.Add(1, "a", kLow, 1, {.key = "patient", .most = 9});
  admission.Add(2, "a", kLow, 1, {.key = "patient", .most = 9});
  std::vector<int> turns;  // at which they went
  RequestId id = 2;
  for (int turn = 1; turn <= 20; ++turn) {
    admission.Add(++id, "a", kHigh, 1, {.key = "urgent", .most = 9});
    const RequestId next = *admission.Next(1, 0);
    if (next <= 2) turns.push_back(turn);
    admission.GiveBack(next, 1);
  }
  EXPECT_THAT(turns, ElementsAre(8, 16));
}

TEST(AdmissionKeyTest, SmallUrgentRequestsOfAKeyDoNotKeepOutALargeOne) {
  Admission admission;
  const KeyShare three{.key = "k", .most = 3};
  admission.Add(1, "a", kLow, 3, three);
  std::deque<RequestId> running;
  RequestId id = 1;
  int turns = 0;
  for (bool went = false; !went; ++turns) {
    ASSERT_LT(turns, 20);
    // Those of another key come and go meanwhile.
    for (const KeyShare& key : {three, KeyShare{.key = "other", .most = 1}}) {
      admission.Add(++id, "a", kHigh, 1, key);
    }
    for (auto next = admission.Next(9, 0); next; next = admission.Next(9, 0)) {
      if (*next == 1) went = true;
      running.push_back(*next);
    }
    for (int i = 0; i < 2 && !went && !running.empty(); ++i) {
      admission.GiveBack(running.front(), 1);
      running.pop_front();
    }
  }
  EXPECT_LE(turns, 10) << "after seven others of its key, and the end of those that held slots";
}

TEST(AdmissionKeyTest, AChangedLimitHoldsFromTheNextRequestOn) {
  Admission admission;
  for (RequestId id = 1; id <= 3; ++id) {
    admission.Add(id, "a", kNormal, 3, {.key = "k", .most = 6});
  }
  EXPECT_EQ(admission.Next(9, 0), 1u);
  EXPECT_EQ(admission.Next(6, 0), 2u);
  admission.Add(4, "a", kNormal, 1, {.key = "k", .most = 2});
  admission.GiveBack(1, 3);
  EXPECT_EQ(admission.Next(6, 0), std::nullopt);
  admission.GiveBack(2, 3);
  EXPECT_EQ(admission.Next(9, 0), 3u) << "more than it may now, so alone";
  EXPECT_EQ(admission.Next(6, 0), std::nullopt);
  admission.Add(5, "a", kNormal, 1, {.key = "k", .most = 9});
  EXPECT_EQ(admission.Next(6, 0), 4u);
  EXPECT_EQ(admission.Next(5, 0), 5u);
}

TEST(AdmissionKeyTest, PreemptionGivesTheKeyItsSlotsBack) {
  Admission admission({.slots = 2, .max_begun = 10, .quantum = 1});
  const KeyShare one{.key = "k", .most = 1};
  admission.Add(1, "a", kNormal, 1, one);
  admission.Add(2, "a", kNormal, 1);
  EXPECT_EQ(admission.Next(2, 0), 1u);
  EXPECT_EQ(admission.Next(1, 0), 2u);
  admission.Add(3, "b", kNormal, 1);
  ASSERT_THAT(admission.Victims(0, 5), ElementsAre(1));
  admission.Preempt(1);
  EXPECT_EQ(admission.Next(1, 5), 3u);
  admission.Add(4, "a", kHigh, 1, one);
  admission.GiveBack(2, 1);
  EXPECT_EQ(admission.Next(1, 5), 4u) << "the key holds nothing now";
  admission.GiveBack(3, 1);
  EXPECT_EQ(admission.Next(1, 5), std::nullopt) << "1 waits again, for its key";
  admission.GiveBack(4, 1);
  EXPECT_EQ(admission.Next(2, 5), 1u);
}

TEST(AdmissionKeyTest, SaysWhetherSomethingMayWaitForItsKeyAlone) {
  Admission admission;
  admission.Add(1, "a", kNormal, 1, {.key = "unlimited"});
  EXPECT_FALSE(admission.limits_keys());
  admission.Add(2, "a", kNormal, 1, {.key = "k", .most = 3});
  EXPECT_TRUE(admission.limits_keys());
  admission.Remove(2);
  EXPECT_FALSE(admission.limits_keys()) << "keys that have nothing here are forgotten";
}

// Any mix of keys, tenants and priorities: no key holds more than it may, and what its key has room
// for is not held up.
TEST(AdmissionKeyTest, KeepsItsRulesUnderRandomOperations) {
  std::mt19937 random(11);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
  struct Known {
    std::string tenant;
    KeyShare key;
    Priority priority;
    int slots;
  };
  for (int round = 0; round < 100; ++round) {
    Admission admission;
    const int slots = 4 + below(5);
    int free = slots;
    std::map<RequestId, Known> waiting, running;
    std::map<std::string, int> held;
    RequestId last = 0;
    for (int op = 0; op < 600; ++op) {
      if (below(2) == 0 && waiting.size() < 30) {
        const int which = below(4);  // 3: of no key
        const KeyShare key =
            which == 3 ? KeyShare() : KeyShare{std::string(1, 'k') + "012"[which], 2 + which};
        const std::string tenant = which == 0 ? "b" : "a";
        const Known known = {tenant, key, static_cast<Priority>(below(3)), 1 + below(2)};
        waiting[++last] = known;
        admission.Add(last, tenant, known.priority, known.slots, key);
      }
      if (below(2) == 0 && !running.empty()) {
        const auto done = std::next(running.begin(), below(static_cast<int>(running.size())));
        admission.GiveBack(done->first, done->second.slots);
        held[done->second.key.key] -= done->second.slots;
        free += done->second.slots;
        running.erase(done);
      }
      while (const auto next = admission.Next(free, 0)) {
        const Known known = waiting.at(*next);
        free -= known.slots;
        held[known.key.key] += known.slots;
        ASSERT_GE(free, 0);
        ASSERT_LE(held[known.key.key], known.key.most);
        running.insert(*waiting.find(*next));
        waiting.erase(*next);
      }
      // What still waits needs more than is free, waits for its key or for one of its key.
      for (const auto& [id, known] : waiting) {
        if (free < 2) break;
        const auto same = [&](const auto& other) { return other.second.key.key == known.key.key; };
        const bool lone = std::count_if(waiting.begin(), waiting.end(), same) == 1;
        if (lone) {
          ASSERT_GT(held[known.key.key] + known.slots, known.key.most) << id;
        }
      }
    }
    while (!running.empty() || !waiting.empty()) {
      ASSERT_FALSE(running.empty()) << "what waits must go once nothing is held";
      const auto done = running.begin();
      admission.GiveBack(done->first, done->second.slots);
      free += done->second.slots;
      running.erase(done);
      while (const auto next = admission.Next(free, 0)) {
        free -= waiting.at(*next).slots;
        running.insert(*waiting.find(*next));
        waiting.erase(*next);
      }
    }
    ASSERT_TRUE(admission.empty());
    ASSERT_EQ(admission.tenants(), 0);
    ASSERT_FALSE(admission.limits_keys());
  }
}

}  // namespace
}  // namespace rivulet
