// SPDX-License-Identifier: Apache-2.0
#include "server/health/health_watch.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "server/grpc/grpc_server.h"
#include "tests/support/load_model.h"
#include "tests/support/raw_rpc.h"
#include "tests/unit/server/fake_engine.h"

namespace rivulet {
namespace {

using testing::FakeEngine;
using testing::Health;
using testing::LoadTinyModel;
using testing::Serve;

// Asks until the answer is `expected`; a test that never sees it fails by its time limit.
void AwaitHealth(const std::shared_ptr<grpc::Channel>& channel, const std::string& service,
                 const std::string& expected) {
  while (Health(channel, service) != expected) absl::SleepFor(absl::Milliseconds(1));
}

TEST(HealthWatchTest, AFailedEngineTurnsItsModelAndTheServerNotServing) {
  FakeEngine good(LoadTinyModel("tiny-elu-relu")), failing(LoadTinyModel("tiny-image"));
  const ServedModels models({Serve(&good), Serve(&failing)});
  auto server = GrpcServer::Create(&models, GrpcServerOptions());
  ASSERT_TRUE(server.ok()) << server.status();
  const HealthWatch watch(&models, server->get(), absl::Milliseconds(1));
  const auto channel = (*server)->InProcessChannel();
  for (const char* service : {"", "tiny-elu-relu", "tiny-image"}) {
    EXPECT_EQ(Health(channel, service), "SERVING");
  }
  EXPECT_EQ(Health(channel, "another"), "NOT_FOUND");
  EXPECT_FALSE(watch.failed());

  failing.SetHealth(absl::InternalError("device lost"));
  AwaitHealth(channel, "tiny-image", "NOT_SERVING");
  AwaitHealth(channel, "", "NOT_SERVING");
  EXPECT_EQ(Health(channel, "tiny-elu-relu"), "SERVING");
  while (!watch.failed()) absl::SleepFor(absl::Milliseconds(1));

  failing.SetHealth(absl::OkStatus());
  AwaitHealth(channel, "tiny-image", "SERVING");
  AwaitHealth(channel, "", "SERVING");
}

TEST(HealthWatchTest, HealthFollowsModelsThatComeAndGo) {
  FakeEngine one(LoadTinyModel("tiny-elu-relu")), other(LoadTinyModel("tiny-image"));
  ServedModels models;
  auto server = GrpcServer::Create(&models, GrpcServerOptions());
  ASSERT_TRUE(server.ok()) << server.status();
  HealthWatch watch(&models, server->get(), absl::Hours(1));  // looks when it is told to
  const auto channel = (*server)->InProcessChannel();
  const auto health = [&] {
    return Health(channel, "") + " " + Health(channel, "tiny-elu-relu") + " " +
           Health(channel, "tiny-image");
  };
  EXPECT_EQ(health(), "NOT_SERVING NOT_FOUND NOT_FOUND");
  models.Add(Serve(&one));
  watch.Look();
  EXPECT_EQ(health(), "SERVING SERVING NOT_FOUND");
  models.Add(Serve(&other));
  watch.Look();
  EXPECT_EQ(health(), "SERVING SERVING SERVING");
  ASSERT_TRUE(models.BeginUnload("tiny-elu-relu"));
  watch.Look();
  EXPECT_EQ(health(), "SERVING NOT_SERVING SERVING") << "one that is being unloaded";
  models.FinishUnload("tiny-elu-relu");
  models.BeginUnload("tiny-image");
  watch.Look();
  EXPECT_EQ(health(), "NOT_SERVING NOT_SERVING NOT_SERVING");
  models.FinishUnload("tiny-image");
  models.Add(Serve(&one));
  watch.Look();
  EXPECT_EQ(health(), "SERVING SERVING NOT_SERVING");
  EXPECT_FALSE(watch.failed());
}

TEST(HealthWatchTest, NothingTurnsAStoppingServerServingAgain) {
  FakeEngine engine(LoadTinyModel("tiny-elu-relu"));
  const ServedModels models({Serve(&engine)});
  auto server = GrpcServer::Create(&models, GrpcServerOptions());
  ASSERT_TRUE(server.ok()) << server.status();
  const auto channel = (*server)->InProcessChannel();
  (*server)->StopServing();
  (*server)->SetServing("tiny-elu-relu", true);
  EXPECT_EQ(Health(channel, "tiny-elu-relu"), "NOT_SERVING");
  EXPECT_EQ(Health(channel, ""), "NOT_SERVING");
}

}  // namespace
}  // namespace rivulet
