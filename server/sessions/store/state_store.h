// SPDX-License-Identifier: Apache-2.0
// StateStore: every state that an engine keeps between runs, of sessions and of cached prompts, in
// one order of use and within limits in bytes.
//
// A state that grows with its tokens consists of segments (model/state_parts.h) and the rest, its
// own values. States with the same first tokens share segments: each segment is in memory once, in
// one file and counted once. A state is in memory when all of its parts are.
//
//   Keep --> in memory --(used longest ago, memory full)--> being written --> in a file
//                ^                                                               |
//                +---------------------- being read <---- Fetch -----------------+
//
// A state for which there is no room in memory or in files is forgotten: every state can be
// computed again from a sequence of tokens. A state that other replicas have published can also be
// fetched, once. A file stays after it was read, so that its state can leave memory without another
// write. Nothing here waits: the disk tier's Background writes, reads and removes files.
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
#include "model/state_parts.h"
#include "server/sessions/store/state_file.h"
#include "server/sessions/store/state_files.h"

namespace rivulet {

// A part of a state in memory. Immutable; its bytes are counted while it lives. Thread: any.
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

// A whole state, which stays in memory while the view lives. Thread: any.
class StateView {
 public:
  // `own`: the values not in `segments`; its first `front` floats come before the segments.
  StateView(BlobPtr own, size_t front, std::vector<BlobPtr> segments);
  // A state without segments.
  explicit StateView(std::vector<float> values);

  // The content of a slot (model/state_parts.h), as consecutive spans.
  std::vector<std::span<const float>> spans() const;
  // The same in one copy.
  std::vector<float> values() const;
  // The parts as they are kept: each segment, then the own values.
  std::span<const float> part(size_t i) const {
    return (i < segments_.size() ? segments_[i] : own_)->values();
  }
  int64_t bytes() const;

 private:
  const BlobPtr own_;
  const size_t front_;
  const std::vector<BlobPtr> segments_;
};
using ViewPtr = std::shared_ptr<const StateView>;

class StateStore;

// A state in the parts in which it is kept.
struct CutState {
  std::vector<std::vector<float>> segments;
  std::vector<float> own;
};

// Reads a published state. `done` is called once, on any thread, however late. Errors: any.
using PublishedRead = std::function<void(std::function<void(absl::StatusOr<CutState>)> done)>;

class KeptState;
using StatePtr = std::shared_ptr<KeptState>;

// A kept state, or a segment of kept states, in memory, in a file or published. It is forgotten
// with the last pointer to it. Thread: the thread of its store, which outlives it.
class KeptState {
 public:
  KeptState(StateStore* store, int64_t own_bytes, std::vector<StatePtr> segments);
  ~KeptState();
  KeptState(const KeptState&) = delete;
  KeptState& operator=(const KeptState&) = delete;

  const std::vector<StatePtr>& segments() const { return segments_; }
  int64_t own_bytes() const { return own_bytes_; }  // without its segments
  int64_t bytes() const;
  bool in_memory() const;
  // Part of it is only in a file, and the rest is in memory.
  bool on_disk() const;
  // It was forgotten and cannot be used. Else, if it is not in memory, it can be fetched.
  bool forgotten() const { return !in_memory() && !on_disk() && !published_ && !reading_; }

 private:
  friend class StateStore;
  using Order = std::list<KeptState*>;

  // Calls `f` with each segment, then with this state.
  template <typename F>
  void ForEachPart(const F& f) {
    for (const StatePtr& segment : segments_) f(segment.get());
    f(this);
  }

  StateStore* const store_;
  const int64_t own_bytes_;
  const std::vector<StatePtr> segments_;
  bool is_segment_ = false;
  BlobPtr blob_;
  uint64_t number_ = 0;  // of its file; 0: none
  int64_t file_bytes_ = 0;
  PublishedRead published_;  // null: read already, or not a published state
  uint64_t read_ = 0;        // number of the read that is under way; 0: none
  bool writing_ = false, reading_ = false;
  bool in_memory_order_ = false, in_disk_order_ = false;
  Order::iterator memory_place_, disk_place_;
};

// The bytes of states that share segments, each counted once.
class SharedBytes {
 public:
  void Add(const KeptState& state);
  void Remove(const KeptState& state);  // REQUIRES: it was added
  int64_t bytes() const { return bytes_; }

 private:
  absl::flat_hash_map<const KeptState*, int> segments_;  // the number of states that hold a segment
  int64_t bytes_ = 0;
};

struct StateLimits {
  // Of all blobs, except blobs being written. Blobs that other objects hold, and pinned blobs,
  // count, too: if these alone exceed the limit, nothing else stays in memory.
  int64_t max_memory_bytes = int64_t{1} << 30;
  // Of blobs being written, which take this much memory beyond the limit above. One state may
  // always be written, however large it is.
  int64_t max_writing_bytes = int64_t{64} << 20;
  int64_t max_disk_bytes = int64_t{4} << 30;  // of all files
};

// Thread: the loop.
class StateStore {
 public:
  // `size`: of all states; {}: they have no segments. `disk` may be empty. `wake` is called by
  // other threads when Collect has something to do.
  StateStore(const StateLimits& limits, const StateSize& size, StateStamp stamp, DiskTier disk,
             std::function<void()> wake);
  ~StateStore();

  const StateSize& size() const { return size_; }
  // Bytes of a state after `fed` tokens without its segments.
  int64_t OwnBytes(int64_t fed) const;
  // Keeps a state as used last. Other states make room for it. `own`: the values not in `segments`.
  StatePtr Keep(std::vector<float> own, std::vector<StatePtr> segments = {});
  StatePtr KeepSegment(std::vector<float> values);
  // A whole state, which has seen `fed` tokens.
  StatePtr KeepWhole(std::vector<float> values, int64_t fed);
  // The same, but the state always stays in memory.
  StatePtr Pin(std::vector<float> values, int64_t fed);
  // A state that `read` returns when it is fetched. It shares the segments of `earlier`, a state of
  // its first tokens; null: there is none.
  StatePtr KeepPublished(int64_t fed, const KeptState* earlier, PublishedRead read);
  // The values of `state`, which then counts as used last. Null unless it is in memory.
  ViewPtr Use(KeptState* state);
  // Starts to read `state` into memory. REQUIRES: it is neither in memory nor forgotten. Once
  // Collect has returned true and `fetching` is false, it is in memory or forgotten.
  void Fetch(KeptState* state);
  static bool fetching(const KeptState& state) { return state.reading_; }
  // Takes in finished reads and writes. True: there were some. Collect makes no room, so that the
  // fetched states can be used first; Fit makes room.
  bool Collect();
  // Lets states leave memory until the limit holds.
  void Fit();

  struct Totals {
    int64_t memory_bytes = 0;            // of all blobs alive
    int64_t writing_bytes = 0;           // of states being written
    int64_t in_memory = 0, on_disk = 0;  // states, by their own values; on_disk: only there
    int64_t disk_bytes = 0;
    int64_t forgotten = 0;    // states and segments, because of no room, since start
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
  struct Wanted;

  // A state after `fed` tokens whose parts, except `segments`, are not kept anywhere yet.
  StatePtr New(int64_t fed, std::vector<StatePtr> segments);
  BlobPtr Blob(std::vector<float> values) const;
  // The functions from here on take one part: a state's own values, or a segment.
  void UseLast(KeptState* state);
  void Forget(KeptState* state);
  void LeaveMemory(KeptState* state);
  bool StartWriting(KeptState* state);
  void DropFile(KeptState* state);
  void EndWrite(KeptState* state, const Done& done);
  void EndRead(KeptState* state, Done* done);
  void SetBlob(KeptState* state, BlobPtr blob);
  void EnterMemoryOrder(KeptState* state);
  void LeaveMemoryOrder(KeptState* state);
  void EnterDiskOrder(KeptState* state);
  void LeaveDiskOrder(KeptState* state);

  const StateLimits limits_;
  const StateSize size_;
  const StateBlob::Meter meter_ = std::make_shared<std::atomic<int64_t>>(0);
  KeptState::Order memory_order_, disk_order_;          // used longest ago first
  absl::flat_hash_map<uint64_t, KeptState*> numbered_;  // files being written, and reads
  uint64_t last_number_ = 0;
  int64_t writing_bytes_ = 0, disk_bytes_ = 0;
  int64_t largest_ = 0;  // the largest state so far
  Totals counted_;       // all but the bytes
  absl::Status file_error_;
  const std::shared_ptr<Inbox> inbox_;
  std::unique_ptr<Disk> disk_;  // null: none
};

}  // namespace rivulet
