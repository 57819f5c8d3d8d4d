// SPDX-License-Identifier: Apache-2.0
// Snapshots that an earlier build wrote (tests/e2e/server/snapshots/README.md): restored, kept as
// they were, and continued with the tokens that the earlier build drew.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "kernels/cpu/cpu_target.h"
#include "server/sessions/snapshot.h"
#include "tests/e2e/server/session_fixture.h"
#include "tests/support/paths.h"

namespace rivulet::testing {
namespace {

const std::string kFolder = SourcePath("tests/e2e/server/snapshots/");
constexpr char kNumerics[] = "cpu-f32-exact-fma-1";  // of the machine and build that wrote them

struct Old {
  const char* file;
  const char* model;          // below tests/conformance
  const char* key_file;       // that it is signed with; "": it is not
  std::vector<int> drawn;     // tokens 5 to 16, between the marks
  std::vector<int> sequence;  // what the session held: given and generated
  std::vector<int> next;      // what its next 16 tokens were
};

const std::vector<int> kEluDrawn = {15, 16, 32, 5, 21, 15, 33, 3, 24, 14, 15, 19};
const std::vector<int> kEluNext = {1, 15, 23, 17, 17, 17, 17, 17, 8, 15, 32, 1, 36, 13, 10, 17};

std::vector<int> Whole(const std::vector<int>& drawn, const std::vector<int>& last) {
  return Join(Join(Join({3, 1, 4, 1, 5}, drawn), {9, 2, 6}), last);
}

const std::vector<int> kRfaDrawn = {17, 17, 26, 8, 13, 23, 27, 3, 23, 9, 18, 12};
const std::vector<int> kConcatDrawn = {19, 16, 13, 30, 11, 23, 22, 31, 1, 25, 12, 15};
const std::vector<int> kEluWhole = Whole(kEluDrawn, {17, 28, 14, 13, 17, 1});

class OldSnapshotTest : public ::testing::TestWithParam<Old> {
 protected:
  ~OldSnapshotTest() override { kernels::SetCpuTargetForTest(""); }
  static void RestoreAndGoOn(const Old& old);
};

TEST_P(OldSnapshotTest, RestoresAndGoesOnAsItDidThen) {
  for (const char* target : {"", "AVX2", "SCALAR"}) {
    if (!kernels::SetCpuTargetForTest(target)) continue;  // not on this machine
    SCOPED_TRACE(kernels::CpuTargetName());
    RestoreAndGoOn(GetParam());
  }
}

void OldSnapshotTest::RestoreAndGoOn(const Old& old) {
  std::ifstream file(kFolder + old.file, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  ASSERT_FALSE(bytes.empty());
  ServerConfig config;
  if (*old.key_file != '\0') config.snapshot_key_file = kFolder + old.key_file;
  config.models = {SourcePath("tests/conformance/") + old.model};
  TestServer server({}, config);
  const std::string model = std::filesystem::path(old.model).filename();
  const Sessions sessions(Connect(server.server(), "somebody"), model);
  const std::string numerics = sessions.client().GetModel(model)->numerics_id();
  const bool same = numerics == kNumerics;
  // Another id where multiply-adds are fused: a change of the code changed bits. Then take new
  // snapshots beside these; these must still restore.
  EXPECT_EQ(same, kernels::CpuTargetFuses()) << numerics;

  const auto restored = sessions.Restore(bytes);
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->same_numerics(), same);
  const v1::Session& session = restored->session();
  EXPECT_EQ(session.progress().position(), 26);
  EXPECT_EQ(session.progress().sequence_hash(), Fnv1a(old.sequence));
  EXPECT_EQ(session.seed(), ~uint64_t{0});
  EXPECT_EQ(session.marks_size(), 2);
  EXPECT_EQ(session.marks().at("given"), 5);
  EXPECT_EQ(session.marks().at("drawn é"), 17);
  EXPECT_GT(session.state_bytes(), 0);

  // Nothing of it was dropped or computed again.
  const auto again = sessions.Snapshot(session);
  ASSERT_TRUE(again.ok()) << again.status();
  const auto read = DecodeSnapshot(*again, ""), was = DecodeSnapshot(bytes, "");
  ASSERT_TRUE(read.ok() && was.ok());
  EXPECT_EQ(read->tokens, was->tokens);
  EXPECT_EQ(read->generated, was->generated);
  EXPECT_EQ(read->fed, was->fed);
  EXPECT_EQ(read->state, was->state);
  if (same) {
    EXPECT_EQ(*again, bytes);
  }

  const auto generate = [&](int64_t tokens) {
    v1::GenerateRequest request = sessions.GenerateOf(session, tokens);
    request.mutable_stop()->set_ignore_eos(true);  // as then
    return request;
  };
  const SessionReply next = sessions.Generate(generate(16));
  ASSERT_TRUE(next.status.ok()) << next.status;
  EXPECT_EQ(next.progress.position(), 42);
  if (same) {
    EXPECT_EQ(next.reply.tokens.at(0), old.next);
  }
  ASSERT_TRUE(sessions.Rewind(session, std::nullopt, "given").ok());
  const std::vector<int> drawn = sessions.Tokens(generate(12));
  if (same) {
    EXPECT_EQ(drawn, old.drawn);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Version1, OldSnapshotTest,
    ::testing::Values(Old{"tiny-elu-relu.snapshot", "models/tiny-elu-relu", "", kEluDrawn,
                          kEluWhole, kEluNext},
                      Old{"tiny-elu-relu-signed.snapshot", "models/tiny-elu-relu", "key", kEluDrawn,
                          kEluWhole, kEluNext},
                      Old{"tiny-rfa.snapshot",
                          "models/tiny-rfa",
                          "",
                          kRfaDrawn,
                          Whole(kRfaDrawn, {25, 26, 8, 8, 13, 5}),
                          {1, 8, 13, 20, 19, 12, 13, 21, 10, 17, 25, 1, 36, 12, 5, 19}},
                      Old{"tiny-elu-learned-concat.snapshot",
                          "models/tiny-elu-learned-concat",
                          "",
                          kConcatDrawn,
                          Whole(kConcatDrawn, {23, 15, 28, 10, 14, 22}),
                          {1, 0, 14, 21, 15, 12, 17, 15, 17, 7, 16, 30, 0, 36, 11, 6}}));

const std::vector<int> kGlaDrawn = {19, 7, 24, 32, 3, 20, 21, 29, 2, 19, 7, 21};
const std::vector<int> kRwkv7Drawn = {19, 16, 17, 31, 7, 22, 21, 31, 3, 22, 4, 10};
const std::vector<int> kMamba2Drawn = {17, 18, 16, 31, 8, 24, 22, 32, 1, 26, 6, 18};
const std::vector<int> kDeltaNetDrawn = {17, 12, 16, 32, 11, 23, 19, 37, 1, 26, 6, 11};

INSTANTIATE_TEST_SUITE_P(
    Version2, OldSnapshotTest,
    ::testing::Values(Old{"gla.snapshot",
                          "family/gla",
                          "",
                          kGlaDrawn,
                          Whole(kGlaDrawn, {12, 12, 28, 4, 8, 19}),
                          {4, 2, 8, 17, 12, 14, 23, 20, 20, 8, 17, 32, 0, 36, 8, 4}},
                      Old{"rwkv7.snapshot",
                          "family/rwkv7",
                          "",
                          kRwkv7Drawn,
                          Whole(kRwkv7Drawn, {18, 17, 34, 4, 7, 25}),
                          {3, 0, 9, 22, 13, 14, 19, 20, 17, 8, 13, 32, 0, 37, 12, 6}},
                      Old{"mamba2.snapshot",
                          "family/mamba2",
                          "",
                          kMamba2Drawn,
                          Whole(kMamba2Drawn, {10, 18, 25, 6, 7, 24}),
                          {2, 0, 14, 20, 11, 17, 21, 16, 19, 4, 11, 30, 0, 38, 17, 8}},
                      Old{"delta-net.snapshot",
                          "family/delta-net",
                          "",
                          kDeltaNetDrawn,
                          Whole(kDeltaNetDrawn, {18, 15, 29, 6, 11, 24}),
                          {3, 0, 13, 23, 18, 15, 17, 21, 17, 10, 14, 31, 0, 38, 12, 3}}));

}  // namespace
}  // namespace rivulet::testing
