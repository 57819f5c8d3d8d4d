// SPDX-License-Identifier: Apache-2.0
// Whatever comes as a snapshot over the wire: refused, nothing changed, the next call exact.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <thread>

#include "server/sessions/sequence_hash.h"
#include "server/sessions/snapshot.h"
#include "tests/e2e/server/session_fixture.h"

namespace rivulet::testing {
namespace {

using ::testing::AnyOf;

class SessionAttackTest : public ::testing::Test {
 protected:
  SessionAttackTest() {
    half_ = sessions_.Tokens(sessions_.GenerateOf(bystander_, 10));
    state_bytes_ = sessions_.List().front().state_bytes();
  }
  // The reason that `bytes` are refused for; empty where they are not.
  static std::string Refused(const Sessions& sessions, const std::string& bytes) {
    const auto restored = sessions.Restore(bytes);
    EXPECT_FALSE(restored.ok());
    return ReasonOf(restored.status());
  }
  // `attack` happens; another client's replies go on meanwhile.
  void Withstand(const std::function<void()>& attack) {
    const std::vector<int> want = sessions_.Alone({5}, 40, 99);
    std::atomic<bool> over{false};
    std::thread other([&] {
      const Sessions others(Connect(server_.server(), "another"), kStream);
      while (!over) EXPECT_EQ(others.Alone({5}, 40, 99), want);
    });
    attack();
    over = true;
    other.join();
    server_.AwaitIdle(kStream);
    const std::vector<v1::Session> list = sessions_.List();
    ASSERT_EQ(list.size(), 1u);
    EXPECT_EQ(list[0].session_id(), bystander_.session_id());
    EXPECT_EQ(list[0].progress().sequence_hash(), Fnv1a(half_));
    EXPECT_EQ(list[0].state_bytes(), state_bytes_);
    EXPECT_EQ(server_.Load(kStream).slots_used(), 0);
    EXPECT_EQ(server_.Load(kStream).sessions(), 1);
    EXPECT_EQ(Join(half_, sessions_.Tokens(sessions_.GenerateOf(bystander_, 10))),
              sessions_.Alone({}, 20));
  }

  TestServer server_{{kStream, kNoBos}}, elsewhere_{{kStream, kNoBos}};
  const Sessions sessions_{Connect(server_.server(), "t"), kStream};
  const v1::Session bystander_ = sessions_.Open();
  std::vector<int> half_;
  int64_t state_bytes_ = 0;
};

// One that holds a token and no state yet: all of it but the state's section.
TEST_F(SessionAttackTest, EveryBitAndEveryEndOfASmallSnapshotCounts) {
  const Sessions from(Connect(elsewhere_.server(), "t"), kNoBos);
  const Sessions to(Connect(server_.server(), "t"), kNoBos);
  const v1::Session session = from.Open();
  ASSERT_TRUE(from.Append(session, {4}).ok());
  const std::string good = *from.Snapshot(session);
  ASSERT_LT(good.size(), 600u);
  const size_t step = RIVULET_SANITIZED ? 7 : 1;
  Withstand([&] {
    for (size_t bit = 0; bit < good.size() * 8; bit += step) {
      std::string flipped = good;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
      ASSERT_THAT(Refused(to, flipped), AnyOf("SNAPSHOT_DAMAGED", "SNAPSHOT_VERSION")) << bit;
    }
    for (size_t size = 0; size < good.size(); ++size) {
      ASSERT_EQ(Refused(to, good.substr(0, size)), "SNAPSHOT_DAMAGED") << size;
    }
    EXPECT_TRUE(to.List().empty());
  });
  const auto restored = to.Restore(good);
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(to.Tokens(to.GenerateOf(restored->session(), 9)), to.Alone({4}, 9));
}

// Made by somebody who knows the format, so that every checksum matches.
TEST_F(SessionAttackTest, AForgerGetsNoFurtherThanItsOwnSession) {
  const Sessions from(Connect(elsewhere_.server(), "t"), kStream);
  const v1::Session session = from.Open();
  from.Tokens(from.GenerateOf(session, 12));
  const Snapshot good = *DecodeSnapshot(*from.Snapshot(session), "");
  const auto forged = [&](const std::function<void(Snapshot*)>& change) {
    Snapshot snapshot = good;
    change(&snapshot);
    return EncodeSnapshot(snapshot, "");
  };
  Withstand([&] {
    for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
      EXPECT_EQ(Refused(sessions_, forged([&](Snapshot* s) { s->state.back() = bad; })),
                "SNAPSHOT_DAMAGED");
    }
    EXPECT_EQ(Refused(sessions_, forged([](Snapshot* s) { s->tenant = "u"; })), "SNAPSHOT_TENANT");
    EXPECT_EQ(Refused(sessions_, forged([](Snapshot* s) { s->weights_sha256[0] ^= 1; })),
              "SNAPSHOT_MODEL");
    EXPECT_EQ(Refused(sessions_, forged([](Snapshot* s) { s->config_sha256[5] ^= 1; })),
              "SNAPSHOT_MODEL");
    for (const int64_t fed : {int64_t{-1}, int64_t{14}, int64_t{1} << 62}) {
      EXPECT_EQ(Refused(sessions_, forged([&](Snapshot* s) { s->fed = fed; })), "SNAPSHOT_DAMAGED");
    }
    for (const int32_t token : {-1, 37, 1 << 30}) {
      EXPECT_EQ(Refused(sessions_, forged([&](Snapshot* s) {
                          s->tokens[3] = token;
                          s->sequence_hash = HashTokens(kEmptySequenceHash, s->tokens);
                        })),
                "SNAPSHOT_DAMAGED")
          << token;
    }
    EXPECT_EQ(Refused(sessions_, forged([](Snapshot* s) { s->marks["far"] = 99; })),
              "SNAPSHOT_DAMAGED");
    // Numbers of another machine are taken, and it says so.
    const auto foreign = sessions_.Restore(forged([](Snapshot* s) { s->numerics_id += "?"; }));
    ASSERT_TRUE(foreign.ok()) << foreign.status();
    EXPECT_FALSE(foreign->same_numerics());
    EXPECT_TRUE(sessions_.Close(foreign->session()).ok());
    // Finite numbers that no session ever had are its own to be wrong with.
    const auto wild =
        sessions_.Restore(forged([](Snapshot* s) { s->state.assign(s->state.size(), 3e38f); }));
    ASSERT_TRUE(wild.ok()) << wild.status();
    const SessionReply reply = sessions_.Generate(sessions_.GenerateOf(wild->session(), 5));
    if (!reply.status.ok()) {
      EXPECT_EQ(ReasonOf(reply.status), "NON_FINITE_OUTPUT");
    }
    EXPECT_TRUE(sessions_.Close(wild->session()).ok());
  });
}

}  // namespace
}  // namespace rivulet::testing
