// SPDX-License-Identifier: Apache-2.0
#include "tests/stress/cancel_stage.h"

#include <gtest/gtest.h>

#include <utility>

#include "server/sessions/sequence_hash.h"

namespace rivulet {
namespace {

constexpr char kTenant[] = "t";

}  // namespace

void StageReply::OnReady() {
  if (end) ++calls_after_end;
  const std::optional<Reply::End> ended = reply->end();
  if (on_ready) on_ready();
  if (reads || ended) Take();
  if (ended) end = ended;
}

void StageReply::Take() {
  for (ReplyDelta& delta : reply->Take()) {
    auto& sample = tokens[static_cast<size_t>(delta.sample_index)];
    sample.insert(sample.end(), delta.tokens.begin(), delta.tokens.end());
  }
}

CancelStage::CancelStage(uint32_t seed) : random_(seed) {
  FakeBackendOptions fake;
  fake.limits.num_slots = fake.limits.max_rows = kSlots;
  fake.limits.max_steps = fake.limits.preferred_steps = 4;
  fake.polls_per_run = 3;
  HostileOptions hostile;
  hostile.poison = false;  // the fake has a poison of its own
  hostile.before = [this](BackendCall call) {
    if (countdown_ == 0 || call != armed_ || --countdown_ > 0) return;
    hit_ = true;
    Cancel();
  };
  EngineOptions options;
  options.prefill_tokens_busy = options.prefill_tokens_idle = 4;
  options.max_pending_bytes = 24;
  engine_ =
      CreateSteppedEngine(config_, nullptr,
                          std::make_unique<HostileBackend>(
                              std::make_unique<FakeBackend>(config_, fake, fake_), hostile, probe_),
                          options, [this] { return now_; });
}

CancelStage::~CancelStage() {
  engine_.reset();
  EXPECT_EQ(fake_->dirty_slots(), 0);
}

void CancelStage::Start(StageReply* reply) {
  reply->tokens.assign(static_cast<size_t>(reply->spec.num_samples), {});
  const auto submitted = engine_->Generate(reply->spec, reply);
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  reply->id = (*submitted)->id();
  reply->reply = *submitted;
}

SessionRef CancelStage::Open(std::vector<int32_t> tokens) {
  SessionRef opened;
  OpenSpec open;
  open.tenant = kTenant;
  open.seed = random_();
  EXPECT_TRUE(OpenSession(engine_.get(), open, [&](const absl::StatusOr<SessionInfo>& info) {
                opened = {info->id, kTenant, std::nullopt, ""};
              }).ok());
  Settle();
  AppendSpec append;
  append.session = opened;
  append.tokens = std::move(tokens);
  EXPECT_TRUE(
      engine_
          ->Append(append,
                   [](const absl::StatusOr<ScoreResult>& result) { EXPECT_TRUE(result.ok()); })
          .ok());
  Settle();
  return opened;
}

void CancelStage::Begin() {
  tokens_ = {1 + Below(40), 7, 8, 1 + Below(40), 9};
  session_ = Open(tokens_);
  for (int i = 0; i < 2; ++i) {
    auto spectator = std::make_unique<Spectator>();
    spectator->reply.after = {1 + Below(40), 3, 1 + Below(40)};
    spectator->session = Open(spectator->reply.after);
    spectator->reply.spec.session = spectator->session;
    spectator->reply.spec.sampling.seed = random_();
    spectator->reply.spec.sampling.frequency_penalty = 1;
    spectator->reply.spec.max_tokens = 50;
    spectators_.push_back(std::move(spectator));
  }
  // Once nothing has to settle any more, or it would have ended before the victim begins.
  Start(&spectators_[0]->reply);
  Turn();
  Emit();
  EXPECT_FALSE(spectators_[0]->reply.end) << "it is to be in the middle of its reply";
  sessions_before_ = static_cast<size_t>(engine_->GetLoad().client_sessions);
}

std::function<void(absl::Status)> CancelStage::Ender() {
  return [this](absl::Status status) {
    ++ends_;
    end_ = std::move(status);
  };
}

void CancelStage::Generate(GenerateSpec spec) {
  on_session_ = spec.num_samples == 1;
  if (on_session_) spec.session = session_;
  if (spec.session) given_ = spec.prompt;
  spec.sampling.seed = random_();
  if (random_() % 2 == 0) spec.sampling.frequency_penalty = 1;
  victim_.spec = std::move(spec);
  if (on_session_) victim_.after = tokens_;
  Start(&victim_);
  victim_id_ = victim_.id;
}

void CancelStage::Score(int64_t tokens, int64_t window) {
  ScoreSpec spec;
  spec.window = window;
  for (int64_t i = 0; i < tokens; ++i) spec.tokens.push_back(1 + Below(40));
  victim_id_ = *engine_->Score(
      spec, [done = Ender()](const absl::StatusOr<ScoreResult>& result) { done(result.status()); });
}

void CancelStage::Append(int64_t tokens) {
  AppendSpec spec;
  spec.session = session_;
  for (int64_t i = 0; i < tokens; ++i) given_.push_back(1 + Below(40));
  spec.tokens = given_;
  on_session_ = true;
  victim_id_ = *engine_->Append(
      spec, [done = Ender()](const absl::StatusOr<ScoreResult>& result) { done(result.status()); });
}

void CancelStage::Snapshot() {
  victim_id_ = *SnapshotSession(
      engine_.get(), session_, absl::InfiniteFuture(),
      [done = Ender()](const absl::StatusOr<SessionImage>& image) { done(image.status()); });
}

void CancelStage::Fork() {
  victim_id_ =
      *ForkSession(engine_.get(), {session_, 2, 5},
                   [done = Ender()](const absl::StatusOr<std::vector<SessionInfo>>& forks) {
                     done(forks.status());
                   });
}

void CancelStage::Restore() {
  RestoreSpec spec;
  spec.tenant = kTenant;
  for (const int32_t token : tokens_) spec.history.Append(token, false);
  victim_id_ = *RestoreSession(
      engine_.get(), spec,
      [done = Ender()](const absl::StatusOr<SessionInfo>& info) { done(info.status()); });
}

void CancelStage::CancelAt(BackendCall call, int n) {
  armed_ = call;
  countdown_ = n;
}

void CancelStage::Settle() {
  while (engine_->Turn()) engine_->Emit();
  engine_->Emit();
}

void CancelStage::SettleVictim() {
  while (!victim_.end && engine_->Turn()) engine_->Emit();
  engine_->Emit();
}

void CancelStage::FillSlots(int more) {
  const int left = kSlots - engine_->GetLoad().slots_used;
  for (int i = 0; i < left + more; ++i) {
    auto reply = std::make_unique<StageReply>();
    reply->spec.prompt = {1 + Below(40)};
    reply->spec.sampling.seed = random_();
    reply->spec.max_tokens = 12;
    Start(reply.get());
    crowd_.push_back(std::move(reply));
  }
  Turn();
}

void CancelStage::OccupySession() {
  auto reply = std::make_unique<StageReply>();
  reply->spec.session = session_;
  reply->spec.sampling.seed = random_();
  reply->spec.max_tokens = 9;
  reply->after = tokens_;
  // What the victim goes on from.
  const std::vector<int32_t> drawn = Alone(tokens_, reply->spec, 0, 9);
  Start(reply.get());
  tokens_.insert(tokens_.end(), drawn.begin(), drawn.end());
  crowd_.push_back(std::move(reply));
  Turn();
}

void CancelStage::CloseSession() {
  ASSERT_TRUE(rivulet::CloseSession(engine_.get(), session_, [](const absl::Status& status) {
                EXPECT_TRUE(status.ok());
              }).ok());
}

std::vector<int32_t> CancelStage::Alone(std::vector<int32_t> tokens, const GenerateSpec& spec,
                                        uint32_t sample, int64_t count) const {
  tokens.insert(tokens.begin(), *config_.bos_token_id);
  SlotSampler sampler;
  sampler.params = spec.sampling;
  sampler.sample_index = sample;
  return FakeSolo(config_, nullptr, tokens, sampler, count);
}

// A prefix of what is drawn there alone, the whole where it ended well.
void CancelStage::CheckReply(const StageReply& reply) {
  ASSERT_TRUE(reply.end.has_value());
  EXPECT_EQ(reply.calls_after_end, 0);
  std::vector<int32_t> tokens = reply.after;
  tokens.insert(tokens.end(), reply.spec.prompt.begin(), reply.spec.prompt.end());
  for (size_t s = 0; s < reply.tokens.size(); ++s) {
    const auto count = static_cast<int64_t>(reply.tokens[s].size());
    const int64_t want = reply.end->status.ok() ? reply.spec.max_tokens : count;
    EXPECT_EQ(reply.tokens[s], Alone(tokens, reply.spec, static_cast<uint32_t>(s), want));
  }
}

SessionInfo CancelStage::InfoOf(const SessionRef& session) {
  std::optional<SessionInfo> found;
  EXPECT_TRUE(ListSessions(engine_.get(), {kTenant}, [&](const absl::StatusOr<SessionPage>& page) {
                for (const SessionInfo& info : page->sessions) {
                  if (info.id == session.id) found = info;
                }
              }).ok());
  Settle();
  EXPECT_TRUE(found.has_value()) << "the session is gone";
  return found.value_or(SessionInfo());
}

void CancelStage::Check(const Outcome& outcome) {
  victim_.reads = true;
  if (victim_.reply != nullptr && !victim_.end) victim_.Take();
  Settle();
  const bool replies = victim_.reply != nullptr;
  const absl::StatusCode code = !replies      ? end_.code()
                                : victim_.end ? victim_.end->status.code()
                                              : absl::StatusCode::kUnknown;
  EXPECT_EQ(code, outcome.code);
  EXPECT_EQ(replies ? 1 : ends_, 1) << "told once";
  if (replies) {
    CheckReply(victim_);
    int64_t count = 0;
    for (const auto& sample : victim_.tokens) count += static_cast<int64_t>(sample.size());
    EXPECT_GE(count, outcome.min_tokens);
    EXPECT_LE(count, outcome.max_tokens);
  }
  const EngineLoad load = engine_->GetLoad();
  EXPECT_EQ(load.slots_used, 0);
  EXPECT_EQ(load.running, 0);
  EXPECT_EQ(load.queued, 0);
  EXPECT_EQ(probe_->used_slots(), 0);
  EXPECT_EQ(fake_->dirty_slots(), 0);
  EXPECT_EQ(fake_->violations(), std::vector<std::string>());
  EXPECT_EQ(probe_->violations(), std::vector<std::string>());
  // The others have what they would have had.
  for (const auto& reply : crowd_) {
    if (outcome.session_lives) {
      EXPECT_TRUE(reply->end && reply->end->status.ok());
    }
    CheckReply(*reply);
  }
  CheckReply(spectators_[0]->reply);
  EXPECT_TRUE(spectators_[0]->reply.end->status.ok());
  if (outcome.drained) return;
  for (const auto& spectator : spectators_) {
    std::vector<int32_t> sequence = spectator->reply.after;
    for (const auto& drawn : spectator->reply.tokens) {
      sequence.insert(sequence.end(), drawn.begin(), drawn.end());
    }
    const SessionInfo info = InfoOf(spectator->session);
    EXPECT_EQ(info.position, static_cast<int64_t>(sequence.size()));
    EXPECT_EQ(info.hash, HashTokens(kEmptySequenceHash, sequence));
    EXPECT_GT(info.state_bytes, 0);
  }
  CheckVictimsSession(outcome);
}

// As documented: before the first token nothing has happened, after it what was generated stays.
void CancelStage::CheckVictimsSession(const Outcome& outcome) {
  const bool ok = outcome.code == absl::StatusCode::kOk;
  const bool began = victim_.reply != nullptr && !victim_.tokens[0].empty();
  if (on_session_ && (ok || began)) {
    tokens_.insert(tokens_.end(), given_.begin(), given_.end());
    if (began) tokens_.insert(tokens_.end(), victim_.tokens[0].begin(), victim_.tokens[0].end());
  }
  if (outcome.session_lives) {
    const SessionInfo info = InfoOf(session_);
    EXPECT_EQ(info.position, static_cast<int64_t>(tokens_.size()));
    EXPECT_EQ(info.hash, HashTokens(kEmptySequenceHash, tokens_));
    EXPECT_FALSE(info.busy);
    StageReply next;
    next.after = tokens_;
    next.spec.session = session_;
    next.spec.max_tokens = 3;
    next.spec.sampling.seed = 4;
    next.spec.sampling.frequency_penalty = victim_.spec.sampling.frequency_penalty;
    // Prompt and output are told apart by penalties; here only where all of it was given.
    if (began || !crowd_.empty()) next.spec.sampling.frequency_penalty = 0;
    Start(&next);
    Settle();
    CheckReply(next);
    EXPECT_TRUE(next.end && next.end->status.ok()) << "the next call";
    CloseSession();
  }
  for (const auto& spectator : spectators_) {
    session_ = spectator->session;
    CloseSession();
  }
  Settle();
  EXPECT_EQ(static_cast<size_t>(engine_->GetLoad().client_sessions),
            sessions_before_ - 3 + size_t(outcome.sessions_made))
      << "a session too many or too few";
}

}  // namespace rivulet
