// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/dir/dir_state_archive.h"

#include <gmock/gmock.h>

#include <deque>
#include <filesystem>
#include <fstream>
#include <future>

#include "tests/support/archived_state.h"
#include "tests/support/random_model.h"
#include "tests/unit/server/sessions/state_archive_contract.h"

namespace rivulet {
namespace {

INSTANTIATE_TEST_SUITE_P(Dir, StateArchiveContract,
                         ::testing::Values(ArchiveCase{
                             "Dir",
                             [] {
                               auto directory = std::make_shared<testing::TempDir>();
                               return ArchiveCase::Open(
                                   [directory](const StateArchiveLimits& limits) {
                                     auto archive =
                                         OpenDirStateArchive(directory->path() + "/states", limits);
                                     EXPECT_TRUE(archive.ok()) << archive.status();
                                     return archive.ok() ? *std::move(archive) : nullptr;
                                   });
                             }}),
                         NameOfArchive);

TEST(DirStateArchiveTest, FilesOfOthersAreLeftAlone) {
  const testing::TempDir directory;
  const std::vector<std::string> names = {"keys", std::string(64, 'G'), std::string(64, 'a') + ".x",
                                          std::string(64, 'a') + "."};
  const auto year = std::filesystem::file_time_type::clock::now() - std::chrono::hours(24 * 365);
  for (const std::string& name : names) {
    std::ofstream(directory.File(name)) << std::string(1000, 'x');
    std::filesystem::last_write_time(directory.File(name), year);
  }
  const auto archive = *OpenDirStateArchive(directory.path(), {.max_bytes = 10});
  for (const char digit : {'1', '2'}) {
    std::promise<absl::StatusOr<int64_t>> put;
    archive->Put(Archived(std::string(64, digit), "12345678"), absl::Hours(1),
                 [&](const absl::StatusOr<int64_t>& written) { put.set_value(written); });
    EXPECT_EQ(put.get_future().get().value_or(-1), 8);
  }
  for (const std::string& name : names) {
    EXPECT_TRUE(std::filesystem::exists(directory.File(name))) << name;
  }
  EXPECT_FALSE(std::filesystem::exists(directory.File(std::string(64, '1')))) << "it made room";
}

TEST(DirStateArchiveTest, ADiskThatHangsHoldsUpNeitherCallsNorTheEnd) {
  const testing::TempDir directory;
  StateArchiveLimits limits;
  limits.call_time = absl::Seconds(2);  // a busy machine makes all calls within that
  auto archive = *OpenDirStateArchive(directory.path(), limits);
  std::deque<std::promise<absl::StatusOr<int64_t>>> puts;
  struct Disk {
    std::promise<void> go;  // the bytes can be written
    std::shared_future<void> goes = go.get_future();
  };
  const auto put = [&](char digit, const std::shared_ptr<Disk>& disk) {
    auto* const done = &puts.emplace_back();
    archive->Put(
        [digit, disk] {
          return ArchivedState{std::string(64, digit), 4, [disk] {
                                 disk->goes.wait();
                                 return std::string("1234");
                               }};
        },
        absl::Hours(1),
        [done](absl::StatusOr<int64_t> written) { done->set_value(std::move(written)); });
    return done->get_future();
  };
  // The second one is also that of a thread which outlives the test.
  const auto hangs = std::make_shared<Disk>(), hangs_again = std::make_shared<Disk>();
  auto running = put('1', hangs), waiting = put('2', hangs);
  EXPECT_TRUE(absl::IsUnavailable(running.get().status()));
  EXPECT_TRUE(absl::IsUnavailable(waiting.get().status()));
  EXPECT_TRUE(absl::IsUnavailable(put('3', hangs).get().status())) << "at once: it still hangs";
  std::promise<absl::StatusOr<std::string>> got;
  archive->Get(std::string(64, '9'),
               [&](absl::StatusOr<std::string> bytes) { got.set_value(std::move(bytes)); });
  EXPECT_EQ(got.get_future().get().value_or("?"), "") << "what is read waits for no write";
  hangs->go.set_value();
  while (!put('4', hangs).get().ok()) continue;  // until the first has ended
  EXPECT_EQ(put('1', hangs).get().value_or(-1), 0) << "it was written later";

  running = put('5', hangs_again);
  waiting = put('6', hangs);
  archive = nullptr;
  EXPECT_TRUE(absl::IsUnavailable(running.get().status()));
  EXPECT_TRUE(absl::IsUnavailable(waiting.get().status()));
}

TEST(DirStateArchiveTest, ADirectoryThatCannotBeUsedIsRefused) {
  const testing::TempDir directory;
  const auto missing = OpenDirStateArchive(directory.path() + "/a/b", {});
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(missing.status().message(), ::testing::HasSubstr(directory.path() + "/a/b"));
  std::ofstream(directory.path() + "/file") << "x";
  EXPECT_FALSE(OpenDirStateArchive(directory.path() + "/file", {}).ok());
}

}  // namespace
}  // namespace rivulet
