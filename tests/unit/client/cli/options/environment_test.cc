// SPDX-License-Identifier: Apache-2.0
#include "client/cli/options/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "client/cli/options/options.h"

namespace rivulet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Args = std::vector<std::string>;

class EnvironmentTest : public ::testing::Test {
 protected:
  ~EnvironmentTest() override { Set(nullptr, nullptr); }

  static void Set(const char* target, const char* model) {
    for (const auto& [name, value] :
         {std::pair("RIVULET_TARGET", target), std::pair("RIVULET_MODEL", model)}) {
      value == nullptr ? unsetenv(name) : setenv(name, value, 1);
    }
  }
  static Args Completed(const Args& args) { return WithEnvironment(args).args; }
};

TEST_F(EnvironmentTest, SparesTargetAndModelName) {
  Set("h:1", "m");
  EXPECT_THAT(Completed({"generate", "--prompt", "a"}),
              ElementsAre("generate", "--model-name=m", "--target=h:1", "--prompt", "a"));
  EXPECT_THAT(Completed({"sessions", "close", "id"}),
              ElementsAre("sessions", "close", "--model-name=m", "--target=h:1", "id"));
  for (const char* command : {"score", "bench", "chat", "tokenize", "detokenize"}) {
    EXPECT_THAT(Completed({command}), ElementsAre(command, "--model-name=m", "--target=h:1"));
  }
  // These are about all models where none is named.
  for (const char* command : {"models", "load", "health"}) {
    EXPECT_THAT(Completed({command}), ElementsAre(command, "--target=h:1"));
  }
}

TEST_F(EnvironmentTest, GivesWayToTheCommandLine) {
  Set("h:1", "m");
  EXPECT_THAT(Completed({"generate", "--target", "g:2"}),
              ElementsAre("generate", "--model-name=m", "--target", "g:2"));
  EXPECT_THAT(Completed({"generate", "--target=g:2", "--model-name=n"}),
              ElementsAre("generate", "--target=g:2", "--model-name=n"));
  EXPECT_THAT(Completed({"generate", "--model-name", "n"}),
              ElementsAre("generate", "--target=h:1", "--model-name", "n"));
  for (const Args& local : {Args{"generate", "--model", "d"}, Args{"bench", "--model=d"}}) {
    EXPECT_EQ(Completed(local), local);
  }
}

TEST_F(EnvironmentTest, LeavesTheRestAlone) {
  Set("h:1", "m");
  for (const Args& args : {Args{}, Args{"--help"}, Args{"bogus"}, Args{"models", "load", "m"},
                           Args{"models", "unload", "m"}, Args{"log-level"}}) {
    EXPECT_EQ(Completed(args), args);
  }
  for (const char* empty : {"", static_cast<const char*>(nullptr)}) {
    Set(empty, empty);
    EXPECT_THAT(Completed({"generate"}), ElementsAre("generate"));
  }
  Set(nullptr, "m");  // a model's name alone says nothing
  EXPECT_THAT(Completed({"generate"}), ElementsAre("generate"));
}

TEST_F(EnvironmentTest, AnErrorSaysWhatWasAdded) {
  Set("http://h:1", "m");
  const Args args = {"generate"};
  EXPECT_THAT(std::string(ParseCommandLine(args).status().message()),
              AllOf(HasSubstr("got the URL"), HasSubstr("--target=http://h:1 (RIVULET_TARGET)"),
                    HasSubstr("--model-name=m (RIVULET_MODEL)")));
  Set(nullptr, nullptr);
  EXPECT_THAT(std::string(ParseCommandLine(args).status().message()),
              AllOf(HasSubstr("(or RIVULET_TARGET)"), Not(HasSubstr("the environment added"))));
}

}  // namespace
}  // namespace rivulet
