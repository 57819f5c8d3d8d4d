// SPDX-License-Identifier: Apache-2.0
// FaultyDisk: a disk tier in memory whose work is done when the simulation likes, and which fails
// as disks do: EIO, no space (with a part written), reads that fail, come short or with a wrong
// bit.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/engine/state_files.h"
#include "tests/simulation/choices.h"

namespace rivulet {

// Thread: one. Outlives the engine that has its tier.
class FaultyDisk {
 public:
  // One call of `one_in` fails; 0: none. `choices` is borrowed.
  FaultyDisk(Choices* choices, int one_in) : choices_(choices), one_in_(one_in) {}

  DiskTier Tier() { return {std::make_unique<Files>(this), std::make_unique<Queue>(this)}; }
  // Does the next piece of work; false: there is none.
  bool DoOne() {
    auto& next = reads_.empty() ? others_ : reads_;
    if (next.empty()) return false;
    const std::function<void()> work = std::move(next.front());
    next.pop_front();
    work();
    return true;
  }
  int64_t faults() const { return faults_; }
  int64_t reads() const { return num_reads_; }
  int64_t bytes() const {
    int64_t bytes = 0;
    for (const auto& [number, content] : files_) bytes += static_cast<int64_t>(content.size());
    return bytes;
  }

 private:
  class Files final : public StateFiles {
   public:
    explicit Files(FaultyDisk* disk) : disk_(disk) {}
    absl::Status Write(uint64_t number, absl::string_view bytes) override {
      if (!disk_->Fails()) {
        disk_->files_[number] = std::string(bytes);
        return absl::OkStatus();
      }
      if (disk_->choices_->OneIn(2)) disk_->files_[number] = disk_->Part(bytes);
      return absl::UnavailableError("the disk of the simulation takes no more");
    }
    absl::StatusOr<std::string> Read(uint64_t number) override {
      ++disk_->num_reads_;
      const auto found = disk_->files_.find(number);
      if (found == disk_->files_.end()) return absl::NotFoundError("no such file");
      if (!disk_->Fails()) return found->second;
      switch (disk_->choices_->Below(3)) {
        case 0:
          return absl::UnavailableError("the disk of the simulation cannot be read");
        case 1:
          return disk_->Part(found->second);
        default:
          return disk_->Flipped(found->second);
      }
    }
    void Remove(uint64_t number) override { disk_->files_.erase(number); }

   private:
    FaultyDisk* const disk_;
  };

  class Queue final : public Background {
   public:
    explicit Queue(FaultyDisk* disk) : disk_(disk) {}
    ~Queue() override {
      disk_->reads_.clear();
      disk_->others_.clear();
    }
    void Run(Kind kind, std::function<void()> work) override {
      (kind == Kind::kRead ? disk_->reads_ : disk_->others_).push_back(std::move(work));
    }

   private:
    FaultyDisk* const disk_;
  };

  bool Fails() {
    const bool fails = one_in_ > 0 && choices_->OneIn(one_in_);
    if (fails) ++faults_;
    return fails;
  }
  std::string Part(absl::string_view bytes) {
    return std::string(
        bytes.substr(0, static_cast<size_t>(choices_->Below(65536)) % (bytes.size() + 1)));
  }
  std::string Flipped(std::string bytes) {
    if (bytes.empty()) return bytes;
    char& byte = bytes[static_cast<size_t>(choices_->Below(65536)) % bytes.size()];
    byte = static_cast<char>(byte ^ (1 << choices_->Below(8)));
    return bytes;
  }

  Choices* const choices_;
  const int one_in_;
  std::map<uint64_t, std::string> files_;
  std::deque<std::function<void()>> reads_, others_;
  int64_t faults_ = 0, num_reads_ = 0;
};

}  // namespace rivulet
