// SPDX-License-Identifier: Apache-2.0
// A SessionStore in memory, with the test's clock. It answers when the test says so, and fails as
// networks and databases do: calls and answers are lost, writes happen late and twice, and a
// failover takes the store back to an earlier image.
//
//   MemoryStoreServer server([&] { return now; });
//   MemorySessionStore a(&server), b(&server);  // of two replicas
//   a.Write(...);
//   a.Deliver();  // carries out the oldest call of `a` and calls its `done`
// So one thread chooses the order in which the calls of several replicas are carried out. A
// MemoryStoreThread delivers answers without the test.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/sessions/replicated/check_write.h"
#include "server/sessions/replicated/session_store.h"

namespace rivulet {

// Everything that the store holds. Times are milliseconds since 1970.
struct MemoryStoreImage {
  struct Record {
    std::string claim, bytes, account;
    int64_t leased_until = 0, expires = 0;
  };
  struct Chunk {
    std::string bytes, account;
    int64_t expires = 0;
  };
  int64_t number_of_id = 1;
  std::map<std::string, Record> records;
  std::map<std::string, Chunk> chunks;
  std::map<std::string, std::map<std::string, int64_t>> sets;  // set -> session -> expiry
};

// The data that the stores share. Outlives the stores. Thread: any.
class MemoryStoreServer {
 public:
  explicit MemoryStoreServer(std::function<absl::Time()> clock = absl::Now)
      : clock_(std::move(clock)) {}

  absl::StatusOr<StoreAnswer> Write(const StoreWrite& write) {
    std::lock_guard<std::mutex> lock(mutex_);
    history_.push_back(write);
    return WriteLocked(write);
  }
  absl::StatusOr<StoreAnswer> Read(const std::string& session) {
    std::lock_guard<std::mutex> lock(mutex_);
    Expire();
    const auto found = image_.records.find(session);
    if (found == image_.records.end()) return Answer(StoreAnswer::Kind::kMissing);
    if (session == damaged_) return absl::DataLossError("this is no record");
    return Answer(StoreAnswer::Kind::kDone, &found->second);
  }
  std::vector<std::string> ReadChunks(const std::vector<std::string>& ids) {
    std::lock_guard<std::mutex> lock(mutex_);
    Expire();
    std::vector<std::string> all;
    for (const std::string& id : ids) {
      const auto found = image_.chunks.find(id);
      all.push_back(found == image_.chunks.end() ? "" : found->second.bytes);
    }
    return all;
  }
  std::vector<SessionStore::Member> List(const std::string& set, int64_t after, int64_t count) {
    std::lock_guard<std::mutex> lock(mutex_);
    Expire();
    std::vector<SessionStore::Member> members;
    const auto found = image_.sets.find(set);
    if (found == image_.sets.end()) return members;
    for (const auto& [session, expires] : found->second) {
      if (expires > after) members.push_back({session, expires});
    }
    std::stable_sort(members.begin(), members.end(),
                     [](const auto& a, const auto& b) { return a.expires_ms < b.expires_ms; });
    size_t size = std::min(members.size(), static_cast<size_t>(std::max<int64_t>(count, 0)));
    while (size > 0 && size < members.size() &&
           members[size].expires_ms == members[size - 1].expires_ms) {
      ++size;
    }
    members.resize(size);
    return members;
  }

  // Faults. Notes a write that did not arrive, but may arrive later.
  void Remember(const StoreWrite& write) {
    std::lock_guard<std::mutex> lock(mutex_);
    history_.push_back(write);
  }
  // writes(): number of writes that were carried out or lost on their way. Repeat(): one of them
  // takes effect (again) now, without an answer.
  size_t writes() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return history_.size();
  }
  void Repeat(size_t write) {
    std::lock_guard<std::mutex> lock(mutex_);
    (void)WriteLocked(history_.at(write));
  }
  // A failover to a copy that lags: writes since the image was taken are lost, and the store does
  // not know it.
  MemoryStoreImage Image() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return image_;
  }
  void Restore(MemoryStoreImage image) {
    std::lock_guard<std::mutex> lock(mutex_);
    image_ = std::move(image);
  }
  void Empty() {
    std::lock_guard<std::mutex> lock(mutex_);
    MemoryStoreImage empty;
    empty.number_of_id = image_.number_of_id + 1;
    image_ = std::move(empty);
  }
  // chunks(): number of chunks. LoseChunk(): loses one of them.
  size_t chunks() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return image_.chunks.size();
  }
  void LoseChunk(size_t index) {
    std::lock_guard<std::mutex> lock(mutex_);
    image_.chunks.erase(std::next(image_.chunks.begin(), static_cast<std::ptrdiff_t>(index)));
  }
  // Replaces this session's record by something else.
  void Damage(const std::string& session) {
    std::lock_guard<std::mutex> lock(mutex_);
    damaged_ = session;
  }
  // Limits the number of records: a write that would exceed it is RESOURCE_EXHAUSTED.
  void SetMostRecords(size_t most) {
    std::lock_guard<std::mutex> lock(mutex_);
    most_records_ = most;
  }

 private:
  int64_t Now() const { return absl::ToUnixMillis(clock_()); }

  void Expire() {
    const int64_t now = Now();
    std::erase_if(image_.records, [&](const auto& r) { return r.second.expires <= now; });
    std::erase_if(image_.chunks, [&](const auto& c) { return c.second.expires <= now; });
    for (auto& set : image_.sets) {
      std::erase_if(set.second, [&](const auto& m) { return m.second <= now; });
    }
  }

  StoreAnswer Answer(StoreAnswer::Kind kind,
                     const MemoryStoreImage::Record* record = nullptr) const {
    StoreAnswer answer;
    answer.kind = kind;
    answer.store_id = absl::StrCat("memory-", image_.number_of_id);
    if (record != nullptr) {
      answer.found = {record->claim, record->bytes,
                      absl::Milliseconds(std::max<int64_t>(record->leased_until - Now(), 0))};
    }
    return answer;
  }

  absl::StatusOr<StoreAnswer> WriteLocked(const StoreWrite& write) {
    if (absl::Status status = CheckWrite(write); !status.ok()) return status;
    Expire();
    const auto found = image_.records.find(write.session);
    const bool is_new = found == image_.records.end();
    if (is_new && !write.expected.empty()) return Answer(StoreAnswer::Kind::kMissing);
    if (!is_new && found->second.claim != write.expected) {
      return Answer(StoreAnswer::Kind::kClaimMismatch, &found->second);
    }
    for (size_t i = 0; is_new && i < write.sets.size(); ++i) {
      const auto members = static_cast<int64_t>(image_.sets[write.sets[i].name].size());
      if (members >= write.sets[i].most) {
        StoreAnswer answer = Answer(StoreAnswer::Kind::kFull);
        answer.full_set = i;
        answer.members = members;
        return answer;
      }
    }
    for (const std::string& id : write.kept_chunks) {
      if (!image_.chunks.contains(id)) {
        return absl::DataLossError(absl::StrCat("chunk ", id, " is not in the store"));
      }
    }
    if (write.account.most > 0) {
      const int64_t bytes = BytesOf(write.account.name);
      int64_t more =
          std::ssize(write.record.bytes) - (is_new ? 0 : std::ssize(found->second.bytes));
      if (is_new) more += kStoreEntryBytes;
      for (const StoreChunk& chunk : write.chunks) {
        more += std::ssize(chunk.bytes) + kStoreEntryBytes;
      }
      if (bytes + more > write.account.most) {
        StoreAnswer answer = Answer(StoreAnswer::Kind::kNoBytes);
        answer.members = bytes;
        return answer;
      }
    }
    if (image_.records.size() + (is_new ? 1 : 0) > most_records_) {
      return absl::ResourceExhaustedError("the store in memory is full");
    }
    Apply(write);
    return Answer(StoreAnswer::Kind::kDone);
  }

  int64_t BytesOf(const std::string& account) const {
    int64_t bytes = 0;
    for (const auto& [name, one] : image_.records) {
      if (one.account == account) bytes += std::ssize(one.bytes) + kStoreEntryBytes;
    }
    for (const auto& [name, one] : image_.chunks) {
      if (one.account == account) bytes += std::ssize(one.bytes) + kStoreEntryBytes;
    }
    return bytes;
  }

  void Apply(const StoreWrite& write) {
    const int64_t now = Now();
    const auto after = [now](absl::Duration time) {
      return now + absl::ToInt64Milliseconds(std::min(time, absl::Hours(24 * 365 * 100)));
    };
    const int64_t expires = after(absl::Ceil(write.expiry, absl::Milliseconds(1)));
    const bool leased = write.record.lease > absl::ZeroDuration();
    image_.records[write.session] = {write.record.claim, write.record.bytes, write.account.name,
                                     leased ? after(write.record.lease) : 0, expires};
    for (const StoreChunk& chunk : write.chunks) {
      image_.chunks[chunk.id].bytes = chunk.bytes;
      image_.chunks[chunk.id].account = write.account.name;
    }
    const auto last = [&](const std::string& id) {
      image_.chunks[id].expires = std::max(image_.chunks[id].expires, expires);
    };
    for (const StoreChunk& chunk : write.chunks) last(chunk.id);
    for (const std::string& id : write.kept_chunks) last(id);
    for (const std::string& id : write.dropped_chunks) image_.chunks.erase(id);
    for (auto& set : image_.sets) set.second.erase(write.session);
    if (write.leaves_sets) return;
    for (const StoreSet& set : write.sets) image_.sets[set.name][write.session] = expires;
  }

  const std::function<absl::Time()> clock_;
  mutable std::mutex mutex_;
  MemoryStoreImage image_;
  std::vector<StoreWrite> history_;
  size_t most_records_ = SIZE_MAX;
  std::string damaged_;
};

// The fate of a call.
enum class StoreFate : uint8_t {
  kAnswered,
  kRequestLost,  // no effect, and the answer is UNAVAILABLE; a write may happen later
  kAnswerLost,   // it takes effect, and the answer is UNAVAILABLE
};

// Thread: calls any; Deliver one at a time.
class MemorySessionStore final : public SessionStore {
 public:
  explicit MemorySessionStore(MemoryStoreServer* server) : server_(server) {}
  // Every call that was not delivered ends with UNAVAILABLE, as if its request had been lost.
  ~MemorySessionStore() override {
    while (Deliver(StoreFate::kRequestLost)) {
    }
  }

  void Write(StoreWrite write, Done done) override {
    Push([this, write = std::move(write), done = std::move(done)](StoreFate fate) {
      if (fate == StoreFate::kRequestLost) server_->Remember(write);
      Finish(fate, done, [&] { return server_->Write(write); });
    });
  }
  void Read(std::string session, Done done) override {
    Push([this, session = std::move(session), done = std::move(done)](StoreFate fate) {
      Finish(fate, done, [&] { return server_->Read(session); });
    });
  }
  void ReadChunks(std::vector<std::string> ids, ChunksDone done) override {
    Push([this, ids = std::move(ids), done = std::move(done)](StoreFate fate) {
      Finish(fate, done, [&] { return server_->ReadChunks(ids); });
    });
  }
  void List(std::string set, int64_t after_ms, int64_t count, MembersDone done) override {
    Push([this, set = std::move(set), after_ms, count, done = std::move(done)](StoreFate fate) {
      Finish(fate, done, [&] { return server_->List(set, after_ms, count); });
    });
  }

  size_t pending() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return calls_.size();
  }
  // Carries out the oldest call with the fate `fate`, and calls its `done`. False: there is no
  // call.
  bool Deliver(StoreFate fate = StoreFate::kAnswered) {
    std::function<void(StoreFate)> call;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (calls_.empty()) return false;
      call = std::move(calls_.front());
      calls_.pop_front();
    }
    call(fate);
    return true;
  }
  // Waits for a call. False: Stop was called.
  bool AwaitCall() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return stopped_ || !calls_.empty(); });
    return !stopped_;
  }
  void Stop() {
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }

 private:
  template <typename Callback, typename Happen>
  static void Finish(StoreFate fate, const Callback& done, Happen happen) {
    if (fate == StoreFate::kAnswered) return done(happen());
    if (fate == StoreFate::kAnswerLost) (void)happen();
    done(absl::UnavailableError("the store in memory cannot be reached"));
  }
  void Push(std::function<void(StoreFate)> call) {
    std::lock_guard<std::mutex> lock(mutex_);
    calls_.push_back(std::move(call));
    changed_.notify_all();
  }

  MemoryStoreServer* const server_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void(StoreFate)>> calls_;
  bool stopped_ = false;
};

// Delivers the answers of a MemorySessionStore on its own thread. Before each answer it calls
// `fate`, if set, which may also wait.
class MemoryStoreThread final : public SessionStore {
 public:
  explicit MemoryStoreThread(MemoryStoreServer* server, std::function<StoreFate()> fate = nullptr)
      : store_(server), fate_(std::move(fate)), thread_([this] {
          while (store_.AwaitCall()) {
            store_.Deliver(fate_ != nullptr ? fate_() : StoreFate::kAnswered);
          }
        }) {}
  ~MemoryStoreThread() override {
    store_.Stop();
    thread_.join();
  }

  void Write(StoreWrite write, Done done) override {
    store_.Write(std::move(write), std::move(done));
  }
  void Read(std::string session, Done done) override {
    store_.Read(std::move(session), std::move(done));
  }
  void ReadChunks(std::vector<std::string> ids, ChunksDone done) override {
    store_.ReadChunks(std::move(ids), std::move(done));
  }
  void List(std::string set, int64_t after_ms, int64_t count, MembersDone done) override {
    store_.List(std::move(set), after_ms, count, std::move(done));
  }

 private:
  MemorySessionStore store_;
  const std::function<StoreFate()> fate_;
  std::thread thread_;  // last, so that the other members exist when it starts
};

}  // namespace rivulet
