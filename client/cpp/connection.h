// SPDX-License-Identifier: Apache-2.0
// What the calls of a Client share: stubs, and a context with deadline, key, tenant and
// cancellation.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cpp/client_error.h"
#include "client/cpp/session_cookies.h"
#include "google/protobuf/wrappers.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "rivulet/client.h"
#include "rivulet/v1/admin_service.grpc.pb.h"
#include "rivulet/v1/inference.grpc.pb.h"
#include "rivulet/v1/multiplex.grpc.pb.h"
#include "rivulet/v1/session_service.grpc.pb.h"

namespace rivulet {

// Two messages of grpc.health.v1 have one field each, with the numbers and types of these wrappers.
// A generated copy of health.proto would conflict with the copy of a program that links it too.
using HealthStub =
    grpc::TemplatedGenericStub<google::protobuf::StringValue, google::protobuf::Int32Value>;

struct Client::Connection {
  Connection(const std::shared_ptr<grpc::Channel>& channel, bool wait, int attempts,
             std::string calls_tenant, const std::string& key)
      : inference(v1::InferenceService::NewStub(channel)),
        sessions(v1::SessionService::NewStub(channel)),
        multiplex(v1::MultiplexService::NewStub(channel)),
        admin(v1::AdminService::NewStub(channel)),
        health(channel),
        wait_for_ready(wait),
        max_attempts(attempts),
        tenant(std::move(calls_tenant)),
        authorization(key.empty() ? "" : "Bearer " + key) {}

  template <typename Stub, typename Request, typename Reply>
  using Method = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Reply*);

  // A unary call of `stub`, for example (*inference, &v1::InferenceService::Stub::Score, ...).
  template <typename Stub, typename Request, typename Reply>
  absl::StatusOr<Reply> Unary(Stub& stub, Method<Stub, Request, Reply> method,
                              const Request& request, const CallOptions& options) const;
  // The same on a call that the caller uses afterwards.
  template <typename Stub, typename Request, typename Reply>
  static absl::StatusOr<Reply> Unary(Stub& stub, Method<Stub, Request, Reply> method,
                                     const Request& request, Call* call);

  // A call on an existing session, to the replica to which the session's cookie leads. If this
  // replica drains or the session has moved, the call is made once more without the cookie; if
  // `repeats`, also if the call is lost. If the second replica does not know the session, the first
  // error is returned. `make`: takes a Call* and returns an absl::StatusOr.
  template <typename Make>
  auto OnSession(absl::string_view session_id, const CallOptions& options, bool repeats,
                 const Make& make) const;

  // Whether the server accepts a message of this size. The limit is known after a GetModel. Errors:
  // INVALID_ARGUMENT (MESSAGE_TOO_LARGE).
  template <typename Request>
  absl::Status CheckSize(const Request& request) const {
    const int64_t limit = max_message_bytes;
    const size_t bytes = limit > 0 ? request.ByteSizeLong() : 0;
    if (bytes <= static_cast<size_t>(limit)) return absl::OkStatus();
    return MessageTooLarge(Request::descriptor()->name(), bytes, limit);
  }

  std::unique_ptr<v1::InferenceService::Stub> inference;
  std::unique_ptr<v1::SessionService::Stub> sessions;
  std::unique_ptr<v1::MultiplexService::Stub> multiplex;
  std::unique_ptr<v1::AdminService::Stub> admin;
  mutable HealthStub health;
  mutable SessionCookies cookies;
  mutable std::atomic<int64_t> max_message_bytes = 0;  // of a request; 0: not known
  const bool wait_for_ready;
  const int max_attempts;  // of a Generate; gRPC counts the attempts of other calls
  const std::string tenant;
  const std::string authorization;
};

// A call's context with deadline, key, tenant, cancellation and the cookie of the call's session
// ("": none). Lives until the call has ended.
class Client::Call {
 public:
  Call(const Connection& connection, const CallOptions& options, std::string cookie = "")
      : cookie_(std::move(cookie)), on_stop_(options.stop, Cancel{&context_}) {
    if (options.deadline != absl::InfiniteFuture()) {
      context_.set_deadline(absl::ToChronoTime(options.deadline));
    }
    context_.set_wait_for_ready(connection.wait_for_ready);
    if (!connection.tenant.empty()) context_.AddMetadata("rivulet-tenant", connection.tenant);
    if (!connection.authorization.empty()) {
      context_.AddMetadata("authorization", connection.authorization);
    }
    if (!cookie_.empty()) context_.AddMetadata("cookie", cookie_);
    for (const auto& [name, value] : options.metadata.entries()) {
      context_.AddMetadata(name, value);
    }
  }
  grpc::ClientContext* context() { return &context_; }
  // The cookie to send with calls on its sessions. REQUIRES: the call has brought a message.
  std::string cookie() const { return SessionCookies::Received(context_, cookie_); }

 private:
  struct Cancel {
    grpc::ClientContext* context;
    void operator()() const { context->TryCancel(); }
  };
  grpc::ClientContext context_;
  const std::string cookie_;
  std::stop_callback<Cancel> on_stop_;
};

template <typename Make>
auto Client::Connection::OnSession(absl::string_view session_id, const CallOptions& options,
                                   bool repeats, const Make& make) const {
  const auto try_with = [&](const std::string& cookie) {
    Call call(*this, options, cookie);
    auto result = make(&call);
    if (result.ok()) cookies.Set(session_id, call.cookie());
    return result;
  };
  const std::string cookie = cookies.Get(session_id);
  auto result = try_with(cookie);
  const ErrorInfo info = GetErrorInfo(result.status());
  const bool lost = repeats && absl::IsUnavailable(result.status());
  const bool elsewhere_too = !cookie.empty() && (lost || LeavesReplica(info));
  if (!elsewhere_too && info.reason != kSessionMoved) return result;
  auto elsewhere = try_with("");
  return GetErrorInfo(elsewhere.status()).reason == kSessionNotFound ? result : elsewhere;
}

template <typename Stub, typename Request, typename Reply>
absl::StatusOr<Reply> Client::Connection::Unary(Stub& stub, Method<Stub, Request, Reply> method,
                                                const Request& request, Call* call) {
  Reply reply;
  absl::Status status = FromGrpcStatus((stub.*method)(call->context(), request, &reply));
  if (!status.ok()) return status;
  return reply;
}

template <typename Stub, typename Request, typename Reply>
absl::StatusOr<Reply> Client::Connection::Unary(Stub& stub, Method<Stub, Request, Reply> method,
                                                const Request& request,
                                                const CallOptions& options) const {
  if (absl::Status status = CheckSize(request); !status.ok()) return status;
  Call call(*this, options);
  return Unary(stub, method, request, &call);
}

}  // namespace rivulet
