// SPDX-License-Identifier: Apache-2.0
// Client sessions' states on every backend: at every position, through every way back to one, and
// whatever is offered as a snapshot. tests/stress/README.md has the list of bugs.
#include <gmock/gmock.h>

#include <cmath>

#include "tests/conformance/engine_state_fixture.h"

namespace rivulet::testing {
namespace {

using ::testing::AnyOf;

class EngineSessionStateTest : public EngineStateTest {
 protected:
  static GenerateSpec SpecOf(const SessionRef& session, int64_t max_tokens,
                             std::vector<int32_t> prompt = {}) {
    GenerateSpec spec;
    spec.session = session;
    spec.prompt = std::move(prompt);
    spec.max_tokens = max_tokens;
    spec.sampling.seed = 21;
    spec.want_logprobs = true;
    spec.sampling.frequency_penalty = 1;  // so that prompt and output are told apart
    return spec;
  }
  // Generates on the session, and keeps `tokens_` as its client would.
  void Generate(const SessionRef& session, int64_t max_tokens, std::vector<int32_t> prompt = {}) {
    for (const int32_t token : prompt) Note(token, false);
    for (const int32_t token : Drawn(SpecOf(session, max_tokens, std::move(prompt))).first) {
      Note(token, true);
    }
  }
  void Note(int32_t token, bool generated) {
    tokens_.push_back(token);
    generated_.push_back(generated);
  }
  // A session of many calls: more of them than states are kept, given and generated tokens in turn.
  SessionRef ManyCalls() {
    const SessionRef session = client_->Ref(client_->Open(21)->id);
    Generate(session, 3, {4, 9});
    Generate(session, 2);
    Generate(session, 1, {7});
    Generate(session, 2, {1, 1, 2});
    for (int i = 0; i < 3; ++i) Generate(session, 1);
    return session;
  }
  // What is drawn after the first `position` tokens.
  Sample AloneAfter(int64_t position, int64_t max_tokens) {
    const auto end = static_cast<std::ptrdiff_t>(position);
    return Alone(SpecOf({}, max_tokens), {tokens_.begin(), tokens_.begin() + end},
                 {generated_.begin(), generated_.begin() + end});
  }
  static std::string ReasonOf(const absl::Status& status) { return GetErrorDetail(status).reason; }

  std::vector<int32_t> tokens_;
  std::vector<bool> generated_;
};

// Position 0, 1, every boundary of a call and all between; whether their states are still kept or
// not. Each way back leads to the tokens of a session that never was anywhere else.
TEST_P(EngineSessionStateTest, EveryWayBackToEveryPositionGoesOnExactly) {
  Start();
  const SessionRef session = ManyCalls();
  const auto end = static_cast<int64_t>(tokens_.size());
  for (int64_t position = 0; position <= end; ++position) {
    SCOPED_TRACE(position);
    const Sample want = AloneAfter(position, 3);
    const auto forks = client_->Fork(client_->Ref(session.id, position), 2, 1);
    ASSERT_TRUE(forks.ok()) << forks.status();
    const SessionRef fork = client_->Ref(forks->at(0).id), rewound = client_->Ref(forks->at(1).id);
    EXPECT_EQ(Drawn(SpecOf(fork, 3)), want) << "a fork";
    ASSERT_TRUE(client_->Rewind(client_->Ref(fork.id, position)).ok());
    EXPECT_EQ(Drawn(SpecOf(fork, 3)), want) << "there and back";
    // Another way from there: no state of the way before may serve it.
    ASSERT_TRUE(client_->Rewind(client_->Ref(fork.id, position)).ok());
    const GenerateSpec elsewhere = SpecOf(fork, 3, {10, 6, 10, 6});
    const auto at = static_cast<std::ptrdiff_t>(position);
    EXPECT_EQ(Drawn(elsewhere), Alone(elsewhere, {tokens_.begin(), tokens_.begin() + at},
                                      {generated_.begin(), generated_.begin() + at}))
        << "elsewhere";
    const auto image = client_->Snapshot(rewound);
    ASSERT_TRUE(image.ok()) << image.status();
    const std::string bytes = ToSnapshotBytes(*image, *engine_);
    for (int copy = 0; copy < 2; ++copy) {
      const auto restored = client_->RestoreBytes(bytes);
      ASSERT_TRUE(restored.ok()) << restored.status();
      EXPECT_EQ(Drawn(SpecOf(client_->Ref(restored->id), 3)), want) << "copy " << copy;
      EXPECT_TRUE(client_->Close(restored->id).ok());
    }
    EXPECT_EQ(Drawn(SpecOf(rewound, 3)), want) << "what was saved goes on itself";
    EXPECT_TRUE(client_->Close(fork.id).ok());
    EXPECT_TRUE(client_->Close(rewound.id).ok());
  }
  EXPECT_EQ(Drawn(SpecOf(session, 5)), AloneAfter(end, 5)) << "untouched by all that";
  ExpectAtRest();
}

// The state that a session shows for a sequence is the state of that sequence, bit for bit, and not
// only a promise of one.
TEST_P(EngineSessionStateTest, APublishedStateIsThatOfItsSequence) {
  Start();
  const SessionRef session = client_->Ref(client_->Open(21)->id);
  const auto expect_real = [&] {
    const auto image = client_->Snapshot(session);
    ASSERT_TRUE(image.ok()) << image.status();
    ASSERT_NE(image->state.state, nullptr) << "after " << tokens_.size() << " tokens";
    // Without a token of its own nothing has been fed; the last one is fed by whoever goes on.
    EXPECT_EQ(image->state.fed, static_cast<int64_t>(tokens_.size()));
    const auto values = image->state.state->values();
    EXPECT_EQ(std::vector<float>(values.begin(), values.end()),
              alone_->StateAfter(tokens_, image->state.fed));
  };
  Generate(session, 4, {4, 9});
  expect_real();
  Generate(session, 1);
  expect_real();
  ASSERT_TRUE(client_->Append(session, {3, 3, 8}).ok());
  for (const int32_t token : {3, 3, 8}) Note(token, false);
  expect_real();
  ExpectAtRest();
}

// What is refused changes nothing: not one bit of any slot, no session, not the next token.
TEST_P(EngineSessionStateTest, ARefusedSnapshotChangesNothing) {
  options_.max_pending_bytes = 16;
  options_.reader_timeout = absl::Hours(1);  // the reader below takes nothing until the end
  Start();
  const SessionRef session = ManyCalls();
  const auto image = client_->Snapshot(session);
  ASSERT_TRUE(image.ok());
  const std::string good = ToSnapshotBytes(*image, *engine_);
  // Somebody is in the middle of a reply, and reads no further: its slot holds a state.
  ReplyCollector& running = replies_.emplace_back(ReplyCollector::Reading::kOnlyWhenAsked);
  GenerateSpec spec;
  spec.prompt = {5, 6};
  spec.max_tokens = 12;
  spec.want_logprobs = true;
  ASSERT_TRUE(running.Start(engine_.get(), spec).ok());
  while (running.reply().pending_bytes() <= 16) std::this_thread::yield();
  ASSERT_TRUE(client_->List().ok());  // the loop has gone round since, and rests
  const std::vector<uint64_t> before = probe_->Digests();
  const auto expect_refused = [&](absl::string_view bytes, absl::string_view tenant = "t") {
    const SessionClient attacker(engine_.get(), std::string(tenant));
    const absl::Status status = attacker.RestoreBytes(bytes).status();
    EXPECT_FALSE(status.ok());
    return ReasonOf(status);
  };
  // Each bit of the header, then one of each byte: a checksum sees every bit alike.
  constexpr size_t step = RIVULET_SANITIZED ? 7 : 1;
  for (size_t bit = 0; bit < good.size() * 8; bit += bit < 4096 ? 1 : step * 9) {
    std::string flipped = good;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    // Of two versions whose fields are alike, the version says the kind of the model.
    const bool of_version = bit / 32 == 2;
    const std::string reason = expect_refused(flipped);
    if (!of_version || reason != "SNAPSHOT_MODEL") {
      EXPECT_THAT(reason, AnyOf("SNAPSHOT_DAMAGED", "SNAPSHOT_VERSION")) << bit;
    }
    if (bit % 64 == 0) {
      ASSERT_EQ(probe_->Digests(), before) << bit;
    }
  }
  for (size_t size = 0; size < good.size(); size += step) {
    EXPECT_EQ(expect_refused(absl::string_view(good).substr(0, size)), "SNAPSHOT_DAMAGED") << size;
  }
  EXPECT_EQ(expect_refused(good, "another"), "SNAPSHOT_TENANT");
  SessionImage nan = *image;
  std::vector<float> values = nan.state.state->values();
  for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
    values[values.size() / 2] = bad;
    nan.state.state = std::make_shared<const StateView>(values);
    EXPECT_EQ(expect_refused(ToSnapshotBytes(nan, *engine_)), "SNAPSHOT_DAMAGED") << bad;
  }
  EXPECT_EQ(probe_->Digests(), before);
  EXPECT_EQ(client_->List()->size(), 1u);
  EXPECT_TRUE(SessionClient(engine_.get(), "another").List()->empty());
  EXPECT_EQ(Drawn(SpecOf(session, 4)), AloneAfter(static_cast<int64_t>(tokens_.size()), 4));
  const auto restored = client_->RestoreBytes(good);
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(Drawn(SpecOf(client_->Ref(restored->id), 4)),
            AloneAfter(static_cast<int64_t>(tokens_.size()), 4));
  while (!running.reply().end()) {
    running.TakeNow();
    std::this_thread::yield();
  }
  EXPECT_EQ(running.Wait(), absl::OkStatus());
  EXPECT_EQ(Of(running), Alone(spec));
  ExpectAtRest();
}

// Without a key anybody can make a snapshot whose checksums match. Its state may be any finite
// numbers: they harm the session that they were given to.
TEST_P(EngineSessionStateTest, AForgedStateHarmsItsOwnSessionAlone) {
  slots_ = 2;
  Start();
  const SessionRef session = ManyCalls();
  SessionImage forged = *client_->Snapshot(session);
  forged.state.state = std::make_shared<const StateView>(
      std::vector<float>(forged.state.state->values().size(), 3e38f));
  for (int again = 0; again < 3; ++again) {  // in each slot, and in one again
    const auto restored = client_->RestoreBytes(ToSnapshotBytes(forged, *engine_));
    ASSERT_TRUE(restored.ok()) << restored.status();
    const auto drawn = client_->Generate(SpecOf(client_->Ref(restored->id), 3));
    if (!drawn.ok()) {
      EXPECT_EQ(ReasonOf(drawn.status()), "NON_FINITE_OUTPUT");
    }
    const auto end = static_cast<int64_t>(tokens_.size());
    SessionRef at_end = session;
    at_end.position = end;
    EXPECT_EQ(Drawn(SpecOf(at_end, 4)), AloneAfter(end, 4)) << again;
  }
  ExpectAtRest();
}

INSTANTIATE_TEST_SUITE_P(All, EngineSessionStateTest, ::testing::ValuesIn(TestedAttention()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace rivulet::testing
