// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/store/state_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <set>
#include <thread>

#include "model/base/error.h"
#include "tests/support/random_model.h"

namespace rivulet {
namespace {

namespace fs = std::filesystem;

class StateFilesTest : public ::testing::Test {
 protected:
  const testing::TempDir root_;
  const std::string path_ = root_.File("states");

  std::unique_ptr<StateFiles> Open() {
    auto files = OpenStateDirectory(path_);
    EXPECT_TRUE(files.ok()) << files.status();
    return files.ok() ? *std::move(files) : nullptr;
  }
  std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(path_)) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }
};

TEST_F(StateFilesTest, HoldsBytesInFilesThatOnlyTheOwnerMayRead) {
  const auto files = Open();
  const std::string bytes("a\0b", 3);
  ASSERT_TRUE(files->Write(1, bytes).ok());
  ASSERT_TRUE(files->Write(0xabc, std::string(3 << 20, 'x')).ok());
  EXPECT_EQ(*files->Read(1), bytes);
  EXPECT_EQ(files->Read(0xabc)->size(), 3u << 20);
  struct stat info = {};
  ASSERT_EQ(stat((path_ + "/0000000000000001.state").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  files->Remove(1);
  EXPECT_FALSE(files->Read(1).ok());
  EXPECT_FALSE(files->Write(0xabc, "y").ok()) << "a number is used once";
}

TEST_F(StateFilesTest, RemovesFilesOfADeadProcessAndItsOwnButNoOthers) {
  fs::create_directories(path_);
  for (const char* name : {"0000000000000007.state", "0123456789abcdef.state", "notes.txt",
                           "1.state", "000000000000000G.state"}) {
    std::ofstream(path_ + "/" + name) << "old";
  }
  auto files = Open();
  const std::set<std::string> others = {"1.state", "000000000000000G.state", "lock", "notes.txt"};
  EXPECT_EQ(Names(), others);
  ASSERT_TRUE(files->Write(7, "new").ok());
  EXPECT_EQ(*files->Read(7), "new");
  files = nullptr;
  EXPECT_EQ(Names(), others);
}

TEST_F(StateFilesTest, OneServerAtATimeUsesADirectory) {
  auto files = Open();
  ASSERT_TRUE(files->Write(1, "mine").ok());
  const auto second = OpenStateDirectory(path_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(GetErrorDetail(second.status()).reason, "STATE_DIR_BUSY");
  EXPECT_EQ(*files->Read(1), "mine") << "who is refused removes nothing";
  files = nullptr;
  EXPECT_TRUE(OpenStateDirectory(path_).ok());
}

TEST_F(StateFilesTest, WhatCannotBeADirectoryIsRefusedWithItsName) {
  std::ofstream(path_) << "a file";
  const auto file = OpenStateDirectory(path_);
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(file.status().message()), ::testing::HasSubstr(path_));
  EXPECT_EQ(OpenStateDirectory(path_ + "/below/it").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(StateFilesTest, AFileThatGrewOrIsNoFileIsAnError) {
  const auto files = Open();
  ASSERT_TRUE(files->Write(1, "1234").ok());
  std::ofstream(path_ + "/0000000000000001.state", std::ios::app) << "5";
  EXPECT_FALSE(files->Read(1).ok());
  fs::create_directory(path_ + "/0000000000000002.state");
  EXPECT_FALSE(files->Read(2).ok());
}

TEST_F(StateFilesTest, AFullDeviceIsAnErrorThatLeavesNoFile) {
  const auto files = Open();
  // Stands for a full device: the first part is written, the rest is an error.
  rlimit old = {};
  getrlimit(RLIMIT_FSIZE, &old);
  signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {1024, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const absl::Status status = files->Write(1, std::string(4096, 'x'));
  setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(Names(), (std::set<std::string>{"lock"}));
}

TEST(BackgroundThreadTest, DoesReadsFirstAndTheRestInItsOrder) {
  auto thread = StartBackgroundThread();
  std::promise<void> begun, go, done;
  std::vector<int> order;
  thread->Run(Background::Kind::kWrite, [&] {
    begun.set_value();
    go.get_future().wait();
  });
  begun.get_future().wait();
  thread->Run(Background::Kind::kWrite, [&] { order.push_back(2); });
  thread->Run(Background::Kind::kRemove, [&] { order.push_back(3); });
  thread->Run(Background::Kind::kWrite, [&] {
    order.push_back(4);
    done.set_value();
  });
  thread->Run(Background::Kind::kRead, [&] { order.push_back(1); });
  go.set_value();
  done.get_future().wait();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 4}));
}

TEST(BackgroundThreadTest, EndsAfterTheWorkThatHasBegun) {
  auto thread = StartBackgroundThread();
  std::promise<void> begun, go;
  bool ended = false;
  thread->Run(Background::Kind::kWrite, [&] {
    begun.set_value();
    go.get_future().wait();
    ended = true;
  });
  begun.get_future().wait();
  std::thread destroyer([&] { thread = nullptr; });
  go.set_value();
  destroyer.join();
  EXPECT_TRUE(ended);
}

}  // namespace
}  // namespace rivulet
