// SPDX-License-Identifier: Apache-2.0
// A storm of clients on one engine: they submit, cancel, let deadlines pass, read slowly or never,
// and score. Whatever they do to each other, every reply is an exact prefix of what its session
// draws alone, complete if it ended well, and in the end every slot is free and zeroed. Bounded by
// a count of requests, not by time: RIVULET_STRESS_SCALE multiplies it. Each failure prints the
// seed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "model/base/error.h"
#include "model/text/char_tokenizer.h"
#include "server/engine/engine.h"
#include "server/engine/engine_parts.h"
#include "tests/support/fake_backend.h"
#include "tests/support/reply_collector.h"

namespace rivulet::engine_stress_test {
namespace {

constexpr int kThreads = 4;
constexpr int kRequests = 5000;

int64_t Scale() {
  const char* scale = std::getenv("RIVULET_STRESS_SCALE");
  return scale == nullptr ? 1 : std::max<int64_t>(1, std::atoll(scale));
}

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int Below(int n) { return static_cast<int>(engine_() % static_cast<uint32_t>(n)); }
  bool OneIn(int n) { return Below(n) == 0; }
  uint32_t Seed() { return static_cast<uint32_t>(engine_()); }

 private:
  std::mt19937 engine_;
};

struct Storm {
  ModelConfig config;
  FakeBackendOptions fake;
  EngineOptions options;
  const TextTokenizer* tokenizer = nullptr;
  Engine* engine = nullptr;
};

struct Tally {
  std::atomic<int64_t> ok{0}, cancelled{0}, expired{0}, unavailable{0}, refused{0};
  std::atomic<int64_t> scores{0}, scores_asked{0};
  std::atomic<int64_t> tokens{0}, wrong{0};
};

// One request in flight and what it should bring.
struct InFlight {
  explicit InFlight(ReplyCollector::Reading reading) : collector(reading) {}
  ReplyCollector collector;
  GenerateSpec spec;
};

GenerateSpec RandomSpec(const Storm& storm, Random* random) {
  GenerateSpec spec;
  const int length = random->OneIn(10) ? random->Below(150) : random->Below(12);
  for (int i = 0; i < length; ++i) spec.prompt.push_back(random->Below(26));
  spec.max_tokens = random->OneIn(20) ? 400 : 1 + random->Below(30);
  spec.num_samples = random->OneIn(6) ? 1 + random->Below(4) : 1;
  spec.sampling.seed = random->Seed();
  if (random->OneIn(2)) spec.sampling.repetition_penalty = 2;  // so that counts matter
  spec.ignore_eos = random->OneIn(2);
  if (random->OneIn(4)) spec.stop_ids = {random->Below(26)};
  if (random->OneIn(4)) {
    for (int n = 1 + random->Below(3); n > 0; --n) {
      std::string stop(1, static_cast<char>('a' + random->Below(26)));
      if (random->OneIn(2)) stop += static_cast<char>('a' + random->Below(26));
      spec.stop_strings.push_back(stop);
    }
    spec.include_stop_string = random->OneIn(2);
  }
  if (random->OneIn(5)) spec.deadline = absl::Now() + absl::Microseconds(random->Below(3000));
  spec.num_samples = std::min(spec.num_samples, storm.fake.limits.num_slots);
  return spec;
}

// What sample `index` holds when it ends well.
std::vector<int32_t> Expected(const Storm& storm, const GenerateSpec& spec, uint32_t index) {
  SlotSampler sampler;
  sampler.params = spec.sampling;
  sampler.sample_index = index;
  sampler.stop_ids = spec.stop_ids;
  if (!spec.ignore_eos) sampler.stop_ids.push_back(*storm.config.eos_token_id);
  std::vector<int32_t> feed(1, *storm.config.bos_token_id);
  for (int32_t token : spec.prompt) feed.push_back(token);
  std::vector<int32_t> drawn = FakeSolo(storm.config, nullptr, feed, sampler, spec.max_tokens);
  const auto& stops = sampler.stop_ids;
  if (std::find(stops.begin(), stops.end(), drawn.back()) != stops.end()) drawn.pop_back();
  // The first token with which the text ends in a stop string; tokens without text (a bos, an
  // ignored eos) lie between.
  std::string text;
  std::vector<size_t> ends;
  for (size_t n = 0; n < drawn.size(); ++n) {
    const absl::string_view letter = storm.tokenizer->TokenBytes(drawn[n]);
    text.append(letter.data(), letter.size());
    ends.push_back(text.size());
    size_t longest = 0;
    for (const std::string& stop : spec.stop_strings) {
      const bool ends_here = !letter.empty() && text.size() >= stop.size() &&
                             text.compare(text.size() - stop.size(), stop.size(), stop) == 0;
      if (ends_here) longest = std::max(longest, stop.size());
    }
    if (longest == 0) continue;
    const auto begin = std::upper_bound(ends.begin(), ends.end(), text.size() - longest);
    drawn.resize(spec.include_stop_string ? n + 1 : static_cast<size_t>(begin - ends.begin()));
    break;
  }
  return drawn;
}

void Check(const Storm& storm, InFlight* request, Tally* tally) {
  const absl::Status status = request->collector.Wait();
  switch (status.code()) {
    case absl::StatusCode::kOk:
      ++tally->ok;
      break;
    case absl::StatusCode::kCancelled:
      ++tally->cancelled;
      break;
    case absl::StatusCode::kDeadlineExceeded:
      ++tally->expired;
      break;
    case absl::StatusCode::kUnavailable:
      ++tally->unavailable;
      break;
    default:
      ADD_FAILURE() << status;
  }
  EXPECT_EQ(request->collector.violation(), "");
  for (int s = 0; s < request->spec.num_samples; ++s) {
    const CollectedSample& sample = request->collector.sample(static_cast<size_t>(s));
    const std::vector<int32_t> want = Expected(storm, request->spec, static_cast<uint32_t>(s));
    const size_t count = sample.tokens.size();
    const bool prefix = count <= want.size() &&
                        std::equal(sample.tokens.begin(), sample.tokens.end(), want.begin());
    const bool complete = count == want.size() && sample.finish.has_value();
    if (!prefix || (status.ok() && !complete)) {
      ++tally->wrong;
      ADD_FAILURE() << "seed " << request->spec.sampling.seed << ", sample " << s << ", " << status
                    << "\n got  " << ::testing::PrintToString(sample.tokens) << "\n want "
                    << ::testing::PrintToString(want) << "\n stop strings "
                    << ::testing::PrintToString(request->spec.stop_strings);
    }
    tally->tokens += static_cast<int64_t>(count);
  }
}

void ScoreSomething(const Storm& storm, Random* random, Tally* tally) {
  ScoreSpec spec;
  for (int i = random->Below(60); i >= 0; --i) spec.tokens.push_back(random->Below(26));
  if (random->OneIn(2)) spec.window = 1 + random->Below(20);
  FakeHistory history;
  double want = 0;
  for (size_t k = 0; k < spec.tokens.size(); ++k) {
    const bool first = spec.window > 0 ? k % static_cast<size_t>(spec.window) == 0 : k == 0;
    if (first) history = FakeHistory();
    history.Feed(first ? *storm.config.bos_token_id : spec.tokens[k - 1], false);
    want -= static_cast<double>(history.Logprob(spec.tokens[k]));
  }
  const bool cancel = random->OneIn(3);
  ++tally->scores_asked;
  const auto id = storm.engine->Score(spec, [tally, want](absl::StatusOr<ScoreResult> result) {
    ++tally->scores;
    EXPECT_TRUE(!result.ok() || result->nll_nats == want);
  });
  if (!id.ok()) {
    ++tally->scores;
  } else if (cancel) {
    storm.engine->Cancel(*id);
  }
}

class Client {
 public:
  Client(const Storm& storm, uint32_t seed, Tally* tally)
      : storm_(storm), random_(seed), tally_(tally) {}

  void Run(int64_t requests) {
    for (int64_t i = 0; i < requests; ++i) {
      Submit();
      if (random_.OneIn(8)) ScoreSomething(storm_, &random_, tally_);
      if (!in_flight_.empty() && random_.OneIn(5)) {
        const auto victim = static_cast<size_t>(random_.Below(static_cast<int>(in_flight_.size())));
        storm_.engine->Cancel(in_flight_[victim]->collector.id());
      }
      if (random_.OneIn(50)) storm_.engine->Cancel(random_.Seed());
      while (in_flight_.size() > (random_.OneIn(20) ? 0u : 16u)) FinishOldest();
    }
    while (!in_flight_.empty()) FinishOldest();
  }

 private:
  void Submit() {
    using Reading = ReplyCollector::Reading;
    auto request =
        std::make_unique<InFlight>(random_.OneIn(4) ? Reading::kOnlyWhenAsked : Reading::kEager);
    request->spec = RandomSpec(storm_, &random_);
    while (true) {
      const absl::Status started = request->collector.Start(storm_.engine, request->spec);
      if (started.ok()) break;
      ++tally_->refused;
      ASSERT_EQ(started.code(), absl::StatusCode::kResourceExhausted) << started;
      if (in_flight_.empty())
        std::this_thread::yield();
      else
        FinishOldest();
    }
    in_flight_.push_back(std::move(request));
  }

  void FinishOldest() {
    InFlight& request = *in_flight_.front();
    // Those that read only when asked are asked now, again and again until the end.
    while (!request.collector.reply().end()) {
      request.collector.TakeNow();
      std::this_thread::yield();
    }
    Check(storm_, &request, tally_);
    in_flight_.pop_front();
  }

  const Storm& storm_;
  Random random_;
  Tally* const tally_;
  std::deque<std::unique_ptr<InFlight>> in_flight_;
};

class EngineStressTest : public ::testing::TestWithParam<int> {};

TEST_P(EngineStressTest, EveryReplyIsAPrefixOfItsSoloRunAndNoSlotIsLost) {
  const int storm_number = GetParam();
  Random random(static_cast<uint32_t>(storm_number) * 7919 + 17);
  const absl::StatusOr<std::unique_ptr<TextTokenizer>> tokenizer =
      CreateCharTokenizer("abcdefghijklmnopqrstuvwxyz");
  ASSERT_TRUE(tokenizer.ok());
  Storm storm;
  storm.config = FakeConfig(28, true);
  storm.config.eos_token_id = 26;
  storm.tokenizer = tokenizer->get();
  storm.fake.limits.num_slots = storm_number == 0 ? 2 : 4 + random.Below(28);
  storm.fake.limits.max_rows = 1 + random.Below(storm.fake.limits.num_slots);
  storm.fake.limits.max_tokens = 8 + random.Below(100);
  storm.fake.limits.max_steps = 6;
  storm.fake.limits.preferred_steps = 1 + random.Below(6);
  storm.fake.polls_per_run = 1 + random.Below(4);
  storm.options.max_queue = 20;
  storm.options.max_pending_bytes = 48;
  storm.options.prefill_tokens_busy = 5 + random.Below(20);
  auto probe = std::make_shared<FakeProbe>();
  const std::unique_ptr<Engine> engine = CreateEngineForConfig(
      storm.config, storm.tokenizer, std::make_unique<FakeBackend>(storm.config, storm.fake, probe),
      storm.options, [] { return absl::Now(); });
  storm.engine = engine.get();

  Tally tally;
  const int64_t requests = kRequests * Scale() / 5 / kThreads;
  std::vector<std::thread> clients;
  for (int t = 0; t < kThreads; ++t) {
    const uint32_t seed = random.Seed();
    clients.emplace_back(
        [&storm, seed, requests, &tally] { Client(storm, seed, &tally).Run(requests); });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(engine->Drain(absl::InfiniteFuture()));

  EXPECT_EQ(tally.wrong, 0) << "storm " << storm_number;
  EXPECT_EQ(probe->violations(), std::vector<std::string>());
  EXPECT_EQ(tally.ok + tally.cancelled + tally.expired, requests * kThreads);
  EXPECT_EQ(tally.unavailable, 0);
  EXPECT_EQ(tally.scores, tally.scores_asked) << "every Score is answered once";
  EXPECT_GT(tally.scores, 0);
  EXPECT_GT(tally.ok, requests * kThreads / 3);
  EXPECT_GT(tally.cancelled, 0);
  EXPECT_GT(tally.expired, 0);
  const EngineLoad load = engine->GetLoad();
  EXPECT_EQ(load.slots_used, 0);
  EXPECT_EQ(load.running, 0);
  EXPECT_EQ(load.queued, 0);
  EXPECT_EQ(probe->dirty_slots(), 0);
  EXPECT_GE(load.tokens_total, tally.tokens);
}

INSTANTIATE_TEST_SUITE_P(Storms, EngineStressTest, ::testing::Range(0, 5));

// The engine goes away, drains or loses its backend in the middle of a storm: everybody still gets
// an end.
TEST(EngineStopStressTest, EverybodyGetsAnEndWhenTheEngineStopsInTheMiddle) {
  const absl::StatusOr<std::unique_ptr<TextTokenizer>> tokenizer =
      CreateCharTokenizer("abcdefghijklmnopqrstuvwxyz");
  ASSERT_TRUE(tokenizer.ok());
  for (int round = 0; round < 30; ++round) {
    Random random(static_cast<uint32_t>(round) + 1000);
    Storm storm;
    storm.config = FakeConfig(28, true);
    storm.config.eos_token_id = 26;
    storm.tokenizer = tokenizer->get();
    storm.fake.limits.num_slots = 6;
    storm.fake.limits.max_rows = 5;
    storm.fake.polls_per_run = 2;
    const bool fail = round % 3 == 0;
    if (fail) storm.fake.fail_at_call = 50 + random.Below(400);
    auto probe = std::make_shared<FakeProbe>();
    std::unique_ptr<Engine> engine =
        CreateEngineForConfig(storm.config, storm.tokenizer,
                              std::make_unique<FakeBackend>(storm.config, storm.fake, probe),
                              storm.options, [] { return absl::Now(); });
    storm.engine = engine.get();
    Tally tally;
    std::deque<InFlight> in_flight;
    for (int i = 0; i < 60; ++i) {
      in_flight.emplace_back(ReplyCollector::Reading::kEager);
      in_flight.back().spec = RandomSpec(storm, &random);
      if (!in_flight.back().collector.Start(storm.engine, in_flight.back().spec).ok()) {
        in_flight.pop_back();
      }
    }
    if (round % 3 == 1) engine->Drain(absl::Now() + absl::Microseconds(random.Below(2000)));
    if (round % 3 == 2) engine.reset();
    for (InFlight& request : in_flight) Check(storm, &request, &tally);
    EXPECT_EQ(tally.wrong, 0) << "round " << round;
    EXPECT_EQ(probe->violations(), std::vector<std::string>());
  }
}

}  // namespace
}  // namespace rivulet::engine_stress_test
