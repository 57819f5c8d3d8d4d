// SPDX-License-Identifier: Apache-2.0
// What operators may ask for, with a control that does what the test says.
#include "server/grpc/admin/admin_service.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "model/base/error.h"
#include "server/log.h"
#include "tests/support/wire_error.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using testing::Unpack;
using testing::WireError;

class FakeControl final : public ModelControl {
 public:
  absl::StatusOr<v1::ModelSummary> Load(const std::string& name) override {
    ++loads;
    if (held) {
      loading.Notify();
      may_end.WaitForNotification();
    }
    v1::ModelSummary summary;
    summary.set_name(name);
    return summary;
  }
  absl::StatusOr<Unloaded> Unload(const std::string& name,
                                  std::optional<absl::Duration> drain_timeout) override {
    unloaded.push_back(absl::StrCat(
        name, " ", drain_timeout ? absl::FormatDuration(*drain_timeout) : "as the server"));
    return Unloaded{true, 3};
  }

  std::vector<std::string> unloaded;  // with the drain time
  std::atomic<int> loads = 0;
  bool held = false;  // the one load waits for may_end
  absl::Notification loading, may_end;
};

class AdminServiceTest : public ::testing::Test {
 protected:
  AdminServiceTest() {
    auto server =
        AdminServer::Create(&control_, "127.0.0.1:0", {}, /*reflection=*/false, /*keys=*/nullptr,
                            /*sinks=*/{});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::AdminService::NewStub(grpc::CreateChannel(
        absl::StrCat("127.0.0.1:", server_->port()), grpc::InsecureChannelCredentials()));
  }
  WireError Load(const std::string& name) {
    grpc::ClientContext context;
    v1::LoadModelRequest request;
    request.set_model(name);
    v1::LoadModelReply reply;
    return Unpack(stub_->LoadModel(&context, request, &reply));
  }
  WireError Unload(const v1::UnloadModelRequest& request) {
    grpc::ClientContext context;
    return Unpack(stub_->UnloadModel(&context, request, &unloaded_));
  }

  FakeControl control_;
  std::unique_ptr<AdminServer> server_;
  std::unique_ptr<v1::AdminService::Stub> stub_;
  v1::UnloadModelReply unloaded_;
};

TEST_F(AdminServiceTest, NamesThatAreNoComponentOfAPathGoNoFurther) {
  for (const std::string name : {"", ".", "..", "../m", "a/b", "/etc", "m/", "A", ".m", "m\n"}) {
    v1::UnloadModelRequest unload;
    unload.set_model(name);
    for (const WireError& error : {Load(name), Unload(unload)}) {
      EXPECT_EQ(error.code, grpc::StatusCode::INVALID_ARGUMENT) << name;
      EXPECT_EQ(error.reason, "MODEL_NAME_MALFORMED") << name;
      EXPECT_EQ(error.field, "model") << name;
    }
  }
  EXPECT_EQ(control_.loads, 0);
  EXPECT_THAT(control_.unloaded, ElementsAre());
}

TEST_F(AdminServiceTest, ADrainTakesNoTimeToADay) {
  v1::UnloadModelRequest request;
  request.set_model("m");
  EXPECT_EQ(Unload(request).code, grpc::StatusCode::OK);
  EXPECT_TRUE(unloaded_.all_ended());
  EXPECT_EQ(unloaded_.sessions_closed(), 3);
  for (const auto& [seconds, nanos] : {std::pair{0, 0}, {0, 1}, {86400, 0}}) {
    request.mutable_drain_timeout()->set_seconds(seconds);
    request.mutable_drain_timeout()->set_nanos(nanos);
    EXPECT_EQ(Unload(request).code, grpc::StatusCode::OK) << seconds;
  }
  EXPECT_THAT(control_.unloaded, ElementsAre("m as the server", "m 0", "m 1ns", "m 24h"));
  for (const auto& [seconds, nanos] :
       {std::pair{-1, 0}, {0, -1}, {86400, 1}, {86401, 0}, {1, -1}, {1, 1'000'000'000}}) {
    request.mutable_drain_timeout()->set_seconds(seconds);
    request.mutable_drain_timeout()->set_nanos(nanos);
    const WireError error = Unload(request);
    EXPECT_EQ(error.code, grpc::StatusCode::INVALID_ARGUMENT) << seconds << " " << nanos;
    EXPECT_EQ(error.reason, "DRAIN_TIMEOUT_OUT_OF_RANGE") << seconds << " " << nanos;
    EXPECT_EQ(error.field, "drain_timeout") << seconds << " " << nanos;
  }
  EXPECT_EQ(control_.unloaded.size(), 4u);
}

TEST_F(AdminServiceTest, ALevelThatIsNoneChangesNothing) {
  for (const int level : {0, 5, -1}) {
    grpc::ClientContext context;
    v1::SetLogLevelRequest request;
    request.set_level(static_cast<v1::LogLevel>(level));
    v1::SetLogLevelReply reply;
    const WireError error = Unpack(stub_->SetLogLevel(&context, request, &reply));
    EXPECT_EQ(error.code, grpc::StatusCode::INVALID_ARGUMENT) << level;
    EXPECT_EQ(error.reason, "LOG_LEVEL_UNKNOWN") << level;
    EXPECT_EQ(error.field, "level") << level;
  }
  EXPECT_EQ(GetLogLevel(), LogLevel::kInfo);
}

TEST_F(AdminServiceTest, AServerThatEndsAnswersTheCallsThatRun) {
  control_.held = true;
  std::thread load([this] { EXPECT_EQ(Load("m").code, grpc::StatusCode::OK); });
  control_.loading.WaitForNotification();
  std::atomic<bool> ended = false;
  std::thread shutdown([&] {
    server_->Shutdown();
    ended = true;
  });
  absl::SleepFor(absl::Milliseconds(300));  // a chance to end too early
  EXPECT_FALSE(ended);
  control_.may_end.Notify();
  load.join();
  shutdown.join();
}

}  // namespace
}  // namespace rivulet
