// SPDX-License-Identifier: Apache-2.0
#include "tests/stress/crowd_client.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "model/base/error.h"
#include "server/sessions/sequence_hash.h"

namespace rivulet {

void CrowdClient::Known::Truncate(int64_t position) {
  tokens.resize(static_cast<size_t>(position));
  generated.resize(static_cast<size_t>(position));
  std::erase_if(marks, [position](const auto& mark) { return mark.second > position; });
}

CrowdClient::CrowdClient(Engine* engine, std::unique_ptr<Backend> alone, const std::string& tenant,
                         uint32_t seed, const CrowdLimits& limits, CrowdTally* tally)
    : engine_(engine),
      config_(engine->model().config()),
      alone_(std::move(alone), config_),
      tenant_(tenant),
      client_(engine, tenant),
      seed_(seed),
      random_(seed),
      limits_(limits),
      tally_(tally),
      known_(static_cast<size_t>(limits.sessions)),
      in_flight_(known_.size()) {}

void CrowdClient::Run(int64_t target) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  for (Known& known : known_) Reopen(&known);
  while (tally_->tokens < target && tally_->wrong == 0 && !::testing::Test::HasFailure()) Round();
  for (const Known& known : known_) Close(known.id);
}

void CrowdClient::Close(const SessionId& id) {
  const absl::Status closed = client_.Close(id);
  EXPECT_TRUE(closed.ok()) << closed;
}

void CrowdClient::Round() {
  for (int i = 0; i < limits_.in_flight; ++i) {
    const size_t session = AnyIdle();
    StartReply(session, /*behind=*/false);
    if (::testing::Test::HasFailure()) break;
    const bool plain = !flights_.back().spec.session->position && known_[session].size() > 0;
    while (plain && OneIn(4) && !::testing::Test::HasFailure())
      StartReply(session, /*behind=*/true);
    if (OneIn(2)) Disturb();
  }
  for (Flight& flight : flights_) Settle(&flight);
  flights_.clear();
  in_flight_.assign(in_flight_.size(), false);
}

size_t CrowdClient::AnyIdle() {
  while (true) {
    const auto session = static_cast<size_t>(Below(limits_.sessions));
    if (!in_flight_[session]) return session;
  }
}

std::vector<int32_t> CrowdClient::AnyTokens(int at_most) {
  std::vector<int32_t> tokens;
  for (int n = Below(at_most + 1); n > 0; --n) tokens.push_back(AnyToken());
  return tokens;
}

// Tokens that the session may still get.
int64_t CrowdClient::Room(const Known& known) const {
  return std::max<int64_t>(0, config_.max_tokens().value_or(INT64_MAX) - known.size());
}

void CrowdClient::RandomSampling(GenerateSpec* spec) {
  spec->sampling.seed = random_();
  spec->want_logprobs = OneIn(2);
  spec->cache.enabled = OneIn(2);
  if (OneIn(4)) spec->cache.salt = "salt";
  if (OneIn(3)) spec->sampling.temperature = 0.6f;
  if (OneIn(12)) spec->sampling.temperature = 0;
  if (OneIn(5)) spec->stop_ids = {AnyToken(), AnyToken()};
  if (config_.output.type != OutputType::kCategorical) return;
  if (OneIn(3)) spec->sampling.frequency_penalty = 0.7f;
  if (OneIn(4)) spec->sampling.repetition_penalty = 1.5f;
  if (OneIn(5)) spec->sampling.top_k = 5;
  if (OneIn(5)) spec->sampling.logit_bias = {{AnyToken(), 1.5f}};
}

void CrowdClient::StartReply(size_t session, bool behind) {
  using Reading = ReplyCollector::Reading;
  Flight& flight = flights_.emplace_back(OneIn(5) ? Reading::kOnlyWhenAsked : Reading::kEager);
  const Known& known = known_[session];
  flight.session = session;
  in_flight_[session] = true;
  GenerateSpec& spec = flight.spec;
  RandomSampling(&spec);
  spec.session = client_.Ref(known.id);
  spec.max_tokens = 1 + Below(24);
  if (!behind && OneIn(8)) {
    AskAgain(known, &spec);
  } else if (!behind) {
    spec.prompt = AnyTokens(static_cast<int>(std::min<int64_t>(5, Room(known))));
    if (known.size() == 0 && spec.prompt.empty()) spec.prompt = {AnyToken()};
  }
  if (OneIn(10)) spec.session->mark = "m" + std::to_string(Below(3));
  const absl::Status started = flight.reply.Start(engine_, spec);
  if (!started.ok()) {
    flights_.pop_back();  // it has no reply to settle
    FAIL() << started;
  }
  if (OneIn(8)) {
    if (OneIn(2)) std::this_thread::yield();
    engine_->Cancel(flight.reply.id());
  }
  // Too late: one that has ended. (Any other id may be that of somebody's append or fork, which is
  // to end well.)
  if (OneIn(40) && !ended_.empty()) engine_->Cancel(ended_[random_() % ended_.size()]);
}

// From the middle of what was generated last, or nothing changes.
void CrowdClient::AskAgain(const Known& known, GenerateSpec* spec) {
  int64_t first = known.size();
  while (first > 0 && known.generated[static_cast<size_t>(first) - 1]) --first;
  const auto generated = static_cast<int>(known.size() - first);
  const int64_t position = first + Below(generated + 1);
  if (position == 0 && !config_.has_bos()) {
    spec->prompt = {AnyToken()};
    return;
  }
  spec->session->position = position;
}

void CrowdClient::Settle(Flight* flight) {
  while (!flight->reply.reply().end()) {
    flight->reply.TakeNow();  // those that read only when asked
    std::this_thread::yield();
  }
  const absl::Status status = flight->reply.Wait();
  ended_.push_back(flight->reply.id());
  Known& known = known_[flight->session];
  const GenerateSpec& spec = flight->spec;
  const SessionRef& ref = *spec.session;
  ++tally_->replies;
  EXPECT_EQ(flight->reply.violation(), "");
  ASSERT_TRUE(status.ok() || status.code() == absl::StatusCode::kCancelled) << status;
  Known after = known;
  if (ref.position) {
    ++tally_->asked_again;
    after.Truncate(*ref.position);
  }
  for (const int32_t token : spec.prompt) after.Note(token, false);
  Compare(*flight, after, status);
  const CollectedSample& got = flight->reply.sample();
  if (!status.ok()) ++tally_->cut;
  if (!status.ok() && got.tokens.empty()) return ref.position ? Resync(&known) : void();
  for (const int32_t token : got.tokens) after.Note(token, true);
  if (status.ok() && !ref.mark.empty()) after.marks[ref.mark] = after.size();
  if (status.ok() || got.session) {
    ASSERT_TRUE(got.session.has_value());
    EXPECT_EQ(got.session->position, after.size());
    EXPECT_EQ(got.session->hash, after.hash());
  }
  known = std::move(after);
}

// `before`: the sequence that the reply goes on from.
void CrowdClient::Compare(const Flight& flight, const Known& before, const absl::Status& status) {
  const auto count = static_cast<int64_t>(flight.reply.sample().tokens.size());
  const int64_t left = config_.max_tokens().value_or(INT64_MAX) - before.size();
  const DrawnTokens want =
      alone_.Draw(before.tokens, before.generated, SamplerFor(flight.spec, config_),
                  status.ok() ? std::min(flight.spec.max_tokens, left) : count);
  Compare(flight.reply.sample(), want, flight.spec);
}

void CrowdClient::Compare(const CollectedSample& got, const DrawnTokens& want,
                          const GenerateSpec& spec) {
  tally_->tokens += static_cast<int64_t>(got.tokens.size());
  if (got.tokens == want.tokens && (!spec.want_logprobs || got.logprobs == want.logprobs)) return;
  ++tally_->wrong;
  ADD_FAILURE() << "got  " << ::testing::PrintToString(got.tokens) << "\nwant "
                << ::testing::PrintToString(want.tokens) << "\nlog-probabilities "
                << ::testing::PrintToString(got.logprobs) << "\nwant "
                << ::testing::PrintToString(want.logprobs);
}

// A request that ended before its first token left the session as it was, except for generated
// tokens that it had asked for again.
void CrowdClient::Resync(Known* known) {
  const auto appended = client_.Append(client_.Ref(known->id), {});
  ASSERT_TRUE(appended.ok()) << appended.status();
  ASSERT_LE(appended->session->position, known->size());
  known->Truncate(appended->session->position);
  EXPECT_EQ(appended->session->hash, known->hash());
}

void CrowdClient::Disturb() {
  const size_t session = AnyIdle();
  Known& known = known_[session];
  if (known.size() > limits_.longest) return OneIn(2) ? Rewind(&known) : Reopen(&known);
  switch (Below(10)) {
    case 0:
    case 1:
      return Append(&known);
    case 2:
    case 3:
      return Fork(known);
    case 4:
    case 5:
      return Rewind(&known);
    case 6:
    case 7:
      return Restore(known);
    case 8:
      return SampleWithoutSession();
    default:
      return Reopen(&known);
  }
}

void CrowdClient::Append(Known* known) {
  const std::vector<int32_t> tokens =
      AnyTokens(static_cast<int>(std::min<int64_t>(12, Room(*known))));
  const std::string mark = OneIn(3) ? "m" + std::to_string(Below(3)) : "";
  const auto appended = client_.Append(client_.Ref(known->id, std::nullopt, mark), tokens,
                                       /*score=*/OneIn(3) && known->size() > 0);
  ASSERT_TRUE(appended.ok()) << appended.status();
  for (const int32_t token : tokens) known->Note(token, false);
  if (!mark.empty()) known->marks[mark] = known->size();
  EXPECT_EQ(appended->session->position, known->size());
  EXPECT_EQ(appended->session->hash, known->hash());
  ++tally_->appends;
}

// The fork takes the place of another session.
void CrowdClient::Fork(const Known& known) {
  const int64_t position = OneIn(2) ? known.size() : Below(static_cast<int>(known.size()) + 1);
  const uint64_t seed = random_();
  const auto forks = client_.Fork(client_.Ref(known.id, position), 1, seed);
  ASSERT_TRUE(forks.ok()) << forks.status();
  Known fork = known;
  fork.Truncate(position);
  fork.id = forks->front().id;
  fork.seed = seed;
  EXPECT_EQ(forks->front().hash, fork.hash());
  EXPECT_EQ(forks->front().marks, fork.marks);
  Known& replaced = known_[AnyIdle()];
  Close(replaced.id);
  replaced = std::move(fork);
  ++tally_->forks;
}

void CrowdClient::Rewind(Known* known) {
  int64_t position = Below(static_cast<int>(known->size()) + 1);
  SessionRef ref = client_.Ref(known->id, position);
  if (!known->marks.empty() && OneIn(2)) {
    const auto& [mark, at] = *known->marks.begin();
    ref = client_.Ref(known->id, std::nullopt, mark);
    position = at;
  }
  known->Truncate(position);
  const auto rewound = client_.Rewind(ref);
  ASSERT_TRUE(rewound.ok()) << rewound.status();
  EXPECT_EQ(rewound->position, known->size());
  EXPECT_EQ(rewound->hash, known->hash());
  ++tally_->rewinds;
}

// A copy that came through bytes takes the place of another session; damaged ones come before it.
void CrowdClient::Restore(const Known& known) {
  const auto image = client_.Snapshot(client_.Ref(known.id));
  ASSERT_TRUE(image.ok()) << image.status();
  const std::string bytes = ToSnapshotBytes(*image, *engine_);
  std::string damaged = bytes;
  char& byte = damaged[random_() % damaged.size()];
  byte = static_cast<char>(byte ^ (1 << Below(8)));
  EXPECT_FALSE(client_.RestoreBytes(damaged).ok()) << "a damaged snapshot was restored";
  const auto restored = client_.RestoreBytes(bytes);
  ASSERT_TRUE(restored.ok()) << restored.status();
  Known copy = known;
  copy.id = restored->id;
  EXPECT_EQ(restored->hash, copy.hash());
  EXPECT_EQ(restored->seed, copy.seed);
  EXPECT_EQ(restored->marks, copy.marks);
  Known& replaced = known_[AnyIdle()];
  Close(replaced.id);
  replaced = std::move(copy);
  ++tally_->restores;
}

void CrowdClient::Reopen(Known* known) {
  if (known->id != SessionId()) Close(known->id);
  *known = Known();
  known->seed = random_();
  const auto opened = client_.Open(known->seed);
  ASSERT_TRUE(opened.ok()) << opened.status();
  known->id = opened->id;
  ++tally_->reopened;
}

// Several samples that part from one prompt.
void CrowdClient::SampleWithoutSession() {
  GenerateSpec spec;
  RandomSampling(&spec);
  spec.tenant = tenant_;
  // Prompts that begin alike, so that they find each other's states.
  const int common = 1 + Below(12);
  for (int i = 0; i < common; ++i) spec.prompt.push_back(1 + i % 9);
  for (const int32_t token : AnyTokens(5)) spec.prompt.push_back(token);
  spec.max_tokens = 1 + Below(12);
  spec.num_samples = 1 + Below(3);
  ReplyCollector reply;
  const absl::Status started = reply.Start(engine_, spec);
  ASSERT_TRUE(started.ok()) << started;
  const absl::Status status = reply.Wait();
  ASSERT_TRUE(status.ok()) << status;
  for (int s = 0; s < spec.num_samples; ++s) {
    Compare(reply.sample(static_cast<size_t>(s)),
            alone_.Draw(spec.prompt, {}, SamplerFor(spec, config_, static_cast<uint32_t>(s)),
                        spec.max_tokens),
            spec);
  }
  ++tally_->sampled;
}

}  // namespace rivulet
