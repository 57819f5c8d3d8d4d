// SPDX-License-Identifier: Apache-2.0
// A SessionStore in a directory: for several server processes on one machine, of one user, and one
// local file system. The directory may lie on any file system that has link(2), fsync(2) and
// atomic renames. Network file systems (statfs) are refused: two machines may see different names
// there.
//
// A write that was answered with kDone survives a crash of the processes and of the machine. A
// process that is stopped, at any place and for any time, does not hold up other processes. Files
// and folders are owner-only. Times are of the machine's wall clock: if it jumps ahead, sessions
// expire. Where the disk hangs, each call still ends after call_time, and the destructor after
// twice that; it leaves the hanging thread behind (server/base/timed_calls.h).
//
// The directory has the folder sessions-1 with
//   id             the store's id
//   log/S/N        the changes, in the order of their numbers N (server/sessions/dir/log.h)
//   records/       the newest change of each session, under a name that begins with the session
//   chunks/        the tokens, a file a chunk
//   spare          room for a sweep on a full disk
// To empty the store, rename the directory and then remove it; servers may run meanwhile. A damaged
// record or chunk is DATA_LOSS only for the sessions that need it. Where entries of the log are
// missing, every call ends with DATA_LOSS.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/sessions/replicated/session_store.h"

namespace rivulet {

// Settings that only tests change.
struct DirStoreOptions {
  std::function<absl::Time()> clock = absl::Now;
  // A call without an answer this long after it was made ends with UNAVAILABLE.
  absl::Duration call_time = absl::Seconds(1);
  // How often a store removes expired sessions and chunks. Each replica's store does this.
  absl::Duration sweep_every = absl::Seconds(10);
  // How old a file that nothing names must be before it is removed. It may belong to a write that
  // is under way, which then has to begin again.
  absl::Duration leftover_age = absl::Minutes(10);
  // For a store that is made now: an existing store keeps its own value.
  int64_t entries_per_segment = 1024;
  // Called on the store's thread before each step that uses the directory: "make file", "write",
  // "sync file", "link", "sync folder", "read", "remove", "make folder", "remove folder",
  // "rename". Returns 0, or the errno with which the step fails.
  std::function<int(absl::string_view step)> before_step;
};

// Makes the directory where it is missing; its parent must exist. Errors: INVALID_ARGUMENT (field
// session-store): it cannot be made or used, and why, or it lies on a network file system.
// DATA_LOSS: its content is damaged.
absl::StatusOr<std::unique_ptr<SessionStore>> OpenDirSessionStore(
    const std::string& path, const DirStoreOptions& options = {});

}  // namespace rivulet
