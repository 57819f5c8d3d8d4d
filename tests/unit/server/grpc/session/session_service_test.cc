// SPDX-License-Identifier: Apache-2.0
// How calls about sessions begin and end, with an engine that does what the test says. What they
// do is tested with a real one, in tests/e2e.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "model/base/error.h"
#include "rivulet/v1/inference.grpc.pb.h"
#include "rivulet/v1/session_service.grpc.pb.h"
#include "server/grpc/grpc_server.h"
#include "server/grpc/session/session_streams.h"
#include "server/sessions/snapshot.h"
#include "tests/support/load_model.h"
#include "tests/support/wire_error.h"
#include "tests/unit/server/fake_engine.h"
#include "tests/unit/server/scarce_memory.h"

namespace rivulet {
namespace {

using testing::FakeEngine;
using ::testing::HasSubstr;
using testing::ScarceMemory;
using testing::Serve;
using testing::Unpack;
using testing::WireError;

constexpr char kId[] = "00000000000000010000000000000abc";

class SessionServiceTest : public ::testing::Test {
 protected:
  SessionServiceTest() {
    auto server = GrpcServer::Create(&models_, GrpcServerOptions());
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::SessionService::NewStub(server_->InProcessChannel());
    append_.mutable_session()->set_session_id(kId);
    append_.mutable_tokens()->add_ids(1);
  }
  bool IdleNow() { return server_->WaitUntilIdle(absl::Now()); }

  FakeEngine engine_{testing::LoadTinyModel("tiny-elu-relu")};
  ServedModels models_{{Serve(&engine_)}};
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<v1::SessionService::Stub> stub_;
  grpc::ClientContext context_;
  v1::AppendRequest append_;
};

TEST_F(SessionServiceTest, AnAppendAnswersAndIsWaitedFor) {
  context_.AddMetadata("rivulet-tenant", "A.b_c-9");
  const absl::Time deadline = absl::Now() + absl::Hours(1);
  context_.set_deadline(absl::ToChronoTime(deadline));
  v1::AppendReply reply;
  grpc::Status status;
  std::thread client([&] { status = stub_->Append(&context_, append_, &reply); });
  const RequestId id = engine_.WaitForRequest();
  EXPECT_EQ(engine_.last_append().session.tenant, "A.b_c-9");
  EXPECT_LT(absl::AbsDuration(engine_.last_append().deadline - deadline), absl::Seconds(60));
  EXPECT_FALSE(IdleNow()) << "a drain waits for it";
  ScoreResult result;
  result.session = SessionProgress{7, 8, 9};
  engine_.EndScore(id, result);
  client.join();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(reply.progress().position(), 7);
  EXPECT_EQ(reply.progress().sequence_hash(), 8u);
  EXPECT_TRUE(server_->WaitUntilIdle(absl::Now() + absl::Seconds(30)));
}

TEST_F(SessionServiceTest, ErrorsNameTheClientsFieldWheneverTheyCome) {
  engine_.Refuse(InvalidField("TOKEN_OUT_OF_RANGE", "content.tokens[0]", "content.tokens[0] is 1"));
  v1::AppendReply reply;
  EXPECT_EQ(Unpack(stub_->Append(&context_, append_, &reply)).field, "content.tokens[0]");
  engine_.Refuse(absl::OkStatus());
  WireError error;
  std::thread client([&] {
    grpc::ClientContext context;
    error = Unpack(stub_->Append(&context, append_, &reply));
  });
  const RequestId id = engine_.WaitForRequest();
  ErrorDetail detail;
  detail.reason = "POSITION_OUT_OF_RANGE";
  detail.field = "position";
  engine_.EndScore(id, MakeError(absl::StatusCode::kOutOfRange, "position is 9", detail));
  client.join();
  EXPECT_EQ(error.field, "session.position");
  EXPECT_EQ(error.message, "session.position is 9");
  EXPECT_TRUE(error.details_agree);
}

TEST_F(SessionServiceTest, ACancelReachesTheEngine) {
  v1::RewindSessionRequest request;
  request.set_session_id(kId);
  request.set_position(3);
  v1::RewindSessionReply reply;
  grpc::Status status;
  std::thread client([&] { status = stub_->RewindSession(&context_, request, &reply); });
  engine_.WaitForRequest();
  context_.TryCancel();
  engine_.WaitForCancel();
  engine_.last_call().done(absl::CancelledError("cancelled"));
  client.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(server_->WaitUntilIdle(absl::Now() + absl::Seconds(30)));
}

TEST_F(SessionServiceTest, ASnapshotThatIsCancelledEnds) {
  v1::SnapshotSessionRequest request;
  request.set_session_id(kId);
  for (const bool image_comes : {false, true}) {
    grpc::ClientContext context;
    const auto reader = stub_->SnapshotSession(&context, request);
    engine_.WaitForRequest(image_comes ? 1 : 0);
    EXPECT_FALSE(IdleNow()) << "a drain waits for it";
    context.TryCancel();
    engine_.WaitForCancel();
    const SessionCommand call = engine_.last_call();
    Session session(call.session->id, "", true, /*checkpoint_tokens=*/1);
    if (image_comes) {
      ASSERT_TRUE(call.act(nullptr, &session, absl::Now(), Checkpoint()).ok());
    }
    call.done(image_comes ? absl::OkStatus() : absl::CancelledError("cancelled"));
    v1::SnapshotSessionReply part;
    while (reader->Read(&part)) {
    }
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
    EXPECT_TRUE(server_->WaitUntilIdle(absl::Now() + absl::Seconds(30)));
  }
}

// gRPC would pass over the exception, and the call would never end.
TEST_F(SessionServiceTest, ASnapshotWithoutMemoryForItIsATypedError) {
  v1::SnapshotSessionRequest request;
  request.set_session_id(kId);
  Session session(SessionId(), "", true, /*checkpoint_tokens=*/1);
  for (int i = 0; i < 1 << 20; ++i) session.history.Append(1, false);  // encoded at once: 5 MiB
  const Checkpoint state{1, std::make_shared<const StateView>(std::vector<float>(4 << 20))};
  v1::SnapshotSessionReply part;
  for (const bool begun : {false, true}) {
    grpc::ClientContext context;
    const auto reader = stub_->SnapshotSession(&context, request);
    engine_.WaitForRequest(begun ? 1 : 0);
    const SessionCommand call = engine_.last_call();
    ASSERT_TRUE(call.act(nullptr, &session, absl::Now(), state).ok());
    if (begun) {
      call.done(absl::OkStatus());
      ASSERT_TRUE(reader->Read(&part));
    }
    {
      const ScarceMemory scarce(kSnapshotChunkBytes);
      if (!begun) call.done(absl::OkStatus());
      while (reader->Read(&part)) {
      }
      const WireError error = Unpack(reader->Finish());
      EXPECT_EQ(error.code, grpc::StatusCode::RESOURCE_EXHAUSTED) << begun;
      EXPECT_EQ(error.reason, "REQUEST_MEMORY") << begun;
    }
    EXPECT_TRUE(server_->WaitUntilIdle(absl::Now() + absl::Seconds(30)));
  }
}

TEST_F(SessionServiceTest, SnapshotsOnTheirWayOutTakeBoundedMemoryTogether) {
  GrpcServerOptions options;
  options.max_restore_bytes = 10 << 20;  // one has 4 MiB, and takes 6
  server_ = *GrpcServer::Create(&models_, options);
  stub_ = v1::SessionService::NewStub(server_->InProcessChannel());
  v1::SnapshotSessionRequest request;
  request.set_session_id(kId);
  Session session(SessionId(), "", true, /*checkpoint_tokens=*/1);
  const Checkpoint state{1, std::make_shared<const StateView>(std::vector<float>(1 << 20))};
  RequestId last = 0;
  const auto begin = [&](grpc::ClientContext* context) {
    auto reader = stub_->SnapshotSession(context, request);
    last = engine_.WaitForRequest(last);
    const SessionCommand call = engine_.last_call();
    EXPECT_TRUE(call.act(nullptr, &session, absl::Now(), state).ok());
    call.done(absl::OkStatus());
    return reader;
  };
  const auto end = [](grpc::ClientReader<v1::SnapshotSessionReply>* reader) {
    v1::SnapshotSessionReply part;
    size_t bytes = 0;
    for (; reader->Read(&part); bytes += part.chunk().size()) {
      EXPECT_LE(part.chunk().size(), kSnapshotMessageBytes);
    }
    EXPECT_TRUE(bytes == 0 || bytes > size_t{4} << 20) << bytes;
    return Unpack(reader->Finish());
  };
  for (int round = 0; round < 2; ++round) {
    grpc::ClientContext first_context, second_context;
    const auto first = begin(&first_context), second = begin(&second_context);
    EXPECT_EQ(end(second.get()).reason, "SNAPSHOT_MEMORY");
    EXPECT_EQ(end(first.get()).code, grpc::StatusCode::OK);
    EXPECT_TRUE(server_->WaitUntilIdle(absl::Now() + absl::Seconds(30)));
  }
}

TEST_F(SessionServiceTest, ASnapshotThatIsNotReadIsGivenUp) {
  engine_.mutable_options().reader_timeout = absl::Milliseconds(200);
  v1::SnapshotSessionRequest request;
  request.set_session_id(kId);
  const auto reader = stub_->SnapshotSession(&context_, request);
  engine_.WaitForRequest();
  const SessionCommand call = engine_.last_call();
  Session session(SessionId(), "", true, /*checkpoint_tokens=*/1);
  const Checkpoint state{1, std::make_shared<const StateView>(std::vector<float>(4 << 20))};
  ASSERT_TRUE(call.act(nullptr, &session, absl::Now(), state).ok());
  call.done(absl::OkStatus());
  EXPECT_TRUE(server_->WaitUntilIdle(absl::Now() + absl::Seconds(60)));
  v1::SnapshotSessionReply part;
  while (reader->Read(&part)) {
  }
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("READER_TOO_SLOW"));
}

TEST_F(SessionServiceTest, ARestoreThatIsCancelledOpensNothing) {
  v1::RestoreSessionReply reply;
  const auto writer = stub_->RestoreSession(&context_, &reply);
  Snapshot snapshot;  // a good one, of an empty session
  SetFingerprint(engine_.model(), &snapshot);
  snapshot.sequence_hash = TokenHistory().hash();
  v1::RestoreSessionRequest request;
  request.set_chunk(EncodeSnapshot(snapshot, ""));
  ASSERT_TRUE(writer->Write(request));
  context_.TryCancel();
  EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(server_->WaitUntilIdle(absl::Now() + absl::Seconds(30)));
  EXPECT_EQ(engine_.last_call().act, nullptr);
}

TEST_F(SessionServiceTest, ABadTenantIsRefusedByEveryCallThatUsesIt) {
  const auto expect_refused = [](const grpc::Status& status, const std::string& held) {
    const WireError error = Unpack(status);
    EXPECT_EQ(error.code, grpc::StatusCode::INVALID_ARGUMENT) << held;
    EXPECT_EQ(error.reason, "TENANT_MALFORMED") << held;
    EXPECT_EQ(error.field, "rivulet-tenant");
    EXPECT_THAT(error.message, HasSubstr(held));
  };
  engine_.Refuse(absl::InternalError("it came to the engine"));
  for (const std::string& tenant :
       {std::string("a b"), std::string("a/b"), std::string(65, 't'), std::string()}) {
    grpc::ClientContext context;
    context.AddMetadata("rivulet-tenant", tenant);
    v1::AppendReply reply;
    expect_refused(stub_->Append(&context, append_, &reply),
                   absl::StrCat("\"", tenant.substr(0, 60)));
  }
  grpc::ClientContext twice, snapshot_context, restore_context, generate_context;
  twice.AddMetadata("rivulet-tenant", "a");
  twice.AddMetadata("rivulet-tenant", "b");
  v1::ListSessionsReply list;
  expect_refused(stub_->ListSessions(&twice, v1::ListSessionsRequest(), &list), "more than once");
  snapshot_context.AddMetadata("rivulet-tenant", "%");
  v1::SnapshotSessionRequest snapshot;
  snapshot.set_session_id(kId);
  expect_refused(stub_->SnapshotSession(&snapshot_context, snapshot)->Finish(), "%");
  restore_context.AddMetadata("rivulet-tenant", "%");
  v1::RestoreSessionReply restored;
  const auto writer = stub_->RestoreSession(&restore_context, &restored);
  writer->WritesDone();
  expect_refused(writer->Finish(), "%");
  generate_context.AddMetadata("rivulet-tenant", "%");
  const auto inference = v1::InferenceService::NewStub(server_->InProcessChannel());
  v1::GenerateRequest generate;
  generate.mutable_session()->set_session_id(kId);
  expect_refused(inference->Generate(&generate_context, generate)->Finish(), "%");
}

TEST_F(SessionServiceTest, APageTokenIsThatOfAReply) {
  engine_.Refuse(absl::InternalError("it came to the engine"));
  for (const char* token : {"1", "000000000000000g", "00000000000000001", " 00000000000000f"}) {
    grpc::ClientContext context;
    v1::ListSessionsRequest request;
    request.set_page_token(token);
    v1::ListSessionsReply reply;
    const WireError error = Unpack(stub_->ListSessions(&context, request, &reply));
    EXPECT_EQ(error.code, grpc::StatusCode::INVALID_ARGUMENT) << token;
    EXPECT_EQ(error.reason, "PAGE_TOKEN_MALFORMED") << token;
    EXPECT_EQ(error.field, "page_token");
    EXPECT_THAT(error.message, HasSubstr(token));
  }
}

TEST_F(SessionServiceTest, SnapshotsOnTheirWayInTakeBoundedMemoryTogether) {
  GrpcServerOptions options;
  options.max_restore_bytes = 5 << 20;
  options.max_message_bytes = 1 << 20;
  server_ = *GrpcServer::Create(&models_, options);
  stub_ = v1::SessionService::NewStub(server_->InProcessChannel());
  struct Restore {
    grpc::ClientContext context;
    v1::RestoreSessionReply reply;
    std::unique_ptr<grpc::ClientWriter<v1::RestoreSessionRequest>> writer;
  };
  // Sends two MiB, and a third may be on its way; the server has them when what follows is written.
  const auto send = [&](Restore* restore) {
    restore->writer = stub_->RestoreSession(&restore->context, &restore->reply);
    v1::RestoreSessionRequest request;
    for (const size_t size : {1 << 20, 1 << 20, 0}) {
      request.set_chunk(std::string(size, 'x'));
      if (!restore->writer->Write(request)) return;
    }
  };
  const auto end = [](Restore* restore) {
    restore->writer->WritesDone();
    return Unpack(restore->writer->Finish());
  };
  for (int round = 0; round < 2; ++round) {
    Restore first, second;
    send(&first);
    send(&second);
    const WireError refused = end(&second);
    EXPECT_EQ(refused.code, grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(refused.reason, "RESTORE_MEMORY");
    EXPECT_GT(refused.retry_seconds, 0);
    EXPECT_EQ(end(&first).reason, "SNAPSHOT_DAMAGED");
    EXPECT_TRUE(server_->WaitUntilIdle(absl::Now() + absl::Seconds(30)));
  }
}

TEST_F(SessionServiceTest, ASnapshotThatDoesNotComeIsGivenUp) {
  GrpcServerOptions options;
  options.restore_timeout = absl::Seconds(1);
  server_ = *GrpcServer::Create(&models_, options);
  stub_ = v1::SessionService::NewStub(server_->InProcessChannel());
  for (const size_t size : {0, 1 << 20}) {  // of the only message; 0: there is none
    grpc::ClientContext context;
    v1::RestoreSessionReply reply;
    const auto writer = stub_->RestoreSession(&context, &reply);
    v1::RestoreSessionRequest request;
    request.set_chunk(std::string(size, 'x'));
    if (size > 0) writer->Write(request);
    const WireError error = Unpack(writer->Finish());
    EXPECT_EQ(error.code, grpc::StatusCode::ABORTED);
    EXPECT_EQ(error.reason, "RESTORE_TOO_SLOW");
    EXPECT_THAT(error.message, HasSubstr(absl::StrCat("it had ", size)));
  }
  EXPECT_TRUE(server_->WaitUntilIdle(absl::Now() + absl::Seconds(30)));
}

TEST_F(SessionServiceTest, OnlyAnAppendAtAPositionMayBeRepeatedByALibrary) {
  context_.AddMetadata("grpc-previous-rpc-attempts", "1");
  engine_.Refuse(absl::InternalError("it came to the engine"));
  v1::AppendReply reply;
  const WireError error = Unpack(stub_->Append(&context_, append_, &reply));
  EXPECT_EQ(error.code, grpc::StatusCode::ABORTED);
  EXPECT_EQ(error.reason, "POSITION_NEEDED");
  EXPECT_EQ(error.field, "session.position");
  append_.mutable_session()->set_position(0);
  grpc::ClientContext again;
  again.AddMetadata("grpc-previous-rpc-attempts", "1");
  EXPECT_EQ(stub_->Append(&again, append_, &reply).error_message(), "it came to the engine");
}

TEST_F(SessionServiceTest, OnlyAGenerateAtAPositionMayBeRepeatedByALibrary) {
  const auto inference = v1::InferenceService::NewStub(server_->InProcessChannel());
  v1::GenerateRequest request;
  request.mutable_session()->set_session_id(kId);
  context_.AddMetadata("grpc-previous-rpc-attempts", "1");
  engine_.Refuse(absl::InternalError("it came to the engine"));
  const WireError error = Unpack(inference->Generate(&context_, request)->Finish());
  EXPECT_EQ(error.code, grpc::StatusCode::ABORTED);
  EXPECT_EQ(error.reason, "POSITION_NEEDED");
  EXPECT_EQ(error.field, "session.position");
  request.mutable_resume();
  grpc::ClientContext resumed;
  EXPECT_EQ(Unpack(inference->Generate(&resumed, request)->Finish()).reason, "POSITION_NEEDED");
  request.clear_resume();
  engine_.Refuse(absl::OkStatus());
  request.mutable_session()->set_position(0);
  grpc::ClientContext again;
  again.AddMetadata("grpc-previous-rpc-attempts", "1");
  const auto reader = inference->Generate(&again, request);
  const RequestId id = engine_.WaitForRequest();
  EXPECT_TRUE(engine_.last_spec().session->repeated);
  engine_.End(id, absl::OkStatus());
  v1::GenerateReply part;
  while (reader->Read(&part)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
}

}  // namespace
}  // namespace rivulet
