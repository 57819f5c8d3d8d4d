// SPDX-License-Identifier: Apache-2.0
// The command line of `rivulet batch`.
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/cli/options/option_parts.h"

namespace rivulet {

void AddBatch(CLI::App* app, BatchOptions* options, RawValues* raw) {
  app->add_option(
         "IN", options->in,
         "File of lines in OpenAI's batch form, or short: {\"custom_id\":...} with prompt, "
         "messages or score")
      ->check(PathGiven())
      ->required();
  app->add_option("OUT", options->out,
                  "File for the results, a line each; a run that was stopped continues it")
      ->check(PathGiven())
      ->required();
  AddTarget(app, &options->target);
  AddTenant(app, &options->target)->needs(app->get_option("--target"));
  app->add_flag("--unordered", options->unordered,
                "Write results as they come; default: in the order of IN");
  app->add_option(
         "--at-once", options->at_once,
         "Maximum number of lines in flight; default: twice the model's slots, 256 at least")
      ->check(CLI::Range(1, 100'000));
  app->add_option(
      "--give-up-after", raw->patience,
      "Seconds without a line that succeeds, after which the run ends with exit code 3; "
      "default 600");
  app->add_option(
      "--progress", raw->pause,
      "Where stderr is no terminal: seconds between lines of progress; 0: none; default "
      "60");
  app->add_flag("--fail-on-error", options->fail_on_error,
                "Fail, at the end, if the result of a line is an error");
  AddChatTemplate(app, &options->chat_template);
  AddCache(app, &options->cache);
  AddPriority(app, &options->priority);
  app->get_option("--priority")
      ->description("Order among the tenant's own requests: low (default), normal or high");
  AddSampling(app, &options->sampling, raw);
  app->get_option("--seed")->description(
      "Line N samples with seed + N, where it gives no seed; default: a random seed");
  app->add_option("--max-tokens", raw->max_tokens,
                  "Maximum number of tokens of a reply, where a line does not say");
}

absl::Status FinishBatch(const RawValues& raw, BatchOptions* options) {
  if (options->in == "-" || options->out == "-") {
    return Usage(
        "IN and OUT must be files, not \"-\": the same command reads both again to continue a "
        "batch");
  }
  if (absl::Status status = CheckTarget(&options->target); !status.ok()) return status;
  if (absl::Status status = FinishCache(options->cache); !status.ok()) return status;
  if (raw.patience.has_value()) {
    const absl::StatusOr<double> seconds = ParseSeconds(*raw.patience, "--give-up-after");
    if (!seconds.ok()) return seconds.status();
    options->give_up_seconds = *seconds;
  }
  double& pause = options->progress_seconds;
  if (raw.pause.has_value() &&
      !(absl::SimpleAtod(*raw.pause, &pause) && pause >= 0 && pause <= 1e6)) {
    return Usage(absl::StrCat("--progress must be 0 to 1e6 seconds; got \"", *raw.pause, "\""));
  }
  if (absl::Status status = ParseMaxTokens(raw, &options->max_tokens); !status.ok()) return status;
  return FinishSampling(raw, &options->sampling);
}

}  // namespace rivulet
