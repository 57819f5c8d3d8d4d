// SPDX-License-Identifier: Apache-2.0
#include "server/engine/loop/outbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/server/engine/loop/stub_request.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class OutboxTest : public ::testing::Test {
 protected:
  std::unique_ptr<StubRequest> Make(RequestId id) {
    auto request = std::make_unique<StubRequest>(id);
    request->told = &told_;
    return request;
  }
  // What listeners have been told since the last call: "1" got something, "1 ended".
  std::vector<std::string> Told() {
    emitter_.Tell();
    return std::exchange(told_, {});
  }

  std::vector<std::string> told_;
  Emitter emitter_{Emitter::Threads::kNone};
  Outbox outbox_{&emitter_};
};

TEST_F(OutboxTest, WhatGotSomethingIsToldOnce) {
  const auto one = Make(1), two = Make(2);
  outbox_.PutReady(one.get());
  outbox_.PutReady(two.get());
  outbox_.PutReady(one.get());
  EXPECT_THAT(Told(), IsEmpty());  // nothing was handed over
  outbox_.HandReady();
  EXPECT_THAT(Told(), ElementsAre("1", "2"));
  outbox_.HandReady();
  EXPECT_THAT(Told(), IsEmpty());
  outbox_.PutReady(one.get());
  EXPECT_FALSE(outbox_.HandAll());
  EXPECT_THAT(Told(), ElementsAre("1"));
}

TEST_F(OutboxTest, EndsAreHandedOverBetweenRunsOnly) {
  auto one = Make(1);
  outbox_.PutReady(one.get());
  one->life.Go(RequestLife::State::kEnded);
  outbox_.PutEnd(std::move(one));
  EXPECT_TRUE(outbox_.has_ends());
  outbox_.HandReady();  // a run is on: its tokens go out, its end waits
  EXPECT_THAT(Told(), ElementsAre("1"));
  EXPECT_TRUE(outbox_.HandAll());
  EXPECT_FALSE(outbox_.has_ends());
  EXPECT_THAT(Told(), ElementsAre("1 ended"));
  EXPECT_FALSE(outbox_.HandAll());
}

TEST_F(OutboxTest, AnEndTellsOfTheLastTokensToo) {
  auto one = Make(1);
  const auto two = Make(2);
  outbox_.PutReady(one.get());
  outbox_.PutReady(two.get());
  one->life.Go(RequestLife::State::kEnded);
  outbox_.PutEnd(std::move(one));
  EXPECT_TRUE(outbox_.HandAll());
  EXPECT_THAT(Told(), ElementsAre("2", "1 ended"));
}

}  // namespace
}  // namespace rivulet
