// SPDX-License-Identifier: Apache-2.0
// FaultyDisk: a disk tier in memory. The simulation decides when its work is done. It fails as
// disks do: EIO; no space (with a part written); writes that report success but are lost or
// damaged; reads that fail, are short, have a wrong bit, or return another file.
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
#include "server/sessions/store/state_files.h"
#include "tests/simulation/choices.h"

namespace rivulet {

// Thread: one. Outlives the engine that has its tier.
class FaultyDisk {
 public:
  struct Faults {
    int writes_one_in = 0, reads_one_in = 0;  // one in this number fails; 0: none
    int max_files = 1000;                     // beyond this number, writes fail
    bool slow = false;                        // its work is done rarely
  };
  // `choices` is borrowed.
  FaultyDisk(Choices* choices, const Faults& faults) : choices_(choices), to_come_(faults) {}

  DiskTier Tier() { return {std::make_unique<Files>(this), std::make_unique<Queue>(this)}; }
  // Does the next work item; false: there is none.
  bool DoOne() {
    auto& next = reads_.empty() ? others_ : reads_;
    if (next.empty()) return false;
    if (!reads_.empty()) ++reads_ended_;
    const std::function<void()> work = std::move(next.front());
    next.pop_front();
    work();
    return true;
  }
  int64_t faults() const { return faults_; }
  int64_t reads() const { return num_reads_; }
  int64_t reads_to_come() const { return static_cast<int64_t>(reads_.size()); }
  int64_t reads_ended() const { return reads_ended_; }
  // Bytes of the files that were to be written and have not been removed since.
  int64_t bytes() const {
    int64_t bytes = 0;
    for (const auto& [number, file] : files_) bytes += file.wanted;
    return bytes;
  }

 private:
  struct File {
    int64_t wanted = 0;  // bytes
    std::string content;
    int misread = -1;  // how often it was read although it is damaged; -1: it is not
  };
  class Files final : public StateFiles {
   public:
    explicit Files(FaultyDisk* disk) : disk_(disk) {}
    absl::Status Write(uint64_t number, absl::string_view bytes) override {
      File& file = disk_->files_[number];
      file.wanted = static_cast<int64_t>(bytes.size());
      file.content = std::string(bytes);
      const bool full = std::ssize(disk_->files_) > disk_->to_come_.max_files;
      if (!full && !disk_->Fails(disk_->to_come_.writes_one_in)) return absl::OkStatus();
      disk_->faults_ += full ? 1 : 0;
      const int how = full ? disk_->choices_->Below(2) : disk_->choices_->Below(4);
      if (how == 0) disk_->files_.erase(number);
      if (how == 1 || how == 2) file.content = disk_->Part(bytes);
      if (how == 3) file.content = disk_->Flipped(std::string(bytes));
      if (how > 1) {
        file.misread = 0;
        return absl::OkStatus();  // reports success
      }
      return absl::UnavailableError("the disk of the simulation takes no more");
    }
    absl::StatusOr<std::string> Read(uint64_t number) override {
      ++disk_->num_reads_;
      const auto found = disk_->files_.find(number);
      if (found == disk_->files_.end()) return absl::NotFoundError("no such file");
      const std::string& content = found->second.content;
      // States that share a segment read its file each for themselves.
      if (found->second.misread >= 0 && found->second.misread++ > 0) ++disk_->faults_;
      if (!disk_->Fails(disk_->to_come_.reads_one_in)) return content;
      switch (disk_->choices_->Below(4)) {
        case 0:
          return absl::UnavailableError("the disk of the simulation cannot be read");
        case 1:
          return disk_->Part(content);
        case 2:
          return disk_->files_.begin() == found ? disk_->files_.rbegin()->second.content
                                                : disk_->files_.begin()->second.content;
        default:
          return disk_->Flipped(content);
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

  bool Fails(int one_in) {
    const bool fails = one_in > 0 && choices_->OneIn(one_in);
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
  const Faults to_come_;
  std::map<uint64_t, File> files_;
  std::deque<std::function<void()>> reads_, others_;
  int64_t faults_ = 0, num_reads_ = 0, reads_ended_ = 0;
};

}  // namespace rivulet
