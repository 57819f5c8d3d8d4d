// SPDX-License-Identifier: Apache-2.0
// A server and a client of its sessions, over the socket.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "rivulet/client.h"
#include "tests/e2e/server/test_server.h"

namespace rivulet::testing {

// A reply on a session, and its end.
struct SessionReply {
  Collected reply;
  v1::SessionProgress progress;  // of the last part
  absl::Status status;
  const std::vector<int>& tokens() { return reply.tokens[0]; }
};

// The hash of SessionProgress, by its definition, without the server's code.
inline uint64_t Fnv1a(const std::vector<int>& tokens) {
  uint64_t hash = 14695981039346656037u;
  for (const int token : tokens) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash ^= static_cast<uint64_t>(token >> shift & 255);
      hash *= 1099511628211u;
    }
  }
  return hash;
}

inline std::vector<int> Join(std::vector<int> a, const std::vector<int>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline std::vector<int> From(const std::vector<int>& tokens, size_t first) {
  return {tokens.begin() + static_cast<std::ptrdiff_t>(first), tokens.end()};
}

inline std::string ReasonOf(const absl::Status& status) { return GetErrorInfo(status).reason; }

// A client of `server`; `tenant` as in ClientOptions.
inline Client Connect(Server& server, const std::string& tenant = "") {
  ClientOptions options;
  options.tenant = tenant;
  auto client = Client::Connect("127.0.0.1:" + std::to_string(server.port()), options);
  EXPECT_TRUE(client.ok()) << client.status();
  return *std::move(client);
}

// Calls on the sessions of one model and tenant.
class Sessions {
 public:
  Sessions(Client client, std::string model)
      : client_(std::move(client)), model_(std::move(model)) {}

  const Client& client() const { return client_; }
  const std::string& model() const { return model_; }

  v1::Session Open(uint64_t seed = 7) const {
    v1::OpenSessionRequest request;
    request.set_model(model_);
    request.set_seed(seed);
    const auto reply = client_.OpenSession(request);
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.ok() ? reply->session() : v1::Session();
  }

  v1::AppendRequest AppendOf(const v1::Session& session, const std::vector<int>& tokens) const {
    v1::AppendRequest request;
    request.set_model(model_);
    request.mutable_session()->set_session_id(session.session_id());
    request.mutable_tokens()->mutable_ids()->Add(tokens.begin(), tokens.end());
    return request;
  }
  absl::StatusOr<v1::AppendReply> Append(const v1::Session& session,
                                         const std::vector<int>& tokens) const {
    return client_.Append(AppendOf(session, tokens));
  }

  // Generates `max_tokens` tokens with the session's seed, at `position` or the end.
  v1::GenerateRequest GenerateOf(const v1::Session& session, int64_t max_tokens,
                                 std::optional<int64_t> position = std::nullopt) const {
    v1::GenerateRequest request;
    request.set_model(model_);
    request.mutable_session()->set_session_id(session.session_id());
    if (position) request.mutable_session()->set_position(*position);
    request.set_max_tokens(max_tokens);
    return request;
  }
  // Stops after `parts` messages.
  SessionReply Generate(const v1::GenerateRequest& request, int parts = 1 << 30) const {
    SessionReply result;
    result.status = client_.Generate(request, [&](const v1::GenerateReply& part) {
      Add(part, &result.reply);
      if (part.has_session()) result.progress = part.session();
      return --parts > 0;
    });
    return result;
  }
  // The tokens of a reply that must end well.
  std::vector<int> Tokens(const v1::GenerateRequest& request) const {
    SessionReply result = Generate(request);
    EXPECT_TRUE(result.status.ok()) << result.status;
    return result.tokens();
  }

  // The tokens that a Generate without a session draws after `prompt`.
  std::vector<int> Alone(const std::vector<int>& prompt, int64_t max_tokens,
                         uint64_t seed = 7) const {
    v1::GenerateRequest request;
    request.set_model(model_);
    request.mutable_tokens()->mutable_ids()->Add(prompt.begin(), prompt.end());
    request.mutable_sampling()->set_seed(seed);
    request.set_max_tokens(max_tokens);
    return Tokens(request);
  }

  absl::StatusOr<v1::RewindSessionReply> Rewind(const v1::Session& session,
                                                std::optional<int64_t> position,
                                                const std::string& mark = "") const {
    v1::RewindSessionRequest request;
    request.set_model(model_);
    request.set_session_id(session.session_id());
    if (position) request.set_position(*position);
    if (!mark.empty()) request.set_mark(mark);
    return client_.RewindSession(request);
  }

  absl::StatusOr<v1::ForkSessionReply> Fork(const v1::Session& session, int count,
                                            std::optional<uint64_t> seed = std::nullopt) const {
    v1::ForkSessionRequest request;
    request.set_model(model_);
    request.mutable_session()->set_session_id(session.session_id());
    request.set_count(count);
    if (seed) request.set_seed(*seed);
    return client_.ForkSession(request);
  }

  absl::Status Close(const v1::Session& session) const {
    v1::CloseSessionRequest request;
    request.set_model(model_);
    request.set_session_id(session.session_id());
    // The call should not wait; the deadline keeps a wrong test from waiting for ever.
    return client_.CloseSession(request, {.deadline = absl::Now() + absl::Minutes(1)});
  }

  absl::StatusOr<v1::GetSessionReply> Get(const v1::Session& session) const {
    v1::GetSessionRequest request;
    request.set_model(model_);
    request.set_session_id(session.session_id());
    return client_.GetSession(request);
  }

  std::vector<v1::Session> List() const {
    v1::ListSessionsRequest request;
    request.set_model(model_);
    const auto reply = client_.ListSessions(request);
    EXPECT_TRUE(reply.ok()) << reply.status();
    if (!reply.ok()) return {};
    return {reply->sessions().begin(), reply->sessions().end()};
  }

  absl::StatusOr<std::string> Snapshot(const v1::Session& session) const {
    v1::SnapshotSessionRequest request;
    request.set_model(model_);
    request.set_session_id(session.session_id());
    return client_.SnapshotSession(request);
  }
  absl::StatusOr<v1::RestoreSessionReply> Restore(const std::string& snapshot) const {
    v1::RestoreSessionRequest request;
    request.set_model(model_);
    return client_.RestoreSession(request, snapshot);
  }

 private:
  const Client client_;
  const std::string model_;
};

}  // namespace rivulet::testing
