// SPDX-License-Identifier: Apache-2.0
// The states that replicas share, as files of a directory.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/sessions/replicated/state_archive.h"

namespace rivulet {

// Files in `directory`, which is made where it is missing; its parent must exist. Files that it has
// not made itself are left alone and not counted. Replicas of several machines may share it over a
// network: a file has its name only once it is whole. Errors: INVALID_ARGUMENT (CONFIG_INVALID; it
// cannot be made or written, and why).
absl::StatusOr<std::unique_ptr<StateArchive>> OpenDirStateArchive(const std::string& directory,
                                                                  const StateArchiveLimits& limits);

}  // namespace rivulet
