// SPDX-License-Identifier: Apache-2.0
// The queue is bounded and leaves room for others; what a refusal says.
#include <gmock/gmock.h>

#include <deque>
#include <tuple>

#include "model/base/error.h"
#include "tests/unit/server/engine/engine_fixture.h"

namespace rivulet {
namespace {

class QueueTest : public EngineTest {
 protected:
  static GenerateSpec OfTenant(const std::string& tenant) {
    GenerateSpec spec = Prompt({}, 2);
    spec.tenant = tenant;
    return spec;
  }
  void EndSome(int count) {
    for (int i = 0; i < count; ++i) {
      ReplyCollector done;
      ASSERT_EQ(done.Start(engine_.get(), Prompt({}, 1)), absl::OkStatus());
      ASSERT_EQ(done.Wait(), absl::OkStatus());
    }
  }
  std::string Reason(const std::string& tenant) {
    ReplyCollector refused;
    return GetErrorDetail(refused.Start(engine_.get(), OfTenant(tenant))).reason;
  }
  // When a request that is refused now may come again.
  absl::Duration Hint(const std::string& tenant = "") {
    ReplyCollector refused;
    return GetErrorDetail(refused.Start(engine_.get(), OfTenant(tenant))).retry_after;
  }
};

TEST_F(QueueTest, AFullQueueRefusesWithARetryHint) {
  fake_.limits.num_slots = 2;
  options_.max_queue = 3;
  Start();
  probe_->AllowRuns(0);
  std::deque<ReplyCollector> taken(5);
  for (ReplyCollector& collector : taken) {
    ASSERT_EQ(collector.Start(engine_.get(), Prompt({}, 3)), absl::OkStatus())
        << "two slots and three places";
  }
  ReplyCollector refused;
  const absl::Status status = refused.Start(engine_.get(), Prompt({}, 3));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetail(status).reason, "QUEUE_FULL");
  EXPECT_GT(GetErrorDetail(status).retry_after, absl::ZeroDuration());
  EXPECT_TRUE(Eventually([&] { return engine_->GetLoad().running <= 2; }));
  probe_->AllowAll();
  for (ReplyCollector& collector : taken) EXPECT_EQ(collector.Wait(), absl::OkStatus());
  ReplyCollector later;
  EXPECT_EQ(later.Start(engine_.get(), Prompt({}, 3)), absl::OkStatus());
  EXPECT_EQ(later.Wait(), absl::OkStatus());
}

TEST_F(QueueTest, TheGivenTokensOfAllRequestsTogetherAreBoundedButOneAloneIsTaken) {
  options_.max_queue_tokens = 10;
  Start();
  probe_->AllowRuns(0);
  ReplyCollector large, small, refused, later;
  ASSERT_EQ(large.Start(engine_.get(), Prompt({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 2)),
            absl::OkStatus());
  EXPECT_EQ(GetErrorDetail(refused.Start(engine_.get(), Prompt({1}, 2))).reason, "QUEUE_FULL");
  probe_->AllowAll();
  EXPECT_EQ(large.Wait(), absl::OkStatus());
  EXPECT_EQ(small.Start(engine_.get(), Prompt({1, 2, 3}, 2)), absl::OkStatus());
  EXPECT_EQ(later.Start(engine_.get(), Prompt({1, 2, 3}, 2)), absl::OkStatus());
  EXPECT_EQ(small.Wait(), absl::OkStatus());
  EXPECT_EQ(later.Wait(), absl::OkStatus());
}

TEST_F(QueueTest, ATenantAloneCannotFillTheQueue) {
  fake_.limits.num_slots = 2;
  options_.max_queue = 16;  // 14 of it for one tenant
  Start();
  probe_->AllowRuns(0);
  EXPECT_EQ(engine_->GetLoad().max_tenant_queue, 14);
  std::deque<ReplyCollector> taken(18);
  for (size_t i = 0; i < 16; ++i) {
    ASSERT_EQ(taken[i].Start(engine_.get(), OfTenant("greedy")), absl::OkStatus()) << i;
  }
  EXPECT_EQ(Reason("greedy"), "TENANT_QUEUE_FULL");
  for (size_t i = 16; i < 18; ++i) {
    ASSERT_EQ(taken[i].Start(engine_.get(), OfTenant("modest")), absl::OkStatus()) << i;
  }
  EXPECT_EQ(Reason("modest"), "QUEUE_FULL");
  EXPECT_EQ(engine_->GetLoad().refused, 2);
  probe_->AllowAll();
  for (ReplyCollector& collector : taken) EXPECT_EQ(collector.Wait(), absl::OkStatus());
  // What has ended counts no more.
  std::deque<ReplyCollector> again(16);
  probe_->AllowRuns(0);
  for (ReplyCollector& collector : again) {
    ASSERT_EQ(collector.Start(engine_.get(), OfTenant("greedy")), absl::OkStatus());
  }
  probe_->AllowAll();
  for (ReplyCollector& collector : again) EXPECT_EQ(collector.Wait(), absl::OkStatus());
  ExpectAtRest();
  EXPECT_EQ(engine_->GetLoad().tenants, 0);
}

TEST_F(QueueTest, HoweverManyTenantsTakeAllTheyCanRoomIsLeftForOneMore) {
  fake_.limits.num_slots = 2;
  options_.max_queue = 1024;
  Start();
  probe_->AllowRuns(0);
  std::deque<ReplyCollector> taken;
  const auto take_all = [&](const std::string& tenant) {
    size_t count = 0;
    for (; taken.emplace_back().Start(engine_.get(), OfTenant(tenant)).ok(); ++count) {
    }
    taken.pop_back();
    return count;
  };
  EXPECT_EQ(take_all("a"), 2u + 896u);
  EXPECT_EQ(take_all("b"), 112u) << "seven eighths of what a left";
  EXPECT_EQ(take_all("c"), 14u);
  EXPECT_EQ(Reason("b"), "TENANT_QUEUE_FULL");
  EXPECT_EQ(take_all("d"), 2u) << "the last two";
  EXPECT_EQ(Reason("e"), "QUEUE_FULL");
  // Room that comes free goes to those that have least.
  for (size_t i = 2; i < 102; ++i) engine_->Cancel(taken[i].id());
  probe_->AllowRuns(1);
  EXPECT_TRUE(Eventually([&] {
    const EngineLoad load = engine_->GetLoad();
    return load.queued + load.running == 1026 - 100;
  }));
  EXPECT_EQ(Reason("a"), "TENANT_QUEUE_FULL") << "it has 798 of 926";
  EXPECT_EQ(take_all("c"), 86u) << "seven times 14 are left";
  EXPECT_EQ(take_all("b"), 0u);
  probe_->AllowAll();
  engine_.reset();
}

TEST_F(QueueTest, ATenantsGivenTokensLeaveRoomForOthers) {
  options_.max_queue_tokens = 80;  // 70 of them for one tenant
  Start();
  probe_->AllowRuns(0);
  std::deque<ReplyCollector> taken(5);
  const auto start = [&](ReplyCollector* reply, const std::string& tenant, size_t tokens) {
    GenerateSpec spec = Prompt(std::vector<int32_t>(tokens, 1), 2);
    spec.tenant = tenant;
    return GetErrorDetail(reply->Start(engine_.get(), spec)).reason;
  };
  EXPECT_EQ(start(&taken[0], "a", 60), "");
  EXPECT_EQ(start(&taken[1], "a", 11), "TENANT_QUEUE_FULL");
  EXPECT_EQ(start(&taken[1], "a", 10), "");
  EXPECT_EQ(start(&taken[2], "b", 8), "") << "its first";
  EXPECT_EQ(start(&taken[3], "b", 2), "TENANT_QUEUE_FULL");
  EXPECT_EQ(start(&taken[3], "c", 3), "QUEUE_FULL");
  EXPECT_EQ(start(&taken[3], "c", 2), "");
  EXPECT_EQ(start(&taken[4], "a", 0), "") << "no token, no room needed";
  probe_->AllowAll();
  for (ReplyCollector& reply : taken) EXPECT_EQ(reply.Wait(), absl::OkStatus());
  ExpectAtRest();
}

TEST_F(QueueTest, ARefusalSaysHowLongWhatWaitsTakesAtTheRecentRate) {
  fake_.limits.num_slots = 1;
  options_.max_queue = 8;
  Start();
  EndSome(20);  // within the window of five seconds: four a second
  probe_->AllowRuns(0);
  std::deque<ReplyCollector> taken(9);
  for (size_t i = 0; i < 9; ++i) {
    const std::string tenant(i < 8 ? "" : "other");
    ASSERT_EQ(taken[i].Start(engine_.get(), OfTenant(tenant)), absl::OkStatus());
    EXPECT_TRUE(Eventually([&] { return probe_->num_runs() == 21; })) << "the first is held";
  }
  EXPECT_EQ(Hint(), absl::Seconds(1)) << "no full bucket of time yet";
  clock_ms_ += 1000;
  EXPECT_EQ(Hint(), absl::Seconds(2)) << "eight wait";
  EXPECT_EQ(engine_->GetLoad().oldest_wait, absl::Seconds(1));
  clock_ms_ += 60'000;
  EXPECT_EQ(Hint(), absl::Seconds(1)) << "nothing has ended for a while";
  probe_->AllowAll();
  for (ReplyCollector& collector : taken) EXPECT_EQ(collector.Wait(), absl::OkStatus());
  ExpectAtRest();
  clock_ms_ += 1000;
  EXPECT_EQ(engine_->GetLoad().oldest_wait, absl::ZeroDuration()) << "nothing waits";
}

TEST_F(QueueTest, ATenantSharesTheRateWithTheOthersThatAreHere) {
  fake_.limits.num_slots = 1;
  options_.max_tenant_queue = 4;
  Start();
  EndSome(20);
  probe_->AllowRuns(0);
  std::deque<ReplyCollector> taken(6);
  for (size_t i = 0; i < 5; ++i) {
    ASSERT_EQ(taken[i].Start(engine_.get(), OfTenant("busy")), absl::OkStatus());
  }
  clock_ms_ += 1000;
  EXPECT_EQ(Hint("busy"), absl::Milliseconds(1250)) << "five, four a second";
  ASSERT_EQ(taken[5].Start(engine_.get(), OfTenant("other")), absl::OkStatus());
  EXPECT_EQ(Hint("busy"), absl::Milliseconds(2500)) << "every second one is the other's";
  probe_->AllowAll();
  for (ReplyCollector& collector : taken) EXPECT_EQ(collector.Wait(), absl::OkStatus());
}

TEST_F(QueueTest, AHintIsATenthOfASecondAtLeastAndAMinuteAtMost) {
  fake_.limits.num_slots = 1;
  for (const auto& [waiting, ended, hint] :
       {std::tuple{0, 20, absl::Milliseconds(100)}, std::tuple{20, 1, absl::Minutes(1)}}) {
    options_.max_queue = waiting;
    Start();
    EndSome(ended);
    probe_->AllowRuns(0);
    std::deque<ReplyCollector> taken(static_cast<size_t>(1 + waiting));
    for (size_t i = 0; i < taken.size(); ++i) {
      const std::string tenant(i == 19 ? "b" : i == 20 ? "c" : "");
      ASSERT_EQ(taken[i].Start(engine_.get(), OfTenant(tenant)), absl::OkStatus()) << i;
    }
    clock_ms_ += 1000;
    EXPECT_EQ(Hint("d"), hint) << waiting;
    probe_->AllowAll();
    for (ReplyCollector& collector : taken) EXPECT_EQ(collector.Wait(), absl::OkStatus());
  }
}

TEST_F(QueueTest, WhoeverSawAnEndFindsItsPlaceFree) {
  fake_.limits.num_slots = 1;
  options_.max_queue = 0;
  Start();
  for (int i = 0; i < 300; ++i) {
    ReplyCollector collector;
    ASSERT_EQ(collector.Start(engine_.get(), Prompt({}, 1)), absl::OkStatus()) << i;
    ASSERT_EQ(collector.Wait(), absl::OkStatus());
  }
}

}  // namespace
}  // namespace rivulet
