// SPDX-License-Identifier: Apache-2.0
// Models that come and go, and who keeps their engines alive. A test that waits for what never
// comes fails by its time limit.
#include "server/grpc/calls/served_models.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "model/base/error.h"
#include "rivulet/v1/inference.grpc.pb.h"
#include "rivulet/v1/session_service.grpc.pb.h"
#include "server/grpc/grpc_server.h"
#include "tests/support/load_model.h"
#include "tests/support/wire_error.h"
#include "tests/unit/server/fake_engine.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using testing::FakeEngine;
using ::testing::HasSubstr;
using testing::LoadTinyModel;
using testing::Serve;
using testing::Unpack;

constexpr char kText[] = "tiny-elu-relu";
constexpr char kImage[] = "tiny-image";

std::vector<std::string> NamesOf(const std::vector<ModelHold>& models) {
  std::vector<std::string> names;
  for (const ModelHold& model : models) names.push_back(model.name());
  return names;
}

class ServedModelsTest : public ::testing::Test {
 protected:
  ServedModelsTest() {
    auto server = GrpcServer::Create(&models_, GrpcServerOptions());
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    inference_ = v1::InferenceService::NewStub(server_->InProcessChannel());
    sessions_ = v1::SessionService::NewStub(server_->InProcessChannel());
  }

  void Unload(const std::string& name) {
    ASSERT_TRUE(models_.BeginUnload(name));
    models_.FinishUnload(name);
  }

  FakeEngine text_{LoadTinyModel(kText)}, image_{LoadTinyModel(kImage)};
  ServedModels models_{{Serve(&text_), Serve(&image_)}};
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<v1::InferenceService::Stub> inference_;
  std::unique_ptr<v1::SessionService::Stub> sessions_;
  grpc::ClientContext context_;
};

TEST_F(ServedModelsTest, AModelIsFoundUntilItsUnloadBegins) {
  EXPECT_EQ(models_.Find(kText)->engine(), &text_);
  EXPECT_EQ(GetErrorDetail(models_.Find("").status()).reason, "MODEL_NAME_MISSING");
  EXPECT_TRUE(models_.BeginUnload(kText));
  const absl::Status unloading = models_.Find(kText).status();
  EXPECT_EQ(unloading.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(GetErrorDetail(unloading).reason, "MODEL_UNLOADING");
  EXPECT_EQ(models_.Find("")->name(), kImage) << "the only one that is served";
  EXPECT_THAT(NamesOf(models_.served()), ElementsAre(kImage));
  EXPECT_THAT(NamesOf(models_.all()), ElementsAre(kText, kImage));
  EXPECT_FALSE(models_.BeginUnload(kText)) << "once is enough";
  EXPECT_FALSE(models_.BeginUnload("absent"));
  EXPECT_THAT(std::string(models_.Find("absent").status().message()),
              HasSubstr("has \"tiny-image\""));

  models_.FinishUnload(kText);
  const absl::Status gone = models_.Find(kText).status();
  EXPECT_EQ(gone.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(GetErrorDetail(gone).reason, "MODEL_NOT_FOUND");
  EXPECT_THAT(std::string(gone.message()), HasSubstr("has \"tiny-image\""));
  EXPECT_THAT(NamesOf(models_.all()), ElementsAre(kImage));

  Unload(kImage);
  EXPECT_THAT(std::string(models_.Find("").status().message()), HasSubstr("has none"));
  models_.Add(Serve(&text_));
  EXPECT_EQ(models_.Find("")->engine(), &text_);
}

TEST_F(ServedModelsTest, ModelsThatACallerMayNotUseDoNotExistForIt) {
  const ModelNames only{kText, "absent"};
  EXPECT_EQ(models_.Find(kText, &only)->name(), kText);
  EXPECT_EQ(models_.Find("", &only)->name(), kText) << "the only one that it has";
  EXPECT_EQ(models_.served(&only).size(), 1u);
  EXPECT_EQ(models_.all(&only).size(), 1u);
  // In the same words as of one that nobody has, and without the other's name.
  const absl::Status hidden = models_.Find(kImage, &only).status();
  EXPECT_EQ(GetErrorDetail(hidden).reason, "MODEL_NOT_FOUND");
  EXPECT_EQ(
      std::string(hidden.message()),
      absl::StrCat("model \"", kImage, "\" is not served here; this server has \"", kText, "\""));
  Unload(kText);
  EXPECT_THAT(std::string(models_.Find("", &only).status().message()), HasSubstr("has none"));
}

TEST(ModelHoldTest, AnEngineEndsOnceItIsUnloadedAndNobodyHoldsIt) {
  FakeEngine engine(LoadTinyModel(kText));
  std::atomic<bool> released = false, ended = false, ended_too_early = false;
  ServedModels models;
  const auto end = [&](Engine*) {
    ended_too_early = !released;
    ended = true;
  };
  models.Add({std::shared_ptr<Engine>(&engine, end), "cpu"});
  ModelHold first = *models.Find(kText);
  ModelHold second = first, third;
  third = second;
  second = std::move(first);  // lets go of what it held
  std::thread unload([&models] {
    models.BeginUnload(kText);
    models.FinishUnload(kText);
  });
  while (!models.all().empty()) absl::SleepFor(absl::Milliseconds(1));
  second.Release();
  absl::SleepFor(absl::Milliseconds(20));  // a chance to end too early
  EXPECT_FALSE(ended);
  EXPECT_EQ(third.engine(), &engine);
  released = true;
  third = ModelHold();
  unload.join();
  EXPECT_TRUE(ended);
  EXPECT_FALSE(ended_too_early);
}

TEST_F(ServedModelsTest, AGenerateWhoseClientDoesNotReadLetsGoWhenItsReplyHasEnded) {
  v1::GenerateRequest request;
  request.set_model(kText);
  request.mutable_tokens()->add_ids(1);
  const auto reader = inference_->Generate(&context_, request);
  const RequestId id = text_.WaitForRequest();
  ReplyDelta delta;
  delta.tokens = {5};
  text_.Emit(id, delta);  // its write ends when the client reads
  text_.End(id, absl::UnavailableError("drained"));
  Unload(kText);
  v1::GenerateReply part;
  EXPECT_TRUE(reader->Read(&part));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(ServedModelsTest, AnAnswerThatIsNotReadHoldsNothing) {
  v1::ScoreRequest request;
  request.set_model(kText);
  request.mutable_tokens()->add_ids(1);
  request.mutable_tokens()->add_ids(2);
  grpc::CompletionQueue queue;
  const auto wait = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  // As a stream, so that the client says when it reads.
  grpc::TemplatedGenericStub<v1::ScoreRequest, v1::ScoreReply> stub(server_->InProcessChannel());
  const auto call = stub.PrepareCall(&context_, "/rivulet.v1.InferenceService/Score", &queue);
  call->StartCall(nullptr);
  ASSERT_TRUE(wait());
  call->WriteLast(request, grpc::WriteOptions(), nullptr);
  ASSERT_TRUE(wait());
  ScoreResult result;
  result.num_scored = 7;
  text_.EndScore(text_.WaitForRequest(), result);
  Unload(kText);
  v1::ScoreReply reply;
  call->Read(&reply, nullptr);
  ASSERT_TRUE(wait());
  EXPECT_EQ(reply.num_scored(), 7);
  grpc::Status status;
  call->Finish(&status, nullptr);
  ASSERT_TRUE(wait());
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(ServedModelsTest, ARefusedCallLetsGo) {
  text_.Refuse(absl::UnavailableError("full"));
  v1::GenerateRequest request;
  request.set_model(kText);
  request.mutable_tokens()->add_ids(1);
  EXPECT_EQ(inference_->Generate(&context_, request)->Finish().error_code(),
            grpc::StatusCode::UNAVAILABLE);
  Unload(kText);
}

TEST_F(ServedModelsTest, ASnapshotLetsGoOnceItIsCodedWhetherItIsReadOrNot) {
  v1::SnapshotSessionRequest request;
  request.set_model(kText);
  request.set_session_id("00000000000000010000000000000abc");
  const auto reader = sessions_->SnapshotSession(&context_, request);
  text_.WaitForRequest();
  const SessionCommand call = text_.last_call();
  Session session(call.session->id, "", true, /*checkpoint_tokens=*/1);
  ASSERT_TRUE(call.act(nullptr, &session, absl::Now(), Checkpoint()).ok());
  call.done(absl::OkStatus());
  Unload(kText);
  v1::SnapshotSessionReply part;
  EXPECT_TRUE(reader->Read(&part));
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(ServedModelsTest, ARestoreHoldsNothingWhileItsClientTakesItsTime) {
  v1::RestoreSessionReply reply;
  const auto writer = sessions_->RestoreSession(&context_, &reply);
  v1::RestoreSessionRequest request;
  request.set_model(kText);
  request.set_chunk("R");
  ASSERT_TRUE(writer->Write(request));  // the server has it when the next one is written
  request.clear_chunk();
  ASSERT_TRUE(writer->Write(request));
  Unload(kText);
  writer->WritesDone();
  const auto error = Unpack(writer->Finish());
  EXPECT_EQ(error.code, grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(error.reason, "MODEL_NOT_FOUND");
}

}  // namespace
}  // namespace rivulet
