// SPDX-License-Identifier: Apache-2.0
// What a failed command tells the shell.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace rivulet {

enum ExitCode : int {
  kExitOk = 0,
  kExitBug = 1,          // ours
  kExitBadInput = 2,     // bad usage, input or model
  kExitUnavailable = 3,  // target unreachable, unavailable or full, or backend absent
};

ExitCode ExitCodeOf(const absl::Status& status);

// What is wrong: the field concerned, where the message does not name it, and the message.
std::string Description(const absl::Status& status);

// The one line on stderr for a status that is not OK.
std::string ErrorLine(const absl::Status& status);

}  // namespace rivulet
