// SPDX-License-Identifier: Apache-2.0
// The command line of `rivulet chat`.
#include "client/cli/options/option_parts.h"

namespace rivulet {

void AddChat(CLI::App* app, ChatOptions* options) {
  AddTarget(app, &options->target);
  AddTenant(app, &options->target)->needs(app->get_option("--target"));
  AddChatTemplate(app, &options->chat_template);
  Utf8(app->add_option("--system", options->system, "System prompt; default: none"));
  AddSampling(app, &options->sampling);
  AddCount(app, "--max-tokens", &options->max_tokens, "Maximum number of tokens of each answer");
  AddStop(app, &options->stop,
          "End an answer when it would contain this text; repeatable; default: what the "
          "template writes between an answer and the next question");
  AddSpeculate(app, &options->drafts);
  app->add_flag("--show-prompt", options->show_prompt,
                "Print the prompt that the template makes before each answer");
  app->add_flag("--stats", options->stats, "Print counts and time after each answer");
}

}  // namespace rivulet
