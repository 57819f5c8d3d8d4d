// SPDX-License-Identifier: Apache-2.0
// CheckConfig: what `rivulet-server --check-config` says.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/config/server_config.h"

namespace rivulet {

struct ConfigReport {
  std::vector<absl::Status> faults;  // each ends a start, or would if those before it were repaired
  std::vector<std::string> warnings;  // a start succeeds in spite of them
};

// Looks at all that Server::Create(config) depends on, by the same functions, and goes on after a
// fault. It reads no weights and makes no file or directory, so it leaves out what only these show:
// damaged weights, the models of warm states, the memory of a GPU. A port that another process has
// is no fault, nor is a directory of states that another server uses: that may be the server whose
// next configuration this is.
ConfigReport CheckConfig(const ServerConfig& config);

}  // namespace rivulet
