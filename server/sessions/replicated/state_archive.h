// SPDX-License-Identifier: Apache-2.0
// StateArchive: states that replicas share, so that a replica that takes over a session does not
// feed all of its tokens again. It is a cache: it may drop a state at any time, those first that
// expire first, and what it returns is not trusted.
//
// A state's name is the SHA-256 of what it follows from: tenant, weights, configuration, numerics
// id, the name of the segment before it and the tokens that were fed since. Its bytes repeat all of
// these (store/state_file.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace rivulet {

struct StateArchiveLimits {
  int64_t max_bytes = int64_t{1} << 30;  // of all states of all replicas
  // ... and segments, so that making room takes Redis some milliseconds at most.
  int64_t max_states = 4096;
  // Of a directory: a part whose reading takes longer is UNAVAILABLE, and until that ends so are
  // all others that are read. Likewise with writing.
  absl::Duration call_time = absl::Seconds(10);
};

struct ArchivedState {
  std::string name;  // 64 characters of [0-9a-f]
  int64_t size = 0;  // of what bytes() returns; above 0
  std::function<std::string()> bytes;
};

// Thread: any. Nothing here waits. Each `done` is called exactly once, on a thread of the archive,
// and must not block. Errors, of Put and Get: UNAVAILABLE (not reachable, no answer in time, or the
// archive is being destroyed), RESOURCE_EXHAUSTED (larger than the limit, or the disk or Redis is
// full).
class StateArchive {
 public:
  virtual ~StateArchive() = default;

  // Keeps what `state` returns, which is called on the archive's thread, for at least `expiry`
  // where there is room. Where there is a state of this name nothing is written and bytes() is not
  // called; it expires no sooner than before. `done` gets the number of bytes that were written.
  using PutDone = std::function<void(absl::StatusOr<int64_t>)>;
  virtual void Put(std::function<ArchivedState()> state, absl::Duration expiry, PutDone done) = 0;

  // Empty: there is no such state, or not all of it.
  using GetDone = std::function<void(absl::StatusOr<std::string>)>;
  virtual void Get(std::string name, GetDone done) = 0;

  // Drops a state that is not what its name says, so that it can be put again. Tells no error.
  virtual void Drop(std::string name) = 0;
};

}  // namespace rivulet
