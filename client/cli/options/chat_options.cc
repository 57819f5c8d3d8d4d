// SPDX-License-Identifier: Apache-2.0
// The command line of `rivulet chat`.
#include "client/cli/options/option_parts.h"

namespace rivulet {

void AddChat(CLI::App* app, ChatOptions* options, RawValues* raw) {
  AddTarget(app, &options->target);
  AddTenant(app, &options->target)->needs(app->get_option("--target"));
  AddChatTemplate(app, &options->chat_template);
  app->add_option("--system", options->system, "The system's message; default: none");
  AddSampling(app, &options->sampling, raw);
  app->add_option("--max-tokens", raw->max_tokens, "Maximum number of tokens of each answer");
  app->add_option("--stop", options->stop,
                  "End an answer when it would contain this text; repeatable; default: what the "
                  "template writes between an answer and the next question")
      ->expected(1)
      ->take_all();
  app->add_flag("--show-prompt", options->show_prompt,
                "Print what the template makes of the conversation before each answer");
  app->add_flag("--stats", options->stats, "Print counts and time after each answer");
}

absl::Status FinishChat(const RawValues& raw, ChatOptions* options) {
  if (absl::Status status = CheckTarget(&options->target); !status.ok()) return status;
  if (absl::Status status = CheckUtf8("--system", options->system); !status.ok()) return status;
  for (const std::string& stop : options->stop) {
    if (absl::Status status = CheckUtf8("--stop", stop); !status.ok()) return status;
  }
  if (absl::Status status = ParseMaxTokens(raw, &options->max_tokens); !status.ok()) return status;
  return FinishSampling(raw, &options->sampling);
}

}  // namespace rivulet
