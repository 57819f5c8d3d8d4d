// SPDX-License-Identifier: Apache-2.0
// StateStore: every state that an engine keeps between runs, of sessions and of cached prompts, in
// one order of use and within limits in bytes.
//
//   Keep --> in memory --(used longest ago, memory full)--> being written --> in a file
//                ^                                                               |
//                +---------------------- being read <---- Fetch -----------------+
//
// A state for which there is no room in memory or in files is forgotten: each can be computed again
// from a sequence of tokens. One that other replicas have published can be fetched likewise, once.
// A file stays after it was read, so that its state can leave memory without another write. Nothing
// here waits: the disk tier's Background writes, reads and removes files.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/sessions/store/state_file.h"
#include "server/sessions/store/state_files.h"

namespace rivulet {

// The state of one slot in memory, laid out as kernels/state_layout.h says. Immutable; its bytes
// are counted while it lives. Thread: any.
class StateBlob {
 public:
  using Meter = std::shared_ptr<std::atomic<int64_t>>;  // bytes of all blobs alive
  StateBlob(std::vector<float> values, Meter meter);
  ~StateBlob();
  StateBlob(const StateBlob&) = delete;
  StateBlob& operator=(const StateBlob&) = delete;

  std::span<const float> values() const { return values_; }
  int64_t bytes() const { return static_cast<int64_t>(values_.size() * sizeof(float)); }

 private:
  const std::vector<float> values_;
  const Meter meter_;
};
using BlobPtr = std::shared_ptr<const StateBlob>;

class StateStore;

// Reads a published state. `done` is called once, on any thread, however late. Errors: any.
using PublishedRead =
    std::function<void(std::function<void(absl::StatusOr<std::vector<float>>)> done)>;

// One kept state, in memory, in a file or published. It is forgotten with the last pointer to it.
// Thread: that of its store, which outlives it.
class KeptState {
 public:
  KeptState(StateStore* store, int64_t bytes) : store_(store), bytes_(bytes) {}
  ~KeptState();
  KeptState(const KeptState&) = delete;
  KeptState& operator=(const KeptState&) = delete;

  int64_t bytes() const { return bytes_; }
  bool in_memory() const { return blob_ != nullptr; }
  // Only in a file.
  bool on_disk() const { return blob_ == nullptr && number_ != 0; }
  // It was forgotten and cannot be used; otherwise, if it is not in memory: Fetch it.
  bool forgotten() const { return !in_memory() && !on_disk() && !published_ && !reading_; }

 private:
  friend class StateStore;
  using Order = std::list<KeptState*>;

  StateStore* const store_;
  const int64_t bytes_;
  BlobPtr blob_;
  uint64_t number_ = 0;  // of its file; 0: none
  int64_t file_bytes_ = 0;
  PublishedRead published_;      // null: it was asked for, or is no published state
  uint64_t published_read_ = 0;  // number of the read that is under way; 0: none
  bool writing_ = false, reading_ = false;
  bool in_memory_order_ = false, in_disk_order_ = false;
  Order::iterator memory_place_, disk_place_;
};
using StatePtr = std::shared_ptr<KeptState>;

struct StateLimits {
  // Of all blobs, except those being written. Blobs that others hold, and pinned ones, count, too:
  // where they alone exceed the limit, nothing else stays in memory.
  int64_t max_memory_bytes = int64_t{1} << 30;
  // Of blobs being written, which take this much memory beyond the limit above. One may always be
  // written, however large it is.
  int64_t max_writing_bytes = int64_t{64} << 20;
  int64_t max_disk_bytes = int64_t{4} << 30;  // of all files
};

// Thread: one, that of the loop.
class StateStore {
 public:
  // `disk` may be empty. `wake` is called by other threads when Collect has something to do.
  StateStore(const StateLimits& limits, StateStamp stamp, DiskTier disk,
             std::function<void()> wake);
  ~StateStore();

  // Keeps a state as the one used last. Others make room for it.
  StatePtr Keep(std::vector<float> values);
  // Keeps one that always stays in memory.
  StatePtr Pin(std::vector<float> values);
  // One that `read` returns when it is fetched. REQUIRES: so many bytes, if any.
  StatePtr KeepPublished(int64_t bytes, PublishedRead read);
  // Its values, which makes it the one used last. Null unless it is in memory.
  BlobPtr Use(KeptState* state);
  // Starts to read it into memory. REQUIRES: it is neither there nor forgotten. Once Collect has
  // returned true and `fetching` is false, it is in memory or forgotten.
  void Fetch(KeptState* state);
  static bool fetching(const KeptState& state) { return state.reading_; }
  // Takes in what was written and read. True: there was something. It makes no room, so that the
  // fetched states can be used first; Fit makes room.
  bool Collect();
  // Lets states leave memory until the limit holds.
  void Fit();

  struct Totals {
    int64_t memory_bytes = 0;            // of all blobs alive
    int64_t writing_bytes = 0;           // of states being written
    int64_t in_memory = 0, on_disk = 0;  // states; on disk: only there
    int64_t disk_bytes = 0;
    int64_t forgotten = 0;    // for want of room, since start
    int64_t file_errors = 0;  // since start
  };
  Totals totals() const;
  // The first of the file errors; OK: none.
  const absl::Status& file_error() const { return file_error_; }

 private:
  friend class KeptState;
  class Disk;
  class Inbox;
  struct Done;

  void Forget(KeptState* state);
  void LeaveMemory(KeptState* state);
  bool StartWriting(KeptState* state);
  void DropFile(KeptState* state);
  void EndWrite(KeptState* state, const Done& done);
  void EndRead(KeptState* state, Done* done);
  void CountError(const absl::Status& status);
  void SetBlob(KeptState* state, BlobPtr blob);
  void EnterMemoryOrder(KeptState* state);
  void LeaveMemoryOrder(KeptState* state);
  void EnterDiskOrder(KeptState* state);
  void LeaveDiskOrder(KeptState* state);

  const StateLimits limits_;
  const StateBlob::Meter meter_ = std::make_shared<std::atomic<int64_t>>(0);
  KeptState::Order memory_order_, disk_order_;       // used longest ago first
  absl::flat_hash_map<uint64_t, KeptState*> files_;  // by number, and reads of published states
  uint64_t last_number_ = 0;
  int64_t writing_bytes_ = 0, disk_bytes_ = 0;
  Totals counted_;  // all but the bytes
  absl::Status file_error_;
  const std::shared_ptr<Inbox> inbox_;
  std::unique_ptr<Disk> disk_;  // null: none
};

}  // namespace rivulet
