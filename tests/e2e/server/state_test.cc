// SPDX-License-Identifier: Apache-2.0
// States in memory, in files and shared by prompts, on a whole server with the CPU backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "model/base/error.h"
#include "server/sessions/snapshot.h"
#include "tests/e2e/server/session_fixture.h"
#include "tests/support/paths.h"

namespace rivulet::testing {
namespace {

namespace fs = std::filesystem;

std::vector<int> Counting(int first, int count) {
  std::vector<int> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((first + i * i) % 37);
  return tokens;
}

v1::GenerateRequest Cached(const std::vector<int>& prompt, const std::string& salt = "") {
  v1::GenerateRequest request;
  request.set_model(kStream);
  request.mutable_tokens()->mutable_ids()->Add(prompt.begin(), prompt.end());
  request.mutable_sampling()->set_seed(7);
  request.mutable_sampling()->set_frequency_penalty(0.5f);
  request.set_max_tokens(12);
  request.mutable_cache()->set_enabled(true);
  request.mutable_cache()->set_salt(salt);
  return request;
}

class StateTest : public ::testing::Test {
 protected:
  const TempDir directory_;
  ServerConfig config_;

  StateTest() {
    config_.backend = "cpu";
    config_.threads = 1;
  }
  void WriteFile(const std::string& name, const std::string& bytes) const {
    std::ofstream(directory_.File(name), std::ios::binary) << bytes;
  }
  // The reply, whose tokens must be those of a request without a cache.
  Collected Run(const Sessions& sessions, v1::GenerateRequest request) const {
    Collected reply = sessions.Generate(request).reply;
    request.clear_cache();
    EXPECT_EQ(reply.tokens, sessions.Generate(request).reply.tokens);
    return reply;
  }
  // A snapshot of a session of kStream that was given `tokens`.
  std::string SnapshotOf(const std::vector<int>& tokens, const std::string& tenant) const {
    TestServer server({kStream}, config_);
    const Sessions sessions(Connect(server.server(), tenant), kStream);
    const v1::Session session = sessions.Open();
    EXPECT_TRUE(sessions.Append(session, tokens).ok());
    const auto snapshot = sessions.Snapshot(session);
    EXPECT_TRUE(snapshot.ok()) << snapshot.status();
    return snapshot.ok() ? *snapshot : "";
  }
  absl::Status StartError() const {
    ServerConfig config = config_;
    config.models = {SourcePath("tests/conformance/models/") + std::string(kStream)};
    config.listen = "";
    const auto server = Server::Create(config);
    return server.status();
  }
};

TEST_F(StateTest, TenTimesAsManySessionsAsSlotsLiveInFiles) {
  config_.slots = 2;
  config_.session_state_mib = 0;
  config_.state_dir = directory_.File("states");
  {
    TestServer server({kStream}, config_);
    const Sessions sessions(Connect(server.server()), kStream);
    std::vector<v1::Session> opened;
    std::vector<std::vector<int>> seen(20);
    for (uint64_t i = 0; i < 20; ++i) opened.push_back(sessions.Open(i));
    for (int round = 0; round < 3; ++round) {
      for (size_t i = 0; i < opened.size(); ++i) {
        const std::vector<int> given = {static_cast<int>(i), round, 3};
        ASSERT_TRUE(sessions.Append(opened[i], given).ok());
        seen[i] = Join(seen[i], given);
        const std::vector<int> drawn = sessions.Tokens(sessions.GenerateOf(opened[i], 5));
        EXPECT_EQ(drawn, sessions.Alone(seen[i], 5, i));
        seen[i] = Join(seen[i], drawn);
      }
    }
    v1::ModelLoad load = server.Load(kStream);
    while (load.states_in_memory() > 0 || load.session_state_bytes() > 0) {  // on their way
      sessions.List();                                                       // the engine looks
      load = server.Load(kStream);
    }
    EXPECT_GE(load.states_on_disk(), 20);
    EXPECT_GT(load.state_disk_bytes(), 0);
    EXPECT_EQ(load.states_forgotten(), 0);
    EXPECT_EQ(load.state_file_errors(), 0);
    EXPECT_GT(sessions.List()[0].state_disk_bytes(), 0);
    const fs::path files = directory_.File("states") + "/" + kStream;
    int count = 0;
    for (const auto& entry : fs::directory_iterator(files)) {
      struct stat info = {};
      ASSERT_EQ(stat(entry.path().c_str(), &info), 0);
      EXPECT_EQ(info.st_mode & 0777, 0600u) << entry.path();
      count += entry.path().extension() == ".state" ? 1 : 0;
    }
    EXPECT_EQ(count, load.states_on_disk());
    for (const v1::Session& session : opened) EXPECT_TRUE(sessions.Close(session).ok());
    EXPECT_EQ(server.Load(kStream).states_on_disk(), 0);
  }
  for (const auto& entry : fs::recursive_directory_iterator(directory_.File("states"))) {
    EXPECT_NE(entry.path().extension(), ".state") << entry.path();
  }
}

TEST_F(StateTest, PromptsOfOneTenantShareStatesAndThoseOfAnotherDoNot) {
  TestServer server({kStream}, config_);
  const Sessions mine(Connect(server.server(), "me"), kStream);
  const Sessions others(Connect(server.server(), "others"), kStream);
  const std::vector<int> prompt = Counting(1, 40);
  EXPECT_EQ(Run(mine, Cached(prompt)).usage.cached_prompt_tokens(), 0);
  EXPECT_EQ(Run(mine, Cached(prompt)).usage.cached_prompt_tokens(), 39);
  EXPECT_EQ(Run(mine, Cached(Join(prompt, {4, 5}))).usage.cached_prompt_tokens(), 39);
  EXPECT_EQ(Run(mine, Cached(prompt, "salt")).usage.cached_prompt_tokens(), 0);
  EXPECT_EQ(Run(others, Cached(prompt)).usage.cached_prompt_tokens(), 0);
  v1::GenerateRequest many = Cached(prompt);
  many.set_num_samples(4);
  EXPECT_EQ(Run(mine, many).usage.cached_prompt_tokens(), 39);
  const v1::ModelLoad load = server.Load(kStream);
  EXPECT_EQ(load.prompt_cache_hits(), 3);
  EXPECT_EQ(load.prompt_cache_misses(), 3);
  EXPECT_GT(load.prompt_cache_bytes(), 0);
  // A session that is given the prompt.
  const v1::Session session = mine.Open();
  v1::AppendRequest append = mine.AppendOf(session, prompt);
  append.mutable_cache()->set_enabled(true);
  const auto appended = mine.client().Append(append);
  ASSERT_TRUE(appended.ok()) << appended.status();
  EXPECT_EQ(appended->cached_tokens(), 39);
  EXPECT_EQ(appended->progress().sequence_hash(), Fnv1a(prompt));
  EXPECT_EQ(mine.Tokens(mine.GenerateOf(session, 12)), mine.Alone(prompt, 12));
  v1::GenerateRequest bad = Cached(prompt);
  bad.mutable_cache()->add_positions(41);
  EXPECT_EQ(ReasonOf(mine.Generate(bad).status), "CACHE_POSITION_OUT_OF_RANGE");
}

TEST_F(StateTest, WarmStatesServeEveryTenantFromTheStart) {
  const std::vector<int> prompt = Counting(1, 40), other = Counting(5, 30);
  fs::create_directory(directory_.File("warm"));
  WriteFile("warm/a", SnapshotOf(prompt, "whoever"));
  WriteFile("warm/b", SnapshotOf(other, ""));
  WriteFile("warm/.hidden", "no snapshot");
  config_.warm_states = {directory_.File("warm")};
  config_.prefix_cache_mib = 0;  // of its own the server keeps none
  TestServer server({kStream, kImage}, config_);
  for (const std::string tenant : {"", "whoever", "me"}) {
    const Sessions sessions(Connect(server.server(), tenant), kStream);
    EXPECT_EQ(Run(sessions, Cached(Join(prompt, {4, 5}))).usage.cached_prompt_tokens(), 39);
    EXPECT_EQ(Run(sessions, Cached(other)).usage.cached_prompt_tokens(), 29);
    EXPECT_EQ(Run(sessions, Cached(Counting(9, 30))).usage.cached_prompt_tokens(), 0);
  }
}

TEST_F(StateTest, AWarmStateThatDoesNotFitFailsTheStartWithItsName) {
  const std::string good = SnapshotOf(Counting(1, 40), "");
  const auto error_of = [&](const std::string& bytes) {
    WriteFile("warm", bytes);
    config_.warm_states = {directory_.File("warm")};
    const absl::Status status = StartError();
    EXPECT_THAT(std::string(status.message()),
                ::testing::HasSubstr(directory_.File("warm") + ": "));
    return GetErrorDetail(status).reason;
  };
  std::string damaged = good;
  damaged[damaged.size() / 2] ^= 1;
  EXPECT_EQ(error_of(damaged), "SNAPSHOT_DAMAGED");
  EXPECT_EQ(error_of(""), "SNAPSHOT_DAMAGED");
  Snapshot snapshot = *DecodeSnapshot(good, "");
  snapshot.numerics_id = "another build";
  EXPECT_EQ(error_of(EncodeSnapshot(snapshot, "")), "WARM_STATE_NUMERICS");
  snapshot = *DecodeSnapshot(good, "");
  snapshot.weights_sha256 = std::string(64, 'a');
  EXPECT_EQ(error_of(EncodeSnapshot(snapshot, "")), "WARM_STATE_MODEL");
  snapshot = *DecodeSnapshot(good, "");
  snapshot.fed = 0;
  snapshot.state.clear();
  EXPECT_EQ(error_of(EncodeSnapshot(snapshot, "")), "CONFIG_INVALID");
  config_.session_state_mib = 0;
  EXPECT_EQ(error_of(good), "WARM_STATE_MEMORY");
  config_.session_state_mib = 1;
  config_.warm_states = {directory_.File("nowhere")};
  EXPECT_EQ(StartError().code(), absl::StatusCode::kNotFound);
  WriteFile("warm", good);
  config_.warm_states = {directory_.File("warm")};
  EXPECT_TRUE(StartError().ok());
}

TEST_F(StateTest, AStateDirectoryServesOneServer) {
  config_.state_dir = directory_.File("states");
  TestServer server({kStream}, config_);
  const absl::Status status = StartError();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(GetErrorDetail(status).reason, "STATE_DIR_BUSY");
  config_.state_dir = directory_.File("not/there");
  EXPECT_EQ(StartError().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace rivulet::testing
