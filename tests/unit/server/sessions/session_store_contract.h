// SPDX-License-Identifier: Apache-2.0
// SessionStoreContract: tests of every SessionStore's contract, with the store as their parameter.
// A store's own test adds session_store_contract.cc to its program and names itself:
//
//   INSTANTIATE_TEST_SUITE_P(Memory, SessionStoreContract,
//                            ::testing::Values(StoreCase{"Memory", MakeBacking}), NameOfCase);
// No test depends on timing: it waits for events that must happen, and checks that an event has not
// happened after a later event.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/sessions/replicated/session_store.h"
#include "tests/support/unshared.h"

namespace rivulet {

// The data that the stores of several replicas share. Thread: any.
class StoreBacking {
 public:
  virtual ~StoreBacking() = default;  // REQUIRES: its stores are destroyed
  // The store of another replica.
  virtual std::unique_ptr<SessionStore> Open() = 0;
  // Deletes everything, as an operator may while stores are open.
  virtual void Empty() = 0;
  // Moves the store's clock by about this duration, also back if it can.
  virtual void Pass(absl::Duration time) { absl::SleepFor(time); }
};

struct StoreCase {
  std::string name;
  // Makes an empty one. nullptr: this machine cannot run it, and the tests are skipped.
  std::function<std::unique_ptr<StoreBacking>()> make;
};
inline void PrintTo(const StoreCase& store, std::ostream* out) { *out << store.name; }
inline std::string NameOfCase(const ::testing::TestParamInfo<StoreCase>& info) {
  return info.param.name;
}

// One call whose answer is awaited. call(done) makes it.
template <typename T, typename Call>
std::future<absl::StatusOr<T>> Asked(Call call) {
  auto promise = std::make_shared<std::promise<absl::StatusOr<T>>>();
  std::future<absl::StatusOr<T>> future = promise->get_future();
  call([promise](absl::StatusOr<T> answer) {
    if (!answer.ok()) answer = Unshared(answer.status());
    promise->set_value(std::move(answer));
  });
  return future;
}
inline std::future<absl::StatusOr<StoreAnswer>> StartWrite(SessionStore& store, StoreWrite write) {
  return Asked<StoreAnswer>([&](auto done) { store.Write(std::move(write), std::move(done)); });
}
inline std::future<absl::StatusOr<StoreAnswer>> StartRead(SessionStore& store,
                                                          std::string session) {
  return Asked<StoreAnswer>([&](auto done) { store.Read(std::move(session), std::move(done)); });
}
// These calls wait for the answer.
inline absl::StatusOr<StoreAnswer> WriteNow(SessionStore& store, StoreWrite write) {
  return StartWrite(store, std::move(write)).get();
}
inline absl::StatusOr<StoreAnswer> ReadNow(SessionStore& store, std::string session) {
  return StartRead(store, std::move(session)).get();
}
inline absl::StatusOr<std::vector<std::string>> ReadChunksNow(SessionStore& store,
                                                              std::vector<std::string> ids) {
  return Asked<std::vector<std::string>>(
             [&](auto done) { store.ReadChunks(std::move(ids), std::move(done)); })
      .get();
}
inline absl::StatusOr<std::vector<SessionStore::Member>> ListNow(SessionStore& store,
                                                                 std::string set,
                                                                 int64_t after_ms = 0,
                                                                 int64_t count = 1000) {
  return Asked<std::vector<SessionStore::Member>>(
             [&](auto done) { store.List(std::move(set), after_ms, count, std::move(done)); })
      .get();
}

std::string SessionName(int number);  // in the form of SessionId::ToString
std::string ClaimOf(int number);      // 16 bytes, different for each number
// A write of session `number` that expects claim `expected` (0: no record) and leaves claim
// `claim`. It lasts an hour unless the test changes that.
StoreWrite MakeWrite(int number, int expected, int claim, std::string bytes = "bytes");

class SessionStoreContract : public ::testing::TestWithParam<StoreCase> {
 protected:
  void SetUp() override {
    backing_ = GetParam().make();
    if (backing_ == nullptr) GTEST_SKIP() << GetParam().name << " is not available here";
    store_ = backing_->Open();
    other_ = backing_->Open();
    ASSERT_TRUE(store_ != nullptr && other_ != nullptr);
  }

  // The answer of a call that must not fail; kDone if no kind is expected.
  StoreAnswer Write(StoreWrite write, StoreAnswer::Kind kind = StoreAnswer::Kind::kDone);
  StoreAnswer Read(int session, StoreAnswer::Kind kind = StoreAnswer::Kind::kDone);
  std::vector<std::string> Chunks(const std::vector<std::string>& ids);
  std::vector<std::string> Members(const std::string& set);  // first to expire first
  // Lets time pass until `condition` holds; the test fails after 6000 steps of 10 ms.
  void Await(const std::function<bool()>& condition);
  // Writes a session with `expiry` and waits until it expires. So earlier writes with the same
  // expiry that were not renewed have expired as well.
  void AwaitExpiryOf(absl::Duration expiry);
  // Calls steps(first session, short expiry) with fresh sessions and growing expiries until it
  // returns true: its steps were done before a session expired.
  absl::Duration BeforeExpiry(const std::function<bool(int, absl::Duration)>& steps, int* session);

  std::unique_ptr<StoreBacking> backing_;
  std::unique_ptr<SessionStore> store_, other_;  // of two replicas
  int next_session_ = 1000;
};

}  // namespace rivulet
