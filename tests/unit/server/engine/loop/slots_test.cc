// SPDX-License-Identifier: Apache-2.0
#include "server/engine/loop/slots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "tests/support/fake_backend.h"
#include "tests/unit/server/engine/loop/stub_request.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SlotsTest : public ::testing::Test {
 protected:
  explicit SlotsTest(const StateSize& size = {}) : backend_(config_, OptionsOf(size), probe_) {}
  static FakeBackendOptions OptionsOf(const StateSize& size) {
    FakeBackendOptions options;
    options.limits.state = size;
    if (size.per_block > 0) options.limits.bytes_per_slot = size.At(100);
    return options;
  }
  // What the backend holds in a slot that is held: FakeState of what was fed.
  std::vector<float> ValuesOf(const StubSequence& sequence) {
    return Values({sequence.slot, {}, {}});
  }
  std::vector<float> Values(LeftState left) {
    return store_.Use(slots_.Keep(std::move(left), 1, &store_)->get())->values();
  }
  std::vector<float> StateAfter(const std::vector<int32_t>& tokens) {
    FakeHistory history = {.grows = backend_.limits().state.per_block > 0};
    for (int32_t token : tokens) history.Feed(token, false);
    return FakeState(history, backend_.limits().state_size());
  }
  // Feeds one token to the slot of `sequence`.
  void Feed(StubSequence* sequence, int32_t token) {
    rivulet::Run run;
    TokenBuffer buffer;
    buffer.reserve(1);
    sequence->token = token;
    sequence->FillRow({.tokens = 1}, &buffer, &run.rows.emplace_back());
    ASSERT_TRUE(backend_.Submit(run).ok());
    std::vector<Record> records;
    ASSERT_TRUE(*backend_.Poll(&records));
  }
  void GiveAll(StubRequest* request) {
    if (request->sequences.empty()) request->CreateSequences();
    for (auto& sequence : request->sequences) {
      if (!sequence->ended) slots_.Give(sequence.get());
    }
    ASSERT_TRUE(slots_.Prepare().ok());
  }

  const ModelConfig config_ = FakeConfig(16, false);
  const std::shared_ptr<FakeProbe> probe_ = std::make_shared<FakeProbe>();
  FakeBackend backend_;
  Slots slots_{&backend_};
  StateStore store_{{}, backend_.limits().state_size(), {}, {}, [] {}};
};

// A state that grows by one float a token, with blocks of two tokens and segments of four.
class GrowingSlotsTest : public SlotsTest {
 protected:
  GrowingSlotsTest()
      : SlotsTest(
            {.fixed = kFakeStateBytes, .per_block = 8, .block_tokens = 2, .segment_tokens = 4}) {}
  int64_t calls_ = 0;  // of the backend, by the last keep
};

TEST_F(SlotsTest, ASlotIsZeroedWhenGivenOutAndWhenTakenBack) {
  StubRequest request;
  GiveAll(&request);
  EXPECT_EQ(probe_->zeroed(), 1);  // an unzeroed one would hold the backend's garbage
  EXPECT_EQ(ValuesOf(*request.sequence(0)), StateAfter({}));
  EXPECT_EQ(slots_.used(), 1);
  Feed(request.sequence(0), 7);
  const LeftState left = slots_.TakeBack(request.sequence(0));
  EXPECT_EQ(slots_.free(), 3);
  EXPECT_EQ(slots_.free_soon(), 4);
  EXPECT_EQ(probe_->dirty_slots(), 1);
  EXPECT_EQ(Values(left), StateAfter({7}));
  ASSERT_TRUE(slots_.ZeroFreed().ok());
  EXPECT_EQ(probe_->dirty_slots(), 0);
  EXPECT_EQ(slots_.free(), 4);
  EXPECT_EQ(slots_.used(), 0);
}

TEST_F(SlotsTest, HandsOutEverySlotButTheGuardOnce) {
  StubRequest request(1, 4);
  GiveAll(&request);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(request.sequence(i)->slot, static_cast<Slot>(i) + 1);
  EXPECT_EQ(slots_.used(), 4);
  EXPECT_EQ(slots_.free(), 0);
}

TEST_F(SlotsTest, ReusesTheSlotFreedLastFirst) {
  StubRequest first(1, 4), second(2, 3);
  GiveAll(&first);
  for (const size_t i : {2, 0, 3}) slots_.TakeBack(first.sequence(i));
  ASSERT_TRUE(slots_.ZeroFreed().ok());
  GiveAll(&second);
  EXPECT_EQ(second.sequence(0)->slot, 4);
  EXPECT_EQ(second.sequence(1)->slot, 1);
  EXPECT_EQ(second.sequence(2)->slot, 3);
}

TEST_F(SlotsTest, ALoneUserTouchesOneSlot) {
  for (RequestId i = 1; i <= 100; ++i) {
    StubRequest request(i);
    GiveAll(&request);
    ASSERT_EQ(request.sequence(0)->slot, 1);
    slots_.TakeBack(request.sequence(0));
    slots_.ForgetEnded();
    ASSERT_TRUE(slots_.ZeroFreed().ok());
  }
}

TEST_F(SlotsTest, HoldersAreInTheOrderInWhichTheyGotTheirSlots) {
  StubRequest first(1, 2), second(2, 1);
  GiveAll(&first);
  GiveAll(&second);
  EXPECT_THAT(slots_.holders(),
              ElementsAre(first.sequence(0), first.sequence(1), second.sequence(0)));
  slots_.TakeBack(first.sequence(0));
  EXPECT_TRUE(first.sequence(0)->ended);
  slots_.ForgetEnded();
  EXPECT_THAT(slots_.holders(), ElementsAre(first.sequence(1), second.sequence(0)));
}

TEST_F(SlotsTest, WhatWasMovedToHostGoesOnInAnotherSlot) {
  StubRequest moved(1, 2), other(2, 1);
  GiveAll(&moved);
  Feed(moved.sequence(0), 3);
  Feed(moved.sequence(1), 4);
  ASSERT_TRUE(slots_.MoveToHost(moved, /*parked=*/true).ok());
  EXPECT_EQ(slots_.in_host_memory(), 2);
  EXPECT_EQ(slots_.parked_bytes(), 2 * kFakeStateBytes);
  EXPECT_THAT(slots_.holders(), IsEmpty());
  EXPECT_EQ(slots_.free(), 2);
  EXPECT_EQ(slots_.free_soon(), 4);
  ASSERT_TRUE(slots_.ZeroFreed().ok());
  EXPECT_EQ(probe_->dirty_slots(), 0);
  GiveAll(&other);
  GiveAll(&moved);
  EXPECT_EQ(slots_.in_host_memory(), 0);
  EXPECT_EQ(slots_.parked_bytes(), 0);
  EXPECT_EQ(ValuesOf(*moved.sequence(0)), StateAfter({3}));
  EXPECT_EQ(ValuesOf(*moved.sequence(1)), StateAfter({4}));
}

TEST_F(SlotsTest, WhatEndsInHostMemoryLeavesItsState) {
  StubRequest request(1, 2);
  GiveAll(&request);
  Feed(request.sequence(1), 9);
  slots_.TakeBack(request.sequence(0));
  slots_.ForgetEnded();
  ASSERT_TRUE(slots_.MoveToHost(request, /*parked=*/false).ok());
  EXPECT_EQ(slots_.in_host_memory(), 1);  // the other one has ended
  EXPECT_EQ(slots_.parked_bytes(), 0);
  ASSERT_TRUE(slots_.ZeroFreed().ok());
  const LeftState left = slots_.TakeBack(request.sequence(1));
  EXPECT_EQ(slots_.in_host_memory(), 0);
  EXPECT_EQ(Values(left), StateAfter({9}));
  EXPECT_EQ(slots_.free(), 4);  // its slot is not given back twice
}

TEST_F(SlotsTest, BeginsWithAStateOrACopyOfTheFirstSample) {
  StubRequest request(1, 2);
  request.CreateSequences();
  request.sequence(0)->begins_with = {2, std::make_shared<StateView>(StateAfter({5, 6}))};
  request.sequence(1)->first = request.sequence(0);
  GiveAll(&request);
  EXPECT_EQ(ValuesOf(*request.sequence(0)), StateAfter({5, 6}));
  EXPECT_EQ(ValuesOf(*request.sequence(1)), StateAfter({5, 6}));
}

TEST_F(SlotsTest, ForksTheSlotOfTheFirstSample) {
  StubRequest request(1, 3);
  GiveAll(&request);
  Feed(request.sequence(0), 8);
  ASSERT_TRUE(slots_.Fork(*request.sequence(0)).ok());
  EXPECT_EQ(probe_->copied(), 2);
  EXPECT_EQ(ValuesOf(*request.sequence(2)), StateAfter({8}));
}

TEST_F(GrowingSlotsTest, AParkedStateTakesWhatItsTokensFill) {
  StubRequest request;
  GiveAll(&request);
  for (const int32_t token : {1, 2, 3, 4, 5}) Feed(request.sequence(0), token);
  constexpr int64_t kBytes = kFakeStateBytes + 3 * 8;  // three blocks
  EXPECT_EQ(slots_.BytesOf(request), kBytes);
  ASSERT_TRUE(slots_.MoveToHost(request, /*parked=*/true).ok());
  EXPECT_EQ(slots_.parked_bytes(), kBytes);
  slots_.TakeBack(request.sequence(0));
  EXPECT_EQ(slots_.parked_bytes(), 0);
}

TEST_F(GrowingSlotsTest, OnlyWhatIsNotKeptYetIsCopied) {
  StubRequest request;
  GiveAll(&request);
  StubSequence* const sequence = request.sequence(0);
  const auto keep = [&](int64_t fed) {
    const int64_t before = probe_->calls();
    const StatePtr state = *slots_.Keep({sequence->slot, {}, sequence->segments}, fed, &store_);
    sequence->segments = state->segments();
    calls_ = probe_->calls() - before;
    return state;
  };
  for (const int32_t token : {1, 2, 3, 4, 5}) Feed(sequence, token);
  const StatePtr first = keep(5);
  EXPECT_EQ(store_.Use(first.get())->values(), StateAfter({1, 2, 3, 4, 5}));
  EXPECT_EQ(calls_, 3) << "a segment, and what is in front of it and behind it";
  for (const int32_t token : {6, 7, 8, 9}) Feed(sequence, token);
  const StatePtr second = keep(9);
  EXPECT_EQ(store_.Use(second.get())->values(), StateAfter({1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(calls_, 3) << "the second segment";
  EXPECT_EQ(second->segments().front(), first->segments().front());
  EXPECT_EQ(store_.totals().memory_bytes, second->bytes() + first->own_bytes());
  sequence->position = 9;
  EXPECT_EQ(slots_.used_bytes(), kFakeStateBytes + 10 * 4) << "five blocks of two tokens";
}

TEST_F(SlotsTest, ZeroSoonKeepsTheSlot) {
  StubRequest request;
  GiveAll(&request);
  Feed(request.sequence(0), 8);
  slots_.ZeroSoon(request.sequence(0));
  ASSERT_TRUE(slots_.ZeroFreed().ok());
  EXPECT_EQ(ValuesOf(*request.sequence(0)), StateAfter({}));
  EXPECT_EQ(slots_.used(), 1);
}

TEST_F(SlotsTest, AParkThatFailsTakesNothing) {
  FakeBackendOptions options;
  options.fail_at_call = 2;  // ZeroSlots, the first ReadSlot, then the second
  FakeBackend failing(config_, options, std::make_shared<FakeProbe>());
  Slots slots(&failing);
  StubRequest request(1, 2);
  request.CreateSequences();
  for (auto& sequence : request.sequences) slots.Give(sequence.get());
  ASSERT_TRUE(slots.Prepare().ok());
  EXPECT_FALSE(slots.MoveToHost(request, /*parked=*/false).ok());
  EXPECT_EQ(slots.in_host_memory(), 0);
  EXPECT_EQ(slots.holders().size(), 2u);
  for (auto& sequence : request.sequences) slots.TakeBack(sequence.get());
  EXPECT_FALSE(slots.ZeroFreed().ok());
  EXPECT_EQ(slots.free(), 2);
  slots.Abandon();
  EXPECT_EQ(slots.free(), 4);
}

// Any order of calls leaves every slot either free and zeroed, or held by one sequence.
TEST_F(SlotsTest, EverySlotIsHeldOnceOrFreeAndZeroed) {
  std::mt19937 random(20261122);
  std::vector<std::unique_ptr<StubRequest>> requests;
  RequestId next = 1;
  for (int turn = 0; turn < 2000; ++turn) {
    const unsigned choice = random() % 4;
    if (choice == 0 && slots_.free() > 0) {
      const int samples = 1 + static_cast<int>(random() % static_cast<unsigned>(slots_.free()));
      requests.push_back(std::make_unique<StubRequest>(next++, samples));
      GiveAll(requests.back().get());
    } else if (!requests.empty()) {
      const size_t index = random() % requests.size();
      StubRequest* const request = requests[index].get();
      const bool holds = request->sequence(0)->slot != kGuardSlot;
      if (choice == 1 && holds) {
        ASSERT_TRUE(slots_.MoveToHost(*request, /*parked=*/false).ok());
      } else if (choice == 1 && slots_.free() >= request->num_slots) {
        GiveAll(request);
      } else if (choice == 2 && holds) {
        Feed(request->sequence(0), static_cast<int32_t>(random() % 16));
      } else if (choice == 3) {
        for (auto& sequence : request->sequences) slots_.TakeBack(sequence.get());
        slots_.ForgetEnded();
        requests.erase(requests.begin() + static_cast<std::ptrdiff_t>(index));
      }
    }
    ASSERT_TRUE(slots_.ZeroFreed().ok());
    int held = 0, on_host = 0;
    std::set<Slot> distinct;
    for (const auto& request : requests) {
      const bool holds = request->sequence(0)->slot != kGuardSlot;
      (holds ? held : on_host) += request->num_slots;
      for (const auto& sequence : request->sequences) distinct.insert(sequence->slot);
    }
    distinct.erase(kGuardSlot);
    ASSERT_EQ(static_cast<int>(distinct.size()), held);
    ASSERT_EQ(slots_.used(), held);
    ASSERT_EQ(slots_.in_host_memory(), on_host);
    ASSERT_EQ(slots_.free(), 4 - held);
    ASSERT_EQ(static_cast<int>(slots_.holders().size()), held);
    ASSERT_LE(probe_->dirty_slots(), held);
  }
  EXPECT_THAT(probe_->violations(), IsEmpty());
}

TEST_F(SlotsTest, EndsTheProcessRatherThanShareASlot) {
  StubRequest request(1, 4), other(2, 1);
  GiveAll(&request);
  other.CreateSequences();
  EXPECT_DEATH(slots_.Give(other.sequence(0)), "none is free");
  const Slot slot = request.sequence(0)->slot;
  slots_.TakeBack(request.sequence(0));
  ASSERT_TRUE(slots_.ZeroFreed().ok());
  request.sequence(0)->slot = slot;  // as if it still held it
  slots_.TakeBack(request.sequence(0));
  EXPECT_DEATH(slots_.ZeroFreed().IgnoreError(), "a free slot is given back");
}

}  // namespace
}  // namespace rivulet
