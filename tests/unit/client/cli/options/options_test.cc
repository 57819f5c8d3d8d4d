// SPDX-License-Identifier: Apache-2.0
#include "client/cli/options/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/unit/client/cli/options/parsed.h"

namespace rivulet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Parsed;
using testing::Refusal;

TEST(OptionsTest, LoadAsksAServerAlone) {
  const auto options =
      Parsed<LoadOptions>({"load", "--target", "h:1", "--model-name", "m", "--json"});
  EXPECT_EQ(options.target.target, "h:1");
  EXPECT_EQ(options.target.model_name, "m");
  EXPECT_TRUE(options.json);
  EXPECT_THAT(Refusal({"load"}), HasSubstr("--target"));
  EXPECT_THAT(Refusal({"load", "--model", "d"}), HasSubstr("--target"));
}

TEST(OptionsTest, ATargetIsNoUrlAndNeitherIsAModelDirectoryGivenToo) {
  EXPECT_THAT(
      Refusal({"models", "--target", "http://h:1"}),
      HasSubstr("--target must be HOST:PORT, with --tls for TLS; got the URL \"http://h:1\""));
  EXPECT_THAT(Refusal({"generate", "--target", "h:1", "--model", "d"}),
              AllOf(HasSubstr("exclude each other"), HasSubstr("--model-name")));
  EXPECT_THAT(Refusal({}), HasSubstr("no command given; choose one of generate, score"));
}

TEST(OptionsTest, ADrainMayBeLessThanASecond) {
  const auto seconds = [](const char* text) {
    return *Parsed<ModelsOptions>(
                {"models", "unload", "m", "--target", "h:1", "--drain-timeout", text})
                .drain_seconds;
  };
  EXPECT_EQ(seconds("0.2"), 0.2);
  EXPECT_EQ(seconds("0"), 0);
  EXPECT_EQ(seconds("86400"), 86400);
  for (const char* bad : {"-0.1", "86400.5", "nan", "inf", "", "1s"}) {
    EXPECT_THAT(Refusal({"models", "unload", "m", "--target", "h:1", "--drain-timeout", bad}),
                HasSubstr("--drain-timeout must be 0 to 86400 seconds; got"))
        << bad;
  }
}

TEST(OptionsTest, ReadsAWholeGenerateCommand) {
  const auto options = Parsed<GenerateOptions>({"generate",
                                                "--target",
                                                "localhost:50051",
                                                "--model-name",
                                                "m",
                                                "--prompt",
                                                "ROMEO:",
                                                "--temperature",
                                                "0.8",
                                                "--top-k",
                                                "40",
                                                "--top-p",
                                                "0.9",
                                                "--min-p",
                                                "0.1",
                                                "--repetition-penalty",
                                                "1.1",
                                                "--frequency-penalty",
                                                "-0.5",
                                                "--presence-penalty",
                                                "-1",
                                                "--logit-bias",
                                                "3:-1.5",
                                                "--logit-bias",
                                                "4:2",
                                                "--seed",
                                                "18446744073709551615",
                                                "--num-samples",
                                                "3",
                                                "--max-tokens",
                                                "10",
                                                "--stop",
                                                "a,b",
                                                "--stop",
                                                "c",
                                                "--stop-token",
                                                "1,2",
                                                "--json",
                                                "--logprobs",
                                                "--top-logprobs",
                                                "5",
                                                "--deadline",
                                                "1.5"});
  EXPECT_EQ(options.target.target, "localhost:50051");
  EXPECT_EQ(options.target.model_name, "m");
  EXPECT_EQ(options.prompt, "ROMEO:");
  EXPECT_FLOAT_EQ(*options.sampling.temperature, 0.8f);
  EXPECT_EQ(options.sampling.top_k, 40);
  EXPECT_FLOAT_EQ(*options.sampling.frequency_penalty, -0.5f);
  EXPECT_FLOAT_EQ(*options.sampling.presence_penalty, -1.0f);
  EXPECT_THAT(options.sampling.logit_bias, ElementsAre(std::pair(3, -1.5f), std::pair(4, 2.0f)));
  EXPECT_EQ(options.sampling.seed, UINT64_MAX);
  EXPECT_EQ(options.num_samples, 3);
  EXPECT_EQ(options.max_tokens, 10);
  EXPECT_THAT(options.stop, ElementsAre("a,b", "c"));
  EXPECT_THAT(options.stop_tokens, ElementsAre(1, 2));
  EXPECT_TRUE(options.json && options.logprobs);
  EXPECT_EQ(options.top_logprobs, 5);
  EXPECT_DOUBLE_EQ(*options.deadline_seconds, 1.5);
}

TEST(OptionsTest, TellsAnEmptyPromptFromNone) {
  EXPECT_EQ(Parsed<GenerateOptions>({"generate", "--model", "d", "--prompt", ""}).prompt, "");
  EXPECT_FALSE(Parsed<GenerateOptions>({"generate", "--model", "d"}).prompt.has_value());
  const auto empty = Parsed<GenerateOptions>({"generate", "--model", "d", "--tokens", ""});
  ASSERT_TRUE(empty.tokens.has_value());
  EXPECT_TRUE(empty.tokens->empty());
}

TEST(OptionsTest, ReadsImageValuesAsBytes) {
  const auto options = Parsed<GenerateOptions>(
      {"generate", "--model", "d", "--values", "0, 255", "--out", "x.png", "--count", "64"});
  EXPECT_EQ(options.values, std::string("\0\xff", 2));
  EXPECT_EQ(options.count, 64);
  EXPECT_EQ(options.columns, 8);
  EXPECT_THAT(Refusal({"generate", "--model", "d", "--values", "256"}), HasSubstr("--values"));
}

TEST(OptionsTest, ReadsAScoreCommand) {
  const auto options = Parsed<ScoreOptions>(
      {"score", "--model", "d", "--input", "-", "--outputs", "0,5", "--window", "512", "--backend",
       "cpu", "--precision", "float32", "--device", "1", "--threads", "2"});
  EXPECT_EQ(options.input, "-");
  EXPECT_THAT(options.outputs, ElementsAre(0, 5));
  EXPECT_EQ(options.window, 512);
  EXPECT_EQ(options.target.backend, "cpu");
  EXPECT_EQ(options.target.precision, "float32");
  EXPECT_EQ(options.target.device, 1);
  EXPECT_EQ(options.target.threads, 2);
}

TEST(OptionsTest, NeedsOneTarget) {
  for (const char* const command : {"generate", "models", "health"}) {
    EXPECT_THAT(Refusal({command}),
                HasSubstr("--target HOST:PORT (or RIVULET_TARGET) or --model DIR"));
    EXPECT_THAT(Refusal({command, "--target", "a:1", "--model", "d"}), HasSubstr("--model"));
    EXPECT_THAT(Refusal({command, "--model", "d", "--model-name", "m"}), HasSubstr("--target"));
    EXPECT_THAT(Refusal({command, "--target", "a:1", "--backend", "cpu"}), HasSubstr("--model"));
  }
}

TEST(OptionsTest, NeedsAPortInTheTarget) {
  for (const char* const target : {"localhost", "localhost:", ":1", "a:0", "a:65536", "a:x"}) {
    EXPECT_THAT(Refusal({"models", "--target", target}), HasSubstr("HOST:PORT")) << target;
  }
  EXPECT_EQ(Parsed<ModelsOptions>({"models", "--target", "[::1]:50051"}).target.target,
            "[::1]:50051");
}

TEST(OptionsTest, NeedsExactlyOneInputToScore) {
  EXPECT_NE(Refusal({"score", "--model", "d"}), "accepted");
  EXPECT_NE(Refusal({"score", "--model", "d", "--input", "a", "--idx", "b"}), "accepted");
  EXPECT_NE(Refusal({"score", "--model", "d", "--input", "a", "--limit", "2"}), "accepted");
  EXPECT_NE(Refusal({"score", "--model", "d", "--input", "a", "--tail", "0.1"}), "accepted");
}

TEST(OptionsTest, NamesTheOptionThatIsWrong) {
  const std::vector<std::string> score = {"score", "--model", "d", "--input", "-"};
  const auto with = [&](std::string option, std::string value) {
    std::vector<std::string> args = score;
    args.push_back(std::move(option));
    args.push_back(std::move(value));
    return Refusal(args);
  };
  EXPECT_THAT(with("--window", "0"), HasSubstr("--window"));
  EXPECT_THAT(with("--window", "1.5"), HasSubstr("--window"));
  EXPECT_THAT(with("--outputs", "1,-1"), HasSubstr("--outputs"));
  EXPECT_THAT(with("--outputs", "1,,2"), HasSubstr("--outputs"));
  EXPECT_THAT(with("--backend", "tpu"), HasSubstr("--backend"));
  EXPECT_THAT(with("--precision", "half"), HasSubstr("--precision"));
  EXPECT_THAT(with("--nonsense", "1"), HasSubstr("--nonsense"));
  EXPECT_THAT(Refusal({"generate", "--model", "d", "--seed", "-1"}), HasSubstr("--seed"));
  EXPECT_THAT(Refusal({"generate", "--model", "d", "--logit-bias", "3"}),
              HasSubstr("--logit-bias"));
  EXPECT_THAT(Refusal({"generate", "--model", "d", "--prompt", "\xff"}), HasSubstr("--prompt"));
  EXPECT_THAT(Refusal({"generate", "--model", "d", "--count", "3"}), HasSubstr("--out"));
  EXPECT_THAT(Refusal({"generate", "--model", "d", "--logprobs"}), HasSubstr("--json"));
}

TEST(OptionsTest, RefusesTextThatIsNotUtf8) {
  EXPECT_THAT(Refusal({"generate", "--target", "a:1", "--model-name", "a\xff"}),
              HasSubstr("--model-name is not valid UTF-8 at byte 1"));
  EXPECT_THAT(Refusal({"models", "--target", "\xff:1"}), HasSubstr("--target is not valid UTF-8"));
  EXPECT_THAT(Refusal({"generate", "--model", "d", "--stop", "a", "--stop", "\xc0"}),
              HasSubstr("--stop is not valid UTF-8"));
}

TEST(OptionsTest, ShowsNumbersThatAreTooLargeAsGiven) {
  const std::string large = "99999999999999999999999";
  EXPECT_THAT(Refusal({"generate", "--model", "d", "--max-tokens", large}),
              HasSubstr("--max-tokens must be an integer of 64 bits; got \"" + large + "\""));
  EXPECT_THAT(Refusal({"generate", "--model", "d", "--seed", large}),
              HasSubstr("--seed must be an integer from 0 to 2^64-1; got \"" + large + "\""));
}

TEST(OptionsTest, NeedsADeadlineThatEnds) {
  for (const char* const seconds : {"0", "-1", "inf", "nan", "1e10", "1e999", "soon", ""}) {
    EXPECT_EQ(
        Refusal({"generate", "--model", "d", "--deadline", seconds}),
        absl::StrCat("--deadline must be above 0 and at most 1e9 seconds; got \"", seconds, "\""));
    EXPECT_THAT(Refusal({"health", "--model", "d", "--deadline", seconds}),
                HasSubstr("--deadline must be above 0"));
  }
  EXPECT_EQ(
      Parsed<GenerateOptions>({"generate", "--model", "d", "--deadline", "1e9"}).deadline_seconds,
      1e9);
  EXPECT_EQ(Parsed<HealthOptions>({"health", "--model", "d", "--deadline", "0.5"}).deadline_seconds,
            0.5);
}

TEST(OptionsTest, RefusesTwoBiasesOfOneToken) {
  EXPECT_THAT(Refusal({"generate", "--model", "d", "--logit-bias", "3:1", "--logit-bias", "4:1",
                       "--logit-bias", "3:2"}),
              HasSubstr("--logit-bias names token 3 twice"));
}

TEST(OptionsTest, RefusesAnEmptyPath) {
  EXPECT_THAT(Refusal({"generate", "--model", "d", "--out", ""}),
              HasSubstr("--out: the path must not be empty"));
  EXPECT_THAT(Refusal({"generate", "--model", "d", "--values-file", ""}),
              HasSubstr("--values-file: the path must not be empty"));
  EXPECT_THAT(Refusal({"models", "--target", "a:1", "--tls-ca", ""}),
              HasSubstr("--tls-ca: the path must not be empty"));
  for (const char* const input : {"--input", "--idx", "--text"}) {
    EXPECT_THAT(Refusal({"score", "--model", "d", input, ""}),
                HasSubstr(absl::StrCat(input, ": the path must not be empty")));
  }
}

TEST(OptionsTest, RefusesWhatAnImageHasNoUseFor) {
  for (const char* const option : {"--max-tokens", "--stop", "--stop-token", "--num-samples"}) {
    EXPECT_THAT(Refusal({"generate", "--model", "d", "--out", "x.png", option, "1"}),
                AllOf(HasSubstr(option), HasSubstr("--out")));
  }
}

TEST(OptionsTest, RefusesWhatIsNoCommand) {
  EXPECT_NE(Refusal({}), "accepted");
  EXPECT_THAT(Refusal({"bogus"}),
              HasSubstr("unknown command \"bogus\"; choose one of generate, score, tokenize"));
  EXPECT_THAT(Refusal({"models", "--target", "a:1", "surplus"}), HasSubstr("surplus"));
  EXPECT_NE(Refusal({"models", "health", "--target", "a:1"}), "accepted");
}

TEST(OptionsTest, ShowsHelpAndVersion) {
  EXPECT_THAT(Parsed<ShowText>({"--help"}).text, HasSubstr("score"));
  EXPECT_THAT(Parsed<ShowText>({"score", "--help"}).text, HasSubstr("--window"));
  EXPECT_THAT(Parsed<ShowText>({"--version"}).text, HasSubstr("rivulet "));
}

TEST(BenchOptionsTest, DefaultsToAClosedLoopOfOneForTenSeconds) {
  const auto options = Parsed<BenchOptions>({"bench", "--target", "h:1"});
  EXPECT_EQ(options.rate, 0);
  EXPECT_EQ(options.concurrency, 1);
  EXPECT_EQ(options.duration_seconds, 10);
  EXPECT_FALSE(options.requests.has_value());
  EXPECT_EQ(options.connections, 1);
  EXPECT_EQ(options.sampling.seed, 1u);
  EXPECT_FALSE(
      Parsed<BenchOptions>({"bench", "--target", "h:1", "--requests", "5"}).duration_seconds);
}

TEST(BenchOptionsTest, ReadsAnOpenLoop) {
  const auto options = Parsed<BenchOptions>(
      {"bench",    "--target",        "h:1",   "--rate",     "12.5", "--arrivals",
       "constant", "--kind",          "score", "--duration", "0.5",  "--warmup",
       "2",        "--seed",          "9",     "--json",     "-",    "--picture",
       "p.svg",    "--prompt-length", "7",     "--deadline", "3",    "--max-in-flight",
       "2500",     "--fail-on-error"});
  EXPECT_EQ(options.rate, 12.5);
  EXPECT_FALSE(options.poisson);
  EXPECT_TRUE(options.score);
  EXPECT_EQ(options.duration_seconds, 0.5);
  EXPECT_EQ(options.warmup_seconds, 2);
  EXPECT_EQ(options.sampling.seed, 9u);
  EXPECT_EQ(options.json, "-");
  EXPECT_EQ(options.picture, "p.svg");
  EXPECT_EQ(options.prompt_length, 7);
  EXPECT_EQ(options.deadline_seconds, 3);
  EXPECT_EQ(options.connections, 3);  // 1000 in flight on each
  EXPECT_TRUE(options.fail_on_error);
}

TEST(BenchOptionsTest, RefusesWhatCannotBeNamingOptionAndValue) {
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> cases = {
      {{"--rate", "0"}, {"--rate", "\"0\""}},
      {{"--rate", "nan"}, {"--rate", "\"nan\""}},
      {{"--rate", "1e7"}, {"--rate", "\"1e7\""}},
      {{"--rate", "fast"}, {"--rate", "\"fast\""}},
      {{"--rate", "1", "--concurrency", "2"}, {"--rate", "--concurrency"}},
      {{"--rate", "1", "--think-ms", "2"}, {"--think-ms"}},
      {{"--concurrency", "0"}, {"--concurrency", "0"}},
      {{"--think-ms", "-1"}, {"--think-ms", "\"-1\""}},
      {{"--arrivals", "constant"}, {"--arrivals"}},
      {{"--rate", "1", "--arrivals", "bursty"}, {"--arrivals", "bursty"}},
      {{"--max-in-flight", "5"}, {"--max-in-flight"}},
      {{"--duration", "0"}, {"--duration", "\"0\""}},
      {{"--duration", "inf"}, {"--duration", "\"inf\""}},
      {{"--warmup", "-2"}, {"--warmup", "\"-2\""}},
      {{"--warmup", "1", "--warmup-requests", "1"}, {"--warmup"}},
      {{"--requests", "0"}, {"--requests", "0"}},
      {{"--connections", "0"}, {"--connections", "0"}},
      {{"--deadline", "0"}, {"--deadline", "\"0\""}},
      {{"--kind", "chat"}, {"--kind", "chat"}},
      {{"--kind", "score"}, {"--kind score", "--prompt-length"}},
      {{"--kind", "score", "--tokens", "1", "--temperature", "1"}, {"--temperature"}},
      {{"--kind", "score", "--tokens", "1", "--max-tokens", "1"}, {"--max-tokens"}},
      {{"--tokens", "1,x"}, {"--tokens", "\"x\""}},
      {{"--tokens", "1", "--prompt-length", "3"}, {"--"}},
      {{"--prompt-length", "0"}, {"--prompt-length", "0"}},
      {{"--seed", "-1"}, {"--seed", "\"-1\""}},
      {{"--json", ""}, {"--json", "empty"}},
      {{"--picture", ""}, {"--picture", "empty"}},
  };
  for (const auto& [args, mentions] : cases) {
    std::vector<std::string> command = {"bench", "--target", "h:1"};
    command.insert(command.end(), args.begin(), args.end());
    const std::string refusal = Refusal(command);
    for (const std::string& mention : mentions) EXPECT_THAT(refusal, HasSubstr(mention));
  }
  EXPECT_THAT(Refusal({"bench", "--model", "d", "--connections", "2"}), HasSubstr("--connections"));
}

}  // namespace
}  // namespace rivulet
