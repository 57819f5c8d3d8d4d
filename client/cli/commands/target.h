// SPDX-License-Identifier: Apache-2.0
// Where a command's calls go: a running server, or one in this process.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/options/options.h"
#include "rivulet/client.h"
#include "server/config/server_config.h"

namespace rivulet {

class Server;

// Keeps the server in this process, if any, until after the client.
class Target {
 public:
  Target(std::unique_ptr<Server> server, Client client, std::string model_name);
  Target(Target&&) noexcept;
  Target& operator=(Target&&) = delete;
  ~Target();

  const Client& client() const { return client_; }
  const std::string& model_name() const { return model_name_; }  // empty: the only one

 private:
  std::unique_ptr<Server> server_;
  Client client_;
  std::string model_name_;
};

// How a command uses its target.
struct TargetUse {
  ClientOptions client = {};  // except `tls`, which comes from the command line
  // True: a server in this process has the limits of rivulet-server, and is called through a free
  // loopback port. False: it has the sessions that one request needs, and no socket.
  bool over_socket = false;
};

// The settings of a server in this process from the command line: model, backend and types.
// REQUIRES: a model is given.
ServerConfig ConfigOf(const TargetOptions& options);

// Loads the model into a server in this process, or prepares the connection (made by the first
// call). Without a key file, the API key is the environment variable RIVULET_KEY. Errors: the
// errors of Server::Create (bad model, backend absent; FAILED_PRECONDITION for a model that does
// not fit into memory) or of Client::Connect; errors of reading the key file.
absl::StatusOr<Target> OpenTarget(const TargetOptions& options, const TargetUse& use = {});

// Gives `client` the cookie, if any, that leads a balancer to the session's replica. Errors:
// INVALID_ARGUMENT (anything but printable ASCII).
absl::Status UseCookie(const SessionOptions& session, const Client& client);

}  // namespace rivulet
