// SPDX-License-Identifier: Apache-2.0
#include "client/cli/options/help_groups.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
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
      {"Length", {"--max-tokens", "--min-tokens", "--stop", "--stop-token", "--ignore-eos"}},
      {"Form", {"--json-schema", "--regex", "--choices"}},
      {"Output",
       {"--json", "--logprobs", "--top-logprobs", "--out", "--columns", "--picture", "--outputs",
        "--count", "--show-prompt", "--stats", "--unordered", "--progress"}},
      {"Call", {"--tenant", "--priority", "--deadline", "--no-resume", "--speculate"}},
      {"Load",
       {"--kind", "--rate", "--concurrency", "--think-ms", "--arrivals", "--max-in-flight",
        "--requests", "--duration", "--warmup", "--warmup-requests", "--connections"}},
      {"Limits of the key",
       {"--requests-per-minute", "--tokens-per-minute", "--text-bytes-per-minute", "--slots",
        "--sessions"}},
  };
  return *groups;
}

// What follows "rivulet " in an example of each command.
const std::map<std::string, const char*>& Examples() {
  static const auto* examples = new std::map<std::string, const char*>{
      {"generate", "generate --model DIR --prompt \"Once upon a time\" --max-tokens 100 --seed 1"},
      {"chat", "chat --model DIR --system \"You are a pirate.\""},
      {"batch", "batch --model DIR requests.jsonl answers.jsonl"},
      {"score", "score --model DIR --text book.txt --window 512"},
      {"tokenize", "tokenize --model DIR --text \"To be\""},
      {"detokenize", "detokenize --model DIR --tokens 12,7"},
      {"bench", "bench --model DIR --concurrency 32 --duration 60"},
      {"models", "models --target 127.0.0.1:50051"},
      {"sessions", "sessions open --target 127.0.0.1:50051 --seed 7"},
      {"load", "load --target 127.0.0.1:50051"},
      {"keys", "keys new alice --keys-file keys.json --tenant team-a"},
      {"quantize", "quantize DIR OUT --weights int8 --check book.txt --window 512"},
      {"log-level", "log-level debug --target 127.0.0.1:50052"},
      {"health", "health --target 127.0.0.1:50051"},
  };
  return *examples;
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
  std::string text = absl::StrReplaceAll(app.help(), {{"\n\n\n", "\n\n"}});
  const auto is_command = [](const CLI::App* sub) {
    return sub->parsed() && !sub->get_name().empty();
  };
  for (const CLI::App* const command : app.get_subcommands(is_command)) {
    const auto example = Examples().find(command->get_name());
    if (example == Examples().end()) continue;
    text.insert(text.find('\n') + 1, absl::StrCat("Example: rivulet ", example->second, "\n"));
  }
  return text;
}

}  // namespace rivulet
