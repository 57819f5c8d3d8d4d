// SPDX-License-Identifier: Apache-2.0
// Which connections are to be closed, with counts and times that the test gives.
#include "server/grpc/connections/reset_rates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace rivulet {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr absl::Duration kStep = absl::Milliseconds(50);
constexpr absl::Time kBegin = absl::UnixEpoch();

std::set<std::string> Peers(const std::vector<ConnectionCalls>& connections) {
  std::set<std::string> peers;
  for (const ConnectionCalls& connection : connections) peers.insert(connection.peer);
  return peers;
}

// What happens on a connection in a second.
struct Traffic {
  std::string peer;
  int64_t succeed = 0, fail = 0;
};

// The peers that are to be closed after such traffic. Of `seconds`, none is closed before the end.
std::set<std::string> OffendersAfter(absl::Duration time, const std::vector<Traffic>& all) {
  ResetRates rates(1000);
  const int64_t steps = time / kStep;
  const auto after = [](int64_t a_second, int64_t step) {
    return static_cast<int64_t>(static_cast<double>(a_second * step) *
                                absl::ToDoubleSeconds(kStep));
  };
  std::set<std::string> offenders;
  for (int64_t step = 0; step <= steps; ++step) {
    std::vector<ConnectionCalls> open;
    for (size_t i = 0; i < all.size(); ++i) {
      const int64_t good = after(all[i].succeed, step), bad = after(all[i].fail, step);
      open.push_back({static_cast<int64_t>(i + 1), all[i].peer, good + bad, good, bad});
    }
    offenders.merge(Peers(rates.Offenders(open, kBegin + kStep * step)));
  }
  return offenders;
}

// Beside two connections that have as many replies as they may.
std::set<std::string> OffendersBesideFull(int max_streams, int64_t unfinished) {
  const int64_t full = std::max(max_streams, 1000);
  const std::vector<ConnectionCalls> open = {
      {1, "a:1", unfinished, 0, 0}, {2, "b:1", full, 0, 0}, {3, "c:1", full, 0, 0}};
  return Peers(ResetRates(max_streams).Offenders(open, kBegin));
}

TEST(ResetRatesTest, WhoHasMoreThanTwiceItsStreamsUnfinishedIsAnOffenderWhileThereAreManyCalls) {
  EXPECT_THAT(Peers(ResetRates(1000).Offenders({{1, "a:1", 4000, 0, 0}}, kBegin)), IsEmpty());
  EXPECT_THAT(OffendersBesideFull(1000, 2001), ElementsAre("a:1"));
}

TEST(ResetRatesTest, LimitsGrowWithTheStreamsOfAConnectionFromAThousandOn) {
  EXPECT_THAT(OffendersBesideFull(100, 2000), IsEmpty());
  EXPECT_THAT(OffendersBesideFull(100, 2001), ElementsAre("a:1"));
  EXPECT_THAT(OffendersBesideFull(3000, 6000), IsEmpty());
  EXPECT_THAT(OffendersBesideFull(3000, 6001), ElementsAre("a:1"));
}

TEST(ResetRatesTest, ALastingRateOfResetsIsTooFastAlsoWhereNoneIsUnfinished) {
  EXPECT_THAT(OffendersAfter(absl::Seconds(60), {{"a:1", 0, 1900}}), IsEmpty());
  EXPECT_THAT(OffendersAfter(absl::Seconds(15), {{"a:1", 0, 2200}}), ElementsAre("a:1"));
  EXPECT_THAT(OffendersAfter(absl::Milliseconds(500), {{"a:1", 0, 20000}}), ElementsAre("a:1"));
}

TEST(ResetRatesTest, ManyConnectionsOfOneAddressCountTogether) {
  std::vector<Traffic> storm(16, {"", 0, 200});
  for (size_t i = 0; i < storm.size(); ++i) storm[i].peer = "bad:" + std::to_string(i);
  storm.push_back({"bad:who-cancels-a-little", 0, 10});
  storm.push_back({"bad:who-is-served", 50, 10});
  storm.push_back({"good:1", 0, 200});
  const std::set<std::string> offenders = OffendersAfter(absl::Seconds(10), storm);
  EXPECT_EQ(offenders.size(), 16u);
  EXPECT_THAT(offenders, Contains("bad:0"));
  EXPECT_THAT(offenders, Not(Contains("good:1")));
}

TEST(ResetRatesTest, WhileThereAreManyCallsHalfASecondIsEnough) {
  ResetRates rates(1000);
  std::vector<ConnectionCalls> open;
  for (int64_t id = 1; id <= 16; ++id) open.push_back({id, "a:" + std::to_string(id), 1000, 0, 0});
  EXPECT_THAT(rates.Offenders(open, kBegin), IsEmpty()) << "they may be replies that run";
  for (ConnectionCalls& connection : open) connection.started = 1150;
  EXPECT_EQ(rates.Offenders(open, kBegin + kStep).size(), 16u);
}

TEST(ResetRatesTest, ABalancersConnectionStaysOpenWhileAClientOfItIsServed) {
  const auto after_a_minute = [](int64_t succeed, int64_t fail) {
    return OffendersAfter(absl::Minutes(1), {{"balancer:1", succeed, fail}});
  };
  EXPECT_THAT(after_a_minute(500, 5000), IsEmpty()) << "100 clients with five calls a second";
  EXPECT_THAT(after_a_minute(130, 40000), IsEmpty()) << "one client that makes call after call";
  EXPECT_THAT(after_a_minute(4, 5000), ElementsAre("balancer:1"));
}

TEST(ResetRatesTest, AClientThatGivesUpFiveThousandCallsAtOnceIsNoOffender) {
  ResetRates rates(1000);
  int64_t ended = 0;
  for (int round = 0; round < 10; ++round) {  // 500 at a time, as fast as they can be begun
    const absl::Time now = kBegin + absl::Milliseconds(100) * round;
    EXPECT_THAT(rates.Offenders({{1, "a:1", ended + 500, 0, ended}}, now), IsEmpty());
    ended += 500;
  }
  EXPECT_THAT(rates.Offenders({{1, "a:1", ended, 0, ended}}, kBegin + absl::Seconds(1)), IsEmpty());
}

TEST(ResetRatesTest, RepliesThatRunAreNoResetsAndMayEndTogether) {
  ResetRates rates(1000);
  std::vector<ConnectionCalls> open;
  for (int64_t id = 1; id <= 16; ++id) {
    open.push_back({id, "balancer:" + std::to_string(id), 1000, 0, 0});
  }
  EXPECT_THAT(rates.Offenders(open, kBegin), IsEmpty());
  for (ConnectionCalls& connection : open) connection.failed = 1000;
  EXPECT_THAT(rates.Offenders(open, kBegin + absl::Minutes(1)), IsEmpty());
}

}  // namespace
}  // namespace rivulet
