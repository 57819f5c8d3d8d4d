// SPDX-License-Identifier: Apache-2.0
// CheckConfig: the report of `rivulet-server --check-config`.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/config/server_config.h"

namespace rivulet {

struct ConfigReport {
  std::vector<absl::Status> faults;  // each ends a start, or would once earlier faults are repaired
  std::vector<std::string> warnings;  // a start succeeds in spite of them
  std::vector<std::string> notes;     // what a start would choose here and now
};

// Checks everything that Server::Create(config) depends on, by the same functions, and goes on
// after a fault. It reads no weights and makes no file or directory, so it does not check the
// weights, the models of warm states and the memory of a GPU. A port that another process has is no
// fault, nor is a directory of states that another server uses: `config` may be the next
// configuration of that server.
ConfigReport CheckConfig(const ServerConfig& config);

}  // namespace rivulet
