// SPDX-License-Identifier: Apache-2.0
#include "client/cli/commands/target.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "model/base/error.h"
#include "model/base/file.h"
#include "model/slot_choice.h"
#include "server/server.h"

namespace rivulet {

Target::Target(std::unique_ptr<Server> server, Client client, std::string model_name)
    : server_(std::move(server)), client_(std::move(client)), model_name_(std::move(model_name)) {}
Target::Target(Target&&) noexcept = default;
Target::~Target() = default;

namespace {

// A model too large for this machine is bad input, which no later attempt changes; a server that is
// full has the same code.
absl::Status LoadError(const absl::Status& status) {
  if (status.code() == absl::StatusCode::kResourceExhausted &&
      GetErrorDetail(status).reason == "OUT_OF_MEMORY") {
    return absl::FailedPreconditionError(status.message());
  }
  return status;
}

// The key that the calls show; empty: none. Errors do not quote it.
absl::StatusOr<std::string> ApiKeyOf(const TargetOptions& options) {
  const bool from_file = !options.key_file.empty();
  const char* const variable = std::getenv("RIVULET_KEY");
  std::string key = variable == nullptr ? "" : variable;
  const std::string source = from_file ? absl::StrCat("--key-file ", options.key_file)
                                       : std::string("the variable RIVULET_KEY");
  if (from_file) {
    constexpr size_t kMost = 4096;
    const absl::StatusOr<std::string> text = ReadSmallFile(options.key_file, kMost);
    if (!text.ok()) return Annotate(text.status(), source);
    key = std::string(absl::StripAsciiWhitespace(*text));
    if (key.empty()) return absl::InvalidArgumentError(absl::StrCat(source, " holds no key"));
  }
  const auto is_visible = [](unsigned char c) { return absl::ascii_isgraph(c); };
  if (std::all_of(key.begin(), key.end(), is_visible)) return key;
  return absl::InvalidArgumentError(
      absl::StrCat(source, " must hold one key, of visible ASCII characters without spaces"));
}

// The library's errors name its options; the command's errors name flags.
absl::Status InFlags(const absl::Status& status) {
  return absl::Status(
      status.code(), absl::StrReplaceAll(status.message(), {{"tls.root_certs_file", "--tls-ca"},
                                                            {"tls.client_cert_file", "--tls-cert"},
                                                            {"tls.client_key_file", "--tls-key"}}));
}

}  // namespace

ServerConfig ConfigOf(const TargetOptions& options) {
  ServerConfig config;
  config.models = {options.model_dir};
  config.backend = options.backend;
  config.precision = options.precision;
  config.device = options.device;
  config.weights = options.weights;
  config.max_context = ParseContextChoice(options.max_context).value_or(ContextChoice());
  config.kv_cache = options.kv_cache;
  config.threads = options.threads;
  return config;
}

absl::Status UseCookie(const SessionOptions& session, const Client& client) {
  if (session.cookie.empty()) return absl::OkStatus();
  return client.SetSessionCookie(session.id, session.cookie);
}

absl::StatusOr<Target> OpenTarget(const TargetOptions& options, const TargetUse& use) {
  if (options.model_dir.empty()) {
    ClientOptions client_options = use.client;
    client_options.tenant = options.tenant;
    RIVULET_ASSIGN_OR_RETURN(client_options.key, ApiKeyOf(options));
    if (options.tls) {
      client_options.tls = {.root_certs_file = options.tls_ca,
                            .client_cert_file = options.tls_cert,
                            .client_key_file = options.tls_key,
                            .server_name = options.tls_server_name};
    }
    absl::StatusOr<Client> client = Client::Connect(options.target, client_options);
    if (!client.ok()) return InFlags(client.status());
    return Target(nullptr, *std::move(client), options.model_name);
  }
  ServerConfig config = ConfigOf(options);
  if (use.over_socket) {
    config.listen = "127.0.0.1:0";
  } else {
    config.listen.clear();
  }
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Create(config);
  if (!server.ok()) return LoadError(server.status());
  if (!use.over_socket) {
    Client client = Client::FromChannel((*server)->InProcessChannel());
    return Target(*std::move(server), std::move(client), "");
  }
  RIVULET_ASSIGN_OR_RETURN(
      Client client, Client::Connect(absl::StrCat("127.0.0.1:", (*server)->port()), use.client));
  return Target(*std::move(server), std::move(client), "");
}

}  // namespace rivulet
