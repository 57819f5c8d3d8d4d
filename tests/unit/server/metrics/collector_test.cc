// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/collector.h"

#include <gtest/gtest.h>
#include <prometheus/check_names.h>

#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "model/base/error.h"
#include "server/metrics/metric_table.h"
#include "server/sessions/replicated/session_store.h"
#include "tests/support/load_model.h"
#include "tests/unit/server/fake_engine.h"

namespace rivulet {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using testing::FakeEngine;

TEST(MetricTableTest, NamesAreDistinctAndKeepTheRulesOfPrometheus) {
  std::set<std::string> names;
  for (const MetricInfo& info : Metrics()) {
    const std::string name(info.name);
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_TRUE(prometheus::CheckMetricName(name)) << name;
    EXPECT_TRUE(absl::StartsWith(name, "rivulet_") || absl::StartsWith(name, "process_")) << name;
    EXPECT_EQ(absl::EndsWith(name, "_total"), info.kind == MetricKind::kCounter) << name;
    EXPECT_TRUE(absl::EndsWith(info.sentence, ".")) << name;
    for (const absl::string_view label : absl::StrSplit(info.labels, ',', absl::SkipEmpty())) {
      EXPECT_TRUE(prometheus::CheckLabelName(std::string(label))) << name << " " << label;
    }
  }
}

class RemoteStore final : public SessionStore {
 public:
  void Write(StoreWrite, Done) override {}
  void Read(std::string, Done) override {}
  void ReadChunks(std::vector<std::string>, ChunksDone) override {}
  void List(std::string, int64_t, int64_t, MembersDone) override {}
  std::optional<bool> connected() const override { return is_connected; }

  std::optional<bool> is_connected;
};

class CollectorTest : public ::testing::Test {
 protected:
  CollectorTest() {
    auto model = Model::Load(SourcePath("tests/conformance/models/tiny-elu-relu"));
    EXPECT_TRUE(model.ok()) << model.status();
    engine_ = std::make_unique<FakeEngine>(*std::move(model));
    models_.Add(testing::Serve(engine_.get()));
    engine_->meters().usage()->Of("acme", "reader")->given = 5;  // a caller has its series
  }

  // "name{label=value,...}" without empty labels -> the metric.
  std::map<std::string, ClientMetric> Collect() const {
    std::map<std::string, ClientMetric> metrics;
    for (const MetricFamily& family : CollectMetrics(models_, calls_)) {
      for (const ClientMetric& metric : family.metric) {
        std::string key = family.name;
        for (const auto& [name, value] : metric.label) {
          if (!value.empty()) absl::StrAppend(&key, " ", name, "=", value);
        }
        EXPECT_TRUE(metrics.emplace(key, metric).second) << key << " comes twice";
      }
    }
    return metrics;
  }

  std::unique_ptr<FakeEngine> engine_;
  ServedModels models_;
  ServerCalls calls_{nullptr};
};

TEST_F(CollectorTest, ShowsEveryMetricOfTheTableWithItsLabels) {
  calls_.errors.Add(absl::StatusCode::kNotFound, "MODEL_NOT_FOUND");
  EXPECT_FALSE(Collect().contains("rivulet_tls_certificate_end_timestamp_seconds")) << "plaintext";
  calls_.connections.SetCertificateEnd(absl::FromUnixSeconds(1'800'000'000));
  const auto store = std::make_shared<RemoteStore>();
  engine_->mutable_options().session_store = store;
  store->is_connected = false;
  const auto load = std::make_shared<ExpertLoad>(2, 3);
  load->Add(1, 2, 5);
  engine_->mutable_limits().expert_load = load;
  EXPECT_EQ(
      Collect().at("rivulet_expert_rows_total model=tiny-elu-relu layer=1 expert=2").counter.value,
      5);
  EXPECT_EQ(Collect().at("rivulet_tls_certificate_end_timestamp_seconds").gauge.value, 1.8e9);
  std::vector<std::string> names;
  for (const MetricFamily& family : CollectMetrics(models_, calls_)) names.push_back(family.name);
  std::vector<std::string> want;
  for (const MetricInfo& info : Metrics()) want.emplace_back(info.name);
  EXPECT_EQ(names, want);
}

TEST_F(CollectorTest, AStoreIsConnectedOrNotOrNeedsNoConnection) {
  const std::string name = "rivulet_session_store_connected";
  EXPECT_FALSE(Collect().contains(name)) << "there is no store";
  const auto store = std::make_shared<RemoteStore>();
  engine_->mutable_options().session_store = store;
  EXPECT_FALSE(Collect().contains(name)) << "it needs no connection";
  store->is_connected = true;
  EXPECT_EQ(Collect().at(name).gauge.value, 1);
  store->is_connected = false;
  EXPECT_EQ(Collect().at(name).gauge.value, 0);
}

TEST_F(CollectorTest, CountsOfRequestsAndErrors) {
  EngineMeters& meters = engine_->mutable_meters();
  for (int i = 0; i < 3; ++i) meters.CountStart(RequestKind::kGenerate);
  meters.CountEnd(RequestKind::kGenerate, absl::OkStatus());
  ErrorDetail detail;
  detail.reason = "DRAINING";
  meters.CountEnd(RequestKind::kGenerate,
                  MakeError(absl::StatusCode::kUnavailable, "over", detail));
  calls_.errors.Add(absl::StatusCode::kResourceExhausted, "QUEUE_FULL");
  const auto metrics = Collect();
  const std::string request = " model=tiny-elu-relu method=Generate";
  EXPECT_EQ(metrics.at("rivulet_requests_started_total" + request).counter.value, 3);
  const std::string finished = "rivulet_requests_finished_total" + request;
  EXPECT_EQ(metrics.at(finished + " code=OK").counter.value, 1);
  EXPECT_EQ(metrics.at(finished + " code=UNAVAILABLE reason=DRAINING").counter.value, 1);
  EXPECT_EQ(
      metrics.at("rivulet_requests_started_total model=tiny-elu-relu method=Score").counter.value,
      0);
  EXPECT_EQ(
      metrics.at("rivulet_errors_total code=RESOURCE_EXHAUSTED reason=QUEUE_FULL").counter.value,
      1);
  // What nobody was told is there with 0; what only the start of a server tells is not.
  EXPECT_EQ(metrics.at("rivulet_errors_total code=INTERNAL reason=UNKNOWN").counter.value, 0);
  EXPECT_FALSE(
      metrics.contains("rivulet_errors_total code=INVALID_ARGUMENT reason=CONFIG_INVALID"));
  EXPECT_EQ(metrics.at("rivulet_slots model=tiny-elu-relu").gauge.value, 8);
  EXPECT_EQ(metrics.at("rivulet_backend_healthy model=tiny-elu-relu").gauge.value, 1);
  engine_->SetHealth(absl::UnavailableError("gone"));
  EXPECT_EQ(Collect().at("rivulet_backend_healthy model=tiny-elu-relu").gauge.value, 0);
}

TEST_F(CollectorTest, EveryNumberOfTheLoadIsInItsSeries) {
  EngineLoad load;
  load.refused = 1;
  load.fed_total = 2;
  load.tokens_total = 3;
  load.forced_total = 2;
  load.queued = 4;
  load.max_queue = 5;
  load.oldest_wait = absl::Seconds(6);
  load.tenants = 7;
  load.cache_hits = 8;
  load.cache_misses = 9;
  load.cache_bytes = 10;
  load.parked = 11;
  load.preempted = 12;
  load.preempted_total = 13;
  load.drafted_total = 45;
  load.accepted_total = 31;
  load.unread_replies_ended = 14;
  load.draining = true;
  load.states = {.memory_bytes = 15,
                 .writing_bytes = 16,
                 .in_memory = 17,
                 .on_disk = 18,
                 .disk_bytes = 19,
                 .forgotten = 20,
                 .file_errors = 21};
  load.replication = {.takeovers = 22,
                      .lost = 23,
                      .writes = 24,
                      .rewritten = 25,
                      .not_durable = 26,
                      .unavailable = 27,
                      .full = 28,
                      .damaged = 29,
                      .unreadable = 30};
  engine_->SetLoad(load);
  const auto metrics = Collect();
  const auto expect = [&metrics](const std::string& name, double value) {
    const auto found = metrics.find("rivulet_" + name);
    ASSERT_NE(found, metrics.end()) << name;
    // One of the two is set.
    EXPECT_EQ(found->second.counter.value + found->second.gauge.value, value) << name;
  };
  const std::string model = " model=tiny-elu-relu";
  expect("queue_refusals_total" + model, 1);
  expect("prompt_tokens_total" + model, 2);
  expect("generated_tokens_total" + model, 3);
  expect("forced_tokens_total" + model, 2);
  expect("queue_depth" + model, 4);
  expect("queue_limit" + model, 5);
  expect("queue_oldest_wait_seconds" + model, 6);
  expect("tenants" + model, 7);
  expect("prompt_cache_lookups_total" + model + " result=hit", 8);
  expect("prompt_cache_lookups_total" + model + " result=miss", 9);
  expect("prompt_cache_bytes" + model, 10);
  expect("samples_parked" + model, 11);
  expect("samples_preempted" + model, 12);
  expect("preemptions_total" + model, 13);
  expect("drafts_total" + model + " result=accepted", 31);
  expect("drafts_total" + model + " result=rejected", 14);
  expect("replies_cut_total" + model, 14);
  expect("model_draining" + model, 1);
  expect("state_bytes" + model + " tier=memory", 15);
  expect("state_bytes" + model + " tier=writing", 16);
  expect("states" + model + " tier=memory", 17);
  expect("states" + model + " tier=disk", 18);
  expect("state_bytes" + model + " tier=disk", 19);
  expect("states_forgotten_total" + model, 20);
  expect("state_file_errors_total" + model, 21);
  expect("session_store_takeovers_total" + model, 22);
  expect("session_store_lost_total" + model, 23);
  expect("session_store_writes_total" + model, 24);
  expect("session_store_rewritten_total" + model, 25);
  expect("session_store_not_durable_total" + model, 26);
  expect("session_store_errors_total" + model + " code=UNAVAILABLE", 27);
  expect("session_store_errors_total" + model + " code=RESOURCE_EXHAUSTED", 28);
  expect("session_store_errors_total" + model + " code=DATA_LOSS", 29);
  expect("session_store_errors_total" + model + " code=FAILED_PRECONDITION", 30);
}

TEST_F(CollectorTest, TokensOfACallerAreInItsSeries) {
  engine_->meters().usage()->Of("acme", "reader")->generated = 7;
  const auto metrics = Collect();
  const std::string caller = " model=tiny-elu-relu tenant=acme key=reader";
  EXPECT_EQ(metrics.at("rivulet_usage_given_tokens_total" + caller).counter.value, 5);
  EXPECT_EQ(metrics.at("rivulet_usage_generated_tokens_total" + caller).counter.value, 7);
}

TEST_F(CollectorTest, BucketsOfAHistogramAreCumulativeAndEndAtInfinity) {
  engine_->mutable_meters().NoteQueueTime(absl::Milliseconds(2));
  engine_->mutable_meters().NoteQueueTime(absl::Milliseconds(300));
  engine_->mutable_meters().NoteQueueTime(absl::Hours(1));
  const auto metrics = Collect();
  const auto& histogram = metrics.at("rivulet_queue_time_seconds model=tiny-elu-relu").histogram;
  std::map<double, uint64_t> below;
  for (const auto& bucket : histogram.bucket) below[bucket.upper_bound] = bucket.cumulative_count;
  EXPECT_EQ(below.at(0.001), 0u);
  EXPECT_EQ(below.at(0.0025), 1u);
  EXPECT_EQ(below.at(0.25), 1u);
  EXPECT_EQ(below.at(0.5), 2u);
  EXPECT_EQ(below.at(300), 2u);
  EXPECT_EQ(below.at(INFINITY), 3u);
  EXPECT_EQ(histogram.sample_count, 3u);
  EXPECT_DOUBLE_EQ(histogram.sample_sum, 3600.302);
}

TEST_F(CollectorTest, TimesOfTheSharedStoreAreInTheirSeries) {
  engine_->mutable_meters().NoteSessionClaim(absl::Seconds(2));
  engine_->mutable_meters().NoteSessionSave(absl::Seconds(3));
  const auto metrics = Collect();
  const std::string model = " model=tiny-elu-relu";
  EXPECT_EQ(metrics.at("rivulet_session_claim_seconds" + model).histogram.sample_sum, 2);
  EXPECT_EQ(metrics.at("rivulet_session_save_seconds" + model).histogram.sample_sum, 3);
}

TEST_F(CollectorTest, AModelThatIsUnloadedLeavesNoSeries) {
  ASSERT_TRUE(models_.BeginUnload("tiny-elu-relu"));
  EXPECT_EQ(Collect().count("rivulet_model_info model=tiny-elu-relu backend=cpu"), 1u)
      << "its requests still run";
  models_.FinishUnload("tiny-elu-relu");
  for (const auto& [key, metric] : Collect()) {
    EXPECT_FALSE(absl::StrContains(key, "model=")) << key;
  }
}

}  // namespace
}  // namespace rivulet
