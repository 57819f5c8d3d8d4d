// SPDX-License-Identifier: Apache-2.0
// The program rivulet-server: flags, log, signals, exit codes.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <atomic>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "tests/e2e/server/test_server.h"
#include "tests/support/paths.h"
#include "tests/support/raw_rpc.h"
#include "tests/support/wire_error.h"

extern char** environ;

namespace rivulet::testing {
namespace {

using ::testing::HasSubstr;

const std::string kModels = SourcePath("tests/conformance/models/");

// A running rivulet-server; killed with this object.
class Process {
 public:
  explicit Process(const std::vector<std::string>& flags) {
    std::vector<std::string> words = {ProgramPath("rivulet-server")};
    words.insert(words.end(), flags.begin(), flags.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    const int flags_of_file = O_WRONLY | O_CREAT | O_TRUNC;
    posix_spawn_file_actions_addopen(&files, 1, out_.c_str(), flags_of_file, 0600);
    posix_spawn_file_actions_addopen(&files, 2, err_.c_str(), flags_of_file, 0600);
    EXPECT_EQ(posix_spawn(&pid_, argv[0], &files, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&files);
  }
  ~Process() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  void Signal(int signal) { kill(pid_, signal); }
  // Waits for the end; the exit code, or minus the signal that ended it.
  int Wait() {
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::string out() const { return Read(out_); }
  std::string err() const { return Read(err_); }

  // Waits for a log line of this event; null if the process ends without one.
  nlohmann::json AwaitEvent(const std::string& event) const {
    while (true) {
      siginfo_t info{};
      const bool over =
          waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
          info.si_pid != 0;
      for (absl::string_view line : absl::StrSplit(err(), '\n')) {
        const auto json = nlohmann::json::parse(line.begin(), line.end(), nullptr, false);
        if (json.is_object() && json.value("event", "") == event) return json;
      }
      if (over) return nullptr;
      absl::SleepFor(absl::Milliseconds(2));
    }
  }
  // A connection to the port that the log names.
  std::shared_ptr<grpc::Channel> Connect() const {
    const nlohmann::json listening = AwaitEvent("listening");
    EXPECT_TRUE(listening.is_object()) << err();
    if (!listening.is_object()) return nullptr;
    return grpc::CreateChannel("127.0.0.1:" + std::to_string(listening["port"].get<int>()),
                               grpc::InsecureChannelCredentials());
  }

 private:
  static std::string Read(const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }

  TempDir directory_;
  const std::string out_ = directory_.File("out");
  const std::string err_ = directory_.File("err");
  pid_t pid_ = 0;
};

std::vector<std::string> Flags(std::vector<std::string> more = {}) {
  std::vector<std::string> flags = {
      "--model", kModels + kStream, "--listen", "127.0.0.1:0", "--backend",
      "cpu",     "--threads",       "1"};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

TEST(ProcessTest, SigtermLetsRunningRepliesEndAndExitsWithZero) {
  Process process(Flags({"--model", kModels + kImage}));
  const auto channel = process.Connect();
  ASSERT_NE(channel, nullptr);
  auto stub = v1::InferenceService::NewStub(channel);
  const Collected alone = Generate(*stub, Request(kStream, 1, 20000));
  std::vector<Collected> replies(4);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateReply>>> readers;
  for (Collected& reply : replies) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(stub->Generate(contexts.back().get(), Request(kStream, 1, 20000)));
    v1::GenerateReply first;
    ASSERT_TRUE(readers.back()->Read(&first));
    Add(first, &reply);
  }
  process.Signal(SIGTERM);
  for (size_t i = 0; i < replies.size(); ++i) {
    Collect(readers[i].get(), &replies[i]);
    EXPECT_TRUE(replies[i].status.ok()) << replies[i].status.error_message();
    EXPECT_EQ(replies[i].tokens, alone.tokens);
  }
  EXPECT_EQ(process.Wait(), 0);
  EXPECT_EQ(process.out(), "");
  std::vector<std::string> events;
  for (absl::string_view line : absl::StrSplit(process.err(), '\n', absl::SkipEmpty())) {
    const auto json = nlohmann::json::parse(line.begin(), line.end(), nullptr, false);
    ASSERT_TRUE(json.is_object()) << line;
    EXPECT_TRUE(json.contains("ts") && json.contains("level")) << line;
    events.push_back(json.value("event", ""));
  }
  EXPECT_THAT(events, ::testing::ElementsAre("descriptors", "model", "model", "listening",
                                             "draining", "stopped"));
}

// A client's next call after the last that was answered: it may meet the server at any moment of
// its end. CANCELLED would be an error that no client tries again, although nothing was done.
grpc::StatusCode CallUntilTheEnd(const std::string& target, std::atomic<int>* answered) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  auto stub = v1::InferenceService::NewStub(
      grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments));
  while (true) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(30)));
    v1::GetLoadReply reply;
    const grpc::Status status = stub->GetLoad(&context, v1::GetLoadRequest(), &reply);
    if (!status.ok()) return status.error_code();
    ++*answered;
  }
}

TEST(ProcessTest, ACallThatMeetsTheEndOfAnIdleServerIsUnavailable) {
  constexpr int kRounds = 8, kClients = 4;
  for (int round = 0; round < kRounds; ++round) {
    Process process(Flags());
    const nlohmann::json listening = process.AwaitEvent("listening");
    ASSERT_TRUE(listening.is_object());
    const std::string target = "127.0.0.1:" + std::to_string(listening["port"].get<int>());
    std::atomic<int> answered[kClients] = {};
    grpc::StatusCode codes[kClients];
    std::vector<std::thread> clients;
    for (int i = 0; i < kClients; ++i) {
      clients.emplace_back([&, i] { codes[i] = CallUntilTheEnd(target, &answered[i]); });
    }
    for (std::atomic<int>& count : answered) {
      while (count == 0) absl::SleepFor(absl::Milliseconds(1));
    }
    process.Signal(SIGTERM);
    for (std::thread& client : clients) client.join();
    for (const grpc::StatusCode code : codes) EXPECT_EQ(code, grpc::StatusCode::UNAVAILABLE);
    EXPECT_EQ(process.Wait(), 0);
  }
}

TEST(ProcessTest, TheDrainTimeIsKept) {
  Process process(Flags({"--drain-seconds", "0"}));
  const auto channel = process.Connect();
  ASSERT_NE(channel, nullptr);
  auto stub = v1::InferenceService::NewStub(channel);
  grpc::ClientContext context;
  auto reader = stub->Generate(&context, Request(kStream, 1, 1 << 20));
  Collected reply;
  v1::GenerateReply first;
  ASSERT_TRUE(reader->Read(&first));
  Add(first, &reply);
  process.Signal(SIGINT);
  Collect(reader.get(), &reply);
  EXPECT_EQ(Unpack(reply.status).reason, "DRAINING");
  EXPECT_EQ(Unpack(reply.status).metadata["sent_tokens"], std::to_string(reply.tokens[0].size()));
  EXPECT_EQ(process.Wait(), 0);
}

TEST(ProcessTest, TheDrainDelayTakesRequestsAndThenTheDrainBegins) {
  Process process(Flags({"--drain-delay-seconds", "2", "--drain-seconds", "60"}));
  const auto channel = process.Connect();
  ASSERT_NE(channel, nullptr);
  auto stub = v1::InferenceService::NewStub(channel);
  const Collected before = Generate(*stub, Request(kStream, 1, 100));
  process.Signal(SIGTERM);
  EXPECT_EQ(process.AwaitEvent("leaving").value("seconds", 0), 2);
  while (Health(channel, "") != "NOT_SERVING") absl::SleepFor(absl::Milliseconds(1));
  const Collected meanwhile = Generate(*stub, Request(kStream, 1, 100));
  EXPECT_TRUE(meanwhile.status.ok()) << meanwhile.status.error_message();
  EXPECT_EQ(meanwhile.tokens, before.tokens);
  EXPECT_EQ(process.err().find("\"draining\""), std::string::npos);
  EXPECT_EQ(process.AwaitEvent("draining").value("seconds", 0), 60);
  EXPECT_EQ(process.Wait(), 0);
}

TEST(ProcessTest, ASecondSignalEndsAtOnce) {
  const struct {
    std::vector<std::string> flags;
    std::string event;
  } kCases[] = {{{"--drain-seconds", "86400"}, "draining"},
                {{"--drain-delay-seconds", "86400"}, "leaving"}};
  for (const auto& test : kCases) {
    Process process(Flags(test.flags));
    const auto channel = process.Connect();
    ASSERT_NE(channel, nullptr);
    auto stub = v1::InferenceService::NewStub(channel);
    grpc::ClientContext context;
    auto reader = stub->Generate(&context, Request(kStream, 1, 1 << 20));
    v1::GenerateReply first;
    ASSERT_TRUE(reader->Read(&first));
    process.Signal(SIGTERM);
    ASSERT_TRUE(process.AwaitEvent(test.event).is_object());
    process.Signal(SIGTERM);
    EXPECT_EQ(process.Wait(), 0);
    Collected rest;
    Collect(reader.get(), &rest);
    EXPECT_EQ(rest.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  }
}

TEST(ProcessTest, AHangUpIsLoggedAndIgnored) {
  Process process(Flags({"--drain-seconds", "86400"}));
  const auto channel = process.Connect();
  ASSERT_NE(channel, nullptr);
  process.Signal(SIGHUP);
  const nlohmann::json event = process.AwaitEvent("sighup");
  ASSERT_TRUE(event.is_object()) << "exit code " << process.Wait();
  EXPECT_EQ(event.value("action", ""), "ignored");
  auto stub = v1::InferenceService::NewStub(channel);
  grpc::ClientContext context;
  auto reader = stub->Generate(&context, Request(kStream, 1, 100));
  v1::GenerateReply first;
  ASSERT_TRUE(reader->Read(&first));
  // In a drain it is no second signal, which would end the process at once.
  process.Signal(SIGTERM);
  ASSERT_TRUE(process.AwaitEvent("draining").is_object());
  process.Signal(SIGHUP);
  Collected rest;
  Collect(reader.get(), &rest);
  EXPECT_TRUE(rest.status.ok()) << rest.status.error_message();
  EXPECT_EQ(process.Wait(), 0);
  EXPECT_THAT(process.err(), HasSubstr("\"all_replies_ended\":true"));
}

TEST(ProcessTest, ACrashLeavesOneLineAndTheSignalsExitStatus) {
  if (RIVULET_SANITIZED) GTEST_SKIP() << "sanitizers report crashes themselves";
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) {
    Process process(Flags());
    const auto channel = process.Connect();
    ASSERT_NE(channel, nullptr);
    auto stub = v1::InferenceService::NewStub(channel);
    grpc::ClientContext context;
    auto reader = stub->Generate(&context, Request(kStream, 1, 1 << 20));
    v1::GenerateReply first;
    ASSERT_TRUE(reader->Read(&first));
    process.Signal(signal);
    EXPECT_EQ(process.Wait(), -signal);
    const nlohmann::json line = process.AwaitEvent("crash");
    ASSERT_TRUE(line.is_object()) << process.err();
    EXPECT_EQ(line.value("level", ""), "error");
    EXPECT_EQ(line.value("signal", ""), std::string("SIG") + sigabbrev_np(signal));
    EXPECT_EQ(line.value("cause", ""), "another process");
    EXPECT_EQ(line["loops"].size(), 1u);
    EXPECT_EQ(line["loops"][0].value("model", ""), kStream);
    EXPECT_GT(line["loops"][0].value("runs", 0), 0);
    Collected rest;
    Collect(reader.get(), &rest);
    EXPECT_EQ(rest.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  }
}

TEST(ProcessTest, AFloodOfRefusedRequestsIsCountedInTheLog) {
  Process process(Flags());
  const auto channel = process.Connect();
  ASSERT_NE(channel, nullptr);
  auto stub = v1::InferenceService::NewStub(channel);
  constexpr int kCalls = 300;
  for (int i = 0; i < kCalls; ++i) {
    v1::GenerateRequest request = Request(kStream, 1, 10);
    request.mutable_sampling()->set_top_p(2);
    const Collected refused = Generate(*stub, request);
    ASSERT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    // The server compresses nothing and takes nothing compressed: gRPC itself refuses this one.
    grpc::ClientContext context;
    context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
    v1::GetLoadReply load;
    ASSERT_EQ(stub->GetLoad(&context, v1::GetLoadRequest(), &load).error_code(),
              grpc::StatusCode::UNIMPLEMENTED);
  }
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0);
  std::map<std::string, int> lines, left_out;
  for (absl::string_view text : absl::StrSplit(process.err(), '\n', absl::SkipEmpty())) {
    const auto line = nlohmann::json::parse(text.begin(), text.end());
    ++lines[line.value("event", "")];
    if (line.value("event", "") == "suppressed") left_out[line["of"]] += line.value("count", 0);
    if (line.value("event", "") != "request_error") continue;
    EXPECT_EQ(line.value("method", ""), "Generate");
    EXPECT_EQ(line.value("code", ""), "INVALID_ARGUMENT");
    EXPECT_EQ(line.value("field", ""), "sampling.top_p");
  }
  for (const std::string event : {"request_error", "grpc"}) {
    EXPECT_GE(lines[event], 10) << event;
    EXPECT_LT(lines[event], kCalls) << event;
    EXPECT_GE(lines[event] + left_out[event], kCalls) << event << "\n" << process.err();
  }
}

TEST(ProcessTest, AFailureIsOneLineThatSaysWhatAndWhere) {
  Process other(Flags());
  const nlohmann::json listening = other.AwaitEvent("listening");
  ASSERT_TRUE(listening.is_object());
  const std::string taken = "127.0.0.1:" + std::to_string(listening["port"].get<int>());
  TempDir directory;
  ASSERT_TRUE(WriteRandomModel(directory.File("cut"), TinyConfig(), 1).ok());
  ModelConfig wide = TinyConfig();
  wide.key_dim = wide.value_dim = 512;  // a state of some 4 MiB
  const std::string large = directory.File("large");
  ASSERT_TRUE(WriteRandomModel(large, wide, 1).ok());
  ASSERT_TRUE(WriteFile(directory.File("cut/model.safetensors"), "short").ok());
  ASSERT_TRUE(WriteFile(directory.File("bad.json"), R"({"modle": []})").ok());
  const std::string stream = kModels + kStream;
  const struct {
    std::vector<std::string> flags;
    int code;
    std::string message;
  } kCases[] = {
      {{}, 2, "no model is given"},
      {Flags({"--frob"}), 2, "--frob"},
      {Flags({"--slots", "0"}), 2, "slots is 0"},
      {Flags({"--slots", "4096", "--parked-state-mib", "1"}), 2,
       "parked-state-mib is 1; the states of 4096 slots twice take at least "},
      {{"--model", large, "--session-state-mib", "1"},
       2,
       "session-state-mib is 1, which is less than one state of this model, "},
      {{"--model", large, "--prefix-cache-mib", "2"}, 2, "prefix-cache-mib is 2, which is less"},
      {{"--model", large, "--state-dir", directory.File("states"), "--state-disk-mib", "3"},
       2,
       "state-disk-mib is 3, which is less"},
      {{"--config", directory.File("bad.json")}, 2, "bad.json: \"modle\" is not a setting"},
      {{"--config", "/no/such.json"}, 2, "/no/such.json"},
      {{"--model", "/no/such/model"}, 2, "/no/such/model"},
      {{"--model", directory.File("cut")}, 2, "cut/model.safetensors"},
      {{"--model", stream, "--model", stream}, 2, "both hold a model named"},
      {{"--model", stream, "--listen", taken},
       3,
       taken + ", the value of listen: Address already in use"},
      {{"--model", stream, "--listen", "192.0.2.1:1"}, 3, "192.0.2.1:1"},
      {{"--model", stream, "--listen", "nonsense"}, 2, "listen is \"nonsense\""},
  };
  for (const auto& test : kCases) {
    Process process(test.flags);
    EXPECT_EQ(process.Wait(), test.code) << test.message;
    const std::string err = process.err();
    EXPECT_THAT(err, HasSubstr(test.message));
    EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
    EXPECT_EQ(process.out(), "");
  }
}

TEST(ProcessTest, HelpVersionAndPrintConfigGoToStdout) {
  for (const char* flag : {"--help", "--version", "--print-config"}) {
    Process process(Flags({flag}));
    EXPECT_EQ(process.Wait(), 0);
    EXPECT_NE(process.out(), "") << flag;
    EXPECT_EQ(process.err(), "") << flag;
  }
}

}  // namespace
}  // namespace rivulet::testing
