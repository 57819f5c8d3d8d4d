// SPDX-License-Identifier: Apache-2.0
#include "server/start/state_setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/fsuid.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <string>

#include "server/start/seal_key_file.h"
#include "tests/support/random_model.h"

namespace rivulet {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The calling thread touches files as a user who owns none of them.
class AsNobody {
 public:
  AsNobody() : own_(setfsuid(65534)) {}
  ~AsNobody() { setfsuid(static_cast<uid_t>(own_)); }

 private:
  const int own_;
};

TEST(StateSetupTest, AStateDirectoryThatCannotBeMadeIsNamedWithTheReason) {
  const testing::TempDir directory;
  const std::string& parent = directory.path();
  ASSERT_EQ(chmod(parent.c_str(), 0555), 0);
  ServerConfig config;
  config.state_dir = parent + "/states";
  absl::Status status;
  {
    const AsNobody nobody;
    status = OpenDiskTier(config, "model").status();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()),
            "state-dir: " + config.state_dir + " cannot be made: Permission denied");
  config.state_dir = parent + "/absent/states";
  EXPECT_THAT(std::string(OpenDiskTier(config, "model").status().message()),
              HasSubstr(config.state_dir + " cannot be made: No such file or directory"));
}

TEST(StateSetupTest, PublishedStatesLieWhereTheSettingSays) {
  const testing::TempDir directory;
  ServerConfig config;
  EXPECT_EQ(*OpenStateArchive(config, nullptr), nullptr) << "no store";
  config.session_states = "dir:" + directory.path() + "/elsewhere";
  EXPECT_THAT(std::string(OpenStateArchive(config, nullptr).status().message()),
              HasSubstr("it needs a session-store"));
  config.session_store = "dir:" + directory.path();
  EXPECT_NE(*OpenStateArchive(config, nullptr), nullptr);
  EXPECT_TRUE(std::filesystem::is_directory(directory.path() + "/elsewhere"));
  config.session_states = "store";
  EXPECT_NE(*OpenStateArchive(config, nullptr), nullptr);
  EXPECT_TRUE(std::filesystem::is_directory(directory.path() + "/states"));
  config.session_states = "none";
  EXPECT_EQ(*OpenStateArchive(config, nullptr), nullptr);
  config.session_states = "redis";
  EXPECT_EQ(OpenStateArchive(config, nullptr).status().message(),
            "session-states is \"redis\"; allowed: store, none and dir:PATH");
}

TEST(StateSetupTest, AStoreIsEncryptedWhereThereAreKeys) {
  const testing::TempDir directory;
  const auto sealer =
      std::make_shared<const Sealer>(SealKeys{{{"k", std::string(32, 'k')}}, std::string(32, 's')});
  ServerConfig config;
  EXPECT_EQ(*OpenSessionStore(config, sealer), nullptr);
  config.session_store = "dir:" + directory.File("store");
  StoreWrite write;
  write.session = "session";
  write.record = {std::string(16, 'c'), "a readable record"};
  write.expiry = absl::Hours(1);
  const auto read = [&](const std::shared_ptr<const Sealer>& with) {
    const auto store = OpenSessionStore(config, with);
    EXPECT_TRUE(store.ok()) << store.status();
    std::promise<std::string> bytes;
    if (with != nullptr) (*store)->Write(write, [](const auto&) {});
    (*store)->Read("session", [&](const auto& answer) { bytes.set_value(answer->found.bytes); });
    return bytes.get_future().get();
  };
  EXPECT_EQ(read(sealer), "a readable record");
  EXPECT_THAT(read(nullptr), Not(HasSubstr("readable")));
}

TEST(SealKeyFileTest, AChangedFileIsUsedUnlessItCannotBe) {
  const testing::TempDir directory;
  const std::string path = directory.File("keys");
  const std::string store = "store " + std::string(64, '0') + "\n";
  const auto write = [&](const std::string& text) { std::ofstream(path) << text; };
  write(store + "old " + std::string(64, '1'));
  const auto file = SealKeyFile::Create(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto sealed = [&] { return (*file)->sealer()->Seal("", ""); };
  write(store + "new " + std::string(64, '1') + "\nold " + std::string(64, '1'));
  EXPECT_THAT(sealed(), HasSubstr("old"));
  (*file)->Look(false);
  EXPECT_THAT(sealed(), HasSubstr("new"));
  write("nothing of use");
  (*file)->Look(false);
  EXPECT_THAT(sealed(), HasSubstr("new"));
  write("store " + std::string(64, '2') + "\nnext " + std::string(64, '1'));
  (*file)->Look(true);
  EXPECT_THAT(sealed(), HasSubstr("new")) << "the line store may not change";
}

}  // namespace
}  // namespace rivulet
