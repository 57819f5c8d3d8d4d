// SPDX-License-Identifier: Apache-2.0
// A disk tier without a disk or a thread: the test decides when files (in memory) fail, and when
// work is done.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/sessions/store/state_files.h"

namespace rivulet {

// State that a test and an engine's files share. Thread: any.
struct FakeDisk {
  std::mutex mutex;
  std::map<uint64_t, std::string> files;
  // The outcome of the next calls.
  bool fail_writes = false;  // nothing is stored
  bool fail_reads = false;
  std::function<void(std::string*)> damage;  // applied to every read
  int64_t writes = 0, reads = 0, removes = 0;

  template <typename Action>
  auto With(Action action) {
    std::lock_guard<std::mutex> lock(mutex);
    return action(*this);
  }
};

class FakeStateFiles final : public StateFiles {
 public:
  explicit FakeStateFiles(std::shared_ptr<FakeDisk> disk) : disk_(std::move(disk)) {}

  absl::Status Write(uint64_t number, absl::string_view bytes) override {
    std::lock_guard<std::mutex> lock(disk_->mutex);
    ++disk_->writes;
    if (disk_->fail_writes) return absl::UnavailableError("no space left on the fake device");
    if (!disk_->files.emplace(number, std::string(bytes)).second) {
      return absl::InternalError("a number was used twice");
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Read(uint64_t number) override {
    std::lock_guard<std::mutex> lock(disk_->mutex);
    ++disk_->reads;
    const auto found = disk_->files.find(number);
    if (disk_->fail_reads || found == disk_->files.end()) {
      return absl::UnavailableError("the fake device cannot be read");
    }
    std::string bytes = found->second;
    if (disk_->damage != nullptr) disk_->damage(&bytes);
    return bytes;
  }
  void Remove(uint64_t number) override {
    std::lock_guard<std::mutex> lock(disk_->mutex);
    ++disk_->removes;
    disk_->files.erase(number);
  }

 private:
  const std::shared_ptr<FakeDisk> disk_;
};

// Work items that wait for the test, in the order of a real Background. Thread: one.
struct ManualQueue {
  std::deque<std::function<void()>> reads, others;

  size_t size() const { return reads.size() + others.size(); }
  // Does the next work item; false if there is none.
  bool RunOne() {
    auto& next = reads.empty() ? others : reads;
    if (next.empty()) return false;
    const std::function<void()> work = std::move(next.front());
    next.pop_front();
    work();
    return true;
  }
  void RunAll() {
    while (RunOne()) {
    }
  }
};

class ManualBackground final : public Background {
 public:
  explicit ManualBackground(std::shared_ptr<ManualQueue> queue) : queue_(std::move(queue)) {}
  ~ManualBackground() override {
    queue_->reads.clear();
    queue_->others.clear();
  }
  void Run(Kind kind, std::function<void()> work) override {
    (kind == Kind::kRead ? queue_->reads : queue_->others).push_back(std::move(work));
  }

 private:
  const std::shared_ptr<ManualQueue> queue_;
};

}  // namespace rivulet
