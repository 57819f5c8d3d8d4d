// SPDX-License-Identifier: Apache-2.0
// What needs no server; calls that reach one are tested in tests/e2e.
#include "rivulet/client.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>

#include "absl/time/clock.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"

namespace rivulet {
namespace {

TEST(ClientTest, RefusesOptionsThatCannotBe) {
  const auto code = [](absl::string_view target, const ClientOptions& options) {
    return Client::Connect(target, options).status().code();
  };
  EXPECT_EQ(code("", {}), absl::StatusCode::kInvalidArgument);
  ClientOptions attempts;
  attempts.max_attempts = 0;
  EXPECT_EQ(code("localhost:1", attempts), absl::StatusCode::kInvalidArgument);
  ClientOptions timeout;
  for (const absl::Duration no : {absl::ZeroDuration(), absl::Hours(1) + absl::Milliseconds(1)}) {
    timeout.connect_timeout = no;
    EXPECT_EQ(code("localhost:1", timeout), absl::StatusCode::kInvalidArgument);
  }
  ClientOptions roots;
  roots.tls = TlsOptions();
  roots.tls->root_certs_file = "/nonexistent/roots.pem";
  EXPECT_EQ(code("localhost:1", roots), absl::StatusCode::kNotFound);
  ClientOptions half;
  half.tls = TlsOptions();
  half.tls->client_cert_file = "cert.pem";
  EXPECT_EQ(code("localhost:1", half), absl::StatusCode::kInvalidArgument);
}

TEST(ClientTest, RefusesMetadataThatCannotBeSent) {
  CallMetadata metadata;
  EXPECT_TRUE(metadata.Add("x-request-id", "a b~1").ok());
  EXPECT_TRUE(metadata.Add("0_a.b", "").ok());
  for (const char* name : {"", "X-Request-Id", "x request", "x\n", "trace-bin", "grpc-timeout",
                           "authorization", "cookie", "rivulet-tenant"}) {
    EXPECT_EQ(metadata.Add(name, "a").code(), absl::StatusCode::kInvalidArgument) << name;
  }
  for (const char* value : {"a\nb", "\x7f", "\xc3\xa9"}) {
    EXPECT_EQ(metadata.Add("x-request-id", value).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(metadata.Add("cookie", "a").message(),
            "metadata: the name \"cookie\" is set by the client itself");
  EXPECT_EQ(metadata.entries().size(), 2u);
}

TEST(ClientTest, RefusesACookieThatCannotBeSent) {
  const Client client = *Client::Connect("127.0.0.1:1");
  EXPECT_TRUE(client.SetSessionCookie("known", "replica=d").ok());
  EXPECT_EQ(client.SetSessionCookie("known", "a\nb").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client.SessionCookie("known"), "replica=d");
}

TEST(ClientTest, AnswersUnavailableWhereNobodyListens) {
  absl::StatusOr<Client> client = Client::Connect("127.0.0.1:1");
  ASSERT_TRUE(client.ok());
  EXPECT_EQ(client->ListModels().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client->Health("").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client->Generate({}, [](const v1::GenerateReply&) { return true; }).code(),
            absl::StatusCode::kUnavailable);
}

TEST(ClientTest, EndsWithCancelledOnceStopIsRequested) {
  ClientOptions options;
  options.wait_for_ready = true;  // so that the call would wait for ever
  absl::StatusOr<Client> client = Client::Connect("127.0.0.1:1", options);
  ASSERT_TRUE(client.ok());
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(client->Score({}, {.stop = stop.get_token()}).status().code(),
            absl::StatusCode::kCancelled);
}

TEST(ClientTest, EndsAtTheDeadline) {
  ClientOptions options;
  options.wait_for_ready = true;
  absl::StatusOr<Client> client = Client::Connect("127.0.0.1:1", options);
  ASSERT_TRUE(client.ok());
  EXPECT_EQ(client->GetModel("m", {.deadline = absl::Now()}).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST(ClientTest, AnswersUnavailableWithoutWaitingToo) {
  absl::StatusOr<Client> client = Client::Connect("127.0.0.1:1");
  ASSERT_TRUE(client.ok());
  std::promise<absl::Status> ended;
  client->GenerateAsync(
      {},
      [](const v1::GenerateReply&) {
        ADD_FAILURE() << "a part of nothing";
        return true;
      },
      [&](absl::Status status) { ended.set_value(std::move(status)); });
  EXPECT_EQ(ended.get_future().get().code(), absl::StatusCode::kUnavailable);
}

TEST(ClientTest, EndsAReplyThatNobodyWaitsForOnceStopIsRequested) {
  ClientOptions options;
  options.wait_for_ready = true;  // so that the call would wait for ever
  absl::StatusOr<Client> client = Client::Connect("127.0.0.1:1", options);
  ASSERT_TRUE(client.ok());
  std::stop_source stop;
  std::promise<absl::Status> ended;
  client->GenerateAsync(
      {}, [](const v1::GenerateReply&) { return true; },
      [&](absl::Status status) { ended.set_value(std::move(status)); }, {.stop = stop.get_token()});
  stop.request_stop();
  EXPECT_EQ(ended.get_future().get().code(), absl::StatusCode::kCancelled);
}

TEST(ClientTest, LetsGoOfTheChannelBeforeACallReports) {
  // A call's context shares the channel. If it outlived the callback, the channel could end on a
  // thread that gRPC waits for when a channel ends: the process would hang or crash now and then.
  const std::shared_ptr<grpc::Channel> channel =
      grpc::CreateChannel("127.0.0.1:1", grpc::InsecureChannelCredentials());
  const Client client = Client::FromChannel(channel);
  const int64_t owners = channel.use_count();
  std::promise<int64_t> owners_then;
  client.ScoreAsync({}, [&](const absl::StatusOr<v1::ScoreReply>& reply) {
    EXPECT_EQ(reply.status().code(), absl::StatusCode::kUnavailable);
    owners_then.set_value(channel.use_count());
  });
  EXPECT_EQ(owners_then.get_future().get(), owners);
  std::promise<int64_t> owners_after_reply;
  client.GenerateAsync(
      {}, [](const v1::GenerateReply&) { return true; },
      [&](const absl::Status&) { owners_after_reply.set_value(channel.use_count()); });
  EXPECT_EQ(owners_after_reply.get_future().get(), owners);
}

}  // namespace
}  // namespace rivulet
