// SPDX-License-Identifier: Apache-2.0
#include "rivulet/client.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cpp/client_error.h"
#include "client/cpp/connection.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"

namespace rivulet {
namespace {

absl::StatusOr<std::string> ReadPem(const std::string& path, absl::string_view what) {
  if (path.empty()) return std::string();
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || text.str().empty()) {
    return absl::NotFoundError(absl::StrCat(what, " ", path, ": cannot be read or is empty"));
  }
  return text.str();
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Credentials(
    const ClientOptions& options) {
  if (!options.tls.has_value()) return grpc::InsecureChannelCredentials();
  const TlsOptions& tls = *options.tls;
  if (tls.client_cert_file.empty() != tls.client_key_file.empty()) {
    return absl::InvalidArgumentError(
        "tls: client_cert_file and client_key_file are given together or not at all");
  }
  grpc::SslCredentialsOptions ssl;
  for (auto& [target, path, what] :
       {std::make_tuple(&ssl.pem_root_certs, &tls.root_certs_file, "tls.root_certs_file"),
        std::make_tuple(&ssl.pem_cert_chain, &tls.client_cert_file, "tls.client_cert_file"),
        std::make_tuple(&ssl.pem_private_key, &tls.client_key_file, "tls.client_key_file")}) {
    absl::StatusOr<std::string> pem = ReadPem(*path, what);
    if (!pem.ok()) return pem.status();
    *target = *std::move(pem);
  }
  return grpc::SslCredentials(ssl);
}

std::string ServiceConfig(int max_attempts) {
  if (max_attempts == 1) return "{}";
  // Only this library repeats Generate: the entry without a policy exempts it from the policy of
  // the service. gRPC repeats the session calls whose repetition has no further effect: the server
  // refuses to repeat an Append without a position.
  std::string names = R"({"service":"rivulet.v1.InferenceService"})";
  for (const char* method : {"Append", "RewindSession", "SnapshotSession", "CloseSession",
                             "GetSession", "ListSessions"}) {
    absl::StrAppendFormat(&names, R"(,{"service":"rivulet.v1.SessionService","method":"%s"})",
                          method);
  }
  return absl::StrFormat(
      R"({"methodConfig":[{"name":[{"service":"rivulet.v1.InferenceService","method":"Generate"}]},)"
      R"({"name":[%s],)"
      R"("retryPolicy":{"maxAttempts":%d,"initialBackoff":"0.1s","maxBackoff":"2s",)"
      R"("backoffMultiplier":2,"retryableStatusCodes":["UNAVAILABLE"]}}],)"
      R"("retryThrottling":{"maxTokens":10,"tokenRatio":0.1}})",
      names, max_attempts);
}

grpc::ChannelArguments ChannelArgs(const ClientOptions& options) {
  grpc::ChannelArguments args;
  args.SetServiceConfigJSON(ServiceConfig(options.max_attempts));
  args.SetMaxReceiveMessageSize(options.max_receive_bytes);
  args.SetUserAgentPrefix("rivulet-cpp/0.1");
  const int connect_ms = static_cast<int>(absl::ToInt64Milliseconds(options.connect_timeout));
  // gRPC gives a connection attempt at least this time.
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, connect_ms);
  // A connection that failed is tried again within a call's retries, which take 0.7 s on average;
  // gRPC's own first wait of 1 s would outlast them all.
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // A peer that has vanished is noticed within 80 s while a call runs; the server allows a ping
  // every 30 s.
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 60'000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  if (options.own_connection) args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (options.tls.has_value() && !options.tls->server_name.empty()) {
    args.SetSslTargetNameOverride(options.tls->server_name);
  }
  return args;
}

}  // namespace

absl::Status CallMetadata::Add(absl::string_view name, absl::string_view value) {
  const auto legal = [](unsigned char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-' || c == '_' || c == '.';
  };
  const bool own = name == "authorization" || name == "cookie" || name == "rivulet-tenant" ||
                   absl::StartsWith(name, "grpc-");
  if (name.empty() || own || absl::EndsWith(name, "-bin") ||
      !std::all_of(name.begin(), name.end(), legal)) {
    return absl::InvalidArgumentError(
        absl::StrCat("metadata: the name \"", absl::CHexEscape(name),
                     own ? "\" is set by the client itself"
                         : "\" must be of a-z 0-9 - _ . and not end with -bin"));
  }
  if (!std::all_of(value.begin(), value.end(), absl::ascii_isprint)) {
    return absl::InvalidArgumentError(absl::StrCat("metadata: ", name, " is \"",
                                                   absl::CHexEscape(value),
                                                   "\"; only printable ASCII can be sent"));
  }
  entries_.emplace_back(name, value);
  return absl::OkStatus();
}

absl::StatusOr<Client> Client::Connect(absl::string_view target, const ClientOptions& options) {
  if (target.empty())
    return absl::InvalidArgumentError("target must be HOST:PORT; got an empty string");
  if (options.max_attempts < 1 || options.max_attempts > 5) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_attempts must be 1 to 5; got ", options.max_attempts));
  }
  if (options.connect_timeout < absl::Milliseconds(1) || options.connect_timeout > absl::Hours(1)) {
    return absl::InvalidArgumentError(absl::StrCat("connect_timeout must be 1 ms to 1 h; got ",
                                                   absl::FormatDuration(options.connect_timeout)));
  }
  // gRPC cannot send other characters; the server checks the rest of a tenant's name.
  const auto printable = [](unsigned char c) { return c > ' ' && c <= '~'; };
  if (!std::all_of(options.tenant.begin(), options.tenant.end(), printable)) {
    return absl::InvalidArgumentError(absl::StrCat("tenant: \"", absl::CHexEscape(options.tenant),
                                                   "\"; only printable ASCII can be sent"));
  }
  if (!std::all_of(options.key.begin(), options.key.end(), printable)) {
    return absl::InvalidArgumentError("key: only printable ASCII without spaces can be sent");
  }
  auto credentials = Credentials(options);
  if (!credentials.ok()) return credentials.status();
  return Client(std::make_shared<Connection>(
      grpc::CreateCustomChannel(std::string(target), *credentials, ChannelArgs(options)),
      options.wait_for_ready, options.max_attempts, options.tenant, options.key));
}

Client Client::FromChannel(const std::shared_ptr<grpc::Channel>& channel) {
  return Client(std::make_shared<Connection>(channel, false, 1, "", ""));
}

Client::Client(std::shared_ptr<const Connection> connection) : connection_(std::move(connection)) {}
Client::Client(const Client&) = default;
Client& Client::operator=(const Client&) = default;
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;
Client::~Client() = default;

absl::StatusOr<v1::ScoreReply> Client::Score(const v1::ScoreRequest& request,
                                             const CallOptions& options) const {
  return connection_->Unary(*connection_->inference, &v1::InferenceService::Stub::Score, request,
                            options);
}

void Client::ScoreAsync(v1::ScoreRequest request, ScoreDone done,
                        const CallOptions& options) const {
  struct Pending {
    Pending(const Connection& c, v1::ScoreRequest r, ScoreDone d, const CallOptions& o)
        : request(std::move(r)), done(std::move(d)), call(c, o) {}
    v1::ScoreRequest request;
    v1::ScoreReply reply;
    ScoreDone done;
    Call call;
  };
  if (absl::Status status = connection_->CheckSize(request); !status.ok()) {
    done(std::move(status));
    return;
  }
  auto* const pending = new Pending(*connection_, std::move(request), std::move(done), options);
  connection_->inference->async()->Score(
      pending->call.context(), &pending->request, &pending->reply,
      [pending](const grpc::Status& grpc_status) {
        absl::StatusOr<v1::ScoreReply> result = std::move(pending->reply);
        if (!grpc_status.ok()) result = FromGrpcStatus(grpc_status);
        const ScoreDone on_done = std::move(pending->done);
        // The context shares the channel. If it were the last owner, the channel would be destroyed
        // on this thread, and the channel's destructor waits for this thread.
        delete pending;
        on_done(std::move(result));
      });
}

absl::StatusOr<v1::TokenizeReply> Client::Tokenize(const v1::TokenizeRequest& request,
                                                   const CallOptions& options) const {
  return connection_->Unary(*connection_->inference, &v1::InferenceService::Stub::Tokenize, request,
                            options);
}

absl::StatusOr<v1::DetokenizeReply> Client::Detokenize(const v1::DetokenizeRequest& request,
                                                       const CallOptions& options) const {
  return connection_->Unary(*connection_->inference, &v1::InferenceService::Stub::Detokenize,
                            request, options);
}

absl::StatusOr<v1::ListModelsReply> Client::ListModels(const CallOptions& options) const {
  return connection_->Unary(*connection_->inference, &v1::InferenceService::Stub::ListModels,
                            v1::ListModelsRequest(), options);
}

absl::StatusOr<v1::GetModelReply> Client::GetModel(absl::string_view model,
                                                   const CallOptions& options) const {
  v1::GetModelRequest request;
  request.set_model(std::string(model));
  absl::StatusOr<v1::GetModelReply> reply = connection_->Unary(
      *connection_->inference, &v1::InferenceService::Stub::GetModel, request, options);
  if (reply.ok()) connection_->max_message_bytes = reply->limits().max_message_bytes();
  return reply;
}

absl::StatusOr<v1::GetLoadReply> Client::GetLoad(absl::string_view model,
                                                 const CallOptions& options) const {
  v1::GetLoadRequest request;
  request.set_model(std::string(model));
  return connection_->Unary(*connection_->inference, &v1::InferenceService::Stub::GetLoad, request,
                            options);
}

absl::StatusOr<v1::LoadModelReply> Client::LoadModel(const v1::LoadModelRequest& request,
                                                     const CallOptions& options) const {
  return connection_->Unary(*connection_->admin, &v1::AdminService::Stub::LoadModel, request,
                            options);
}

absl::StatusOr<v1::UnloadModelReply> Client::UnloadModel(const v1::UnloadModelRequest& request,
                                                         const CallOptions& options) const {
  return connection_->Unary(*connection_->admin, &v1::AdminService::Stub::UnloadModel, request,
                            options);
}

absl::StatusOr<v1::GetLogLevelReply> Client::GetLogLevel(const v1::GetLogLevelRequest& request,
                                                         const CallOptions& options) const {
  return connection_->Unary(*connection_->admin, &v1::AdminService::Stub::GetLogLevel, request,
                            options);
}

absl::StatusOr<v1::SetLogLevelReply> Client::SetLogLevel(const v1::SetLogLevelRequest& request,
                                                         const CallOptions& options) const {
  return connection_->Unary(*connection_->admin, &v1::AdminService::Stub::SetLogLevel, request,
                            options);
}

absl::StatusOr<HealthStatus> Client::Health(absl::string_view service,
                                            const CallOptions& options) const {
  Call call(*connection_, options);
  google::protobuf::StringValue request;
  request.set_value(std::string(service));
  google::protobuf::Int32Value reply;
  grpc::CompletionQueue queue;
  const auto reader = connection_->health.PrepareUnaryCall(
      call.context(), "/grpc.health.v1.Health/Check", request, &queue);
  grpc::Status grpc_status;
  reader->StartCall();
  reader->Finish(&reply, &grpc_status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  absl::Status status = FromGrpcStatus(grpc_status);
  if (!status.ok()) return status;
  switch (reply.value()) {
    case 1:
      return HealthStatus::kServing;
    case 2:
      return HealthStatus::kNotServing;
    default:
      return HealthStatus::kUnknown;
  }
}

}  // namespace rivulet
