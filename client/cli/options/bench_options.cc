// SPDX-License-Identifier: Apache-2.0
// The command line of `rivulet bench`.
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/options/option_parts.h"

namespace rivulet {
namespace {

constexpr int64_t kMost = 1'000'000'000;
// A server's default limit of streams for a connection.
constexpr int64_t kUsualStreams = 1000;

void AddSchedule(CLI::App* app, BenchOptions* options) {
  CLI::Option* const rate =
      AddNumber(app, "--rate", &options->rate, 1e-6, 1e6, "1e-6 to 1e6 requests/s",
                "Open loop: send this many requests per second, however long replies take");
  CLI::Option* const concurrency =
      app->add_option("--concurrency", options->concurrency,
                      "Closed loop: workers, each with one request at a time; default 1")
          ->check(CLI::Range(int64_t{1}, int64_t{100'000}))
          ->excludes(rate);
  AddNumber(app, "--think-ms", &options->think_ms, 0, 1e9, "0 to 1e9 milliseconds",
            "Closed loop: pause of a worker between two requests in milliseconds")
      ->excludes(rate);
  app->add_option_function<std::string>(
         "--arrivals", [options](const std::string& kind) { options->poisson = kind == "poisson"; },
         "Open loop: distribution of send times, poisson (default) or constant")
      ->check(CLI::IsMember({"poisson", "constant"}))
      ->needs(rate);
  app->add_option("--max-in-flight", options->max_in_flight,
                  "Open loop: maximum number of requests in flight; others wait; default 10000")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}))
      ->needs(rate)
      ->excludes(concurrency);
  app->add_option("--requests", options->requests, "Stop after this many measured requests")
      ->check(CLI::Range(int64_t{1}, kMost));
  AddSeconds(
      app, "--duration", &options->duration_seconds,
      "Stop sending after this many measured seconds; default 10, unless --requests is given");
  CLI::Option* const warmup = AddSeconds(app, "--warmup", &options->warmup_seconds,
                                         "Seconds at the start that are not measured");
  app->add_option("--warmup-requests", options->warmup_requests,
                  "Requests at the start that are not measured")
      ->check(CLI::Range(int64_t{1}, kMost))
      ->excludes(warmup);
  app->add_option("--connections", options->connections,
                  "Number of connections; default: one per 1000 requests in flight")
      ->check(CLI::Range(1, 10'000))
      ->needs(app->get_option("--target"));
  AddSeconds(app, "--deadline", &options->deadline_seconds,
             "Maximum duration of a request in seconds");
}

void AddWorkload(CLI::App* app, BenchOptions* options) {
  app->add_option_function<std::string>(
         "--kind", [options](const std::string& kind) { options->score = kind == "score"; },
         "Kind of request: generate (default) or score")
      ->check(CLI::IsMember({"generate", "score"}));
  CLI::Option_group* const prompt = app->add_option_group("Prompt", "The prompt, or what to score");
  Utf8(prompt->add_option("--prompt", options->prompt, "Text"));
  AddIds(prompt, "--tokens", &options->tokens, "Token ids: 1,2,3");
  prompt
      ->add_option("--prompt-length", options->prompt_length,
                   "Use this many random tokens, different for each request")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  prompt->require_option(0, 1);
  AddSampling(
      app, &options->sampling,
      "Seed of send times, prompts and sampling (request i samples with seed + i); default 1");
  AddCount(app, "--max-tokens", &options->max_tokens, "Maximum number of tokens of each reply");
  app->add_flag("--ignore-eos", options->ignore_eos, "Do not end at the model's end token");
}

// Score does not sample.
void CheckScore(const BenchOptions& options) {
  const SamplingOptions& s = options.sampling;
  const std::pair<const char*, bool> given[] = {
      {"--temperature", s.temperature.has_value()},
      {"--top-k", s.top_k.has_value()},
      {"--top-p", s.top_p.has_value()},
      {"--min-p", s.min_p.has_value()},
      {"--repetition-penalty", s.repetition_penalty.has_value()},
      {"--frequency-penalty", s.frequency_penalty.has_value()},
      {"--presence-penalty", s.presence_penalty.has_value()},
      {"--logit-bias", !s.logit_bias.empty()},
      {"--max-tokens", options.max_tokens.has_value()},
      {"--ignore-eos", options.ignore_eos},
  };
  for (const auto& [option, is_given] : given) {
    if (!is_given) continue;
    throw UsageError(
        absl::StrCat(option, " has no effect with --kind score, which does not sample"));
  }
  if (!options.prompt.has_value() && !options.tokens.has_value() && options.prompt_length == 0) {
    throw UsageError("--kind score requires --prompt, --tokens or --prompt-length");
  }
}

}  // namespace

void AddBench(CLI::App* app, BenchOptions* options) {
  options->connections = 0;  // not given
  AddTarget(app, &options->target);
  AddSchedule(app, options);
  AddWorkload(app, options);
  app->add_option("--json", options->json,
                  "Write every setting and result to this JSON file; -: stdout")
      ->check(PathGiven());
  app->add_option("--picture", options->picture, "Draw latency by percentile to this SVG file")
      ->check(PathGiven());
  app->add_flag("--fail-on-error", options->fail_on_error,
                "Fail if any request failed; otherwise the command fails only if all did");
}

void FinishBench(BenchOptions* options) {
  if (!options->requests.has_value() && !options->duration_seconds.has_value()) {
    options->duration_seconds = 10;
  }
  if (options->connections == 0) {
    const int64_t at_once = options->rate > 0 ? options->max_in_flight : options->concurrency;
    options->connections = options->target.target.empty()
                               ? 1
                               : static_cast<int>((at_once + kUsualStreams - 1) / kUsualStreams);
  }
  if (options->score) CheckScore(*options);
  if (!options->sampling.seed.has_value()) options->sampling.seed = 1;
}

}  // namespace rivulet
