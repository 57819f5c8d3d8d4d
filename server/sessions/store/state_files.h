// SPDX-License-Identifier: Apache-2.0
// Where states go that memory has no room for, and who carries them there. Both are interfaces, so
// that tests and the simulation inject faults and choose when work is done.
//
// What is in these files is of use to this process alone: a session and its sequence end with it,
// and without them nobody knows what a state is the state of. So files are written without fsync,
// and those of a dead process are removed. A file that cannot be written or read, or holds other
// bytes than were written, costs recomputation and nothing else.
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

  // Makes file `number`, which was never used before. After an error there is no such file, or one
  // that Read may return any bytes of.
  virtual absl::Status Write(uint64_t number, absl::string_view bytes) = 0;
  // What the file holds now; the caller believes none of it. Errors: any.
  virtual absl::StatusOr<std::string> Read(uint64_t number) = 0;
  // It is never asked for again. What cannot be removed is left.
  virtual void Remove(uint64_t number) = 0;
};

// Makes an owner-only directory where it is missing; its parent must exist. Errors:
// INVALID_ARGUMENT (cannot be made, and why).
absl::Status MakeStateDirectory(const std::string& directory);

// Owner-only files in `directory`, which is made where it is missing; its parent must exist. Held
// by a lock for as long as the object lives; files of a process that ended without removing them
// are removed, others are not touched. Errors: FAILED_PRECONDITION (another process holds it),
// INVALID_ARGUMENT (cannot be made or written, and why).
absl::StatusOr<std::unique_ptr<StateFiles>> OpenStateDirectory(const std::string& directory);

// Carries work out beside its caller, one piece at a time. Thread: any.
class Background {
 public:
  // Work that has not begun is dropped; that which has, ends first.
  virtual ~Background() = default;

  // Reads come before everything that is not one; beside that, work is done in its order.
  enum class Kind : uint8_t { kRead, kWrite, kRemove };
  virtual void Run(Kind kind, std::function<void()> work) = 0;
};

// With a thread of its own.
std::unique_ptr<Background> StartBackgroundThread();

// What an engine needs to keep states in files. Empty: it keeps them in memory alone.
struct DiskTier {
  std::unique_ptr<StateFiles> files;
  std::unique_ptr<Background> background;  // uses `files`, so destroyed first
};

}  // namespace rivulet
