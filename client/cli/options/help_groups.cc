// SPDX-License-Identifier: Apache-2.0
#include "client/cli/options/help_groups.h"

#include <string>
#include <vector>

#include "absl/strings/str_replace.h"

namespace rivulet {
namespace {

struct HelpGroup {
  const char* title;
  std::vector<std::string> flags;
};

const std::vector<HelpGroup>& HelpGroups() {
  static const auto* groups = new std::vector<HelpGroup>{
      {"Server",
       {"--target", "--tls", "--tls-ca", "--tls-cert", "--tls-key", "--tls-server-name",
        "--key-file"}},
      {"Model",
       {"--model", "--model-name", "--backend", "--precision", "--weights", "--max-context",
        "--kv-cache", "--device", "--threads"}},
      {"Text", {"--add-special-tokens", "--parse-special-tokens", "--chat-template", "--system"}},
      {"Session", {"--session", "--position", "--mark", "--cookie", "--sequence-hash"}},
      {"Prompt cache", {"--cache", "--cache-salt", "--cache-position"}},
      {"Sampling",
       {"--temperature", "--top-k", "--top-p", "--min-p", "--repetition-penalty",
        "--frequency-penalty", "--presence-penalty", "--logit-bias", "--seed", "--num-samples"}},
      {"Length", {"--max-tokens", "--stop", "--stop-token", "--ignore-eos"}},
      {"Output",
       {"--json", "--logprobs", "--top-logprobs", "--out", "--columns", "--picture", "--outputs",
        "--show-prompt", "--stats", "--unordered", "--progress"}},
      {"Load",
       {"--kind", "--rate", "--concurrency", "--think-ms", "--arrivals", "--max-in-flight",
        "--requests", "--duration", "--warmup", "--warmup-requests", "--connections"}},
      {"Limits of the key",
       {"--requests-per-minute", "--tokens-per-minute", "--text-bytes-per-minute", "--slots",
        "--sessions"}},
  };
  return *groups;
}

}  // namespace

void GroupFlags(CLI::App* app) {
  for (const HelpGroup& group : HelpGroups()) {
    for (const std::string& flag : group.flags) {
      if (CLI::Option* const option = app->get_option_no_throw(flag)) option->group(group.title);
    }
  }
  const auto is_command = [](const CLI::App* sub) { return !sub->get_name().empty(); };
  for (CLI::App* const command : app->get_subcommands(is_command)) GroupFlags(command);
}

std::string HelpText(const CLI::App& app) {
  return absl::StrReplaceAll(app.help(), {{"\n\n\n", "\n\n"}});
}

}  // namespace rivulet
