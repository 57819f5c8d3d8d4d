// SPDX-License-Identifier: Apache-2.0
// The command line of `rivulet batch`.
#include "client/cli/options/option_parts.h"

namespace rivulet {
namespace {

void RefuseStream(const std::string& path) {
  if (path != "-") return;
  throw UsageError(
      "IN and OUT must be files, not \"-\": the same command reads both again to continue a batch");
}

}  // namespace

void AddBatch(CLI::App* app, BatchOptions* options) {
  app->add_option(
         "IN", options->in,
         "File of lines in OpenAI's batch form, or short: {\"custom_id\":...} with prompt, "
         "messages or score")
      ->check(PathGiven())
      ->each(RefuseStream)
      ->required();
  app->add_option("OUT", options->out,
                  "File for the results, a line each; a run that was stopped continues it")
      ->check(PathGiven())
      ->each(RefuseStream)
      ->required();
  AddTarget(app, &options->target);
  AddTenant(app, &options->target)->needs(app->get_option("--target"));
  app->add_flag("--unordered", options->unordered,
                "Write results as they come; default: in the order of IN");
  app->add_option(
         "--at-once", options->at_once,
         "Maximum number of lines in flight; default: twice the model's slots, 256 at least")
      ->check(CLI::Range(1, 100'000));
  AddSeconds(app, "--give-up-after", &options->give_up_seconds,
             "Seconds without a line that succeeds, after which the run ends with exit code 3; "
             "default 600");
  AddNumber(app, "--progress", &options->progress_seconds, 0, 1e6, "0 to 1e6 seconds",
            "Where stderr is no terminal: seconds between lines of progress; 0: none; default 60");
  app->add_flag("--fail-on-error", options->fail_on_error,
                "Fail, at the end, if the result of a line is an error");
  AddChatTemplate(app, &options->chat_template);
  AddCache(app, &options->cache);
  AddPriority(app, &options->priority,
              "Order among the tenant's own requests: low (default), normal or high");
  AddSampling(app, &options->sampling,
              "Line N samples with seed + N, where it gives no seed; default: a random seed");
  AddCount(app, "--max-tokens", &options->max_tokens,
           "Maximum number of tokens of a reply, where a line does not say");
}

}  // namespace rivulet
