// SPDX-License-Identifier: Apache-2.0
// The files for states that do not fit into memory, and the thread that writes and reads them. Both
// are interfaces, so that tests and the simulation inject faults and choose when work is done.
//
// Only this process can use these files: its sessions end with it, and without the sessions nobody
// knows which tokens a state belongs to. So files are written without fsync, and files of a dead
// process are removed. A file that cannot be written or read, or that holds other bytes than were
// written, costs only recomputation.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rivulet {

// Files with numbers. Thread: one at a time.
class StateFiles {
 public:
  virtual ~StateFiles() = default;

  // Makes file `number`; no number is used twice. After an error there is no such file, or Read may
  // return any bytes for it.
  virtual absl::Status Write(uint64_t number, absl::string_view bytes) = 0;
  // The content of the file; the caller checks all of it. Errors: any.
  virtual absl::StatusOr<std::string> Read(uint64_t number) = 0;
  // Removes the file, which is never asked for again. A file that cannot be removed stays.
  virtual void Remove(uint64_t number) = 0;
};

// Makes an owner-only directory where it is missing; its parent must exist. Errors:
// INVALID_ARGUMENT (cannot be made, and why).
absl::Status MakeStateDirectory(const std::string& directory);

// Owner-only files in `directory`, which is made where it is missing; its parent must exist. A lock
// holds the directory while the object lives. Files of a process that ended without removing them
// are removed, other files are not touched. Errors: FAILED_PRECONDITION (another process holds it),
// INVALID_ARGUMENT (cannot be made or written, and why).
absl::StatusOr<std::unique_ptr<StateFiles>> OpenStateDirectory(const std::string& directory);

// Does work on another thread, one function at a time. Thread: any.
class Background {
 public:
  // Drops work that has not begun; waits for work that has.
  virtual ~Background() = default;

  // Reads come before all other work; otherwise work is done in the order of the calls.
  enum class Kind : uint8_t { kRead, kWrite, kRemove };
  virtual void Run(Kind kind, std::function<void()> work) = 0;
};

// A Background with a thread of its own.
std::unique_ptr<Background> StartBackgroundThread();

// What an engine needs to keep states in files. Empty: it keeps states in memory only.
struct DiskTier {
  std::unique_ptr<StateFiles> files;
  std::unique_ptr<Background> background;  // uses `files`, so destroyed first
};

}  // namespace rivulet
