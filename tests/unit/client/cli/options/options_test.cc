// SPDX-License-Identifier: Apache-2.0
#include "client/cli/options/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/unit/client/cli/options/parsed.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using testing::ExpectRefused;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Parsed;
using testing::Refusal;
using testing::Words;

TEST(OptionsTest, LoadAsksAServerAlone) {
  const auto options =
      Parsed<LoadOptions>({"load", "--target", "h:1", "--model-name", "m", "--json"});
  EXPECT_EQ(options.target.target, "h:1");
  EXPECT_EQ(options.target.model_name, "m");
  EXPECT_TRUE(options.json);
  EXPECT_THAT(Refusal({"load"}), HasSubstr("--target"));
  EXPECT_THAT(Refusal({"load", "--model", "d"}), HasSubstr("--target"));
}

TEST(OptionsTest, AWrongWordGetsASuggestion) {
  EXPECT_THAT(Refusal({"genrate"}),
              HasSubstr("unknown command \"genrate\"; did you mean generate?"));
  EXPECT_THAT(Refusal({"frobnicate"}), HasSubstr("unknown command \"frobnicate\"; choose one of"));
  EXPECT_THAT(Refusal({"sessions", "lst"}), HasSubstr("of sessions; did you mean list?"));
}

TEST(OptionsTest, AWrongFlagIsNamedBeforeAllElse) {
  EXPECT_THAT(Refusal(Words("score --modle d")),
              HasSubstr("unknown option --modle of score; did you mean --model?; "
                        "see rivulet score --help"));
  EXPECT_THAT(Refusal(Words("score --model d --input - --out f")),
              HasSubstr("unknown option --out of score; see"));
  EXPECT_THAT(Refusal(Words("sessions open --target h:1 --sed=7")),
              HasSubstr("unknown option --sed of sessions open; did you mean --seed?"));
  // Flags of groups.
  for (const auto& [wrong, meant] :
       {std::pair("generate --promt x", "--prompt"), std::pair("generate --tokenss 1", "--tokens"),
        std::pair("tokenize --textt x", "--text"), std::pair("score --inputt -", "--input"),
        std::pair("bench --promt x", "--prompt")}) {
    EXPECT_THAT(Refusal(Words(wrong)), HasSubstr(absl::StrCat("did you mean ", meant, "?")));
  }
  EXPECT_THAT(Refusal(Words("load --model d")),
              HasSubstr("unknown option --model of load; --target is required; see"));
  // What other programs call our flags.
  for (const auto& [wrong, meant] :
       {std::pair("generate -m d", "-m of generate; did you mean --model?"),
        std::pair("generate --model d -p x", "-p of generate; did you mean --prompt?"),
        std::pair("generate --model d -n 3",
                  "; did you mean --num-samples, --count or --max-tokens?"),
        std::pair("generate --model d --n 3", "; did you mean --num-samples or --count?"),
        std::pair("chat --model d -n 3", "-n of chat; did you mean --max-tokens?"),
        std::pair("models --host h --port 1", "--host of models; did you mean --target HOST:PORT?"),
        std::pair("score --model d --input - -p x", "unknown option -p of score; see")}) {
    EXPECT_THAT(Refusal(Words(wrong)), HasSubstr(meant));
  }
  // The value of a flag is no flag, whatever it looks like.
  const std::string refusal = Refusal({"generate", "--prompt", "--modle", "--seed"});
  EXPECT_THAT(refusal, HasSubstr("see rivulet generate --help"));
  EXPECT_THAT(refusal, Not(HasSubstr("unknown option")));
}

TEST(OptionsTest, ReadsAWholeBatchCommand) {
  const auto options = Parsed<BatchOptions>(
      Words("batch in out --target h:1 --unordered --at-once 7 --give-up-after 1.5 --progress 0 "
            "--fail-on-error --priority high --cache --cache-salt s --seed 3 --max-tokens 9 "
            "--temperature 0.5"));
  EXPECT_EQ(options.in, "in");
  EXPECT_EQ(options.out, "out");
  EXPECT_TRUE(options.unordered);
  EXPECT_EQ(options.at_once, 7);
  EXPECT_EQ(options.give_up_seconds, 1.5);
  EXPECT_EQ(options.progress_seconds, 0);
  EXPECT_TRUE(options.fail_on_error);
  EXPECT_EQ(options.priority, "high");
  EXPECT_TRUE(options.cache.enabled);
  EXPECT_EQ(options.sampling.seed, 3u);
  EXPECT_EQ(options.max_tokens, 9);
  EXPECT_EQ(Parsed<BatchOptions>(Words("batch in out --model d")).priority, "low");
  EXPECT_THAT(Refusal({"batch", "in", "--model", "d"}), HasSubstr("OUT"));
  for (const char* const files : {"batch in - --model d", "batch - out --model d"}) {
    EXPECT_THAT(Refusal(Words(files)), HasSubstr("IN and OUT must be files, not \"-\""));
  }
  EXPECT_THAT(Refusal(Words("batch in out --model d --progress -1")), HasSubstr("--progress"));
  EXPECT_THAT(Refusal(Words("batch in out --model d --give-up-after 0")),
              HasSubstr("--give-up-after"));
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
  const auto options = Parsed<GenerateOptions>(
      Words("generate --target localhost:50051 --model-name m --prompt ROMEO: --temperature 0.8 "
            "--top-k 40 --top-p 0.9 --min-p 0.1 --repetition-penalty 1.1 --frequency-penalty -0.5 "
            "--presence-penalty -1 --logit-bias 3:-1.5 5:0 --logit-bias 4:2 "
            "--seed 18446744073709551615 --num-samples 3 --max-tokens 10 --min-tokens 4 --stop a,b "
            "--stop c --stop-token 1,2 --json --logprobs --top-logprobs 5 --deadline 1.5 "
            "--no-resume --speculate 16"));
  EXPECT_EQ(options.target.target, "localhost:50051");
  EXPECT_EQ(options.target.model_name, "m");
  EXPECT_EQ(options.prompt, "ROMEO:");
  EXPECT_FLOAT_EQ(*options.sampling.temperature, 0.8f);
  EXPECT_EQ(options.sampling.top_k, 40);
  EXPECT_FLOAT_EQ(*options.sampling.frequency_penalty, -0.5f);
  EXPECT_FLOAT_EQ(*options.sampling.presence_penalty, -1.0f);
  EXPECT_THAT(options.sampling.logit_bias,
              ElementsAre(std::pair(3, -1.5f), std::pair(5, 0.0f), std::pair(4, 2.0f)));
  EXPECT_EQ(options.sampling.seed, UINT64_MAX);
  EXPECT_EQ(options.num_samples, 3);
  EXPECT_EQ(options.max_tokens, 10);
  EXPECT_EQ(options.min_tokens, 4);
  EXPECT_EQ(options.drafts, 16);
  EXPECT_THAT(options.stop, ElementsAre("a,b", "c"));
  EXPECT_THAT(options.stop_tokens, ElementsAre(1, 2));
  EXPECT_TRUE(options.json && options.logprobs);
  EXPECT_EQ(options.top_logprobs, 5);
  EXPECT_DOUBLE_EQ(*options.deadline_seconds, 1.5);
  EXPECT_FALSE(options.resume);
}

TEST(OptionsTest, DraftsAreOffOrANumberOrLeftToTheServer) {
  EXPECT_EQ(Parsed<GenerateOptions>(Words("generate --model d --speculate off")).drafts, 0);
  EXPECT_EQ(Parsed<ChatOptions>(Words("chat --model d --speculate 3")).drafts, 3);
  EXPECT_FALSE(Parsed<ChatOptions>(Words("chat --model d --speculate auto")).drafts.has_value());
  for (const char* const bad : {"17", "-1", "on", "1.5", ""}) {
    EXPECT_EQ(Refusal({"generate", "--model", "d", "--speculate", bad}),
              absl::StrCat("--speculate must be auto, off or an integer from 0 to 16; got \"", bad,
                           "\""));
  }
}

TEST(OptionsTest, TellsAnEmptyPromptFromNone) {
  EXPECT_EQ(Parsed<GenerateOptions>({"generate", "--model", "d", "--prompt", ""}).prompt, "");
  EXPECT_FALSE(Parsed<GenerateOptions>({"generate", "--model", "d"}).prompt.has_value());
  const auto empty = Parsed<GenerateOptions>({"generate", "--model", "d", "--tokens", ""});
  ASSERT_TRUE(empty.tokens.has_value());
  EXPECT_TRUE(empty.tokens->empty());
}

TEST(OptionsTest, TokenIdsHaveThirtyOneBits) {
  EXPECT_THAT(Parsed<DetokenizeOptions>(Words("detokenize --model d --tokens 0,2147483647")).tokens,
              ElementsAre(0, 2147483647));
  EXPECT_THAT(Refusal(Words("detokenize --model d --tokens 0,2147483648")),
              HasSubstr("--tokens: entry 1 must be an integer from 0 to 2147483647"));
}

TEST(OptionsTest, HelpIsShownWhateverAValueIs) {
  EXPECT_THAT(Parsed<ShowText>(Words("generate --seed -1 --help")).text, HasSubstr("--max-tokens"));
}

TEST(OptionsTest, ReadsImageValuesAsBytes) {
  const auto options = Parsed<GenerateOptions>(
      {"generate", "--model", "d", "--values", "0, 255", "--out", "x.png", "--count", "64"});
  EXPECT_EQ(options.values, std::string("\0\xff", 2));
  EXPECT_EQ(options.count, 64);
  EXPECT_EQ(options.columns, 8);
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
  EXPECT_EQ(Parsed<ScoreOptions>({"score", "--model", "d", "--text", "a", "--tail", "1"}).tail, 1);
}

TEST(OptionsTest, ACommandIsNeeded) {
  ExpectRefused({
      {"", {"no command given", "generate, chat, batch, score"}},
      {"bogus", {"\"bogus\"", "generate, chat, batch, score"}},
      {"sessions bogus", {"\"bogus\"", "sessions"}},
      {"models --target a:1 surplus", {"surplus"}},
      {"models health --target a:1", {}},
      {"generate --model d --nonsense 1", {"--nonsense"}},
  });
}

TEST(OptionsTest, ATargetIsHostAndPortOrADirectory) {
  for (const std::string command : {"generate", "models", "health"}) {
    ExpectRefused({
        {command, {"--target HOST:PORT", "RIVULET_TARGET", "--model DIR"}},
        {command + " --target a:1 --model d", {"--target", "--model", "--model-name"}},
        {command + " --model d --model-name m", {"--target"}},
        {command + " --target a:1 --backend cpu", {"--model"}},
        {command + " --target a:1 --model-name a\xff",
         {"--model-name is not valid UTF-8 at byte 1"}},
    });
  }
  ExpectRefused({
      {"models --target http://h:1", {"--target", "HOST:PORT", "--tls", "\"http://h:1\""}},
      {"models --target localhost", {"HOST:PORT", "\"localhost\""}},
      {"models --target localhost:", {"HOST:PORT"}},
      {"models --target :1", {"HOST:PORT"}},
      {"models --target a:0", {"HOST:PORT"}},
      {"models --target a:65536", {"HOST:PORT", "\"a:65536\""}},
      {"models --target a:x", {"HOST:PORT"}},
      {"models --target \xff:1", {"--target is not valid UTF-8"}},
      {"models --target a:1 --tls-ca ''", {"--tls-ca", "empty"}},
      {"models --model", {"--model"}},
  });
  EXPECT_EQ(Parsed<ModelsOptions>({"models", "--target", "[::1]:50051"}).target.target,
            "[::1]:50051");
}

TEST(OptionsTest, ScoreNamesTheOptionThatIsWrong) {
  ExpectRefused({
      {"score --model d", {}},
      {"score --model d --input a --idx b", {}},
      {"score --model d --input a --limit 2", {"--limit"}},
      {"score --model d --input a --tail 0.1", {"--tail"}},
      {"score --model d --text a --tail 0", {"--tail", "0"}},
      {"score --model d --text a --tail 1.5", {"--tail", "1.5"}},
      {"score --model d --input ''", {"--input", "empty"}},
      {"score --model d --idx ''", {"--idx", "empty"}},
      {"score --model d --text ''", {"--text", "empty"}},
      {"score --target a:1 --input - --model-name a\xff", {"--model-name is not valid UTF-8"}},
      {"score --model d --input - --window 0", {"--window"}},
      {"score --model d --input - --window 1.5", {"--window"}},
      {"score --model d --input - --outputs 1,-1", {"--outputs"}},
      {"score --model d --input - --outputs 1,,2", {"--outputs"}},
      {"score --model d --input - --outputs 0,x", {"--outputs"}},
      {"score --model d --input - --backend tpu", {"--backend"}},
      {"score --model d --input - --precision half", {"--precision"}},
  });
}

TEST(OptionsTest, GenerateNamesTheOptionThatIsWrong) {
  const std::string large = "99999999999999999999999";
  ExpectRefused({
      {"generate --model d --seed -1", {"--seed", "\"-1\""}},
      {"generate --model d --seed 99999999999999999999999", {"--seed", large}},
      {"generate --model d --max-tokens 99999999999999999999999", {"--max-tokens", large}},
      {"generate --model d --temperature warm", {"--temperature"}},
      {"generate --model d --tokens 1,two", {"--tokens"}},
      {"generate --model d --tokens 1 --prompt a", {"--prompt"}},
      {"generate --model d --values 256", {"--values"}},
      {"generate --model d --values-file ''", {"--values-file", "empty"}},
      {"generate --model d --logit-bias 3", {"--logit-bias"}},
      {"generate --model d --logit-bias 3:1 --logit-bias 4:1 --logit-bias 3:2",
       {"--logit-bias", "token 3"}},
      {"generate --model d --prompt \xff", {"--prompt is not valid UTF-8"}},
      {"generate --model d --stop a --stop \xc0", {"--stop is not valid UTF-8"}},
      {"generate --model d --logprobs --top-logprobs 2", {"--json"}},
      {"generate --model d --logprobs --count 2", {"--count excludes --logprobs"}},
      {"generate --model d --logprobs --out x.png", {"--logprobs", "--out"}},
      {"generate --model d --count 3 --json",
       {"--count excludes --json; --num-samples N gives N texts there"}},
      {"generate --target d:1 --count 3 --session s",
       {"--count excludes --session; --num-samples N gives N texts there"}},
      {"generate --model d --count 3 --num-samples 2",
       {"--count and --num-samples exclude each other", "each text as a line"}},
      {"generate --model d --out ''", {"--out", "empty"}},
      {"generate --model d --out x.png --count 0", {"--count"}},
      {"generate --model d --out x.png --columns 0", {"--columns"}},
      // What an image has no use for.
      {"generate --model d --out x.png --max-tokens 1", {"--max-tokens", "--out"}},
      {"generate --model d --out x.png --min-tokens 1", {"--min-tokens", "--out"}},
      {"generate --model d --out x.png --stop 1", {"--stop", "--out"}},
      {"generate --model d --out x.png --stop-token 1", {"--stop-token", "--out"}},
      {"generate --model d --out x.png --num-samples 1", {"--num-samples", "--out"}},
      {"generate --target a:1 --out x.png --session s", {"--session", "--out"}},
      {"generate --model d --tenant t", {"--target"}},
      {"generate --model d --session s", {"--target"}},
      {"generate --target a:1 --position 1", {"--session"}},
      {"generate --target a:1 --mark m", {"--session"}},
      {"generate --target a:1 --cookie c", {"--session"}},
  });
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
  const auto counted =
      Parsed<BenchOptions>(Words("bench --target h:1 --requests 5 --prompt-length 1"));
  EXPECT_FALSE(counted.duration_seconds.has_value());
  EXPECT_EQ(counted.prompt_length, 1);
}

TEST(BenchOptionsTest, ReadsAnOpenLoop) {
  const auto options = Parsed<BenchOptions>(
      Words("bench --target h:1 --rate 12.5 --arrivals constant --kind score --duration 0.5 "
            "--warmup 2 --seed 9 --json - --picture p.svg --prompt-length 7 --deadline 3 "
            "--max-in-flight 2500 --fail-on-error"));
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
  ExpectRefused({
      {"bench --target h:1 --rate 0", {"--rate", "\"0\""}},
      {"bench --target h:1 --rate nan", {"--rate", "\"nan\""}},
      {"bench --target h:1 --rate 1e7", {"--rate", "\"1e7\""}},
      {"bench --target h:1 --rate fast", {"--rate", "\"fast\""}},
      {"bench --target h:1 --rate 1 --concurrency 2", {"--rate", "--concurrency"}},
      {"bench --target h:1 --rate 1 --think-ms 2", {"--think-ms"}},
      {"bench --target h:1 --concurrency 0", {"--concurrency", "0"}},
      {"bench --target h:1 --think-ms -1", {"--think-ms", "\"-1\""}},
      {"bench --target h:1 --arrivals constant", {"--arrivals"}},
      {"bench --target h:1 --rate 1 --arrivals bursty", {"--arrivals", "bursty"}},
      {"bench --target h:1 --max-in-flight 5", {"--max-in-flight"}},
      {"bench --target h:1 --duration 0", {"--duration", "\"0\""}},
      {"bench --target h:1 --duration inf", {"--duration", "\"inf\""}},
      {"bench --target h:1 --warmup -2", {"--warmup", "\"-2\""}},
      {"bench --target h:1 --warmup 1 --warmup-requests 1", {"--warmup"}},
      {"bench --target h:1 --requests 0", {"--requests", "0"}},
      {"bench --target h:1 --connections 0", {"--connections", "0"}},
      {"bench --target h:1 --deadline 0", {"--deadline", "\"0\""}},
      {"bench --target h:1 --kind chat", {"--kind", "chat"}},
      {"bench --target h:1 --kind score", {"--kind score", "--prompt-length"}},
      {"bench --target h:1 --kind score --tokens 1 --temperature 1", {"--temperature"}},
      {"bench --target h:1 --kind score --tokens 1 --max-tokens 1", {"--max-tokens"}},
      {"bench --target h:1 --tokens 1,x", {"--tokens", "\"x\""}},
      {"bench --target h:1 --tokens 1 --prompt-length 3", {"--"}},
      {"bench --target h:1 --prompt-length 0", {"--prompt-length", "0"}},
      {"bench --target h:1 --seed -1", {"--seed", "\"-1\""}},
      {"bench --target h:1 --json ''", {"--json", "empty"}},
      {"bench --target h:1 --picture ''", {"--picture", "empty"}},
      {"bench --model d --connections 2", {"--connections"}},
  });
}

}  // namespace
}  // namespace rivulet
