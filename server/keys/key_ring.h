// SPDX-License-Identifier: Apache-2.0
// KeyRing: the keys of a server, from a file that may change while it serves. A FileWatch calls
// Look.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/base/file_stamp.h"
#include "server/base/mutex.h"
#include "server/keys/api_key.h"

namespace rivulet {

// If a changed file cannot be used, an event is logged (keys_reload_failed) and the keys stay as
// they were. A key whose name stays in the file keeps its account, with the file's new limits.
// Thread: any.
class KeyRing {
 public:
  // Errors: NOT_FOUND or INVALID_ARGUMENT, which name the setting keys-file, the file, and what is
  // wrong.
  static absl::StatusOr<std::unique_ptr<KeyRing>> Create(std::string path, absl::Time now);

  // The key that a client shows, also one that has expired; null where there is none. Never waits
  // for the file.
  std::shared_ptr<const ApiKey> Find(absl::string_view key);
  // Reads the file if it has changed, or `always`. Thread: one at a time.
  void Look(absl::Time now, bool always);

 private:
  // By the first bytes of the hash. The time of a look-up depends on these bytes, but knowing parts
  // of a hash does not lead to its key.
  using Keys = std::unordered_multimap<uint64_t, std::shared_ptr<const ApiKey>>;

  KeyRing(std::string path, const FileStamp& stamp, absl::Time now, std::vector<ApiKey> keys);
  static uint64_t IndexOf(const KeyHash& hash);
  void Use(std::vector<ApiKey> keys, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  FileStamp stamp_;  // of Look
  Mutex mutex_;      // not held while the file is looked at or read
  Keys keys_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<KeyAccount>> accounts_ ABSL_GUARDED_BY(mutex_);  // by name
};

}  // namespace rivulet
