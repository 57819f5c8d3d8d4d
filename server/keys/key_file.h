// SPDX-License-Identifier: Apache-2.0
// The file of keys, for whoever changes it; servers read it with KeyRing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/keys/api_key.h"

namespace rivulet {

// Replaces the file by what `edit` makes of its keys: as a whole, with mode 0600 and the owner that
// it had; a symlink stays, and its target is replaced. `make`: a file that does not exist counts as
// one without keys. Edits of several processes come one after another. An error of `edit` is
// returned, and then the file is as it was. Errors: those of ReadKeys, and INVALID_ARGUMENT where
// it cannot be written. Thread: any.
absl::Status EditKeys(const std::string& path, bool make,
                      const std::function<absl::Status(std::vector<ApiKey>* keys)>& edit);

// A new key: 256 random bits as text that goes into metadata, with a prefix that says what it is.
std::string NewKey();

}  // namespace rivulet
