// SPDX-License-Identifier: Apache-2.0
// What a run says of itself. That the JSON output is complete is tested in
// tests/e2e/cli/bench_cli_test.py.
#include "client/cli/bench/bench_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/cli/bench/bench_picture.h"
#include "nlohmann/json.hpp"

namespace rivulet {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMs = 1'000'000;

class BenchReportTest : public ::testing::Test {
 protected:
  BenchReportTest() {
    options_.target.target = "host:1";
    options_.sampling.seed = 1;
    options_.requests = 4;
    model_.mutable_summary()->set_name("tiny");
    model_.set_numerics_id("cpu-x");
    measured_.succeeded = 3;
    measured_.failed = 2;
    measured_.rejected = 1;
    measured_.errors[{"RESOURCE_EXHAUSTED", "QUEUE_FULL"}] = {1, "the queue\nis full"};
    measured_.errors[{"UNAVAILABLE", ""}] = {1, "gone"};
    measured_.window_seconds = 2;
    measured_.window_requests = 3;
    measured_.window_tokens = 300;
    for (const int64_t ms : {10, 20, 400}) measured_.end_to_end.Record(ms * kMs);
  }
  BenchRun Run() const { return {options_, model_, measured_, absl::UnixEpoch(), {2, "CPU"}}; }

  BenchOptions options_;
  v1::GetModelReply model_;
  Measurements measured_;
};

TEST_F(BenchReportTest, TheTableNamesLoadRatesAndErrors) {
  const std::string table = BenchTable(Run());
  EXPECT_THAT(table,
              HasSubstr("generate tiny (cpu-x) at host:1: closed loop, 1 worker, 4 requests"));
  EXPECT_THAT(table, HasSubstr("3 succeeded, 2 failed (1 rejected)"));
  EXPECT_THAT(table, HasSubstr("1.5 requests/s, 150 tokens/s"));
  EXPECT_THAT(table, HasSubstr("1 x RESOURCE_EXHAUSTED QUEUE_FULL - the queue is full\n"));
  EXPECT_THAT(table, HasSubstr("1 x UNAVAILABLE - gone\n"));
  EXPECT_THAT(table, Not(HasSubstr("late")));
  EXPECT_EQ(DescribeErrors(measured_), "RESOURCE_EXHAUSTED QUEUE_FULL 1, UNAVAILABLE 1");
}

TEST_F(BenchReportTest, WarnsOfQuantilesOfFewValues) {
  EXPECT_THAT(BenchTable(Run()),
              HasSubstr("\nwarning    p99 needs 100 values and p99.9 needs 1000; with fewer it is "
                        "the maximum (end to end has 3)"));
  for (int i = 3; i < 999; ++i) measured_.end_to_end.Record(kMs);
  EXPECT_THAT(BenchTable(Run()), HasSubstr("(end to end has 999)"));
  measured_.end_to_end.Record(kMs);
  EXPECT_THAT(BenchTable(Run()), Not(HasSubstr("warning")));
}

TEST_F(BenchReportTest, AnOpenLoopShowsBothClocks) {
  EXPECT_THAT(BenchTable(Run()), Not(HasSubstr("(sent)")));
  options_.rate = 20;
  options_.poisson = false;
  options_.warmup_seconds = 1;
  measured_.late = 2;
  measured_.was_interrupted = true;
  const std::string table = BenchTable(Run());
  EXPECT_THAT(table,
              HasSubstr("open loop, 20 requests/s (constant), 4 requests after 1 s of warm-up"));
  EXPECT_THAT(table, HasSubstr("INTERRUPTED"));
  EXPECT_THAT(table, HasSubstr("2 sent more than 10 ms late"));
  EXPECT_THAT(table, HasSubstr("end to end (sent)"));
}

TEST_F(BenchReportTest, ScoreHasNoFirstToken) {
  options_.score = true;
  EXPECT_THAT(BenchTable(Run()), Not(HasSubstr("first token")));
  const auto json = nlohmann::json::parse(BenchJson(Run()));
  EXPECT_FALSE(json["latency_ms"].contains("first_token"));
  EXPECT_EQ(json["latency_ms"]["end_to_end"]["count"], 3);
  EXPECT_EQ(json["latency_ms"]["end_to_end"]["max"], 400);
}

TEST_F(BenchReportTest, ThePictureHoldsACurveForEachHistogramWithValues) {
  const BenchHistogram empty;
  const std::string svg =
      PercentilePicture("a < b & c", "sub",
                        std::vector<Curve>{{"end to end", "#123456", false, &measured_.end_to_end},
                                           {"nothing", "#654321", true, &empty}});
  EXPECT_THAT(svg, HasSubstr("a &lt; b &amp; c"));
  EXPECT_THAT(svg, HasSubstr("<polyline fill=\"none\" stroke=\"#123456\""));
  EXPECT_THAT(svg, HasSubstr(">400.0</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("nothing")));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(PercentilePicture("t", "s", {}), Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace rivulet
