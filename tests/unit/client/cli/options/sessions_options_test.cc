// SPDX-License-Identifier: Apache-2.0
// The command lines of `rivulet sessions`, and of `rivulet models load` and `unload`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "client/cli/options/options.h"
#include "tests/unit/client/cli/options/parsed.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using testing::ExpectRefused;
using ::testing::HasSubstr;
using ::testing::Optional;
using testing::Refusal;

template <typename T>
T ParsedWithTarget(std::vector<std::string> args) {
  args.insert(args.end(), {"--target", "h:1"});
  return testing::Parsed<T>(args);
}

TEST(SessionsOptionsTest, EveryActionIsRead) {
  const auto action = [](std::vector<std::string> args) {
    args.insert(args.begin(), "sessions");
    return ParsedWithTarget<SessionsOptions>(args).action;
  };
  EXPECT_EQ(action({"open"}), SessionsAction::kOpen);
  EXPECT_EQ(action({"append", "s"}), SessionsAction::kAppend);
  EXPECT_EQ(action({"fork", "s"}), SessionsAction::kFork);
  EXPECT_EQ(action({"rewind", "s", "--position", "0"}), SessionsAction::kRewind);
  EXPECT_EQ(action({"snapshot", "s", "--out", "f"}), SessionsAction::kSnapshot);
  EXPECT_EQ(action({"restore", "--input", "f"}), SessionsAction::kRestore);
  EXPECT_EQ(action({"list"}), SessionsAction::kList);
  EXPECT_EQ(action({"close", "s"}), SessionsAction::kClose);
}

TEST(SessionsOptionsTest, EveryOptionIsRead) {
  const auto append = ParsedWithTarget<SessionsOptions>(
      {"sessions", "append", "abc", "--tokens", "1,2", "--position", "7", "--mark", "m", "--score",
       "--json", "--tenant", "t", "--cookie", "c", "--model-name", "n", "--sequence-hash",
       "00000000000000fF"});
  EXPECT_EQ(append.session.id, "abc");
  EXPECT_THAT(*append.tokens, ElementsAre(1, 2));
  EXPECT_THAT(append.session.position, Optional(7));
  EXPECT_EQ(append.session.mark, "m");
  EXPECT_EQ(append.session.cookie, "c");
  EXPECT_THAT(append.session.sequence_hash, Optional(255));
  EXPECT_TRUE(append.score && append.json);
  EXPECT_EQ(append.target.tenant, "t");
  EXPECT_EQ(append.target.model_name, "n");
  EXPECT_EQ(append.target.target, "h:1");
  const auto open = ParsedWithTarget<SessionsOptions>(
      {"sessions", "open", "--seed", "18446744073709551615", "--idle-timeout", "1.5"});
  EXPECT_THAT(open.seed, Optional(UINT64_MAX));
  EXPECT_THAT(open.idle_seconds, Optional(1.5));
  EXPECT_FALSE(open.json);
  EXPECT_THAT(ParsedWithTarget<SessionsOptions>({"sessions", "fork", "s", "--count", "256"}).count,
              Optional(256));
  EXPECT_EQ(ParsedWithTarget<SessionsOptions>({"sessions", "restore", "--input", "f"}).file, "f");
  const auto generate = ParsedWithTarget<GenerateOptions>(
      {"generate", "--session", "abc", "--position", "0", "--mark", "m", "--tenant", "t",
       "--sequence-hash", "ffffffffffffffff"});
  EXPECT_EQ(generate.session.id, "abc");
  EXPECT_THAT(generate.session.position, Optional(0));
  EXPECT_EQ(generate.session.mark, "m");
  EXPECT_THAT(generate.session.sequence_hash, Optional(UINT64_MAX));
  EXPECT_EQ(generate.target.tenant, "t");
}

TEST(SessionsOptionsTest, GenerateAndAppendShareThePromptCacheAndHavePriorities) {
  const std::vector<std::string> options = {"--cache", "--cache-salt",     "s",  "--cache-position",
                                            "9",       "--cache-position", "-1", "--priority",
                                            "high"};
  const auto check = [](const CacheOptions& cache, const std::string& priority) {
    EXPECT_TRUE(cache.enabled);
    EXPECT_EQ(cache.salt, "s");
    EXPECT_THAT(cache.positions, ElementsAre(9, -1));  // what they may be is the server's to say
    EXPECT_EQ(priority, "high");
  };
  std::vector<std::string> args = {"generate"};
  args.insert(args.end(), options.begin(), options.end());
  const auto generate = ParsedWithTarget<GenerateOptions>(args);
  check(generate.cache, generate.priority);
  args = {"sessions", "append", "abc"};
  args.insert(args.end(), options.begin(), options.end());
  const auto append = ParsedWithTarget<SessionsOptions>(args);
  check(append.cache, append.priority);
  EXPECT_FALSE(ParsedWithTarget<GenerateOptions>({"generate"}).cache.enabled);
  EXPECT_EQ(ParsedWithTarget<GenerateOptions>({"generate"}).priority, "");
  EXPECT_EQ(ParsedWithTarget<ScoreOptions>({"score", "--input", "-", "--priority", "low"}).priority,
            "low");
  EXPECT_EQ(ParsedWithTarget<GenerateOptions>({"generate", "--tenant", "t"}).target.tenant, "t");
  ExpectRefused({
      {"generate --target h:1 --cache-salt s", {"--cache"}},
      {"generate --target h:1 --cache-position 1", {"--cache"}},
      {"generate --target h:1 --cache --cache-position x", {"--cache-position"}},
      {"generate --target h:1 --cache --cache-salt \xff", {"--cache-salt"}},
      {"generate --target h:1 --priority urgent", {"--priority"}},
      {"generate --target h:1 --cache --out f.png", {"--cache"}},
  });
}

TEST(SessionsOptionsTest, BadFormIsRefusedWithTheOptionsName) {
  ExpectRefused({
      {"sessions open --seed -1 --target h:1", {"--seed"}},
      {"sessions open --idle-timeout 0 --target h:1", {"--idle-timeout"}},
      {"sessions append s --position -1 --target h:1", {"--position"}},
      {"sessions append s --mark \xff --target h:1", {"--mark"}},
      {"sessions append s --sequence-hash 12 --target h:1", {"--sequence-hash", "12"}},
      {"sessions append s --sequence-hash 0x12345678901234 --target h:1", {"--sequence-hash"}},
      {"sessions rewind s --position 1 --sequence-hash 0000000000000000 --target h:1",
       {"--sequence-hash"}},
      {"sessions append \xff --target h:1", {"SESSION"}},
      {"sessions append --target h:1", {"SESSION"}},
      {"sessions append s --values 256 --target h:1", {"--values"}},
      {"sessions fork s --count 0 --target h:1", {"--count"}},
      {"sessions fork s --mark m --target h:1", {"--mark"}},
      {"sessions rewind s --target h:1", {"--position or --mark"}},
      {"sessions rewind s --position 1 --mark m --target h:1", {"--mark"}},
      {"sessions snapshot s --target h:1", {"--out"}},
      {"sessions snapshot s --out '' --target h:1", {"--out"}},
      {"sessions restore --input '' --target h:1", {"--input"}},
      {"sessions list --model d --target h:1", {"--model"}},
      {"sessions append s --tokens 1 --prompt a --target h:1", {"--prompt"}},
      {"sessions append s --tokens x --target h:1", {"--tokens"}},
      {"sessions open --idle-timeout nan --target h:1", {"--idle-timeout"}},
      {"sessions fork s --count 257 --target h:1", {"--count"}},
      {"sessions rewind s --position -1 --target h:1", {"--position"}},
      {"sessions restore --target h:1", {"--input"}},
      {"sessions list --target nowhere", {"--target"}},
      {"sessions open", {"--target"}},
      {"sessions open --model d", {"--target"}},
      {"sessions", {"subcommand"}},
  });
}

TEST(ModelsOptionsTest, LoadAndUnloadAreRead) {
  const auto load = ParsedWithTarget<ModelsOptions>({"models", "load", "m", "--json"});
  EXPECT_EQ(load.action, ModelsAction::kLoad);
  EXPECT_EQ(load.name, "m");
  EXPECT_EQ(load.target.target, "h:1");
  EXPECT_TRUE(load.json);
  const auto unload =
      ParsedWithTarget<ModelsOptions>({"models", "unload", "m", "--drain-timeout", "0"});
  EXPECT_EQ(unload.action, ModelsAction::kUnload);
  EXPECT_THAT(unload.drain_seconds, Optional(0));
  EXPECT_EQ(ParsedWithTarget<ModelsOptions>({"models"}).action, ModelsAction::kList);
  EXPECT_THAT(Refusal({"models", "load", "--target", "h:1"}), HasSubstr("NAME"));
  EXPECT_THAT(Refusal({"models", "load", "m"}), HasSubstr("--target"));
  EXPECT_THAT(Refusal({"models", "load", "m", "--target", "h:1", "--drain-timeout", "1"}),
              HasSubstr("--drain-timeout"));
  EXPECT_NE(Refusal({"models", "remove", "m", "--target", "h:1"}), "accepted");
}

}  // namespace
}  // namespace rivulet
