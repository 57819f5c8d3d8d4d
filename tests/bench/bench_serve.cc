// SPDX-License-Identifier: Apache-2.0
// What reaches gRPC clients of what the engine makes. Starts `rivulet-server --threads N` on
// loopback, keeps `streams` Generate calls of mnist-linear open (a new one begins when one ends),
// and prints one JSON line: tokens/s received by the clients, messages/s, time to first token of a
// lone call (median, worst, over --lone calls, first, on the idle server) and the server's memory.
// Beside it the engine's own rate on as many threads: bench_engine.
//
//   bench_serve [--streams 64] [--seconds 5] [--threads 1] [--servers 1] [--lone 20] [--pin]
//               [--sessions] [--server FLAG]...
// --threads 0: the server's default, a thread for each core. --servers: so many servers on the same
// cores, each with its own `streams`; rates are sums over all, the rest is of the first. --pin: the
// server's engine has one core and everything else the other (two cores: the client is bound to the
// last). --sessions: each stream has a session, from whose beginning each of its calls generates.
// --server: a flag that the servers get too, such as --server=--metrics-listen=127.0.0.1:0;
// pairs.py compares with and without.
#include <grpcpp/grpcpp.h>
#include <sched.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rivulet/v1/inference.grpc.pb.h"
#include "rivulet/v1/session_service.grpc.pb.h"
#include "tests/bench/server_process.h"
#include "tests/support/paths.h"

namespace rivulet {
namespace {

using Clock = std::chrono::steady_clock;
using v1::InferenceService;

struct Options {
  int streams = 64, threads = 1, servers = 1, lone = 20;
  double seconds = 5;
  bool pin = false, sessions = false;
  std::string weights = "auto";
  std::vector<std::string> server;
};

struct Counters {
  std::atomic<int64_t> tokens{0}, messages{0}, errors{0};
  std::atomic<int> open{0};
  std::atomic<bool> stop{false};
};

// One Generate call after another, until told to stop.
class Stream : public grpc::ClientReadReactor<v1::GenerateReply> {
 public:
  // `session`: its id; empty: none.
  static void Begin(InferenceService::Stub* stub, const std::string& session, uint64_t seed,
                    Counters* counters) {
    auto* stream = new Stream(stub, session, seed, counters);  // deletes itself in OnDone
    if (!session.empty()) {
      stream->request_.mutable_session()->set_session_id(session);
      stream->request_.mutable_session()->set_position(0);
    }
    stream->request_.mutable_sampling()->set_seed(seed);
    stream->request_.mutable_tokens();
    stub->async()->Generate(&stream->context_, &stream->request_, stream);
    stream->StartRead(&stream->reply_);
    stream->StartCall();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    counters_->tokens += reply_.tokens_size();
    ++counters_->messages;
    if (counters_->stop) context_.TryCancel();
    StartRead(&reply_);
  }
  void OnDone(const grpc::Status& status) override {
    if (!status.ok() && !counters_->stop && counters_->errors++ == 0) {
      std::fprintf(stderr, "%s\n", status.error_message().c_str());
    }
    Counters* const counters = counters_;
    const bool last = counters->stop;
    if (!last) Begin(stub_, session_, seed_ + 1, counters);
    delete this;  // lets go of the channel before who waits may: the last must not be gRPC's
    if (last) --counters->open;
  }

 private:
  Stream(InferenceService::Stub* stub, std::string session, uint64_t seed, Counters* counters)
      : stub_(stub), session_(std::move(session)), seed_(seed), counters_(counters) {}
  InferenceService::Stub* stub_;
  const std::string session_;
  uint64_t seed_;
  Counters* counters_;
  grpc::ClientContext context_;
  v1::GenerateRequest request_;
  v1::GenerateReply reply_;
};

// Milliseconds from the call to its first message, one call at a time.
std::vector<double> FirstTokenTimes(InferenceService::Stub* stub, int calls) {
  std::vector<double> times;
  for (int i = 0; i < calls; ++i) {
    grpc::ClientContext context;
    v1::GenerateRequest request;
    request.mutable_tokens();
    request.set_max_tokens(4);
    v1::GenerateReply reply;
    const auto begin = Clock::now();
    auto reader = stub->Generate(&context, request);
    if (reader->Read(&reply))
      times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
    while (reader->Read(&reply)) {
    }
    (void)reader->Finish();
  }
  std::sort(times.begin(), times.end());
  return times;
}

// A new session's id.
std::string OpenSession(const std::string& target) {
  const auto stub =
      v1::SessionService::NewStub(grpc::CreateChannel(target, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::OpenSessionReply reply;
  const grpc::Status status = stub->OpenSession(&context, v1::OpenSessionRequest(), &reply);
  if (status.ok()) return reply.session().session_id();
  std::fprintf(stderr, "%s\n", status.error_message().c_str());
  std::exit(1);
}

void PinToLastCore() {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(int(std::thread::hardware_concurrency()) - 1, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) std::perror("sched_setaffinity");
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Tokens that reach gRPC clients");
  app.add_option("--streams", options.streams);
  app.add_option("--seconds", options.seconds);
  app.add_option("--threads", options.threads);
  app.add_option("--servers", options.servers)->check(CLI::Range(1, 64));
  app.add_option("--lone", options.lone);
  app.add_option("--weights", options.weights);
  app.add_flag("--pin", options.pin);
  app.add_flag("--sessions", options.sessions);
  app.add_option("--server", options.server)->expected(1)->take_all();
  CLI11_PARSE(app, argc, argv);

  std::vector<std::string> flags = {"--model",   SourcePath("model/zoo/mnist-linear"),
                                    "--threads", std::to_string(options.threads),
                                    "--weights", options.weights};
  flags.insert(flags.end(), options.server.begin(), options.server.end());
  std::vector<std::unique_ptr<ServerProcess>> servers;
  for (int i = 0; i < options.servers; ++i) {
    servers.push_back(std::make_unique<ServerProcess>(flags));
  }
  if (options.pin) PinToLastCore();
  std::vector<std::unique_ptr<InferenceService::Stub>> stubs;
  for (const auto& server : servers) {
    stubs.push_back(InferenceService::NewStub(
        grpc::CreateChannel(server->target(), grpc::InsecureChannelCredentials())));
    FirstTokenTimes(stubs.back().get(), 3);  // connects
  }
  const std::vector<double> first = FirstTokenTimes(stubs[0].get(), options.lone);
  const int64_t idle_mib = servers[0]->MemoryKib() / 1024;

  Counters counters;
  counters.open = options.streams * options.servers;
  for (size_t server = 0; server < stubs.size(); ++server) {
    for (int i = 0; i < options.streams; ++i) {
      const std::string session =
          options.sessions ? OpenSession(servers[server]->target()) : std::string();
      Stream::Begin(stubs[server].get(), session, uint64_t(i) << 32, &counters);
    }
  }
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const int64_t tokens = counters.tokens, messages = counters.messages;
  const auto begin = Clock::now();
  std::this_thread::sleep_for(std::chrono::duration<double>(options.seconds));
  const double elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
  const double token_rate = double(counters.tokens - tokens) / elapsed;
  const double message_rate = double(counters.messages - messages) / elapsed;
  const int64_t busy_mib = servers[0]->MemoryKib() / 1024;
  counters.stop = true;
  while (counters.open > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::printf(
      "{\"servers\":%d,\"streams\":%d,\"threads\":%d,\"tokens_per_second\":%.0f,\"messages_per_"
      "second\":%.0f,"
      "\"errors\":%lld,"
      "\"first_token_ms_median\":%.2f,\"first_token_ms_worst\":%.2f,\"idle_mib\":%lld,\"busy_mib\":"
      "%lld}\n",
      options.servers, options.streams, options.threads, token_rate, message_rate,
      static_cast<long long>(counters.errors), first.empty() ? -1 : first[first.size() / 2],
      first.empty() ? -1 : first.back(), static_cast<long long>(idle_mib),
      static_cast<long long>(busy_mib));
  return counters.errors == 0 ? 0 : 1;
}

}  // namespace
}  // namespace rivulet

int main(int argc, char** argv) { return rivulet::Main(argc, argv); }
