// SPDX-License-Identifier: Apache-2.0
// The service and its reactors over in-process channels, with an engine that does what the test
// says. A write of the in-process transport completes when the client reads, so who waits for whom
// is certain here.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "model/base/error.h"
#include "rivulet/v1/inference.grpc.pb.h"
#include "server/grpc/grpc_server.h"
#include "tests/support/load_model.h"
#include "tests/support/wire_error.h"
#include "tests/unit/server/fake_engine.h"
#include "tests/unit/server/scarce_memory.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using testing::FakeEngine;
using ::testing::HasSubstr;
using testing::LoadModel;
using testing::ScarceMemory;
using testing::Serve;
using testing::Tokens;
using testing::Unpack;
using testing::WireError;

ReplyDelta Last(int64_t first_position, int sample = 0) {
  ReplyDelta delta = Tokens(first_position, {}, sample);
  delta.finish = Finish{};
  return delta;
}

class ServiceTest : public ::testing::Test {
 protected:
  ServiceTest() {
    auto server = GrpcServer::Create(&models_, GrpcServerOptions());
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::InferenceService::NewStub(server_->InProcessChannel());
    request_.set_model("tiny-elu-relu");
    request_.mutable_tokens()->add_ids(1);
  }

  std::unique_ptr<grpc::ClientReader<v1::GenerateReply>> StartGenerate() {
    auto reader = stub_->Generate(&context_, request_);
    id_ = engine_.WaitForRequest(id_);
    return reader;
  }

  FakeEngine engine_{LoadModel("tests/conformance/models/tiny-elu-relu")};
  FakeEngine other_{LoadModel("tests/conformance/models/tiny-image")};
  ServedModels models_{{Serve(&engine_), Serve(&other_)}};
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<v1::InferenceService::Stub> stub_;
  grpc::ClientContext context_;
  v1::GenerateRequest request_;
  v1::GenerateReply reply_;
  RequestId id_ = 0;
};

TEST_F(ServiceTest, FirstMessageHasTheSeedAndLastTheUsage) {
  request_.mutable_sampling()->set_seed(77);
  auto reader = StartGenerate();
  EXPECT_EQ(engine_.last_spec().sampling.seed, 77u);
  engine_.Emit(id_, Tokens(0, {5}));
  ASSERT_TRUE(reader->Read(&reply_));
  EXPECT_EQ(reply_.seed(), 77u);
  EXPECT_EQ(reply_.fingerprint(), id_ + 1000);
  EXPECT_THAT(reply_.tokens(), ElementsAre(5));
  EXPECT_FALSE(reply_.has_usage());
  engine_.Emit(id_, Tokens(1, {6}));
  ASSERT_TRUE(reader->Read(&reply_));
  EXPECT_FALSE(reply_.has_seed());
  EXPECT_FALSE(reply_.has_fingerprint());
  EXPECT_THAT(reply_.tokens(), ElementsAre(6));
  engine_.Emit(id_, Last(2));
  Usage usage;
  usage.completion_tokens = 2;
  engine_.End(id_, absl::OkStatus(), usage);
  int64_t completion_tokens = 0;
  bool finished = false;
  while (reader->Read(&reply_)) {
    finished |= reply_.has_finish();
    completion_tokens += reply_.usage().completion_tokens();
  }
  EXPECT_TRUE(finished);
  EXPECT_EQ(completion_tokens, 2);
  EXPECT_TRUE(reader->Finish().ok());
}

// gRPC would answer UNIMPLEMENTED without details.
TEST_F(ServiceTest, AnExceptionOfAHandlerIsATypedError) {
  const auto load = [&](grpc::ClientContext* context) {
    v1::GetLoadReply reply;
    v1::GetLoadRequest request;
    request.set_model("tiny-elu-relu");
    return stub_->GetLoad(context, request, &reply);
  };
  const auto score = [&](grpc::ClientContext* context) {
    v1::ScoreReply reply;
    v1::ScoreRequest request;
    request.set_model("tiny-elu-relu");
    request.mutable_tokens()->add_ids(1);
    return stub_->Score(context, request, &reply);
  };
  const auto generate = [&](grpc::ClientContext* context) {
    return stub_->Generate(context, request_)->Finish();
  };
  const auto fail_with = [&](const char* reason, grpc::StatusCode code) {
    using Call = std::function<grpc::Status(grpc::ClientContext*)>;
    for (const Call& call : {Call(load), Call(score), Call(generate)}) {
      grpc::ClientContext context;
      const WireError error = Unpack(call(&context));
      EXPECT_EQ(error.code, code);
      EXPECT_EQ(error.reason, reason) << error.message;
      EXPECT_EQ(error.message.find("secret"), std::string::npos);
    }
  };
  engine_.before_call = [] { throw std::bad_alloc(); };
  fail_with("REQUEST_MEMORY", grpc::StatusCode::RESOURCE_EXHAUSTED);
  engine_.before_call = [] { throw std::length_error("secret"); };
  fail_with("REQUEST_MEMORY", grpc::StatusCode::RESOURCE_EXHAUSTED);
  engine_.before_call = [] { throw std::runtime_error("secret"); };
  fail_with("UNEXPECTED_EXCEPTION", grpc::StatusCode::INTERNAL);
  engine_.before_call = [] { throw 7; };
  fail_with("UNEXPECTED_EXCEPTION", grpc::StatusCode::INTERNAL);
  engine_.before_call = nullptr;
}

// gRPC would pass over the exception and never end the call; on the engine's thread it would end
// the process.
TEST_F(ServiceTest, AReplyWithoutMemoryForItsMessageIsCancelledWithATypedError) {
  // Memory is missing for the tokens in the message, then for their bytes, 10 for each.
  for (const int32_t token : {5, -1}) {
    grpc::ClientContext context;
    const auto reader = stub_->Generate(&context, request_);
    id_ = engine_.WaitForRequest(id_);
    ReplyDelta large = Tokens(0, std::vector<int32_t>(1 << 17, token));
    {
      const ScarceMemory scarce(token == 5 ? 1 << 19 : 1 << 20);
      engine_.Emit(id_, std::move(large));
    }
    engine_.WaitForCancel(token == 5 ? 1 : 2);
    engine_.End(id_, absl::CancelledError("cancelled"));
    EXPECT_FALSE(reader->Read(&reply_)) << token;
    const WireError error = Unpack(reader->Finish());
    EXPECT_EQ(error.code, grpc::StatusCode::RESOURCE_EXHAUSTED) << token;
    EXPECT_EQ(error.reason, "REQUEST_MEMORY") << token;
  }
}

TEST_F(ServiceTest, ASeedIsDrawnWhereNoneIsGiven) {
  auto reader = StartGenerate();
  engine_.Emit(id_, Tokens(0, {5}));
  ASSERT_TRUE(reader->Read(&reply_));
  EXPECT_TRUE(reply_.has_seed());
  EXPECT_EQ(reply_.seed(), engine_.last_spec().sampling.seed);
  EXPECT_NE(reply_.seed(), 0u);  // one in 2^64
  engine_.End(id_, absl::OkStatus());
}

TEST_F(ServiceTest, WhatArrivesDuringAWriteLeavesInOneMessage) {
  auto reader = StartGenerate();
  for (int i = 0; i < 100; ++i) engine_.Emit(id_, Tokens(i, {i}));
  engine_.Emit(id_, Last(100));
  engine_.End(id_, absl::OkStatus());
  std::vector<int> tokens;
  int messages = 0;
  while (reader->Read(&reply_)) {
    EXPECT_EQ(reply_.first_position(), static_cast<int64_t>(tokens.size()));
    tokens.insert(tokens.end(), reply_.tokens().begin(), reply_.tokens().end());
    ++messages;
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(reply_.has_usage());  // the last message read
  ASSERT_EQ(tokens.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(tokens[static_cast<size_t>(i)], i);
  // One in flight when the rest came; the transport may take one more before anybody reads.
  EXPECT_LE(messages, 3);
}

TEST_F(ServiceTest, SamplesLeaveInMessagesOfTheirOwn) {
  request_.set_num_samples(3);
  auto reader = StartGenerate();
  for (int i = 0; i < 20; ++i) {
    for (int sample = 0; sample < 3; ++sample) engine_.Emit(id_, Tokens(i, {sample}, sample));
  }
  for (int sample = 0; sample < 3; ++sample) engine_.Emit(id_, Last(20, sample));
  engine_.End(id_, absl::OkStatus());
  std::vector<int64_t> next(3, 0);
  int finishes = 0;
  while (reader->Read(&reply_)) {
    const auto sample = static_cast<size_t>(reply_.sample_index());
    EXPECT_EQ(reply_.first_position(), next[sample]);
    for (const int token : reply_.tokens()) EXPECT_EQ(token, reply_.sample_index());
    next[sample] += reply_.tokens_size();
    finishes += reply_.has_finish() ? 1 : 0;
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_THAT(next, ElementsAre(20, 20, 20));
  EXPECT_EQ(finishes, 3);
}

TEST_F(ServiceTest, AnEmptyReplyIsOneMessageWithSeedAndUsage) {
  auto reader = StartGenerate();
  engine_.End(id_, absl::OkStatus());
  ASSERT_TRUE(reader->Read(&reply_));
  EXPECT_TRUE(reply_.has_seed());
  EXPECT_TRUE(reply_.has_usage());
  EXPECT_FALSE(reader->Read(&reply_));
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(ServiceTest, TokensBeforeAnErrorStillArrive) {
  auto reader = StartGenerate();
  for (int i = 0; i < 10; ++i) engine_.Emit(id_, Tokens(i, {i}));
  ErrorDetail detail;
  detail.reason = "DRAINING";
  engine_.End(id_, MakeError(absl::StatusCode::kUnavailable, "ending", detail));
  int tokens = 0;
  while (reader->Read(&reply_)) tokens += reply_.tokens_size();
  EXPECT_EQ(tokens, 10);
  const WireError error = Unpack(reader->Finish());
  EXPECT_EQ(error.code, grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(error.reason, "DRAINING");
}

TEST_F(ServiceTest, ARefusalIsTrailersOnlyAndNamesTheClientsField) {
  engine_.Refuse(InvalidField("TOKEN_OUT_OF_RANGE", "prompt.tokens[0]", "prompt.tokens[0] is 1"));
  auto reader = stub_->Generate(&context_, request_);
  EXPECT_FALSE(reader->Read(&reply_));
  const WireError error = Unpack(reader->Finish());
  EXPECT_EQ(error.code, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(error.field, "prompt.tokens[0]");
  EXPECT_TRUE(error.details_agree);
}

TEST_F(ServiceTest, ACancelReachesTheEngineAndTheCallEnds) {
  auto reader = StartGenerate();
  engine_.Emit(id_, Tokens(0, {5}));
  ASSERT_TRUE(reader->Read(&reply_));
  EXPECT_FALSE(server_->WaitUntilIdle(absl::Now())) << "a drain waits for it";
  context_.TryCancel();
  engine_.WaitForCancel();
  engine_.Emit(id_, Tokens(1, {6}));  // what was on its way
  engine_.End(id_, absl::CancelledError("cancelled"));
  while (reader->Read(&reply_)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(server_->WaitUntilIdle(absl::Now() + absl::Seconds(30)));
}

TEST_F(ServiceTest, ACancelBeforeAnyTokenEndsTheCall) {
  auto reader = StartGenerate();
  context_.TryCancel();
  engine_.WaitForCancel();
  engine_.End(id_, absl::CancelledError("cancelled"));
  EXPECT_FALSE(reader->Read(&reply_));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(server_->WaitUntilIdle(absl::Now() + absl::Seconds(30)));
}

TEST_F(ServiceTest, ACancelBehindAFullPipeEndsTheCall) {
  auto reader = StartGenerate();
  for (int i = 0; i < 10; ++i) engine_.Emit(id_, Tokens(i, {i}));  // nobody reads
  context_.TryCancel();
  engine_.WaitForCancel();
  engine_.End(id_, absl::CancelledError("cancelled"));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(server_->WaitUntilIdle(absl::Now() + absl::Seconds(30)));
}

TEST_F(ServiceTest, ACancelWhilePartsOfSeveralSamplesWaitEndsTheCall) {
  auto reader = StartGenerate();
  for (int sample = 0; sample < 3; ++sample) engine_.Emit(id_, Tokens(0, {sample}, sample));
  ASSERT_TRUE(reader->Read(&reply_));
  // Now the reactor writes the second part, which nobody reads, and holds the third.
  engine_.WaitUntilTaken(id_);
  engine_.End(id_, absl::CancelledError("ended"));
  context_.TryCancel();
  while (reader->Read(&reply_)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(server_->WaitUntilIdle(absl::Now() + absl::Seconds(30)));
}

TEST_F(ServiceTest, DeadlineAndTenantReachTheEngine) {
  context_.AddMetadata("rivulet-tenant", "t-1");
  const absl::Time deadline = absl::Now() + absl::Hours(1);
  context_.set_deadline(absl::ToChronoTime(deadline));
  auto reader = StartGenerate();
  EXPECT_LT(absl::AbsDuration(engine_.last_spec().deadline - deadline), absl::Seconds(60));
  EXPECT_EQ(engine_.last_spec().tenant, "t-1");
  engine_.End(id_, absl::OkStatus());
}

TEST_F(ServiceTest, NoDeadlineIsTheInfiniteFuture) {
  auto reader = StartGenerate();
  EXPECT_EQ(engine_.last_spec().deadline, absl::InfiniteFuture());
  EXPECT_EQ(engine_.last_spec().tenant, "");
  engine_.End(id_, absl::OkStatus());
}

TEST_F(ServiceTest, ScoreAnswersOrFails) {
  for (const bool good : {true, false}) {
    grpc::ClientContext context;
    context.AddMetadata("rivulet-tenant", "t-2");
    v1::ScoreRequest request;
    request.set_model("tiny-elu-relu");
    request.mutable_tokens()->add_ids(1);
    v1::ScoreReply reply;
    std::thread engine([&] {
      id_ = engine_.WaitForRequest(id_);
      EXPECT_EQ(engine_.last_score().tenant, "t-2");
      ScoreResult result;
      result.nll_nats = 1.5;
      result.num_scored = 1;
      result.outputs = {{1, 2}};
      if (good) {
        engine_.EndScore(id_, result);
      } else {
        engine_.EndScore(id_, absl::UnavailableError("broken"));
      }
    });
    const grpc::Status status = stub_->Score(&context, request, &reply);
    engine.join();
    if (good) {
      EXPECT_TRUE(status.ok()) << status.error_message();
      EXPECT_EQ(reply.nll_nats(), 1.5);
      ASSERT_EQ(reply.outputs_size(), 1);
      EXPECT_THAT(reply.outputs(0).values(), ElementsAre(1, 2));
    } else {
      EXPECT_EQ(Unpack(status).reason, "UNAVAILABLE");
    }
  }
}

TEST_F(ServiceTest, ACancelledScoreReachesTheEngine) {
  v1::ScoreRequest request;
  request.set_model("tiny-elu-relu");
  request.mutable_tokens()->add_ids(1);
  v1::ScoreReply reply;
  grpc::Status status;
  std::thread client([&] { status = stub_->Score(&context_, request, &reply); });
  id_ = engine_.WaitForRequest();
  context_.TryCancel();
  engine_.WaitForCancel();
  engine_.EndScore(id_, absl::CancelledError("cancelled"));
  client.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(server_->WaitUntilIdle(absl::Now() + absl::Seconds(30)));
}

TEST_F(ServiceTest, ModelsAreFoundByNameOrNamedInTheError) {
  v1::GetModelReply model;
  {
    grpc::ClientContext context;
    v1::GetModelRequest request;
    request.set_model("tiny-image");
    EXPECT_TRUE(stub_->GetModel(&context, request, &model).ok());
    EXPECT_EQ(model.summary().name(), "tiny-image");
    EXPECT_THAT(model.config_json(), HasSubstr("\"layer_norm_eps\""));
  }
  {
    grpc::ClientContext context;
    v1::GetModelRequest request;
    request.set_model(std::string(5000, 'x'));  // the error travels in headers of at most 8 KiB
    const WireError error = Unpack(stub_->GetModel(&context, request, &model));
    EXPECT_EQ(error.code, grpc::StatusCode::NOT_FOUND);
    EXPECT_EQ(error.reason, "MODEL_NOT_FOUND");
    EXPECT_LT(error.message.size(), 500u);
  }
  {
    grpc::ClientContext context;
    const WireError error = Unpack(stub_->GetModel(&context, v1::GetModelRequest(), &model));
    EXPECT_EQ(error.code, grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(error.reason, "MODEL_NAME_MISSING");
    EXPECT_EQ(error.field, "model");
    EXPECT_THAT(error.message, HasSubstr("\"tiny-elu-relu\", \"tiny-image\""));
  }
  request_.set_model("gpt");
  auto reader = stub_->Generate(&context_, request_);
  EXPECT_FALSE(reader->Read(&reply_));
  const WireError error = Unpack(reader->Finish());
  EXPECT_EQ(error.code, grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(error.reason, "MODEL_NOT_FOUND");
  EXPECT_EQ(error.field, "model");
}

TEST_F(ServiceTest, ListsModelsAndTheirLoad) {
  grpc::ClientContext context, load_context;
  v1::ListModelsReply models;
  ASSERT_TRUE(stub_->ListModels(&context, v1::ListModelsRequest(), &models).ok());
  ASSERT_EQ(models.models_size(), 2);
  EXPECT_EQ(models.models(1).name(), "tiny-image");
  v1::GetLoadReply load;
  ASSERT_TRUE(stub_->GetLoad(&load_context, v1::GetLoadRequest(), &load).ok());
  ASSERT_EQ(load.models_size(), 2);
  EXPECT_EQ(load.models(0).model(), "tiny-elu-relu");
  EXPECT_EQ(load.models(0).slots(), 8);
}

TEST(GrpcServerTest, OneModelNeedsNoName) {
  FakeEngine engine(LoadModel("tests/conformance/models/tiny-elu-relu"));
  const ServedModels models({Serve(&engine)});
  auto server = GrpcServer::Create(&models, GrpcServerOptions());
  ASSERT_TRUE(server.ok()) << server.status();
  auto stub = v1::InferenceService::NewStub((*server)->InProcessChannel());
  grpc::ClientContext context;
  v1::GetModelReply model;
  EXPECT_TRUE(stub->GetModel(&context, v1::GetModelRequest(), &model).ok());
  EXPECT_EQ(model.summary().name(), "tiny-elu-relu");
}

TEST(GrpcServerTest, APortInUseIsAnErrorThatSaysSo) {
  FakeEngine engine(LoadModel("tests/conformance/models/tiny-elu-relu"));
  const ServedModels models({Serve(&engine)});
  GrpcServerOptions options;
  options.listen = "127.0.0.1:0";
  auto first = GrpcServer::Create(&models, options);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_GT((*first)->port(), 0);
  options.listen = "127.0.0.1:" + std::to_string((*first)->port());
  const auto second = GrpcServer::Create(&models, options);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("Address already in use"));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(options.listen));
}

TEST(GrpcServerTest, AnAddressOfAnotherMachineIsAnErrorThatSaysSo) {
  FakeEngine engine(LoadModel("tests/conformance/models/tiny-elu-relu"));
  const ServedModels models({Serve(&engine)});
  GrpcServerOptions options;
  options.listen = "192.0.2.1:0";  // TEST-NET-1
  const auto server = GrpcServer::Create(&models, options);
  EXPECT_EQ(server.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(server.status().message()), HasSubstr("Cannot assign"));
}

}  // namespace
}  // namespace rivulet
