// SPDX-License-Identifier: Apache-2.0
// The exit codes of the command.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace rivulet {

enum ExitCode : int {
  kExitOk = 0,
  kExitBug = 1,          // bug in this program
  kExitBadInput = 2,     // bad usage, input or model
  kExitUnavailable = 3,  // target unreachable, unavailable or full, or backend absent
};

ExitCode ExitCodeOf(const absl::Status& status);

// The message, after the name of the field if the message does not contain it.
std::string Description(const absl::Status& status);

// The one line on stderr for a status that is not OK.
std::string ErrorLine(const absl::Status& status);

}  // namespace rivulet
