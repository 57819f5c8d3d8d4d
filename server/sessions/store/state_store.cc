// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/store/state_store.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "server/base/mutex.h"

namespace rivulet {

// What became of a piece of work.
struct StateStore::Done {
  Background::Kind kind;
  uint64_t number;
  int64_t bytes;  // of the state
  absl::Status status;
  std::vector<float> values;  // of a read
  bool published = false;     // of a state that is not in a file
};

// Results of other threads. It outlives the store where they hold it.
class StateStore::Inbox {
 public:
  explicit Inbox(std::function<void()> wake) : wake_(std::move(wake)) {}

  void Put(Done done) {
    MutexLock lock(&mutex_);
    if (wake_ == nullptr) return;  // nobody needs it
    done_.push_back(std::move(done));
    any_.store(true, std::memory_order_release);
    wake_();
  }
  std::vector<Done> Take() {
    if (!any_.load(std::memory_order_acquire)) return {};
    MutexLock lock(&mutex_);
    any_.store(false, std::memory_order_relaxed);
    return std::exchange(done_, {});
  }
  // The store is gone.
  void Close() {
    MutexLock lock(&mutex_);
    wake_ = nullptr;
  }

 private:
  Mutex mutex_;
  std::function<void()> wake_ ABSL_GUARDED_BY(mutex_);
  std::vector<Done> done_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> any_ = false;  // done_ is not empty: the loop asks often
};

// Work for the disk tier goes out as closures.
class StateStore::Disk {
 public:
  Disk(DiskTier tier, StateStamp stamp, std::shared_ptr<Inbox> inbox)
      : stamp_(std::move(stamp)), inbox_(std::move(inbox)), tier_(std::move(tier)) {}

  int64_t FileBytes(size_t num_values) const {
    return static_cast<int64_t>(StateFileBytes(stamp_, num_values));
  }

  void Write(uint64_t number, BlobPtr blob) {
    tier_.background->Run(Background::Kind::kWrite, [this, number, blob = std::move(blob)] {
      const std::string bytes = EncodeStateFile(stamp_, number, blob->values());
      inbox_->Put(
          {Background::Kind::kWrite, number, blob->bytes(), tier_.files->Write(number, bytes), {}});
    });
  }
  void Read(uint64_t number, int64_t bytes) {
    tier_.background->Run(Background::Kind::kRead, [this, number, bytes] {
      Done done{Background::Kind::kRead, number, bytes, absl::OkStatus(), {}};
      const absl::StatusOr<std::string> file = tier_.files->Read(number);
      auto values = file.ok() ? DecodeStateFile(*file, stamp_, number,
                                                static_cast<size_t>(bytes) / sizeof(float))
                              : file.status();
      done.status = values.status();
      if (values.ok()) done.values = *std::move(values);
      inbox_->Put(std::move(done));
    });
  }
  void Remove(uint64_t number) {
    tier_.background->Run(Background::Kind::kRemove,
                          [this, number] { tier_.files->Remove(number); });
  }

 private:
  const StateStamp stamp_;
  const std::shared_ptr<Inbox> inbox_;
  DiskTier tier_;  // last: its work ends before what it uses
};

StateBlob::StateBlob(std::vector<float> values, Meter meter)
    : values_(std::move(values)), meter_(std::move(meter)) {
  *meter_ += bytes();
}

StateBlob::~StateBlob() { *meter_ -= bytes(); }

KeptState::~KeptState() { store_->Forget(this); }

StateStore::StateStore(const StateLimits& limits, StateStamp stamp, DiskTier disk,
                       std::function<void()> wake)
    : limits_(limits), inbox_(std::make_shared<Inbox>(std::move(wake))) {
  if (disk.files == nullptr) return;
  if (disk.background == nullptr) disk.background = StartBackgroundThread();
  disk_ = std::make_unique<Disk>(std::move(disk), std::move(stamp), inbox_);
}

StateStore::~StateStore() { inbox_->Close(); }

StatePtr StateStore::Keep(std::vector<float> values) {
  StatePtr state = Pin(std::move(values));
  EnterMemoryOrder(state.get());
  Fit();
  return state;
}

StatePtr StateStore::Pin(std::vector<float> values) {
  auto blob = std::make_shared<const StateBlob>(std::move(values), meter_);
  auto state = std::make_shared<KeptState>(this, blob->bytes());
  SetBlob(state.get(), std::move(blob));
  return state;
}

StatePtr StateStore::KeepPublished(int64_t bytes, PublishedRead read) {
  auto state = std::make_shared<KeptState>(this, bytes);
  state->published_ = std::move(read);
  return state;
}

BlobPtr StateStore::Use(KeptState* state) {
  if (state->blob_ == nullptr) return nullptr;
  if (state->in_disk_order_) {
    disk_order_.splice(disk_order_.end(), disk_order_, state->disk_place_);
  }
  if (state->in_memory_order_) {
    memory_order_.splice(memory_order_.end(), memory_order_, state->memory_place_);
  } else if (state->writing_) {
    EnterMemoryOrder(state);  // it was leaving
  }
  return state->blob_;
}

void StateStore::Fetch(KeptState* state) {
  if (state->reading_) return;
  state->reading_ = true;
  if (state->published_ == nullptr) {
    LeaveDiskOrder(state);  // its file is not the one to make room
    return disk_->Read(state->number_, state->bytes_);
  }
  const uint64_t number = state->published_read_ = ++last_number_;
  files_[number] = state;
  const PublishedRead read = std::exchange(state->published_, nullptr);
  read([inbox = inbox_, number, bytes = state->bytes_](absl::StatusOr<std::vector<float>> values) {
    Done done{Background::Kind::kRead, number, bytes, values.status(), {}, /*published=*/true};
    if (values.ok()) done.values = *std::move(values);
    inbox->Put(std::move(done));
  });
}

bool StateStore::Collect() {
  std::vector<Done> all = inbox_->Take();
  for (Done& done : all) {
    const auto found = files_.find(done.number);
    KeptState* const state = found == files_.end() ? nullptr : found->second;
    if (!done.status.ok() && !done.published) CountError(done.status);
    if (done.kind == Background::Kind::kWrite) writing_bytes_ -= done.bytes;
    if (state == nullptr) continue;  // nobody needs it any more
    if (done.kind == Background::Kind::kWrite) EndWrite(state, done);
    if (done.kind == Background::Kind::kRead) EndRead(state, &done);
  }
  return !all.empty();
}

void StateStore::EndWrite(KeptState* state, const Done& done) {
  state->writing_ = false;
  if (done.status.ok()) {
    EnterDiskOrder(state);
    if (!state->in_memory_order_) SetBlob(state, nullptr);
    return;
  }
  DropFile(state);
  if (state->in_memory_order_) return;
  SetBlob(state, nullptr);
  ++counted_.forgotten;
}

void StateStore::EndRead(KeptState* state, Done* done) {
  state->reading_ = false;
  if (done->published) files_.erase(std::exchange(state->published_read_, 0));
  if (done->status.ok()) {
    SetBlob(state, std::make_shared<const StateBlob>(std::move(done->values), meter_));
    EnterMemoryOrder(state);
    if (!done->published) EnterDiskOrder(state);
  } else if (!done->published) {
    DropFile(state);
    ++counted_.forgotten;
  }
}

void StateStore::Fit() {
  while (*meter_ - writing_bytes_ > limits_.max_memory_bytes && !memory_order_.empty()) {
    LeaveMemory(memory_order_.front());
  }
}

void StateStore::LeaveMemory(KeptState* state) {
  LeaveMemoryOrder(state);
  if (state->writing_) return;  // used while it was being written, and not again since
  const bool in_file = state->number_ != 0;
  if (!in_file && StartWriting(state)) return;
  SetBlob(state, nullptr);
  if (!in_file) ++counted_.forgotten;
}

bool StateStore::StartWriting(KeptState* state) {
  if (disk_ == nullptr) return false;
  const bool others = writing_bytes_ > 0;
  if (others && writing_bytes_ + state->bytes_ > limits_.max_writing_bytes) return false;
  const int64_t need = disk_->FileBytes(static_cast<size_t>(state->bytes_) / sizeof(float));
  while (disk_bytes_ + need > limits_.max_disk_bytes && !disk_order_.empty()) {
    KeptState* const oldest = disk_order_.front();
    DropFile(oldest);
    if (oldest->forgotten()) ++counted_.forgotten;
  }
  if (disk_bytes_ + need > limits_.max_disk_bytes) return false;
  state->number_ = ++last_number_;
  state->file_bytes_ = need;
  state->writing_ = true;
  files_[state->number_] = state;
  disk_bytes_ += need;
  writing_bytes_ += state->bytes_;
  disk_->Write(state->number_, state->blob_);
  return true;
}

void StateStore::DropFile(KeptState* state) {
  if (state->number_ == 0) return;
  if (state->blob_ == nullptr) --counted_.on_disk;
  LeaveDiskOrder(state);
  disk_->Remove(state->number_);
  files_.erase(state->number_);
  disk_bytes_ -= state->file_bytes_;
  state->number_ = 0;
  state->file_bytes_ = 0;
}

void StateStore::Forget(KeptState* state) {
  if (state->published_read_ != 0) files_.erase(state->published_read_);
  LeaveMemoryOrder(state);
  SetBlob(state, nullptr);
  DropFile(state);
}

void StateStore::CountError(const absl::Status& status) {
  if (counted_.file_errors++ == 0) file_error_ = status;
}

void StateStore::SetBlob(KeptState* state, BlobPtr blob) {
  const int change = int{blob != nullptr} - int{state->blob_ != nullptr};
  counted_.in_memory += change;
  if (state->number_ != 0) counted_.on_disk -= change;
  state->blob_ = std::move(blob);
}

void StateStore::EnterMemoryOrder(KeptState* state) {
  state->memory_place_ = memory_order_.insert(memory_order_.end(), state);
  state->in_memory_order_ = true;
}

void StateStore::LeaveMemoryOrder(KeptState* state) {
  if (std::exchange(state->in_memory_order_, false)) memory_order_.erase(state->memory_place_);
}

void StateStore::EnterDiskOrder(KeptState* state) {
  state->disk_place_ = disk_order_.insert(disk_order_.end(), state);
  state->in_disk_order_ = true;
}

void StateStore::LeaveDiskOrder(KeptState* state) {
  if (std::exchange(state->in_disk_order_, false)) disk_order_.erase(state->disk_place_);
}

StateStore::Totals StateStore::totals() const {
  Totals totals = counted_;
  totals.memory_bytes = *meter_;
  totals.writing_bytes = writing_bytes_;
  totals.disk_bytes = disk_bytes_;
  return totals;
}

}  // namespace rivulet
