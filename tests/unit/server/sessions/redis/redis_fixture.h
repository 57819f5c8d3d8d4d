// SPDX-License-Identifier: Apache-2.0
// Shared helpers for the tests of the store in Redis.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "server/sessions/redis/redis_session_store.h"
#include "server/sessions/redis/redis_url.h"
#include "tests/support/redis_process.h"
#include "tests/unit/server/sessions/session_store_contract.h"

namespace rivulet {

// Options of a store that reaches Redis even on a busy machine.
inline RedisOptions PatientOptions(int port) {
  RedisOptions options;
  options.url.addresses = {{"127.0.0.1", port}};
  options.connect_timeout = options.call_timeout = absl::Seconds(60);
  options.must_be_reachable = true;
  return options;
}

// Options of a store that gives up soon: any of its calls may fail on a busy machine, so Await
// them.
inline RedisOptions HastyOptions(int port) {
  RedisOptions options = PatientOptions(port);
  options.connect_timeout = options.call_timeout = absl::Milliseconds(100);
  options.must_be_reachable = false;
  return options;
}

inline std::unique_ptr<SessionStore> Opened(const RedisOptions& options) {
  auto store = OpenRedisSessionStore(options);
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

// Calls condition() until it is true; the test fails if that takes minutes.
inline void Await(const std::function<bool()>& condition) {
  for (int i = 0; i < 60000; ++i) {
    if (condition()) return;
    absl::SleepFor(absl::Milliseconds(5));
  }
  FAIL() << "what is awaited does not happen";
}

// The record of a session as soon as the store answers.
inline StoreAnswer AwaitRead(SessionStore& store, int session) {
  StoreAnswer answer;
  Await([&] {
    auto read = ReadNow(store, SessionName(session));
    if (read.ok()) answer = *std::move(read);
    return read.ok();
  });
  return answer;
}

class RedisTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!RedisProcess::Installed()) GTEST_SKIP() << "redis-server is not installed";
  }
};

}  // namespace rivulet
