// SPDX-License-Identifier: Apache-2.0
// How a stream's requests share messages, with an engine that does what the test says. A write of
// the in-process transport completes when the client reads.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "rivulet/v1/multiplex.grpc.pb.h"
#include "server/engine/loop/emitter.h"
#include "server/grpc/grpc_server.h"
#include "server/grpc/multiplex/multiplex_reactor.h"
#include "tests/support/load_model.h"
#include "tests/support/wire_error.h"
#include "tests/unit/server/fake_engine.h"
#include "tests/unit/server/scarce_memory.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using testing::FakeEngine;
using testing::Tokens;

// Tells of one token of a request.
class OneToken final : public Outlet {
 public:
  OneToken(FakeEngine* engine, RequestId id, int64_t position)
      : engine_(engine), id_(id), position_(position) {}
  void OnReady() override { engine_->Emit(id_, Tokens(position_, {static_cast<int32_t>(id_)})); }
  void OnEnd() override {}

 private:
  FakeEngine* const engine_;
  const RequestId id_;
  const int64_t position_;
};

class MultiplexServiceTest : public ::testing::Test {
 protected:
  MultiplexServiceTest() {
    engine_ = std::make_unique<FakeEngine>(testing::LoadTinyModel("tiny-elu-relu"));
    models_ =
        std::make_unique<ServedModels>(std::vector<ServedModel>{testing::Serve(engine_.get())});
    auto server = GrpcServer::Create(models_.get(), GrpcServerOptions());
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::MultiplexService::NewStub(server_->InProcessChannel());
    stream_ = stub_->Multiplex(&context_);
  }

  RequestId Begin(uint64_t key) {
    v1::MultiplexRequest request;
    request.set_key(key);
    request.mutable_generate()->mutable_tokens()->add_ids(1);
    request.mutable_generate()->mutable_sampling()->set_seed(key + 100);
    EXPECT_TRUE(stream_->Write(request));
    return last_ = engine_->WaitForRequest(last_);
  }
  std::vector<uint64_t> ReadKeys() {
    EXPECT_TRUE(stream_->Read(&reply_));
    std::vector<uint64_t> keys;
    for (const v1::MultiplexPart& part : reply_.parts()) keys.push_back(part.key());
    return keys;
  }
  void ExpectMemoryError(ReplyDelta delta) {
    const RequestId large = Begin(1), other = Begin(2);
    {
      const testing::ScarceMemory scarce(1 << 20);
      engine_->Emit(large, std::move(delta));
    }
    engine_->WaitForCancel(2);
    engine_->End(large, absl::CancelledError("cancelled"));
    engine_->End(other, absl::CancelledError("cancelled"));
    EXPECT_FALSE(stream_->Read(&reply_));
    EXPECT_EQ(testing::Unpack(stream_->Finish()).reason, "REQUEST_MEMORY");
  }

  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<ServedModels> models_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<v1::MultiplexService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::MultiplexRequest, v1::MultiplexReply>> stream_;
  v1::MultiplexReply reply_;
  RequestId last_ = 0;
};

// gRPC would pass over the exception, and the stream would never end.
TEST_F(MultiplexServiceTest, AnExceptionEndsItsRequestAndNotTheStream) {
  bool first = true;
  engine_->before_call = [&first] {
    if (std::exchange(first, false)) throw std::bad_alloc();
  };
  v1::MultiplexRequest request;
  request.set_key(3);
  request.mutable_generate()->mutable_tokens()->add_ids(1);
  ASSERT_TRUE(stream_->Write(request));
  EXPECT_THAT(ReadKeys(), ElementsAre(3));
  ASSERT_TRUE(reply_.parts(0).has_error()) << reply_.DebugString();
  EXPECT_EQ(reply_.parts(0).error().code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const RequestId id = Begin(4);
  engine_->Emit(id, Tokens(0, {5}));
  EXPECT_THAT(ReadKeys(), ElementsAre(4));
  engine_->End(id, absl::OkStatus());
}

// gRPC would pass over the exception, and the stream would never end.
TEST_F(MultiplexServiceTest, AMessageWithoutMemoryEndsTheStreamAndItsRequests) {
  ExpectMemoryError(Tokens(0, std::vector<int32_t>(1 << 20, 5)));
}
TEST_F(MultiplexServiceTest, AMessageWithoutMemoryForItsBytesEndsTheStreamAndItsRequests) {
  ExpectMemoryError(Tokens(0, std::vector<int32_t>(1 << 17, -1)));  // 10 bytes each, not 4
}

TEST_F(MultiplexServiceTest, ARequestThatEndedBeforeMemoryWasMissingDoesNotKeepTheStreamOpen) {
  const RequestId large = Begin(1), other = Begin(2);
  engine_->Emit(other, Tokens(0, {5}));  // what follows waits until the client reads this
  engine_->Emit(large, Tokens(0, std::vector<int32_t>(1 << 20, 5)));
  engine_->End(large, absl::OkStatus());
  {
    const testing::ScarceMemory scarce(1 << 20);
    EXPECT_THAT(ReadKeys(), ElementsAre(2));
    engine_->WaitForCancel();
  }
  engine_->End(other, absl::CancelledError("cancelled"));
  EXPECT_FALSE(stream_->Read(&reply_));
  EXPECT_EQ(testing::Unpack(stream_->Finish()).reason, "REQUEST_MEMORY");
}

TEST_F(MultiplexServiceTest, WhatMovedInOneRunLeavesInOneMessage) {
  std::vector<RequestId> ids;
  for (uint64_t key = 0; key < 50; ++key) ids.push_back(Begin(key));
  Emitter emitter;
  for (int64_t position = 0; position < 5; ++position) {
    std::vector<std::unique_ptr<OneToken>> outlets;
    for (const RequestId id : ids) {
      outlets.push_back(std::make_unique<OneToken>(engine_.get(), id, position));
      emitter.PutReady(outlets.back().get());
    }
    emitter.HandReady();
    EXPECT_EQ(ReadKeys().size(), ids.size()) << position;
    for (const v1::MultiplexPart& part : reply_.parts()) {
      EXPECT_EQ(part.first_position(), position);
      EXPECT_EQ(part.has_seed(), position == 0);
      EXPECT_EQ(part.has_fingerprint(), position == 0);
      if (position == 0) {
        EXPECT_EQ(part.fingerprint(), ids[part.key()] + 1000);
        EXPECT_EQ(part.seed(), part.key() + 100);
      }
      EXPECT_THAT(part.tokens(), ElementsAre(static_cast<int>(ids[part.key()])));
    }
    emitter.Flush();
  }
  for (const RequestId id : ids) engine_->End(id, absl::OkStatus());
  stream_->WritesDone();
  int ended = 0;
  while (stream_->Read(&reply_)) {
    for (const v1::MultiplexPart& part : reply_.parts()) ended += part.has_usage() ? 1 : 0;
  }
  EXPECT_EQ(ended, 50);
  EXPECT_TRUE(stream_->Finish().ok());
}

TEST_F(MultiplexServiceTest, WhatComesDuringAWriteGathersForTheNextMessage) {
  const RequestId first = Begin(7), second = Begin(8), third = Begin(9);
  engine_->Emit(first, Tokens(0, {1}));  // leaves; the write ends with the client's read
  for (int i = 0; i < 100; ++i) {
    engine_->Emit(second, Tokens(i, {i}));
    engine_->Emit(first, Tokens(1 + i, {i}));
  }
  engine_->Emit(third, Tokens(0, {5}));
  EXPECT_THAT(ReadKeys(), ElementsAre(7));
  EXPECT_THAT(ReadKeys(), ElementsAre(8, 7, 9));
  EXPECT_EQ(reply_.parts(0).tokens_size(), 100);
  EXPECT_EQ(reply_.parts(1).first_position(), 1);
  for (const RequestId id : {first, second, third}) engine_->End(id, absl::OkStatus());
  stream_->WritesDone();
  while (stream_->Read(&reply_)) {
  }
  EXPECT_TRUE(stream_->Finish().ok());
}

TEST_F(MultiplexServiceTest, AMessageIsClosedWhenItIsLargeAndEveryRequestGetsItsTurn) {
  std::vector<RequestId> ids;
  for (uint64_t key = 0; key < 8; ++key) ids.push_back(Begin(key));
  engine_->Emit(ids[0], Tokens(0, {1}));
  const std::vector<int32_t> many(20'000, 1);  // 20,000 bytes
  for (const RequestId id : ids) {
    engine_->Emit(id, Tokens(id == ids[0] ? 1 : 0, many));
  }
  EXPECT_THAT(ReadKeys(), ElementsAre(0));
  EXPECT_THAT(ReadKeys(), ElementsAre(0, 1, 2, 3));  // the next message is on its way
  for (int i = 0; i < 4; ++i) engine_->Emit(ids[static_cast<size_t>(i)], Tokens(20'001, many));
  EXPECT_THAT(ReadKeys(), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(ReadKeys(), ElementsAre(0, 1, 2, 3));
  for (const RequestId id : ids) engine_->End(id, absl::OkStatus());
  stream_->WritesDone();
  while (stream_->Read(&reply_)) {
  }
  EXPECT_TRUE(stream_->Finish().ok());
}

TEST_F(MultiplexServiceTest, ErrorsThatNobodyReadsHoldUpReading) {
  constexpr int kRequests = 3000;
  std::atomic<int> written = 0;
  std::thread writer([&] {
    v1::MultiplexRequest unknown;
    unknown.mutable_cancel();
    for (int i = 0; i < kRequests; ++i) {
      unknown.set_key(static_cast<uint64_t>(i));
      EXPECT_TRUE(stream_->Write(unknown));
      ++written;
    }
    stream_->WritesDone();
  });
  int before = -1;
  for (int still = 0; still < 20; still = before == written && before > 0 ? still + 1 : 0) {
    before = written;
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_LT(written, 2 * static_cast<int>(MultiplexReactor::kMaxNotes));
  uint64_t next = 0;
  while (stream_->Read(&reply_)) {
    for (const v1::MultiplexPart& part : reply_.parts()) {
      EXPECT_EQ(part.key(), next++);
      EXPECT_EQ(part.refused().code(), static_cast<int>(grpc::StatusCode::NOT_FOUND));
    }
  }
  writer.join();
  EXPECT_EQ(next, static_cast<uint64_t>(kRequests));
  EXPECT_TRUE(stream_->Finish().ok());
}

TEST_F(MultiplexServiceTest, ARequestHasItsOwnTimeoutButNoneBeyondTheStream) {
  stream_->WritesDone();
  EXPECT_TRUE(stream_->Finish().ok());
  grpc::ClientContext context;
  const absl::Time end = absl::Now() + absl::Hours(2);
  context.set_deadline(absl::ToChronoTime(end));
  stream_ = stub_->Multiplex(&context);
  v1::MultiplexRequest request;
  request.mutable_generate()->mutable_tokens()->add_ids(1);
  const absl::Duration slack = absl::Minutes(5);  // however long the test takes
  for (const auto& [hours, latest] : {std::pair{0, end}, {1, end - absl::Hours(1)}, {3, end}}) {
    request.set_key(request.key() + 1);
    if (hours > 0) request.mutable_timeout()->set_seconds(3600 * hours);
    EXPECT_TRUE(stream_->Write(request));
    const RequestId id = last_ = engine_->WaitForRequest(last_);
    EXPECT_LT(engine_->last_spec().deadline, latest + slack) << hours;
    EXPECT_GT(engine_->last_spec().deadline, latest - slack) << hours;
    engine_->End(id, absl::OkStatus());
  }
  stream_->WritesDone();
  while (stream_->Read(&reply_)) {
  }
  EXPECT_TRUE(stream_->Finish().ok());
}

TEST_F(MultiplexServiceTest, ACancelThatComesWhileARequestIsHandedOverEndsThatToo) {
  absl::Notification handing, cancelled;
  engine_->before_call = [&] {
    handing.Notify();
    cancelled.WaitForNotification();
  };
  std::thread begin([this] { Begin(1); });
  handing.WaitForNotification();
  context_.TryCancel();
  absl::SleepFor(absl::Milliseconds(20));  // a chance to be heard
  cancelled.Notify();
  begin.join();
  engine_->WaitForCancel();
  engine_->End(last_, absl::CancelledError("cancelled"));
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(MultiplexServiceTest, ADrainEndsStreamsWithTheirLastRequestAndLaterOnesAtOnce) {
  const RequestId id = Begin(1);
  grpc::ClientContext idle_context, late_context;
  const auto idle = stub_->Multiplex(&idle_context);
  std::thread drain(
      [this] { EXPECT_TRUE(server_->WaitUntilIdle(absl::Now() + absl::Minutes(1))); });
  const auto expect_drained = [](auto* stream) {
    v1::MultiplexReply reply;
    EXPECT_FALSE(stream->Read(&reply));
    const testing::WireError error = testing::Unpack(stream->Finish());
    EXPECT_EQ(error.code, grpc::StatusCode::UNAVAILABLE);
    EXPECT_EQ(error.reason, "DRAINING");
  };
  expect_drained(idle.get());
  expect_drained(stub_->Multiplex(&late_context).get());
  engine_->End(id, absl::OkStatus());
  EXPECT_THAT(ReadKeys(), ElementsAre(1));
  expect_drained(stream_.get());
  drain.join();
}

TEST_F(MultiplexServiceTest, ACancelledStreamEndsOnceItsRequestsHave) {
  const RequestId id = Begin(1);
  context_.TryCancel();
  engine_->WaitForCancel();
  EXPECT_FALSE(server_->WaitUntilIdle(absl::Now() + absl::Milliseconds(50)));
  engine_->End(id, absl::CancelledError("cancelled"));
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(server_->WaitUntilIdle(absl::Now() + absl::Seconds(30)));
}

}  // namespace
}  // namespace rivulet
