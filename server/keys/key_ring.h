// SPDX-License-Identifier: Apache-2.0
// KeyRing: the keys of a server, from a file that may change while it serves.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/base/file_stamp.h"
#include "server/base/mutex.h"
#include "server/keys/api_key.h"

namespace rivulet {

// A change of the file that cannot be used is logged (keys_reload_failed) and leaves the keys as
// they were. Thread: any.
class KeyRing {
 public:
  // Looks at the file at most this often, when a key is asked for.
  static constexpr absl::Duration kPeriod = absl::Seconds(1);

  // Errors: NOT_FOUND or INVALID_ARGUMENT, which name the setting keys-file, the file, and what is
  // wrong.
  static absl::StatusOr<std::unique_ptr<KeyRing>> Create(std::string path, absl::Time now);

  // The key that a client shows, also one that has expired; null where there is none.
  std::shared_ptr<const ApiKey> Find(absl::string_view key, absl::Time now);
  // Reads the file now, changed or not.
  void Reload();

 private:
  // By the first bytes of the hash. They are compared before the whole hash is: what the time of a
  // look-up tells of a hash does not lead to its key.
  using Keys = std::unordered_multimap<uint64_t, std::shared_ptr<const ApiKey>>;

  KeyRing(std::string path, const FileStamp& stamp, absl::Time now, Keys keys)
      : path_(std::move(path)), stamp_(stamp), next_look_(now + kPeriod), keys_(std::move(keys)) {}
  static uint64_t IndexOf(const KeyHash& hash);
  static Keys Indexed(std::vector<ApiKey> keys);
  void ReadAgain() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  Mutex mutex_;
  FileStamp stamp_ ABSL_GUARDED_BY(mutex_);
  absl::Time next_look_ ABSL_GUARDED_BY(mutex_);
  Keys keys_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rivulet
