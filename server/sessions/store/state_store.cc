// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/store/state_store.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "model/base/error.h"
#include "server/base/mutex.h"

namespace rivulet {

// The result of a piece of work.
struct StateStore::Done {
  Background::Kind kind;
  uint64_t number;
  int64_t bytes = 0;  // of a write
  absl::Status status = {};
  // Of a read: by part; null: the part could not be read, and `status` says why.
  std::vector<BlobPtr> parts = {};
  bool published = false;  // of a state that is not in files
};

// A part that a read shall bring.
struct StateStore::Wanted {
  BlobPtr blob;  // not null: it is in memory. Else:
  uint64_t number;
  int64_t bytes;
};

// Results of other threads. It outlives the store while they hold it.
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

// Hands work to the disk tier, as closures.
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
          {Background::Kind::kWrite, number, blob->bytes(), tier_.files->Write(number, bytes)});
    });
  }
  // All parts in one piece of work, so that no part leaves memory before the last has come.
  void Read(uint64_t read, std::vector<Wanted> parts, StateBlob::Meter meter) {
    tier_.background->Run(
        Background::Kind::kRead, [this, read, parts = std::move(parts), meter = std::move(meter)] {
          Done done{Background::Kind::kRead, read};
          for (const Wanted& part : parts) {
            done.parts.push_back(part.blob);
            if (part.blob != nullptr) continue;
            auto values = ReadFile(part);
            if (values.ok()) {
              done.parts.back() = std::make_shared<const StateBlob>(*std::move(values), meter);
            } else {
              done.status.Update(values.status());
            }
          }
          inbox_->Put(std::move(done));
        });
  }
  void Remove(uint64_t number) {
    tier_.background->Run(Background::Kind::kRemove,
                          [this, number] { tier_.files->Remove(number); });
  }

 private:
  absl::StatusOr<std::vector<float>> ReadFile(const Wanted& part) {
    RIVULET_ASSIGN_OR_RETURN(const std::string file, tier_.files->Read(part.number));
    return DecodeStateFile(file, stamp_, part.number,
                           static_cast<size_t>(part.bytes) / sizeof(float));
  }

  const StateStamp stamp_;
  const std::shared_ptr<Inbox> inbox_;
  DiskTier tier_;  // last: its work ends before what it uses
};

StateBlob::StateBlob(std::vector<float> values, Meter meter)
    : values_(std::move(values)), meter_(std::move(meter)) {
  *meter_ += bytes();
}

StateBlob::~StateBlob() { *meter_ -= bytes(); }

StateView::StateView(BlobPtr own, size_t front, std::vector<BlobPtr> segments)
    : own_(std::move(own)),
      front_(segments.empty() ? own_->values().size() : front),
      segments_(std::move(segments)) {}

StateView::StateView(std::vector<float> values)
    : StateView(std::make_shared<const StateBlob>(std::move(values),
                                                  std::make_shared<std::atomic<int64_t>>(0)),
                0, {}) {}

std::vector<std::span<const float>> StateView::spans() const {
  std::vector<std::span<const float>> spans = {own_->values().first(front_)};
  for (const BlobPtr& segment : segments_) spans.push_back(segment->values());
  spans.push_back(own_->values().subspan(front_));
  return spans;
}

std::vector<float> StateView::values() const {
  std::vector<float> all;
  all.reserve(static_cast<size_t>(bytes()) / sizeof(float));
  for (const auto& span : spans()) all.insert(all.end(), span.begin(), span.end());
  return all;
}

int64_t StateView::bytes() const {
  int64_t sum = own_->bytes();
  for (const BlobPtr& segment : segments_) sum += segment->bytes();
  return sum;
}

KeptState::KeptState(StateStore* store, int64_t own_bytes, std::vector<StatePtr> segments)
    : store_(store), own_bytes_(own_bytes), segments_(std::move(segments)) {}

KeptState::~KeptState() { store_->Forget(this); }

int64_t KeptState::bytes() const {
  int64_t sum = own_bytes_;
  for (const StatePtr& segment : segments_) sum += segment->own_bytes_;
  return sum;
}

bool KeptState::in_memory() const {
  return blob_ != nullptr && std::all_of(segments_.begin(), segments_.end(),
                                         [](const StatePtr& part) { return part->in_memory(); });
}

bool KeptState::on_disk() const {
  const auto there = [](const KeptState& part) {
    return part.blob_ != nullptr || part.number_ != 0;
  };
  return !in_memory() && there(*this) &&
         std::all_of(segments_.begin(), segments_.end(),
                     [&](const StatePtr& part) { return there(*part); });
}

void SharedBytes::Add(const KeptState& state) {
  bytes_ += state.own_bytes();
  for (const StatePtr& segment : state.segments()) {
    if (segments_[segment.get()]++ == 0) bytes_ += segment->own_bytes();
  }
}

void SharedBytes::Remove(const KeptState& state) {
  bytes_ -= state.own_bytes();
  for (const StatePtr& segment : state.segments()) {
    const auto held = segments_.find(segment.get());
    if (--held->second > 0) continue;
    bytes_ -= segment->own_bytes();
    segments_.erase(held);
  }
}

StateStore::StateStore(const StateLimits& limits, const StateSize& size, StateStamp stamp,
                       DiskTier disk, std::function<void()> wake)
    : limits_(limits), size_(size), inbox_(std::make_shared<Inbox>(std::move(wake))) {
  if (disk.files == nullptr) return;
  if (disk.background == nullptr) disk.background = StartBackgroundThread();
  disk_ = std::make_unique<Disk>(std::move(disk), std::move(stamp), inbox_);
}

StateStore::~StateStore() { inbox_->Close(); }

BlobPtr StateStore::Blob(std::vector<float> values) const {
  return std::make_shared<const StateBlob>(std::move(values), meter_);
}

StatePtr StateStore::KeepSegment(std::vector<float> values) {
  BlobPtr blob = Blob(std::move(values));
  auto segment = std::make_shared<KeptState>(this, blob->bytes(), std::vector<StatePtr>());
  segment->is_segment_ = true;
  SetBlob(segment.get(), std::move(blob));
  EnterMemoryOrder(segment.get());
  return segment;
}

StatePtr StateStore::Keep(std::vector<float> own, std::vector<StatePtr> segments) {
  for (const StatePtr& segment : segments) UseLast(segment.get());
  BlobPtr blob = Blob(std::move(own));
  auto state = std::make_shared<KeptState>(this, blob->bytes(), std::move(segments));
  SetBlob(state.get(), std::move(blob));
  EnterMemoryOrder(state.get());
  largest_ = std::max(largest_, state->bytes());
  Fit();
  return state;
}

int64_t StateStore::OwnBytes(int64_t fed) const {
  return static_cast<int64_t>(size_.At(fed)) -
         size_.Segments(fed) * static_cast<int64_t>(size_.segment_bytes());
}

StatePtr StateStore::New(int64_t fed, std::vector<StatePtr> segments) {
  segments.resize(static_cast<size_t>(size_.Segments(fed)));
  for (StatePtr& segment : segments) {
    if (segment != nullptr) continue;
    segment = std::make_shared<KeptState>(this, static_cast<int64_t>(size_.segment_bytes()),
                                          std::vector<StatePtr>());
    segment->is_segment_ = true;
  }
  return std::make_shared<KeptState>(this, OwnBytes(fed), std::move(segments));
}

StatePtr StateStore::Pin(std::vector<float> values, int64_t fed) {
  StatePtr state = New(fed, {});
  const auto take = [&](size_t from, size_t count) {
    const auto at = values.begin() + static_cast<std::ptrdiff_t>(from);
    return std::vector<float>(at, at + static_cast<std::ptrdiff_t>(count));
  };
  const size_t each = size_.segment_bytes() / sizeof(float);
  size_t at = size_.fixed / sizeof(float);
  for (const StatePtr& segment : state->segments_) {
    SetBlob(segment.get(), Blob(take(at, each)));
    at += each;
  }
  if (!state->segments_.empty()) {  // what is left are its own values
    values.erase(values.begin() + static_cast<std::ptrdiff_t>(size_.fixed / sizeof(float)),
                 values.begin() + static_cast<std::ptrdiff_t>(at));
  }
  SetBlob(state.get(), Blob(std::move(values)));
  return state;
}

StatePtr StateStore::KeepWhole(std::vector<float> values, int64_t fed) {
  StatePtr state = Pin(std::move(values), fed);
  largest_ = std::max(largest_, state->bytes());
  state->ForEachPart([this](KeptState* part) { EnterMemoryOrder(part); });
  Fit();
  return state;
}

StatePtr StateStore::KeepPublished(int64_t fed, const KeptState* earlier, PublishedRead read) {
  StatePtr state = New(fed, earlier == nullptr ? std::vector<StatePtr>() : earlier->segments_);
  state->published_ = std::move(read);
  return state;
}

ViewPtr StateStore::Use(KeptState* state) {
  if (!state->in_memory()) return nullptr;
  state->ForEachPart([this](KeptState* part) { UseLast(part); });
  std::vector<BlobPtr> segments;
  segments.reserve(state->segments_.size());
  for (const StatePtr& segment : state->segments_) segments.push_back(segment->blob_);
  return std::make_shared<const StateView>(state->blob_, size_.fixed / sizeof(float),
                                           std::move(segments));
}

void StateStore::UseLast(KeptState* state) {
  if (state->in_disk_order_) {
    disk_order_.splice(disk_order_.end(), disk_order_, state->disk_place_);
  }
  if (state->in_memory_order_) {
    memory_order_.splice(memory_order_.end(), memory_order_, state->memory_place_);
  } else if (state->writing_) {
    EnterMemoryOrder(state);  // it was leaving
  }
}

void StateStore::Fetch(KeptState* state) {
  if (state->reading_) return;
  state->reading_ = true;
  const uint64_t read = state->read_ = ++last_number_;
  numbered_[read] = state;
  if (state->published_ == nullptr) {
    std::vector<Wanted> parts;
    state->ForEachPart([&](KeptState* part) {
      parts.push_back({part->blob_, part->number_, part->own_bytes_});
      if (part->blob_ == nullptr) LeaveDiskOrder(part);  // keeps its file
    });
    return disk_->Read(read, std::move(parts), meter_);
  }
  std::exchange(state->published_,
                nullptr)([inbox = inbox_, read, meter = meter_](absl::StatusOr<CutState> cut) {
    Done done{Background::Kind::kRead, read, 0, cut.status(), {}, /*published=*/true};
    const auto add = [&](std::vector<float> values) {
      done.parts.push_back(std::make_shared<const StateBlob>(std::move(values), meter));
    };
    if (cut.ok()) {
      for (std::vector<float>& segment : cut->segments) add(std::move(segment));
      add(std::move(cut->own));
    }
    inbox->Put(std::move(done));
  });
}

bool StateStore::Collect() {
  std::vector<Done> all = inbox_->Take();
  for (Done& done : all) {
    const auto found = numbered_.find(done.number);
    KeptState* const state = found == numbered_.end() ? nullptr : found->second;
    if (!done.status.ok() && !done.published && counted_.file_errors++ == 0) {
      file_error_ = done.status;
    }
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
  numbered_.erase(std::exchange(state->read_, 0));
  if (done->published && !done->status.ok()) return;
  bool lost = false;
  auto blob = done->parts.begin();
  state->ForEachPart([&](KeptState* part) {
    BlobPtr read = std::move(*blob++);
    if (part->blob_ != nullptr) return;  // another state's read has brought it, too
    if (read == nullptr) {
      DropFile(part);
      lost = true;
      return;
    }
    SetBlob(part, std::move(read));
    EnterMemoryOrder(part);
    if (part->number_ != 0 && !part->in_disk_order_) EnterDiskOrder(part);
  });
  if (lost) ++counted_.forgotten;
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
  const int64_t most = std::max(limits_.max_writing_bytes, largest_);
  if (others && writing_bytes_ + state->own_bytes_ > most) return false;
  const int64_t need = disk_->FileBytes(static_cast<size_t>(state->own_bytes_) / sizeof(float));
  while (disk_bytes_ + need > limits_.max_disk_bytes && !disk_order_.empty()) {
    KeptState* const oldest = disk_order_.front();
    DropFile(oldest);
    if (oldest->forgotten()) ++counted_.forgotten;
  }
  if (disk_bytes_ + need > limits_.max_disk_bytes) return false;
  state->number_ = ++last_number_;
  state->file_bytes_ = need;
  state->writing_ = true;
  numbered_[state->number_] = state;
  disk_bytes_ += need;
  writing_bytes_ += state->own_bytes_;
  disk_->Write(state->number_, state->blob_);
  return true;
}

void StateStore::DropFile(KeptState* state) {
  if (state->number_ == 0) return;
  if (state->blob_ == nullptr && !state->is_segment_) --counted_.on_disk;
  LeaveDiskOrder(state);
  disk_->Remove(state->number_);
  numbered_.erase(state->number_);
  disk_bytes_ -= state->file_bytes_;
  state->number_ = 0;
  state->file_bytes_ = 0;
}

void StateStore::Forget(KeptState* state) {
  if (state->read_ != 0) {
    numbered_.erase(state->read_);
    for (const StatePtr& segment : state->segments_) {
      if (segment->on_disk() && !segment->in_disk_order_) EnterDiskOrder(segment.get());
    }
  }
  LeaveMemoryOrder(state);
  SetBlob(state, nullptr);
  DropFile(state);
}

void StateStore::SetBlob(KeptState* state, BlobPtr blob) {
  const int change = int{blob != nullptr} - int{state->blob_ != nullptr};
  state->blob_ = std::move(blob);
  if (state->is_segment_) return;
  counted_.in_memory += change;
  if (state->number_ != 0) counted_.on_disk -= change;
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
