// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/store/state_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/support/fake_state_files.h"

namespace rivulet {
namespace {

constexpr int64_t kFourFloats = 16;  // of a state of four floats
const StateStamp kStamp{"weights", "config", "numerics", "owner"};
const int64_t kFileBytes = static_cast<int64_t>(StateFileBytes(kStamp, 4));

class StateStoreTest : public ::testing::Test {
 protected:
  std::shared_ptr<FakeDisk> disk_ = std::make_shared<FakeDisk>();
  std::shared_ptr<ManualQueue> work_ = std::make_shared<ManualQueue>();
  int wakes_ = 0;
  StateSize size_ = {.fixed = kFourFloats};
  std::unique_ptr<StateStore> store_;

  // Room for so many states in memory, on their way and on disk; -1: no disk.
  void Make(int64_t memory, int64_t writing, int64_t disk) {
    const StateLimits limits{memory * kFourFloats, writing * kFourFloats,
                             std::max<int64_t>(0, disk) * kFileBytes};
    DiskTier tier;
    if (disk >= 0) {
      tier.files = std::make_unique<FakeStateFiles>(disk_);
      tier.background = std::make_unique<ManualBackground>(work_);
    }
    store_ =
        std::make_unique<StateStore>(limits, size_, kStamp, std::move(tier), [this] { ++wakes_; });
  }
  StatePtr Keep(float value) { return store_->Keep({value, value, value, value}); }
  // Lets the disk do all its work.
  void Work() {
    work_->RunAll();
    store_->Collect();
  }
  // The first value of a state that is in memory; -1 elsewhere.
  float Value(const StatePtr& state) {
    const ViewPtr view = store_->Use(state.get());
    return view == nullptr ? -1 : view->values()[0];
  }
  float FetchedValue(const StatePtr& state) {
    if (!state->on_disk()) return Value(state);
    store_->Fetch(state.get());
    Work();
    return Value(state);
  }
};

TEST_F(StateStoreTest, WithoutADiskForgetsWhatWasUsedLongestAgo) {
  Make(2, 0, -1);
  const StatePtr first = Keep(1), second = Keep(2);
  EXPECT_EQ(Value(first), 1);
  const StatePtr third = Keep(3);
  EXPECT_TRUE(second->forgotten());
  EXPECT_EQ(Value(first), 1);
  EXPECT_EQ(Value(third), 3);
  const StateStore::Totals totals = store_->totals();
  EXPECT_EQ(totals.memory_bytes, 2 * kFourFloats);
  EXPECT_EQ(totals.in_memory, 2);
  EXPECT_EQ(totals.forgotten, 1);
}

TEST_F(StateStoreTest, BytesThatSomebodyElseHoldsCount) {
  Make(2, 0, -1);
  StatePtr first = Keep(1);
  const ViewPtr held = store_->Use(first.get());
  first = nullptr;
  EXPECT_EQ(store_->totals().memory_bytes, kFourFloats);
  const StatePtr second = Keep(2), third = Keep(3);
  EXPECT_TRUE(second->forgotten());
  EXPECT_EQ(Value(third), 3);
}

TEST_F(StateStoreTest, APinnedStateStaysWhateverComes) {
  Make(1, 0, -1);
  const StatePtr pinned = store_->Pin({7, 7, 7, 7}, 1);
  const StatePtr other = Keep(1);
  EXPECT_TRUE(other->forgotten());
  EXPECT_EQ(Value(pinned), 7);
}

TEST_F(StateStoreTest, WhatHasNoRoomInMemoryGoesToAFileAndBack) {
  Make(1, 8, 8);
  const StatePtr first = Keep(1);
  const StatePtr second = Keep(2);
  EXPECT_EQ(Value(first), 1) << "until it is written it can be used";
  Work();
  store_->Fit();
  Work();
  EXPECT_TRUE(first->in_memory());
  EXPECT_TRUE(second->on_disk());
  EXPECT_EQ(store_->totals().on_disk, 1);
  EXPECT_EQ(store_->totals().in_memory, 1);
  EXPECT_EQ(store_->totals().memory_bytes, kFourFloats);
  EXPECT_EQ(store_->Use(second.get()), nullptr);
  EXPECT_EQ(FetchedValue(second), 2);
  EXPECT_GT(wakes_, 0);
}

TEST_F(StateStoreTest, AStateThatWasReadLeavesMemoryWithoutAnotherWrite) {
  Make(1, 8, 8);
  const StatePtr first = Keep(1), second = Keep(2);
  Work();
  ASSERT_TRUE(first->on_disk());
  EXPECT_EQ(FetchedValue(first), 1);
  store_->Fit();  // the second goes
  Work();
  EXPECT_EQ(disk_->writes, 2);
  EXPECT_EQ(FetchedValue(second), 2);
  store_->Fit();  // the first goes again
  Work();
  EXPECT_TRUE(first->on_disk());
  EXPECT_EQ(disk_->writes, 2);
  EXPECT_EQ(store_->totals().disk_bytes, 2 * kFileBytes);
}

TEST_F(StateStoreTest, AFileGoesWithTheLastWhoNeedsItsState) {
  Make(0, 8, 8);
  StatePtr state = Keep(1);
  StatePtr shared = state;
  Work();
  state = nullptr;
  Work();
  EXPECT_EQ(disk_->files.size(), 1u);
  shared = nullptr;
  Work();
  EXPECT_TRUE(disk_->files.empty());
  EXPECT_EQ(store_->totals().disk_bytes, 0);
  EXPECT_EQ(store_->totals().on_disk, 0);
}

TEST_F(StateStoreTest, AStateThatGoesWhileItIsWrittenOrReadLeavesNothing) {
  Make(0, 8, 8);
  StatePtr state = Keep(1);
  state = nullptr;  // before the write
  Work();
  EXPECT_TRUE(disk_->files.empty());
  state = Keep(2);
  Work();
  store_->Fetch(state.get());
  state = nullptr;  // before the read
  Work();
  EXPECT_TRUE(disk_->files.empty());
  const StateStore::Totals totals = store_->totals();
  EXPECT_EQ(totals.memory_bytes, 0);
  EXPECT_EQ(totals.disk_bytes, 0);
  EXPECT_EQ(totals.in_memory + totals.on_disk, 0);
}

TEST_F(StateStoreTest, AFullDiskForgetsWhatWasUsedLongestAgo) {
  Make(0, 8, 2);
  const StatePtr first = Keep(1), second = Keep(2);
  Work();
  const StatePtr third = Keep(3);
  Work();
  EXPECT_TRUE(first->forgotten());
  EXPECT_EQ(FetchedValue(second), 2);
  EXPECT_EQ(FetchedValue(third), 3);
  EXPECT_EQ(disk_->files.size(), 2u);
  EXPECT_EQ(store_->totals().disk_bytes, 2 * kFileBytes);
}

TEST_F(StateStoreTest, MakingRoomLeavesAFileThatIsBeingRead) {
  Make(0, 8, 2);
  const StatePtr first = Keep(1), second = Keep(2);
  Work();
  store_->Fetch(first.get());
  const StatePtr third = Keep(3);
  Work();
  EXPECT_EQ(Value(first), 1);
  EXPECT_TRUE(second->forgotten());
}

TEST_F(StateStoreTest, WhatIsOnItsWayToFilesIsBounded) {
  Make(0, 2, 100);
  std::vector<StatePtr> states;
  for (int i = 0; i < 5; ++i) states.push_back(Keep(static_cast<float>(i)));
  EXPECT_EQ(store_->totals().memory_bytes, 2 * kFourFloats);
  EXPECT_EQ(store_->totals().forgotten, 3);
  Work();
  EXPECT_EQ(store_->totals().on_disk, 2);
}

TEST_F(StateStoreTest, HoweverLargeAStateIsOneCanBeOnItsWayToAFile) {
  Make(1, 0, 100);
  const StatePtr first = Keep(1), second = Keep(2), third = Keep(3);
  const StateStore::Totals totals = store_->totals();
  EXPECT_EQ(totals.writing_bytes, kFourFloats) << "beyond its limit, which is 0";
  EXPECT_EQ(totals.memory_bytes, 2 * kFourFloats);
  EXPECT_TRUE(second->forgotten()) << "two are not on their way";
  Work();
  EXPECT_EQ(store_->totals().writing_bytes, 0);
  EXPECT_TRUE(first->on_disk());
  EXPECT_EQ(Value(third), 3);
}

TEST_F(StateStoreTest, AStateThatIsUsedOnItsWayOutStays) {
  Make(1, 8, 8);
  const StatePtr first = Keep(1), second = Keep(2);
  EXPECT_EQ(Value(first), 1);
  Work();
  EXPECT_TRUE(first->in_memory());
  store_->Fit();
  EXPECT_TRUE(first->in_memory());
  EXPECT_FALSE(second->forgotten());
}

TEST_F(StateStoreTest, AWriteThatFailsMeansThatTheStateIsForgotten) {
  Make(0, 8, 8);
  disk_->fail_writes = true;
  const StatePtr state = Keep(1);
  Work();
  EXPECT_TRUE(state->forgotten());
  StateStore::Totals totals = store_->totals();
  EXPECT_EQ(totals.file_errors, 1);
  EXPECT_EQ(totals.forgotten, 1);
  EXPECT_EQ(totals.disk_bytes, 0);
  EXPECT_EQ(totals.memory_bytes, 0);
  EXPECT_EQ(totals.writing_bytes, 0);
  EXPECT_THAT(std::string(store_->file_error().message()), ::testing::HasSubstr("no space"));
  disk_->fail_writes = false;
  const StatePtr next = Keep(2);
  Work();
  EXPECT_EQ(FetchedValue(next), 2);
}

TEST_F(StateStoreTest, AWriteThatFailsForAStateInUseLeavesItInMemory) {
  Make(1, 8, 8);
  disk_->fail_writes = true;
  const StatePtr first = Keep(1), second = Keep(2);
  EXPECT_EQ(Value(first), 1);
  Work();
  EXPECT_EQ(Value(first), 1);
}

TEST_F(StateStoreTest, AFileThatCannotBeReadOrHoldsOtherBytesIsForgotten) {
  using Damage = std::function<void(std::string*)>;
  const std::vector<Damage> damages = {
      [](std::string* bytes) { bytes->clear(); },
      [](std::string* bytes) { bytes->pop_back(); },
      [](std::string* bytes) { bytes->push_back('x'); },
      [](std::string* bytes) { bytes->back() ^= 1; },
      [](std::string* bytes) { (*bytes)[bytes->size() - 8] ^= 64; },
      [](std::string* bytes) { bytes->front() ^= 1; },
  };
  for (size_t i = 0; i <= damages.size(); ++i) {
    disk_ = std::make_shared<FakeDisk>();
    Make(0, 8, 8);
    const StatePtr state = Keep(1);
    Work();
    disk_->fail_reads = i == damages.size();
    disk_->damage = i < damages.size() ? damages[i] : Damage();
    store_->Fetch(state.get());
    Work();
    EXPECT_TRUE(state->forgotten()) << i;
    EXPECT_EQ(store_->totals().file_errors, 1) << i;
    EXPECT_EQ(store_->totals().disk_bytes, 0) << i;
    EXPECT_EQ(store_->totals().on_disk, 0) << i;
  }
}

TEST_F(StateStoreTest, TheFileOfAnotherStateIsNotThisOne) {
  Make(0, 8, 8);
  const StatePtr first = Keep(1), second = Keep(2);
  Work();
  std::swap(disk_->files[1], disk_->files[2]);
  EXPECT_EQ(FetchedValue(first), -1);
  EXPECT_TRUE(first->forgotten());
}

TEST_F(StateStoreTest, ReadsComeBeforeWrites) {
  Make(0, 8, 8);
  const StatePtr first = Keep(1);
  Work();
  const StatePtr second = Keep(2);
  store_->Fetch(first.get());
  work_->RunOne();
  EXPECT_TRUE(store_->Collect());
  EXPECT_EQ(Value(first), 1);
  EXPECT_FALSE(StateStore::fetching(*first));
}

// Every count and byte is what a walk over all states finds, whatever happens.
TEST_F(StateStoreTest, CountsHoldInRandomOperations) {
  Make(3, 2, 4);
  std::vector<StatePtr> states;
  uint64_t random = 12345;
  const auto draw = [&random](size_t below) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    return static_cast<size_t>(random >> 33) % below;
  };
  std::map<const KeptState*, float> values;
  for (int i = 0; i < 20000; ++i) {
    const size_t choice = draw(9);
    if (choice < 3 || states.empty()) {
      states.push_back(Keep(static_cast<float>(i)));
      values[states.back().get()] = static_cast<float>(i);
    } else if (choice == 3) {
      states.erase(states.begin() + static_cast<std::ptrdiff_t>(draw(states.size())));
    } else if (choice == 4) {
      const StatePtr& state = states[draw(states.size())];
      if (state->on_disk()) store_->Fetch(state.get());
    } else if (choice == 5) {
      work_->RunOne();
    } else if (choice == 6) {
      store_->Collect();
      store_->Fit();
    } else if (choice == 7) {
      const StatePtr& state = states[draw(states.size())];
      if (state->in_memory()) {
        ASSERT_EQ(Value(state), values[state.get()]);
      }
    } else {
      disk_->fail_writes = draw(8) == 0;
      disk_->fail_reads = draw(8) == 0;
    }
    while (states.size() > 12) states.erase(states.begin());
    int64_t in_memory = 0, on_disk = 0;
    for (const StatePtr& state : states) {
      in_memory += state->in_memory();
      on_disk += state->on_disk();
    }
    const StateStore::Totals totals = store_->totals();
    ASSERT_EQ(totals.in_memory, in_memory) << i;
    ASSERT_EQ(totals.on_disk, on_disk) << i;
    ASSERT_LE(totals.disk_bytes, 4 * kFileBytes) << i;
    ASSERT_LE(totals.writing_bytes, 2 * kFourFloats) << i;
    ASSERT_LE(totals.memory_bytes, (3 + 2 + 8) * kFourFloats) << i;
  }
  store_->Fit();
  EXPECT_LE(store_->totals().memory_bytes, 3 * kFourFloats + store_->totals().writing_bytes);
  states.clear();
  Work();
  EXPECT_EQ(store_->totals().memory_bytes, 0);
  EXPECT_EQ(store_->totals().disk_bytes, 0);
  EXPECT_TRUE(disk_->files.empty());
}

// Reads of published states, which end when a test says so.
struct PublishedReads {
  std::vector<std::function<void(absl::StatusOr<CutState>)>> open;
  PublishedRead Read() {
    return [this](auto done) { open.push_back(std::move(done)); };
  }
};

TEST_F(StateStoreTest, APublishedStateIsReadOnceAndIsThenLikeAnyOther) {
  Make(1, 0, -1);
  PublishedReads reads;
  const StatePtr state = store_->KeepPublished(1, nullptr, reads.Read());
  EXPECT_FALSE(state->forgotten() || state->in_memory() || state->on_disk());
  store_->Fetch(state.get());
  store_->Fetch(state.get());
  ASSERT_EQ(reads.open.size(), 1u);
  EXPECT_FALSE(store_->Collect());
  EXPECT_TRUE(StateStore::fetching(*state));
  EXPECT_FALSE(state->forgotten());
  reads.open[0](CutState{{}, {7, 7, 7, 7}});
  EXPECT_EQ(wakes_, 1);
  EXPECT_TRUE(store_->Collect());
  EXPECT_EQ(Value(state), 7);
  EXPECT_EQ(store_->totals().memory_bytes, kFourFloats);
  const StatePtr other = Keep(1);
  EXPECT_TRUE(state->forgotten()) << "it was used longest ago, and there is no disk";
}

TEST_F(StateStoreTest, APublishedStateThatCannotBeReadIsForgotten) {
  Make(1, 0, -1);
  PublishedReads reads;
  const StatePtr state = store_->KeepPublished(1, nullptr, reads.Read());
  store_->Fetch(state.get());
  reads.open[0](absl::NotFoundError("gone"));
  EXPECT_TRUE(store_->Collect());
  EXPECT_TRUE(state->forgotten());
}

TEST_F(StateStoreTest, AReadMayEndAfterItsStateOrTheStore) {
  Make(1, 0, -1);
  PublishedReads reads;
  StatePtr state = store_->KeepPublished(1, nullptr, reads.Read());
  store_->Fetch(state.get());
  state = nullptr;
  reads.open[0](CutState{{}, {7, 7, 7, 7}});
  EXPECT_TRUE(store_->Collect());
  EXPECT_EQ(store_->totals().memory_bytes, 0);
  state = store_->KeepPublished(1, nullptr, reads.Read());
  store_->Fetch(state.get());
  state = nullptr;
  store_ = nullptr;
  reads.open[1](CutState{{}, {7, 7, 7, 7}});
  EXPECT_EQ(wakes_, 1);
}

// States of one fixed float and one more a token, in blocks of two and segments of four.
class SegmentTest : public StateStoreTest {
 protected:
  SegmentTest() { size_ = {.fixed = 4, .per_block = 8, .block_tokens = 2, .segment_tokens = 4}; }
  StatePtr KeepGrown(float fixed, float last, const std::vector<StatePtr>& segments) {
    return store_->Keep({fixed, last, last}, segments);
  }
  std::vector<float> Values(const StatePtr& state) {
    const ViewPtr view = store_->Use(state.get());
    return view == nullptr ? std::vector<float>() : view->values();
  }
  const std::vector<float> whole_ = {9, 1, 2, 3, 4, 5, 6};  // after six tokens
};

TEST_F(SegmentTest, StatesWithTheSameFirstTokensHoldThemOnce) {
  Make(100, 100, -1);
  const StatePtr first = store_->KeepWhole(whole_, 6);
  ASSERT_EQ(first->segments().size(), 1u);
  EXPECT_EQ(Values(first), whole_);
  EXPECT_EQ(first->bytes(), 28);
  EXPECT_EQ(first->own_bytes(), 12);
  const StatePtr second = KeepGrown(8, 7, first->segments());
  EXPECT_EQ(Values(second), (std::vector<float>{8, 1, 2, 3, 4, 7, 7}));
  EXPECT_EQ(store_->totals().memory_bytes, 28 + 12);
  EXPECT_EQ(store_->totals().in_memory, 2);
  SharedBytes all;
  for (const StatePtr& state : {first, second}) all.Add(*state);
  EXPECT_EQ(all.bytes(), 28 + 12);
  all.Remove(*first);
  EXPECT_EQ(all.bytes(), 28);
  all.Remove(*second);
  EXPECT_EQ(all.bytes(), 0);
}

TEST_F(SegmentTest, ASegmentIsWrittenOnceAndStaysForTheStatesThatAreLeft) {
  Make(0, 100, 100);
  StatePtr first = store_->KeepWhole(whole_, 6);
  const StatePtr second = KeepGrown(8, 7, first->segments());
  Work();
  EXPECT_EQ(disk_->files.size(), 3u) << "two states and their segment";
  EXPECT_TRUE(first->on_disk() && second->on_disk());
  EXPECT_EQ(store_->totals().on_disk, 2);
  first = nullptr;
  Work();
  EXPECT_EQ(disk_->files.size(), 2u);
  store_->Fetch(second.get());
  Work();
  EXPECT_EQ(Values(second), (std::vector<float>{8, 1, 2, 3, 4, 7, 7}));
  EXPECT_EQ(disk_->writes, 3);
}

TEST_F(SegmentTest, AReadBringsOnlyWhatIsNotInMemoryAndHoldsTheRest) {
  Make(0, 100, 100);
  const StatePtr first = store_->KeepWhole(whole_, 6);
  const StatePtr second = KeepGrown(8, 7, first->segments());
  Work();
  store_->Fetch(first.get());
  Work();
  const int64_t reads = disk_->reads;
  store_->Fetch(second.get());
  store_->Fit();  // the segment leaves memory, which has room for nothing
  EXPECT_FALSE(first->in_memory());
  Work();
  EXPECT_EQ(disk_->reads, reads + 1);
  EXPECT_EQ(Values(second), (std::vector<float>{8, 1, 2, 3, 4, 7, 7}));
}

TEST_F(SegmentTest, AStateIsForgottenWithItsSegment) {
  Make(0, 100, 100);
  const StatePtr first = store_->KeepWhole(whole_, 6);
  const StatePtr second = KeepGrown(8, 7, first->segments());
  Work();
  disk_->damage = [](std::string* bytes) { bytes->back() ^= 1; };
  store_->Fetch(first.get());
  Work();
  EXPECT_TRUE(first->forgotten() && second->forgotten());
  EXPECT_FALSE(StateStore::fetching(*first));
}

TEST_F(SegmentTest, AFullDiskLetsGoOfASegmentsFileOnceAfterTwoReads) {
  Make(0, 100, 3);
  StatePtr first = store_->KeepWhole(whole_, 6);
  StatePtr second = KeepGrown(8, 7, first->segments());
  Work();
  store_->Fetch(first.get());
  store_->Fetch(second.get());
  second = nullptr;
  Work();
  EXPECT_EQ(Values(first), whole_);
  std::vector<StatePtr> others;
  for (int i = 0; i < 6; ++i) {
    others.push_back(store_->KeepWhole(whole_, 6));
    Work();
    EXPECT_LE(store_->totals().disk_bytes, 3 * kFileBytes);
  }
  EXPECT_TRUE(others.back()->on_disk());
}

TEST_F(SegmentTest, APublishedStateSharesTheSegmentsOfAnEarlierOne) {
  Make(100, 100, -1);
  PublishedReads reads;
  const StatePtr first = store_->KeepWhole(whole_, 6);
  const StatePtr later = store_->KeepPublished(10, first.get(), reads.Read());
  EXPECT_EQ(later->segments().front(), first->segments().front());
  store_->Fetch(later.get());
  reads.open[0](CutState{{{1, 2, 3, 4}, {5, 6, 7, 8}}, {9, 10, 11}});
  EXPECT_TRUE(store_->Collect());
  EXPECT_EQ(Values(later), (std::vector<float>{9, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11}));
  EXPECT_EQ(store_->totals().memory_bytes, 28 + 16 + 12);
}

TEST(ArchivedStateNameTest, FollowsFromAllThatCameBefore) {
  const auto stamp = [](const std::string& tenant, const std::string& previous,
                        const std::vector<int32_t>& tokens, const std::string& numerics = "n") {
    return ArchivedStateStamp({"w", "c", numerics, ""}, tenant, previous, tokens);
  };
  const StateStamp first = stamp("ab", "cd", {1, 2});
  const std::string name = ArchivedStateName(first, ArchivedSegmentNumber(3), 4);
  const std::set<std::string> names = {
      name,
      ArchivedStateName(first, ArchivedStateNumber(3), 4),
      ArchivedStateName(first, ArchivedSegmentNumber(4), 4),
      ArchivedStateName(first, ArchivedSegmentNumber(3), 5),
      ArchivedStateName(stamp("abc", "d", {1, 2}), ArchivedSegmentNumber(3), 4),
      ArchivedStateName(stamp("ab", "ce", {1, 2}), ArchivedSegmentNumber(3), 4),
      ArchivedStateName(stamp("ab", "cd", {1, 3}), ArchivedSegmentNumber(3), 4),
      ArchivedStateName(stamp("ab", "cd", {1, 2}, "m"), ArchivedSegmentNumber(3), 4)};
  EXPECT_EQ(names.size(), 8u);
  std::string bytes = EncodeStateFile(first, ArchivedSegmentNumber(3), std::vector<float>(4));
  EXPECT_TRUE(DecodeArchivedState(bytes, name, 4).ok());
  ASSERT_EQ(bytes[8], 2);  // its version; in version 1 the name hashes other bytes
  bytes[8] = 1;
  EXPECT_TRUE(absl::IsDataLoss(DecodeArchivedState(bytes, name, 4).status()));
}

}  // namespace
}  // namespace rivulet
