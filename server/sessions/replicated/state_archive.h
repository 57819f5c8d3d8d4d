// SPDX-License-Identifier: Apache-2.0
// StateArchive: states that replicas share, so that a replica that takes over a session does not
// feed all of its tokens again. It is a cache: it may drop states at any time, in the order of
// their expiry, and the bytes that it returns are not trusted.
//
// A state's name is the SHA-256 of everything that the state follows from: tenant, weights,
// configuration, numerics id, the name of the segment before it and the tokens that were fed since.
// Its bytes repeat all of these (store/state_file.h).
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
  // States and segments, so that making room takes Redis some milliseconds at most.
  int64_t max_states = 4096;
  // For a directory: a read that takes longer is UNAVAILABLE, and so are all other reads until it
  // ends. Likewise with writes.
  absl::Duration call_time = absl::Seconds(10);
};

struct ArchivedState {
  std::string name;  // 64 characters of [0-9a-f]
  int64_t size = 0;  // size of bytes(); above 0
  std::function<std::string()> bytes;
};

// Thread: any. Nothing here waits. Each `done` is called exactly once, on a thread of the archive,
// and must not block. Errors, of Put and Get: UNAVAILABLE (not reachable, no answer in time, or the
// archive is being destroyed), RESOURCE_EXHAUSTED (larger than the limit, or the disk or Redis is
// full).
class StateArchive {
 public:
  virtual ~StateArchive() = default;

  // Keeps the result of `state`, which is called on the archive's thread, for at least `expiry`
  // where there is room. If there is a state of this name, nothing is written, bytes() is not
  // called, and that state expires no sooner than before. `done` gets the number of bytes that were
  // written.
  using PutDone = std::function<void(absl::StatusOr<int64_t>)>;
  virtual void Put(std::function<ArchivedState()> state, absl::Duration expiry, PutDone done) = 0;

  // Empty: there is no such state, or not all of it.
  using GetDone = std::function<void(absl::StatusOr<std::string>)>;
  virtual void Get(std::string name, GetDone done) = 0;

  // Drops a state that does not match its name, so that it can be put again. Reports no error.
  virtual void Drop(std::string name) = 0;
};

}  // namespace rivulet
