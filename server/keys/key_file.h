// SPDX-License-Identifier: Apache-2.0
// Changes to the file of keys, by the command. Servers read it with KeyRing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/keys/api_key.h"

namespace rivulet {

// Calls `edit` with the keys of the file and replaces the file by the result, with mode 0600 and
// the owner that the file had. A symlink stays, and its target is replaced. With `make` a file that
// does not exist counts as one without keys. Edits of several processes run one after another. An
// error of `edit` is returned, and the file is not changed. Errors: the errors of ReadKeys;
// INVALID_ARGUMENT if the file cannot be written. Thread: any.
absl::Status EditKeys(const std::string& path, bool make,
                      const std::function<absl::Status(std::vector<ApiKey>* keys)>& edit);

// A new key: 256 random bits as text that metadata can hold, with a prefix that marks it as a key.
std::string NewKey();

}  // namespace rivulet
