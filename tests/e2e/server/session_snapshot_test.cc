// SPDX-License-Identifier: Apache-2.0
// Sessions taken elsewhere: what a snapshot carries, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "rivulet/v1/session_service.grpc.pb.h"
#include "tests/e2e/server/session_fixture.h"
#include "tests/support/paths.h"
#include "tests/support/wire_error.h"

namespace rivulet::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class SessionSnapshotTest : public ::testing::Test {
 protected:
  // A snapshot of a session with given and generated tokens and a mark; `all_` is its sequence.
  std::string Take(const Sessions& sessions) {
    const v1::Session session = sessions.Open(/*seed=*/11);
    v1::AppendRequest append = sessions.AppendOf(session, {3, 1, 4});
    append.mutable_session()->set_mark("prompt");
    EXPECT_TRUE(sessions.client().Append(append).ok());
    all_ = Join({3, 1, 4}, sessions.Tokens(sessions.GenerateOf(session, 12)));
    const auto snapshot = sessions.Snapshot(session);
    EXPECT_TRUE(snapshot.ok()) << snapshot.status();
    rest_ = sessions.Tokens(sessions.GenerateOf(session, 20));
    return snapshot.value_or("");
  }
  // Restoring `bytes` is refused, and leaves no session.
  static void ExpectRefused(const Sessions& sessions, const std::string& bytes,
                            absl::StatusCode code, const std::string& reason) {
    const absl::Status status = sessions.Restore(bytes).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_EQ(ReasonOf(status), reason) << status;
    EXPECT_TRUE(sessions.List().empty());
  }

  TestServer here_{{kStream, kNoBos}};
  TestServer there_{{kStream, kNoBos}};
  std::vector<int> all_, rest_;
};

TEST_F(SessionSnapshotTest, ARestoredSessionGoesOnAsTheOriginal) {
  for (const char* model : {kStream, kNoBos}) {
    const Sessions from(Connect(here_.server(), "t"), model);
    const Sessions to(Connect(there_.server(), "t"), model);
    const std::string snapshot = Take(from);
    for (int copy = 0; copy < 2; ++copy) {
      const auto restored = to.Restore(snapshot);
      ASSERT_TRUE(restored.ok()) << restored.status();
      EXPECT_TRUE(restored->same_numerics());
      const v1::Session& session = restored->session();
      EXPECT_EQ(session.model(), model);
      EXPECT_EQ(session.seed(), 11u);
      EXPECT_EQ(session.progress().position(), 15);
      EXPECT_EQ(session.progress().sequence_hash(), Fnv1a(all_));
      EXPECT_THAT(session.marks(), ElementsAre(Pair("prompt", 3)));
      EXPECT_GT(session.state_bytes(), 0);
      EXPECT_EQ(to.Tokens(to.GenerateOf(session, 20)), rest_);
      // What was generated is known as such, and the mark still leads back.
      EXPECT_EQ(to.Tokens(to.GenerateOf(session, 12, 3)), From(all_, 3));
      ASSERT_TRUE(to.Rewind(session, std::nullopt, "prompt").ok());
      EXPECT_EQ(to.Tokens(to.GenerateOf(session, 12)), From(all_, 3));
    }
    EXPECT_EQ(to.List().size(), 2u);
  }
}

TEST_F(SessionSnapshotTest, AnEmptySessionAndALongOneAreTakenToo) {
  const Sessions from(Connect(here_.server()), kStream), to(Connect(there_.server()), kStream);
  auto snapshot = from.Snapshot(from.Open());
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  auto restored = to.Restore(*snapshot);
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(to.Tokens(to.GenerateOf(restored->session(), 9)), from.Alone({}, 9));

  const v1::Session session = from.Open();
  std::vector<int> given;
  for (int i = 0; i < 500000; ++i) given.push_back(i % 37);
  ASSERT_TRUE(from.Append(session, given).ok());
  snapshot = from.Snapshot(session);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_GT(snapshot->size(), size_t{1} << 20) << "several messages";
  restored = to.Restore(*snapshot);
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->session().progress().sequence_hash(), Fnv1a(given));
  EXPECT_EQ(to.Tokens(to.GenerateOf(restored->session(), 9)),
            from.Tokens(from.GenerateOf(session, 9)));
}

TEST_F(SessionSnapshotTest, ASnapshotOfAnotherModelOrTenantIsRefused) {
  const std::string snapshot = Take(Sessions(Connect(here_.server(), "t"), kStream));
  ExpectRefused(Sessions(Connect(there_.server(), "t"), kNoBos), snapshot,
                absl::StatusCode::kFailedPrecondition, "SNAPSHOT_MODEL");
  ExpectRefused(Sessions(Connect(there_.server(), "u"), kStream), snapshot,
                absl::StatusCode::kPermissionDenied, "SNAPSHOT_TENANT");
  ExpectRefused(Sessions(Connect(there_.server()), kStream), snapshot,
                absl::StatusCode::kPermissionDenied, "SNAPSHOT_TENANT");
}

TEST_F(SessionSnapshotTest, AServerWithAKeyTakesWhatThatKeySigned) {
  const TempDir directory;
  const auto config = [&](const std::string& name, const std::string& key) {
    ServerConfig with_key;
    with_key.snapshot_key_file = directory.File(name);
    std::ofstream(with_key.snapshot_key_file) << key;
    return with_key;
  };
  const std::string key = "0123456789abcdef";
  TestServer one({kStream}, config("one", key)), same({kStream}, config("same", key + "\n"));
  TestServer other({kStream}, config("other", "another key of ours"));
  const std::string mine = Take(Sessions(Connect(one.server()), kStream));
  const std::string unsigned_one = Take(Sessions(Connect(here_.server()), kStream));
  EXPECT_TRUE(Sessions(Connect(same.server()), kStream).Restore(mine).ok());
  EXPECT_TRUE(Sessions(Connect(there_.server()), kStream).Restore(mine).ok()) << "asks for none";
  const Sessions refuses(Connect(other.server()), kStream);
  for (const std::string& snapshot : {mine, unsigned_one}) {
    ExpectRefused(refuses, snapshot, absl::StatusCode::kFailedPrecondition, "SNAPSHOT_KEY");
  }
  ServerConfig bad = config("short", "0123456789abcde\n");
  bad.models = {SourcePath("tests/conformance/models/") + std::string(kStream)};
  bad.listen = "";
  const absl::Status refused = Server::Create(bad).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("15 bytes; it needs at least 16"));
}

TEST_F(SessionSnapshotTest, StreamsThatAreNoSnapshotAreRefused) {
  const auto stub = v1::SessionService::NewStub(there_.channel());
  // Sends `chunks`, the first with the model's name.
  const auto restore = [&](const std::vector<std::string>& chunks, int idle_seconds = 60) {
    grpc::ClientContext context;
    v1::RestoreSessionReply reply;
    const auto writer = stub->RestoreSession(&context, &reply);
    v1::RestoreSessionRequest request;
    request.set_model(kStream);
    request.mutable_idle_timeout()->set_seconds(idle_seconds);
    for (const std::string& chunk : chunks) {
      request.set_chunk(chunk);
      if (!writer->Write(request)) break;
      request.Clear();
    }
    writer->WritesDone();
    return Unpack(writer->Finish());
  };
  WireError error = restore({});
  EXPECT_EQ(error.reason, "MODEL_NAME_MISSING");
  error = restore({""});
  EXPECT_EQ(error.code, grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(error.reason, "SNAPSHOT_DAMAGED");
  error = restore({std::string((1 << 20) + 1, 'x')});
  EXPECT_EQ(error.code, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(error.reason, "CHUNK_TOO_LARGE");
  EXPECT_EQ(error.field, "chunk");
  EXPECT_THAT(error.message, HasSubstr("1048577"));
  error = restore(std::vector<std::string>(30, std::string(1 << 20, 'x')));
  EXPECT_EQ(error.code, grpc::StatusCode::OUT_OF_RANGE);
  EXPECT_EQ(error.reason, "SNAPSHOT_TOO_LARGE");
  const std::string good = Take(Sessions(Connect(here_.server()), kStream));
  error = restore({good}, /*idle_seconds=*/0);
  EXPECT_EQ(error.code, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(error.reason, "IDLE_TIMEOUT_OUT_OF_RANGE");
  EXPECT_EQ(error.field, "idle_timeout");
  EXPECT_TRUE(Sessions(Connect(there_.server()), kStream).List().empty());
  // Any cut into messages is the same snapshot.
  std::vector<std::string> bytes;
  for (const char byte : good) bytes.emplace_back(1, byte);
  EXPECT_EQ(restore(bytes).code, grpc::StatusCode::OK);
  const std::vector<v1::Session> listed = Sessions(Connect(there_.server()), kStream).List();
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0].idle_timeout().seconds(), 60);
}

}  // namespace
}  // namespace rivulet::testing
