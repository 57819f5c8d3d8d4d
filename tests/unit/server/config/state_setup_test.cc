// SPDX-License-Identifier: Apache-2.0
#include "server/config/state_setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/fsuid.h>
#include <sys/stat.h>

#include <string>

#include "tests/support/random_model.h"

namespace rivulet {
namespace {

using ::testing::HasSubstr;

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

}  // namespace
}  // namespace rivulet
