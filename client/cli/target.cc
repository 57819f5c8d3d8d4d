// SPDX-License-Identifier: Apache-2.0
#include "client/cli/target.h"

#include <utility>

#include "server/server.h"
#include "server/server_config.h"

namespace rivulet {

Target::Target(std::unique_ptr<Server> server, Client client, std::string model_name)
    : server_(std::move(server)), client_(std::move(client)), model_name_(std::move(model_name)) {}
Target::Target(Target&&) noexcept = default;
Target::~Target() = default;

absl::StatusOr<Target> OpenTarget(const TargetOptions& options) {
  if (options.model_dir.empty()) {
    ClientOptions client_options;
    if (options.tls) {
      client_options.tls.emplace();
      client_options.tls->root_certs_file = options.tls_ca;
    }
    absl::StatusOr<Client> client = Client::Connect(options.target, client_options);
    if (!client.ok()) return client.status();
    return Target(nullptr, *std::move(client), options.model_name);
  }
  ServerConfig config;
  config.models = {options.model_dir};
  config.listen.clear();
  config.backend = options.backend;
  config.precision = options.precision;
  config.weights = options.weights;
  config.threads = options.threads;
  // The limit on messages protects a server from its clients; here they are one.
  config.max_message_mib = 1024;
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Create(config);
  if (!server.ok()) return server.status();
  Client client = Client::FromChannel((*server)->InProcessChannel());
  return Target(*std::move(server), std::move(client), "");
}

}  // namespace rivulet
