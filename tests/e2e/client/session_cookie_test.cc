// SPDX-License-Identifier: Apache-2.0
// Sessions behind a balancer that gives cookies: the client sends them with every call on the
// session. The server here is both, balancer and replica.
#include <gmock/gmock.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <deque>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rivulet/client.h"
#include "rivulet/v1/inference.grpc.pb.h"
#include "rivulet/v1/session_service.grpc.pb.h"
#include "tests/e2e/client/scripted_server.h"

namespace rivulet {
namespace {

using grpc::ServerContext;
using grpc::Status;
using ::testing::ElementsAre;

// Notes the cookie of each call, and opens session "s<n>" with the cookies that a test sets.
class Replica final : public v1::SessionService::Service, public v1::InferenceService::Service {
 public:
  std::vector<std::string> gives;     // "set-cookie" of calls that open sessions
  std::vector<std::string> received;  // "method cookie"
  std::deque<Status> ends;            // of calls on sessions that exist; beyond them all succeed

  Status OpenSession(ServerContext* context, const v1::OpenSessionRequest*,
                     v1::OpenSessionReply* reply) override {
    Open("open", context, reply->mutable_session());
    return Status::OK;
  }
  Status Append(ServerContext* context, const v1::AppendRequest*, v1::AppendReply*) override {
    return Note("append", context);
  }
  Status ForkSession(ServerContext* context, const v1::ForkSessionRequest*,
                     v1::ForkSessionReply* reply) override {
    Open("fork", context, reply->add_sessions());
    reply->add_sessions()->set_session_id("last");
    return Status::OK;
  }
  Status RewindSession(ServerContext* context, const v1::RewindSessionRequest*,
                       v1::RewindSessionReply*) override {
    return Note("rewind", context);
  }
  Status CloseSession(ServerContext* context, const v1::CloseSessionRequest*,
                      v1::CloseSessionReply*) override {
    return Note("close", context);
  }
  Status SnapshotSession(ServerContext* context, const v1::SnapshotSessionRequest*,
                         grpc::ServerWriter<v1::SnapshotSessionReply>*) override {
    return Note("snapshot", context);
  }
  Status RestoreSession(ServerContext* context,
                        grpc::ServerReader<v1::RestoreSessionRequest>* reader,
                        v1::RestoreSessionReply* reply) override {
    v1::RestoreSessionRequest part;
    while (reader->Read(&part)) {
    }
    Open("restore", context, reply->mutable_session());
    return Status::OK;
  }
  Status Generate(ServerContext* context, const v1::GenerateRequest*,
                  grpc::ServerWriter<v1::GenerateReply>* writer) override {
    const Status status = Note("generate", context);
    if (status.ok()) writer->Write(v1::GenerateReply());
    return status;
  }

 private:
  Status Note(const char* method, ServerContext* context) {
    std::string note = method;
    const auto [begin, end] = context->client_metadata().equal_range("cookie");
    for (auto entry = begin; entry != end; ++entry) {
      note.append(" ").append(entry->second.data(), entry->second.size());
    }
    received.push_back(std::move(note));
    for (const std::string& cookie : gives) context->AddInitialMetadata("set-cookie", cookie);
    if (ends.empty()) return Status::OK;
    Status status = ends.front();
    ends.pop_front();
    return status;
  }
  void Open(const char* method, ServerContext* context, v1::Session* session) {
    Note(method, context);
    session->set_session_id(absl::StrCat("s", opened_++));
  }
  int opened_ = 0;
};

class SessionCookieTest : public ::testing::Test {
 protected:
  SessionCookieTest() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(static_cast<v1::SessionService::Service*>(&replica_));
    builder.RegisterService(static_cast<v1::InferenceService::Service*>(&replica_));
    server_ = builder.BuildAndStart();
    client_ = std::make_unique<Client>(Client::FromChannel(server_->InProcessChannel({})));
  }

  std::string Open() { return client_->OpenSession({})->session().session_id(); }
  void Append(const Client& client, const std::string& id) {
    v1::AppendRequest request;
    request.mutable_session()->set_session_id(id);
    ASSERT_TRUE(client.Append(request).ok());
  }

  // A request that goes on where it is lost; the status of the whole reply.
  absl::Status Generate(const Client& client, const std::string& id, bool async) {
    v1::GenerateRequest request;
    request.mutable_session()->set_session_id(id);
    request.mutable_session()->set_position(0);
    if (!async) return client.Generate(request, [](const auto&) { return true; });
    std::promise<absl::Status> ended;
    client.GenerateAsync(
        request, [](const auto&) { return true; },
        [&](absl::Status status) { ended.set_value(std::move(status)); });
    return ended.get_future().get();
  }

  Replica replica_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Client> client_;
  int port_ = 0;
};

Status Draining() { return testing::Unavailable("DRAINING"); }
Status Moved() { return testing::ServerError(grpc::StatusCode::ABORTED, "SESSION_MOVED"); }
Status UnknownThere() {
  return testing::ServerError(grpc::StatusCode::NOT_FOUND, "SESSION_NOT_FOUND");
}

TEST_F(SessionCookieTest, EveryCallOnASessionBringsBackTheCookieOfTheReplyThatOpenedIt) {
  replica_.gives = {"replica=a; path=/; HttpOnly", "zone = b"};
  const std::string id = Open();
  Append(*client_, id);
  v1::RewindSessionRequest rewind;
  rewind.set_session_id(id);
  EXPECT_TRUE(client_->RewindSession(rewind).ok());
  v1::SnapshotSessionRequest snapshot;
  snapshot.set_session_id(id);
  EXPECT_TRUE(client_->SnapshotSession(snapshot).ok());
  v1::GenerateRequest generate;
  generate.mutable_session()->set_session_id(id);
  EXPECT_TRUE(client_->Generate(generate, [](const auto&) { return true; }).ok());
  v1::CloseSessionRequest close;
  close.set_session_id(id);
  EXPECT_TRUE(client_->CloseSession(close).ok());
  Append(*client_, id);
  const std::string cookie = " replica=a; zone = b";
  EXPECT_THAT(replica_.received,
              ElementsAre("open", "append" + cookie, "rewind" + cookie, "snapshot" + cookie,
                          "generate" + cookie, "close" + cookie, "append"));
}

TEST_F(SessionCookieTest, AReplyGoesOnElsewhereWhereItsReplicaEndsOrHasLostTheSession) {
  const Client client = *Client::Connect(absl::StrCat("127.0.0.1:", port_));
  for (const bool async : {false, true}) {
    for (const Status& left : {Draining(), Moved()}) {
      replica_.received.clear();
      ASSERT_TRUE(client.SetSessionCookie("s", "replica=a").ok());
      replica_.ends = {left, Status::OK};
      replica_.gives = {"replica=b; path=/"};
      EXPECT_EQ(Generate(client, "s", async), absl::OkStatus());
      EXPECT_THAT(replica_.received, ElementsAre("generate replica=a", "generate"));
      EXPECT_EQ(client.SessionCookie("s"), "replica=b");
    }
    replica_.received.clear();
    replica_.ends = {Draining(), UnknownThere(), Status::OK};
    replica_.gives = {"replica=c"};  // a balancer gives it with errors, too
    EXPECT_EQ(Generate(client, "s", async), absl::OkStatus());
    EXPECT_THAT(replica_.received,
                ElementsAre("generate replica=b", "generate", "generate replica=b"));
  }
}

TEST_F(SessionCookieTest, ACallIsMadeOnceMoreWithoutTheCookie) {
  ASSERT_TRUE(client_->SetSessionCookie("s", "replica=a").ok());
  v1::AppendRequest append;
  append.mutable_session()->set_session_id("s");
  replica_.ends = {Draining(), UnknownThere()};
  EXPECT_EQ(GetErrorInfo(client_->Append(append).status()).reason, "DRAINING");
  EXPECT_EQ(client_->SessionCookie("s"), "replica=a");
  replica_.gives = {"replica=b"};
  for (const Status& left : {Draining(), Moved()}) {
    replica_.ends = {left};
    EXPECT_TRUE(client_->Append(append).ok());
    EXPECT_EQ(client_->SessionCookie("s"), "replica=b");
  }
  replica_.ends = {Status(grpc::StatusCode::UNAVAILABLE, "lost")};
  EXPECT_TRUE(absl::IsUnavailable(client_->Append(append).status())) << "it may have been fed";
  append.mutable_session()->set_position(0);
  replica_.ends = {Status(grpc::StatusCode::UNAVAILABLE, "lost")};
  EXPECT_TRUE(client_->Append(append).ok());
  EXPECT_THAT(replica_.received, ElementsAre("append replica=a", "append", "append replica=a",
                                             "append", "append replica=b", "append",
                                             "append replica=b", "append replica=b", "append"));
}

TEST_F(SessionCookieTest, CallsWithoutASessionAndThoseOfOthersBringNone) {
  replica_.gives = {"replica=a"};
  Open();
  replica_.gives = {};
  const std::string other = Open();
  Append(*client_, other);
  EXPECT_TRUE(client_->Generate({}, [](const auto&) { return true; }).ok());
  EXPECT_THAT(replica_.received, ElementsAre("open", "open", "append", "generate"));
}

TEST_F(SessionCookieTest, ForksAreWhereTheirSessionIsUnlessTheBalancerSaysOtherwise) {
  replica_.gives = {"replica=a"};
  v1::ForkSessionRequest fork;
  fork.mutable_session()->set_session_id(Open());
  replica_.gives = {};
  EXPECT_EQ(client_->SessionCookie(client_->ForkSession(fork)->sessions(0).session_id()),
            "replica=a");
  EXPECT_EQ(client_->SessionCookie("last"), "replica=a");
  replica_.gives = {"replica=b"};
  EXPECT_EQ(client_->SessionCookie(client_->ForkSession(fork)->sessions(0).session_id()),
            "replica=b");
  EXPECT_THAT(replica_.received, ElementsAre("open", "fork replica=a", "fork replica=a"));
}

TEST_F(SessionCookieTest, ARestoredSessionHasTheCookieOfItsOwnReply) {
  replica_.gives = {"replica=c"};
  const auto restored = client_->RestoreSession({}, "bytes");
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(client_->SessionCookie(restored->session().session_id()), "replica=c");
}

TEST_F(SessionCookieTest, AnotherProgramGoesOnWithTheCookieThatItIsGiven) {
  const Client other = Client::FromChannel(server_->InProcessChannel({}));
  ASSERT_TRUE(other.SetSessionCookie("known", "replica=d").ok());
  Append(other, "known");
  EXPECT_THAT(replica_.received, ElementsAre("append replica=d"));
  EXPECT_EQ(other.SetSessionCookie("known", "a\nb").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(other.SessionCookie("known"), "replica=d");
}

}  // namespace
}  // namespace rivulet
