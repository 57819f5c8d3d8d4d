// SPDX-License-Identifier: Apache-2.0
// What a bulk client costs: N requests at once as one call each, and over 1 and 4 Multiplex
// streams, one after another against the same `rivulet-server`. Prints one JSON line a way:
// tokens/s and messages/s that reach the client, parts in a message, the server's and the client's
// CPU time a token, and tokens/s beside that of one call each.
//
//   bench_multiplex [--model tests/conformance/models/tiny-elu-relu] [--requests 1000]
//                   [--seconds 5] [--threads 1] [--tokens 500]
#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdio>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "rivulet/client.h"
#include "rivulet/v1/multiplex.grpc.pb.h"
#include "tests/bench/server_process.h"
#include "tests/support/paths.h"

namespace rivulet {
namespace {

struct Options {
  std::string model = SourcePath("tests/conformance/models/tiny-elu-relu");
  int requests = 1000, threads = 1;
  int64_t tokens = 500;
  double seconds = 5;
};

// Of this process, all threads.
double OwnCpuSeconds() { return double(std::clock()) / CLOCKS_PER_SEC; }

struct Counters {
  std::atomic<int64_t> tokens{0}, messages{0}, parts{0}, errors{0}, seed{0};
  std::atomic<int> open{0};
  std::atomic<bool> stop{false};
};

v1::GenerateRequest RequestOf(const Options& options, Counters* counters) {
  v1::GenerateRequest request;
  request.mutable_tokens()->add_ids(1);
  request.set_max_tokens(options.tokens);
  request.mutable_sampling()->set_seed(static_cast<uint64_t>(++counters->seed));
  return request;
}

// One call after another, until told to stop.
void BeginCall(const Client& client, const Options& options, Counters* counters) {
  client.GenerateAsync(
      RequestOf(options, counters),
      [counters](const v1::GenerateReply& part) {
        counters->tokens += part.tokens_size();
        ++counters->messages;
        ++counters->parts;
        return !counters->stop;
      },
      [&client, &options, counters](const absl::Status& status) {
        if (counters->stop) {
          --counters->open;
          return;
        }
        if (!status.ok()) ++counters->errors;
        BeginCall(client, options, counters);
      });
}

// As many requests on one stream, a new one for each that ends.
void RunStream(const std::string& target, int requests, const Options& options,
               Counters* counters) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(-1);
  const auto stub = v1::MultiplexService::NewStub(
      grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  const auto stream = stub->Multiplex(&context);
  v1::MultiplexRequest message;
  uint64_t key = 0;
  const auto begin = [&] {
    message.set_key(++key);
    *message.mutable_generate() = RequestOf(options, counters);
    stream->Write(message);
  };
  for (int i = 0; i < requests; ++i) begin();
  v1::MultiplexReply reply;
  while (!counters->stop && stream->Read(&reply)) {
    ++counters->messages;
    counters->parts += reply.parts_size();
    int64_t tokens = 0;
    for (const v1::MultiplexPart& part : reply.parts()) {
      tokens += part.tokens_size();
      if (part.has_error()) ++counters->errors;
      if (part.has_error() || part.has_usage()) begin();
    }
    counters->tokens += tokens;
  }
  context.TryCancel();
  (void)stream->Finish();
}

// Tokens a second of a way of asking, which is printed.
double Measure(const char* way, const ServerProcess& server, const Options& options, double beside,
               Counters* counters, const std::function<void()>& run) {
  run();
  absl::SleepFor(absl::Seconds(1));
  const double cpu = server.CpuSeconds();
  const double own = OwnCpuSeconds();
  const int64_t tokens = counters->tokens, messages = counters->messages, parts = counters->parts;
  const absl::Time begin = absl::Now();
  absl::SleepFor(absl::Seconds(options.seconds));
  const double elapsed = absl::ToDoubleSeconds(absl::Now() - begin);
  const auto since = [](const std::atomic<int64_t>& now, int64_t before) {
    return double(now - before);
  };
  const double token_count = since(counters->tokens, tokens);
  const double rate = token_count / elapsed;
  std::printf(
      "{\"way\":\"%s\",\"requests\":%d,\"tokens_per_second\":%.0f,\"messages_per_second\":%.0f,"
      "\"parts_per_message\":%.1f,\"tokens_per_part\":%.2f,\"server_cpu_us_per_token\":%.3f,"
      "\"client_cpu_us_per_token\":%.3f,\"tokens_ratio\":%.2f,\"errors\":%lld}\n",
      way, options.requests, rate, since(counters->messages, messages) / elapsed,
      since(counters->parts, parts) / std::max(1.0, since(counters->messages, messages)),
      token_count / std::max(1.0, since(counters->parts, parts)),
      (server.CpuSeconds() - cpu) / token_count * 1e6, (OwnCpuSeconds() - own) / token_count * 1e6,
      beside > 0 ? rate / beside : 1.0, static_cast<long long>(counters->errors));
  std::fflush(stdout);
  counters->stop = true;
  return rate;
}

double MeasureCalls(const ServerProcess& server, const Options& options) {
  Counters counters;
  counters.open = options.requests;
  const Client client = *Client::Connect(server.target());
  const double rate = Measure("one call each", server, options, 0, &counters, [&] {
    for (int i = 0; i < options.requests; ++i) BeginCall(client, options, &counters);
  });
  while (counters.open > 0) absl::SleepFor(absl::Milliseconds(10));
  return rate;
}

void MeasureStreams(const ServerProcess& server, const Options& options, int streams,
                    double beside) {
  Counters counters;
  std::vector<std::thread> threads;
  const std::string way = std::to_string(streams) + (streams == 1 ? " stream" : " streams");
  Measure(way.c_str(), server, options, beside, &counters, [&] {
    for (int i = 0; i < streams; ++i) {
      threads.emplace_back(RunStream, server.target(), options.requests / streams,
                           std::cref(options), &counters);
    }
  });
  for (std::thread& thread : threads) thread.join();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("One call for each request, and many requests over one stream");
  app.add_option("--model", options.model);
  app.add_option("--requests", options.requests);
  app.add_option("--seconds", options.seconds);
  app.add_option("--threads", options.threads);
  app.add_option("--tokens", options.tokens);
  CLI11_PARSE(app, argc, argv);
  const std::string requests = std::to_string(options.requests);
  const ServerProcess server({"--model", options.model, "--backend", "cpu", "--threads",
                              std::to_string(options.threads), "--slots", requests, "--max-queue",
                              requests, "--max-streams", std::to_string(options.requests + 8)});
  const double calls = MeasureCalls(server, options);
  for (const int streams : {1, 4}) MeasureStreams(server, options, streams, calls);
  return 0;
}

}  // namespace
}  // namespace rivulet

int main(int argc, char** argv) { return rivulet::Main(argc, argv); }
