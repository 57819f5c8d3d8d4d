// SPDX-License-Identifier: Apache-2.0
// That connections are closed, with counts that the test gives; and that what gRPC counts is what a
// server holds. reset_rates_test.cc says which are closed.
#include "server/grpc/connections/call_watch.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "tests/support/raw_rpc.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;

// The peers that a watch closes which is shown `connections`.
std::set<std::string> Closed(int max_streams, const std::vector<ConnectionCalls>& connections) {
  std::set<std::string> closed;
  std::atomic<int> looks = 0;
  {
    const CallWatch watch(
        max_streams, [&closed](absl::string_view peer) { return closed.emplace(peer).second; },
        [&] {
          ++looks;
          return connections;
        });
    while (looks < 2) absl::SleepFor(absl::Milliseconds(1));  // then the first one is over
  }
  return closed;
}

TEST(CallWatchTest, ClosesTheOffenders) {
  EXPECT_THAT(Closed(1000, {{1, "a:1", 2001, 0, 0}, {2, "b:1", 2000, 0, 0}}), ElementsAre("a:1"));
}

// Holds every call until it may end.
class HeldCalls final : public grpc::CallbackGenericService {
 public:
  void End() {
    absl::MutexLock lock(&mutex_);
    for (Call* call : calls_) call->Finish(grpc::Status::OK);
    calls_.clear();
  }
  void AwaitCalls(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto there = [this, count]()
                           ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return calls_.size() >= count; };
    mutex_.Await(absl::Condition(&there));
  }

 private:
  class Call final : public grpc::ServerGenericBidiReactor {
    void OnDone() override { delete this; }
  };
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    absl::MutexLock lock(&mutex_);
    return calls_.emplace_back(new Call);
  }

  absl::Mutex mutex_;
  std::vector<Call*> calls_ ABSL_GUARDED_BY(mutex_);
};

// Calls of all connections to this process's servers.
int64_t CallsNow() {
  int64_t calls = 0;
  for (const ConnectionCalls& connection : CallsByConnection()) calls += connection.unfinished();
  return calls;
}

TEST(CallWatchTest, GrpcCountsTheCallsOfAConnectionUntilTheyHaveEnded) {
  HeldCalls service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const auto channel =
      grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials());
  std::vector<std::thread> calls;
  for (int i = 0; i < 3; ++i) {
    calls.emplace_back([&channel] {
      std::string reply;
      EXPECT_TRUE(testing::RawCall(channel, "/a/Method", "", &reply).ok());
    });
  }
  service.AwaitCalls(3);
  const std::vector<ConnectionCalls> connections = CallsByConnection();
  ASSERT_EQ(connections.size(), 1u);
  EXPECT_EQ(connections[0].unfinished(), 3);
  EXPECT_EQ(connections[0].peer.rfind("ipv4:127.0.0.1:", 0), 0u) << connections[0].peer;
  service.End();
  for (std::thread& call : calls) call.join();
  while (CallsNow() > 0) absl::SleepFor(absl::Milliseconds(1));  // the test's time limit ends it
  EXPECT_EQ(CallsByConnection()[0].started, 3);
  EXPECT_EQ(CallsByConnection()[0].succeeded, 3);
  server->Shutdown();
}

}  // namespace
}  // namespace rivulet
