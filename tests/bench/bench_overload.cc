// SPDX-License-Identifier: Apache-2.0
// What slow readers and overload cost the others. Starts `rivulet-server` on loopback and prints
// one JSON line a measurement, as ratios within this run: everything is compared with an
// undisturbed phase beside it. Nothing is asserted.
//
// Readers: `readers` calls read as fast as they can; with and without 1 and 50 calls that never
// read, or read a message a second: p99 of the gaps between messages of one reader, and the memory
// that the server takes more for each slow one. A message may hold all that was generated
// meanwhile, so one a second can be as many tokens as any other reply gets: those are compared with
// as many readers more that read at once, too.
// Overload: the rate of good replies at full slots, then at 2 and 10 times as many requests a
// second: the share of the rate that is left, how fast refusals come, and whether every reply that
// was given is the one that the same request gets alone.
//
//   bench_overload [--readers 64] [--seconds 4] [--rounds 3] [--threads 1] [--slots 16]
#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "rivulet/v1/inference.grpc.pb.h"
#include "tests/bench/server_process.h"
#include "tests/support/paths.h"

namespace rivulet {
namespace {

using Clock = std::chrono::steady_clock;
using v1::InferenceService;
using Stub = InferenceService::Stub;

struct Options {
  int readers = 64, threads = 1, slots = 16, rounds = 3;
  double seconds = 4;
};

double Milliseconds(Clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

void Sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return -1;
  const size_t rank = static_cast<size_t>(q * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(rank),
                   values.end());
  return values[rank];
}

// What all calls of one kind have seen. Thread: any.
struct Seen {
  std::mutex mutex;
  std::condition_variable closed;
  std::vector<double> gaps_ms;      // between messages of one call
  std::vector<double> refusals_ms;  // from the call to its RESOURCE_EXHAUSTED
  int64_t good_tokens = 0;          // of replies that ended well
  int64_t good = 0, refused = 0, failed = 0, wrong = 0;
  int open = 0;
  std::atomic<bool> stop{false};

  void AwaitClosed() {
    std::unique_lock<std::mutex> lock(mutex);
    closed.wait(lock, [this] { return open == 0; });
  }
};

enum class Pace { kFast, kSlow, kNever };

// One Generate; a fast one is followed by the next until told to stop, where `again`.
class Call : public grpc::ClientReadReactor<v1::GenerateReply> {
 public:
  struct Kind {
    Stub* stub;
    Seen* seen;
    v1::GenerateRequest request;
    Pace pace = Pace::kFast;
    bool again = true;
    std::vector<int32_t> expected;  // tokens of a good reply; empty: not compared
  };
  static void Begin(const Kind& kind) {
    auto* call = new Call(kind);  // deletes itself in OnDone
    {
      std::lock_guard<std::mutex> lock(kind.seen->mutex);
      ++kind.seen->open;
    }
    kind.stub->async()->Generate(&call->context_, &call->kind_.request, call);
    if (kind.pace == Pace::kFast) {
      call->StartRead(&call->reply_);
    } else {
      call->AddHold();
      call->pacer_ = std::thread([call] { call->ReadSlowly(); });
    }
    call->StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    tokens_.insert(tokens_.end(), reply_.tokens().begin(), reply_.tokens().end());
    const Clock::time_point now = Clock::now();
    if (messages_++ > 0) gaps_.push_back(Milliseconds(now - last_));
    last_ = now;
    if (kind_.seen->stop) context_.TryCancel();
    if (kind_.pace == Pace::kFast) StartRead(&reply_);
    reading_ = false;  // last: reply_ is the pacer's now
  }

  void OnDone(const grpc::Status& status) override {
    Seen& seen = *kind_.seen;
    const bool again = kind_.again && !seen.stop;
    if (pacer_.joinable()) pacer_.detach();
    if (again) Begin(kind_);
    std::unique_lock<std::mutex> lock(seen.mutex);
    seen.gaps_ms.insert(seen.gaps_ms.end(), gaps_.begin(), gaps_.end());
    if (status.ok()) {
      ++seen.good;
      seen.good_tokens += static_cast<int64_t>(tokens_.size());
      if (!kind_.expected.empty() && tokens_ != kind_.expected) ++seen.wrong;
    } else if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) {
      ++seen.refused;
      seen.refusals_ms.push_back(Milliseconds(Clock::now() - begin_));
    } else if (!seen.stop && seen.failed++ == 0) {
      std::fprintf(stderr, "%s\n", status.error_message().c_str());
    }
    lock.unlock();
    delete this;  // lets go of the channel before those who wait may: the last must not be gRPC's
    lock.lock();
    if (--seen.open == 0) seen.closed.notify_all();
  }

 private:
  explicit Call(const Kind& kind) : kind_(kind) {}

  void ReadSlowly() {
    for (Clock::time_point next = Clock::now(); !kind_.seen->stop;) {
      Sleep(0.02);
      if (kind_.pace == Pace::kNever || reading_ || Clock::now() < next) continue;
      reading_ = true;
      next = Clock::now() + std::chrono::seconds(1);
      StartRead(&reply_);
    }
    context_.TryCancel();
    RemoveHold();
  }

  const Kind kind_;
  grpc::ClientContext context_;
  v1::GenerateReply reply_;
  std::vector<int32_t> tokens_;
  std::vector<double> gaps_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point last_;
  int messages_ = 0;
  std::thread pacer_;
  std::atomic<bool> reading_{false};  // of the pacer
};

struct Target {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<Stub> stub;
};

// Every kind of caller has a connection of its own.
Target Connect(const ServerProcess& server, int id) {
  grpc::ChannelArguments arguments;
  arguments.SetInt("bench.connection", id);
  // What a client takes without reading is its own memory; filling it takes only time.
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 4 << 10);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  Target target;
  target.channel =
      grpc::CreateCustomChannel(server.target(), grpc::InsecureChannelCredentials(), arguments);
  target.stub = InferenceService::NewStub(target.channel);
  return target;
}

v1::ModelLoad Load(Stub* stub) {
  grpc::ClientContext context;
  v1::GetLoadReply reply;
  (void)stub->GetLoad(&context, v1::GetLoadRequest(), &reply);
  return reply.models_size() > 0 ? reply.models(0) : v1::ModelLoad();
}

v1::GenerateRequest Endless(uint64_t seed) {
  v1::GenerateRequest request;
  request.set_text("\n");
  request.set_max_tokens(1 << 20);
  request.mutable_sampling()->set_seed(seed);
  return request;
}

// The gaps of `readers` calls over `seconds`.
double GapP99(const Options& options, Stub* stub, int readers) {
  Seen seen;
  for (int i = 0; i < readers; ++i) {
    Call::Begin({stub, &seen, Endless(static_cast<uint64_t>(i)), Pace::kFast, true, {}});
  }
  Sleep(options.seconds);
  seen.stop = true;
  seen.AwaitClosed();
  return Quantile(seen.gaps_ms, 0.99);
}

// Returns once those that never read are full and the server generates nothing any more; those that
// read now and then always take some.
void AwaitPaused(Stub* stub, Pace pace) {
  if (pace == Pace::kSlow) return Sleep(3);
  for (int64_t tokens = -1, now = 0; tokens != now;) {
    tokens = Load(stub).tokens_total();
    Sleep(0.5);
    now = Load(stub).tokens_total();
  }
}

void MeasureReaders(const Options& options) {
  const ServerProcess server({"--model", SourcePath("model/zoo/shakespeare-rfa"), "--threads",
                              std::to_string(options.threads), "--slots",
                              std::to_string(options.readers + 50), "--reader-timeout-seconds",
                              "0"});
  const Target fast = Connect(server, 1), other = Connect(server, 2);
  GapP99(options, fast.stub.get(), options.readers);  // memory that is taken once
  for (const Pace pace : {Pace::kNever, Pace::kSlow}) {
    for (const int slow : {1, 50}) {
      std::vector<double> base = {GapP99(options, fast.stub.get(), options.readers)}, with;
      Seen ignored;
      const int64_t before = server.MemoryKib();
      for (int i = 0; i < slow; ++i) {
        Call::Begin({other.stub.get(),
                     &ignored,
                     Endless(1000 + static_cast<uint64_t>(i)),
                     pace,
                     false,
                     {}});
      }
      AwaitPaused(fast.stub.get(), pace);
      const double kib_each = static_cast<double>(server.MemoryKib() - before) / slow;
      for (int round = 0; round < options.rounds; ++round) {
        with.push_back(GapP99(options, fast.stub.get(), options.readers));
      }
      ignored.stop = true;
      ignored.AwaitClosed();
      base.push_back(GapP99(options, fast.stub.get(), options.readers));
      const double as_fast = GapP99(options, fast.stub.get(), options.readers + slow);
      const double undisturbed = (base[0] + base[1]) / 2;  // before and after
      std::printf(
          "{\"what\":\"readers\",\"readers\":%d,\"others\":%d,\"pace\":\"%s\",\"gap_p99_ms\":%.2f,"
          "\"undisturbed_ms\":%.2f,\"ratio\":%.3f,\"as_many_fast_ms\":%.2f,\"kib_each\":%.1f}\n",
          options.readers, slow, pace == Pace::kNever ? "never" : "one message a second",
          Quantile(with, 0.5), undisturbed, Quantile(with, 0.5) / undisturbed, as_fast, kib_each);
      std::fflush(stdout);
    }
  }
}

// The first lines of pictures.
std::vector<v1::GenerateRequest> Images() {
  std::vector<v1::GenerateRequest> requests(16);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].mutable_tokens();
    requests[i].set_max_tokens(200);
    requests[i].mutable_sampling()->set_seed(i);
  }
  return requests;
}

void MeasureOverload(const Options& options) {
  const ServerProcess server({"--model", SourcePath("model/zoo/mnist-linear"), "--threads",
                              std::to_string(options.threads), "--slots",
                              std::to_string(options.slots), "--max-queue",
                              std::to_string(options.slots)});
  const Target target = Connect(server, 1);
  const std::vector<v1::GenerateRequest> requests = Images();
  std::vector<Call::Kind> kinds;
  for (const v1::GenerateRequest& request : requests) {
    grpc::ClientContext context;
    v1::GenerateReply reply;
    Call::Kind kind{target.stub.get(), nullptr, request, Pace::kFast, false, {}};
    const auto reader = target.stub->Generate(&context, request);
    while (reader->Read(&reply)) {
      kind.expected.insert(kind.expected.end(), reply.tokens().begin(), reply.tokens().end());
    }
    (void)reader->Finish();
    kinds.push_back(kind);
  }
  // Counts what ends well within the window, once all is in motion.
  const auto measure = [&](double per_second, Seen* seen) {
    int next = 0;
    const auto begin_call = [&](bool again) {
      Call::Kind kind = kinds[static_cast<size_t>(next++) % kinds.size()];
      kind.seen = seen;
      kind.again = again;
      Call::Begin(kind);
    };
    if (per_second == 0) {
      for (int i = 0; i < options.slots; ++i) begin_call(true);
    }
    const Clock::time_point begin = Clock::now();
    int64_t tokens_before = -1;
    const double warm = 2, total = warm + options.seconds * options.rounds;
    for (double now = 0; now < total; now = Milliseconds(Clock::now() - begin) / 1e3) {
      if (tokens_before < 0 && now > warm) {
        std::lock_guard<std::mutex> lock(seen->mutex);
        tokens_before = seen->good_tokens;
      }
      while (per_second > 0 && next < now * per_second) begin_call(false);
      Sleep(0.001);
    }
    double rate = 0;
    {
      std::lock_guard<std::mutex> lock(seen->mutex);
      rate = static_cast<double>(seen->good_tokens - tokens_before) / (total - warm);
    }
    seen->stop = true;
    seen->AwaitClosed();
    return rate;
  };
  Seen peak_seen;
  double peak = measure(0, &peak_seen);
  const double tokens_each = static_cast<double>(kinds[0].expected.size());
  for (const int times : {2, 10}) {
    Seen seen, again;
    const double good = measure(times * peak / tokens_each, &seen);
    const double peak_after = measure(0, &again);
    const double beside = (peak + peak_after) / 2;  // before and after: the machine is shared
    std::printf(
        "{\"what\":\"overload\",\"times\":%d,\"slots\":%d,\"good_tokens_per_second\":%.0f,"
        "\"peak\":%.0f,\"ratio\":%.3f,\"good\":%lld,\"refused\":%lld,\"refusal_ms_median\":%.2f,"
        "\"refusal_ms_p99\":%.2f,\"wrong\":%lld,\"failed\":%lld}\n",
        times, options.slots, good, beside, good / beside, static_cast<long long>(seen.good),
        static_cast<long long>(seen.refused), Quantile(seen.refusals_ms, 0.5),
        Quantile(seen.refusals_ms, 0.99), static_cast<long long>(seen.wrong),
        static_cast<long long>(seen.failed));
    std::fflush(stdout);
    peak = peak_after;
  }
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("What slow readers and overload cost the others");
  app.add_option("--readers", options.readers);
  app.add_option("--seconds", options.seconds, "a phase");
  app.add_option("--rounds", options.rounds);
  app.add_option("--threads", options.threads);
  app.add_option("--slots", options.slots, "in overload");
  CLI11_PARSE(app, argc, argv);
  MeasureReaders(options);
  MeasureOverload(options);
  return 0;
}

}  // namespace
}  // namespace rivulet

int main(int argc, char** argv) { return rivulet::Main(argc, argv); }
