// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

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
