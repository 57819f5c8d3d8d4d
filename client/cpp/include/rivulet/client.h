// SPDX-License-Identifier: Apache-2.0
// The C++ client of a Rivulet server. Requests and replies are the messages of
// rivulet/v1/inference.proto and session_service.proto, whose comments are the documentation of
// every field; this library adds connecting, deadlines, cancellation, retries and typed errors.
//
//   absl::StatusOr<rivulet::Client> client = rivulet::Client::Connect("127.0.0.1:50051");
//   rivulet::v1::GenerateRequest request;
//   request.set_text("ROMEO:");
//   absl::Status status = client->Generate(request, [](const rivulet::v1::GenerateReply& part) {
//     std::cout << part.text() << std::flush;
//     return true;
//   });
//   if (!status.ok()) std::cerr << status.message() << " (" << rivulet::GetErrorInfo(status).reason
//   << ")\n";
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "rivulet/v1/admin_service.pb.h"
#include "rivulet/v1/inference.pb.h"
#include "rivulet/v1/session_service.pb.h"

namespace grpc {
class Channel;
}

namespace rivulet {

class Multiplex;

// Files are PEM. Empty strings: not used.
struct TlsOptions {
  std::string
      root_certs_file;  // who may have signed the server's certificate; empty: the system's roots
  std::string client_cert_file;  // with client_key_file: what this client shows (mutual TLS)
  std::string client_key_file;
  std::string server_name;  // name expected in the certificate, if not the target's host
};

struct ClientOptions {
  // Absent: plaintext, for loopback and networks with other protection.
  std::optional<TlsOptions> tls;
  // A connection attempt that takes longer fails, and calls that wait for the connection end with
  // UNAVAILABLE.
  absl::Duration connect_timeout = absl::Seconds(5);
  // Calls wait for the server to come up until their deadline, instead of ending with UNAVAILABLE.
  bool wait_for_ready = false;
  // Attempts of one call, 1 to 5. A call is tried again, after 0.1 s to 2 s, if it ends with
  // UNAVAILABLE before the first message of its reply; a Generate also if it was cut off without an
  // error of the server. A reply that has begun is resumed: CallOptions::resume.
  int max_attempts = 4;
  // Largest message accepted from the server.
  int max_receive_bytes = 256 << 20;
  // True: this client has its own connection. Otherwise clients of this process with equal options
  // and target share a connection, and the server's limit of its streams.
  bool own_connection = false;
  // The tenant whose sessions the calls use, at most 64 of A-Z a-z 0-9 . _ -: sent as metadata
  // "rivulet-tenant". Leave it empty if a proxy sets this metadata.
  std::string tenant;
  // API key, if the server requires one: sent as metadata "authorization: Bearer KEY". Without
  // `tls` everybody on the network path can read it.
  std::string key;
};

// What a call sends beside its message, such as "x-request-id" (the id of the request in logs and
// errors) or "traceparent" (W3C Trace Context). Thread: one.
class CallMetadata {
 public:
  // Adds an entry. Errors: INVALID_ARGUMENT for a name that gRPC cannot send or that this library
  // sets itself (authorization, cookie, grpc-..., rivulet-tenant; names that end with -bin), and
  // for a value that is not printable ASCII.
  absl::Status Add(absl::string_view name, absl::string_view value);
  const std::vector<std::pair<std::string, std::string>>& entries() const { return entries_; }

 private:
  std::vector<std::pair<std::string, std::string>> entries_;
};

struct CallOptions {
  absl::Time deadline = absl::InfiniteFuture();  // past it: DEADLINE_EXCEEDED
  std::stop_token stop = {};  // once requested: CANCELLED, and the server ends the call
  CallMetadata metadata = {};
  // Generate: if a reply has begun and is lost, because a server or the network fails, the library
  // requests the rest of it. The caller sees one reply with the tokens that would have come. After
  // five calls in a row that bring nothing, it ends with the error that cut it off. In a session
  // this needs request.session.position. False: a reply that has begun ends with the error of its
  // call. ("Lost replies" in client/README.md has all rules.)
  bool resume = true;
};

// Details of an error beyond code and message; a field without information is empty.
struct ErrorInfo {
  std::string reason;  // UPPER_SNAKE_CASE, stable: switch on it, for example "TOKEN_OUT_OF_RANGE"
  std::string field;   // path of the offending field, for example "sampling.temperature"
  absl::Duration retry_delay = absl::ZeroDuration();  // > 0: when it makes sense to try again
  std::map<std::string, std::string> metadata;        // for example where to continue a cut reply
  std::string request_id;  // of the failed request, as in the server's log
};

ErrorInfo GetErrorInfo(const absl::Status& status);  // of an error that a Client returned

enum class HealthStatus : uint8_t { kUnknown, kServing, kNotServing };

// Once GetModel has told the server's limit on the size of a request, a larger request is not sent:
// INVALID_ARGUMENT (MESSAGE_TOO_LARGE). An asynchronous call then runs its callback before it
// returns.
//
// Every call that fails returns the server's code and message, or UNAVAILABLE if the target cannot
// be reached. Thread: any thread, also at the same time. A copy shares the connection.
class Client {
 public:
  // Checks the options and begins to use the server at `target`, "HOST:PORT" or any gRPC name such
  // as "dns:///HOST:PORT" or "unix:PATH". Connects with the first call. Errors: INVALID_ARGUMENT
  // (options), NOT_FOUND (a certificate file cannot be read).
  static absl::StatusOr<Client> Connect(absl::string_view target,
                                        const ClientOptions& options = {});

  // Uses an existing channel, for example the channel of a server in the same process. max_attempts
  // is 1; the channel may have a retry policy of its own.
  static Client FromChannel(const std::shared_ptr<grpc::Channel>& channel);

  Client(const Client&);
  Client& operator=(const Client&);
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;
  ~Client();

  // Streams what the model generates. `on_part` is called on this thread for every part, in order;
  // false ends the call with CANCELLED. Returns when the last part has been seen.
  using OnPart = absl::FunctionRef<bool(const v1::GenerateReply&)>;
  absl::Status Generate(const v1::GenerateRequest& request, OnPart on_part,
                        const CallOptions& options = {}) const;

  // The same without waiting, for thousands of calls at once: threads of the library call `on_part`
  // for every part, in order and one at a time, then `done` exactly once. Neither may block. The
  // last copy of this Client must live until `done` has begun, and must not end in `done`.
  using OnPartAsync = std::function<bool(const v1::GenerateReply&)>;
  using GenerateDone = std::function<void(absl::Status)>;
  void GenerateAsync(v1::GenerateRequest request, OnPartAsync on_part, GenerateDone done,
                     const CallOptions& options = {}) const;

  // Many requests over one stream (multiplex.h), with the same `options`. Never null.
  std::unique_ptr<rivulet::Multiplex> Multiplex(const CallOptions& options = {}) const;

  absl::StatusOr<v1::ScoreReply> Score(const v1::ScoreRequest& request,
                                       const CallOptions& options = {}) const;

  // The same without waiting: `done` is called exactly once, on a thread of the library. It must
  // not block. The last copy of this Client must live until `done` has begun, and not end in it.
  using ScoreDone = std::function<void(absl::StatusOr<v1::ScoreReply>)>;
  void ScoreAsync(v1::ScoreRequest request, ScoreDone done, const CallOptions& options = {}) const;

  // Text to tokens, and tokens to text, for models whose content is text.
  absl::StatusOr<v1::TokenizeReply> Tokenize(const v1::TokenizeRequest& request,
                                             const CallOptions& options = {}) const;
  absl::StatusOr<v1::DetokenizeReply> Detokenize(const v1::DetokenizeRequest& request,
                                                 const CallOptions& options = {}) const;

  absl::StatusOr<v1::ListModelsReply> ListModels(const CallOptions& options = {}) const;

  // `model` may be empty if the server serves exactly one model.
  absl::StatusOr<v1::GetModelReply> GetModel(absl::string_view model,
                                             const CallOptions& options = {}) const;

  // `model` empty: every model.
  absl::StatusOr<v1::GetLoadReply> GetLoad(absl::string_view model,
                                           const CallOptions& options = {}) const;

  // Sessions that outlive a request: rivulet/v1/session_service.proto documents each call. Generate
  // continues the session that request.session names. Calls that may be repeated without harm, and
  // an Append that names the position, are tried again as ClientOptions::max_attempts says;
  // OpenSession, ForkSession and RestoreSession are not: they could make a second session. Where
  // replicas share a store of sessions, the last part of a reply and an AppendReply have
  // `durability`. The caller keeps tokens that are not durable, and appends them again if they are
  // lost ("Lost tokens" of client/README.md).
  absl::StatusOr<v1::OpenSessionReply> OpenSession(const v1::OpenSessionRequest& request,
                                                   const CallOptions& options = {}) const;
  absl::StatusOr<v1::AppendReply> Append(const v1::AppendRequest& request,
                                         const CallOptions& options = {}) const;
  absl::StatusOr<v1::ForkSessionReply> ForkSession(const v1::ForkSessionRequest& request,
                                                   const CallOptions& options = {}) const;
  absl::StatusOr<v1::RewindSessionReply> RewindSession(const v1::RewindSessionRequest& request,
                                                       const CallOptions& options = {}) const;
  absl::Status CloseSession(const v1::CloseSessionRequest& request,
                            const CallOptions& options = {}) const;
  absl::StatusOr<v1::GetSessionReply> GetSession(const v1::GetSessionRequest& request,
                                                 const CallOptions& options = {}) const;
  absl::StatusOr<v1::ListSessionsReply> ListSessions(const v1::ListSessionsRequest& request,
                                                     const CallOptions& options = {}) const;
  // The whole snapshot.
  absl::StatusOr<std::string> SnapshotSession(const v1::SnapshotSessionRequest& request,
                                              const CallOptions& options = {}) const;
  // A new session from the bytes of `snapshot`, which is sent in pieces; request.chunk is not used.
  absl::StatusOr<v1::RestoreSessionReply> RestoreSession(v1::RestoreSessionRequest request,
                                                         absl::string_view snapshot,
                                                         const CallOptions& options = {}) const;

  // A balancer may set a cookie in the reply that opens a session (HAProxy's `cookie`, Envoy's
  // stateful sessions). Calls on the session then send this cookie, for the 100,000 sessions opened
  // last, unless another replica must be asked ("Lost replies" in client/README.md). SessionCookie:
  // the cookie for another program, or "". Errors: INVALID_ARGUMENT (not printable ASCII).
  std::string SessionCookie(absl::string_view session_id) const;
  absl::Status SetSessionCookie(absl::string_view session_id, absl::string_view cookie) const;

  // For operators, at a server's --admin-listen (rivulet/v1/admin_service.proto). Each call waits
  // until its work is done.
  absl::StatusOr<v1::LoadModelReply> LoadModel(const v1::LoadModelRequest& request,
                                               const CallOptions& options = {}) const;
  absl::StatusOr<v1::UnloadModelReply> UnloadModel(const v1::UnloadModelRequest& request,
                                                   const CallOptions& options = {}) const;
  absl::StatusOr<v1::GetLogLevelReply> GetLogLevel(const v1::GetLogLevelRequest& request = {},
                                                   const CallOptions& options = {}) const;
  absl::StatusOr<v1::SetLogLevelReply> SetLogLevel(const v1::SetLogLevelRequest& request,
                                                   const CallOptions& options = {}) const;

  // grpc.health.v1: `service` is a model's name, or "" for the server as a whole. Errors: NOT_FOUND
  // (no such service).
  absl::StatusOr<HealthStatus> Health(absl::string_view service,
                                      const CallOptions& options = {}) const;

 private:
  friend class rivulet::Multiplex;
  struct Connection;
  class Call;
  class AsyncGenerate;
  explicit Client(std::shared_ptr<const Connection> connection);

  std::shared_ptr<const Connection> connection_;
};

}  // namespace rivulet
