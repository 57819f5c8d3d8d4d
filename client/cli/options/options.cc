// SPDX-License-Identifier: Apache-2.0
#include "client/cli/options/options.h"

#include <memory>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/options/environment.h"
#include "client/cli/options/help_groups.h"
#include "client/cli/options/option_parts.h"
#include "client/cli/output/text.h"
#include "model/base/suggestion.h"

namespace rivulet {
namespace {

void AddConstraint(CLI::App* app, ConstraintOptions* constraint) {
  CLI::Option_group* const form = app->add_option_group("Form", "What the text must be");
  form->add_option("--json-schema", constraint->json_schema,
                   "JSON that satisfies the JSON schema in this file")
      ->check(PathGiven());
  Utf8(form->add_option("--regex", constraint->regex,
                        "Text that this regular expression matches as a whole"));
  Utf8(form->add_option("--choices", constraint->choices, "Text that is one of these: A,B"))
      ->delimiter(',');
  form->require_option(0, 1);
}

void AddGenerate(CLI::App* app, GenerateOptions* options) {
  AddTarget(app, &options->target);
  AddPrompt(app, "The prompt: what to continue", options);
  AddSpecialTokens(app, &options->special);
  CLI::Option* const session =
      Utf8(app->add_option(
               "--session", options->session.id,
               "Continue this session (see rivulet sessions); the prompt is appended to it"))
          ->needs(app->get_option("--target"));
  AddSessionPlace(app, &options->session, "Continue at this position; default: the session's end",
                  "Set a mark at the position after the reply, for rewind");
  AddTenant(app, &options->target)->needs(app->get_option("--target"));
  AddSequenceHash(app, &options->session);
  for (const char* const name : {"--position", "--mark", "--cookie", "--sequence-hash"}) {
    app->get_option(name)->needs(session);
  }
  AddCache(app, &options->cache);
  AddPriority(app, &options->priority);
  AddSampling(app, &options->sampling);
  app->add_option("--num-samples", options->num_samples, "Number of continuations; default 1");
  AddCount(app, "--max-tokens", &options->max_tokens,
           "Maximum number of tokens of each continuation");
  AddCount(app, "--min-tokens", &options->min_tokens,
           "Minimum number of tokens of each continuation");
  AddStop(app, &options->stop, "End when the output would contain this text; repeatable");
  AddIds(app, "--stop-token", &options->stop_tokens,
         "End when one of these token ids is sampled: 1,2,3");
  app->add_flag("--ignore-eos", options->ignore_eos, "Do not end at the model's end token");
  AddConstraint(app, &options->constraint);
  AddSpeculate(app, &options->drafts);
  CLI::Option* const json =
      app->add_flag("--json", options->json, "Print each part of the reply as a line of JSON");
  CLI::Option* const logprobs =
      app->add_flag("--logprobs", options->logprobs,
                    "Also the log-probability of each token; without --json a table of the tokens");
  app->add_option("--top-logprobs", options->top_logprobs,
                  "Also the N most likely tokens at each position")
      ->needs(logprobs)
      ->needs(json);
  AddSeconds(app, "--deadline", &options->deadline_seconds,
             "Maximum duration of the call in seconds");
  app->add_flag_callback(
      "--no-resume", [options] { options->resume = false; },
      "Fail when the reply is cut off, instead of resuming it");
  CLI::Option* const out =
      app->add_option("--out", options->out, "Image models: write --count images to this PNG file")
          ->check(PathGiven())
          ->excludes(json);
  app->add_option("--count", options->count,
                  "With --out the number of images, default 1; without it the number of "
                  "samples, each printed whole, with a newline after it")
      ->check(CLI::Range(1, 65536));
  app->add_option("--columns", options->columns, "Images per row of the PNG file; default 8")
      ->check(CLI::Range(1, 65536))
      ->needs(out);
  for (const char* const name : {"--num-samples", "--max-tokens", "--min-tokens", "--stop",
                                 "--stop-token", "--session", "--cache", "--logprobs"}) {
    app->get_option(name)->excludes(out);
  }
}

void FinishGenerate(GenerateOptions* options) {
  if (!options->count.has_value()) return;
  const bool session = !options->session.id.empty();
  if (options->json || session || options->logprobs) {
    throw UsageError(absl::StrCat("--count excludes ",
                                  options->json ? "--json"
                                  : session     ? "--session"
                                                : "--logprobs",
                                  "; --num-samples N gives N texts there"));
  }
  if (options->num_samples.has_value()) {
    throw UsageError(
        "--count and --num-samples exclude each other: --count N prints each text as a line, "
        "--num-samples N below a heading");
  }
}

CLI::Option* AddLimit(CLI::App* app, std::optional<int64_t>* limit) {
  return app->add_option("--limit", *limit, "Score only the first N images, or tokens of the text")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
}

CLI::Option* AddWindow(CLI::App* app, std::optional<int64_t>* window) {
  return app->add_option("--window", *window, "Score windows of N tokens, each from an empty state")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
}

void AddScore(CLI::App* app, ScoreOptions* options) {
  AddTarget(app, &options->target);
  CLI::Option_group* const input = app->add_option_group("Input", "What to score, one of");
  CLI::Option* const lines =
      input
          ->add_option("--input", options->input,
                       R"(File with lines {"tokens":[...]} or {"text":"..."}, and "id"; -: stdin)")
          ->check(PathGiven());
  input
      ->add_option("--idx", options->idx,
                   "File of images in MNIST's IDX format, compressed with gzip or not")
      ->check(PathGiven());
  CLI::Option* const text =
      input->add_option("--text", options->text, "Text file, scored as one sequence")
          ->check(PathGiven());
  input->require_option(1);
  app->add_flag("--keep-going", options->keep_going,
                "Print an error for a line that is wrong, and go on; the exit code tells")
      ->needs(lines);
  AddLimit(app, &options->limit)->excludes(lines);
  app->add_option("--tail", options->tail,
                  "Score only the last fraction of the text, above 0 and at most 1")
      ->needs(text);
  AddIntegers<std::vector<int64_t>>(
      app, "--outputs", &options->outputs, int64_t{1} << 40,
      "Also print the raw outputs that predict these scored tokens: 0,1,...");
  app->add_flag("--logprobs", options->logprobs, "Also the log-probability of each scored token");
  AddWindow(app, &options->window);
  AddPriority(app, &options->priority);
}

void AddTokenize(CLI::App* app, TokenizeOptions* options) {
  AddTarget(app, &options->target);
  CLI::Option_group* const input = app->add_option_group("Input", "What to tokenize, one of");
  Utf8(input->add_option("--text", options->text, "Text"));
  input->add_option("--file", options->file, "Text file; -: stdin")->check(PathGiven());
  input->require_option(1);
  AddSpecialTokens(app, &options->special);
  app->add_flag("--json", options->json, "Print ids and byte offsets as a line of JSON");
}

void AddDetokenize(CLI::App* app, DetokenizeOptions* options) {
  AddTarget(app, &options->target);
  AddIds(app, "--tokens", &options->tokens, "Token ids: 1,2,3")->required();
  app->add_flag("--skip-special-tokens", options->skip_special_tokens,
                "Leave out control tokens, such as the end of a text");
  app->add_flag("--bytes", options->bytes,
                "Print the bytes that the tokens stand for, whether they are UTF-8 or not");
}

void AddModels(CLI::App* app, ModelsOptions* options) {
  AddTarget(app, &options->target);
  app->add_flag("--json", options->json, "Print each model as a line of JSON");
  app->require_subcommand(0, 1);
  const auto add = [&](const char* name, const char* help, ModelsAction action) {
    CLI::App* const sub = app->add_subcommand(name, help);
    sub->callback([options, action] { options->action = action; });
    Utf8(sub->add_option("NAME", options->name, "Name of the model"))->required();
    AddRemote(sub, &options->target)
        ->required()
        ->description("The server's --admin-listen address, HOST:PORT");
    sub->add_flag("--json", options->json, "Print the result as a line of JSON");
    return sub;
  };
  add("load", "Load a model from the server's --model-repository or --model", ModelsAction::kLoad);
  AddNumber(add("unload", "Unload a model and free its memory", ModelsAction::kUnload),
            "--drain-timeout", &options->drain_seconds, 0, 86'400, "0 to 86400 seconds",
            "Seconds for which running requests may continue; default: the server's");
}

void AddLoad(CLI::App* app, LoadOptions* options) {
  AddRemote(app, &options->target)->required();
  AddModelName(app, &options->target)->description("Print only this model");
  app->add_flag("--json", options->json,
                "Print each model, and then the server, as a line of JSON");
}

void AddLogLevel(CLI::App* app, LogLevelOptions* options) {
  app->add_option("LEVEL", options->level,
                  "Set it: debug, info, warning or error. Without this, the level is printed")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  AddRemote(app, &options->target)
      ->required()
      ->description("The server's --admin-listen address, HOST:PORT");
}

void AddQuantize(CLI::App* app, QuantizeOptions* options) {
  app->add_option("DIR", options->model_dir, "Model directory, not a GGUF file")->required();
  app->add_option("OUT", options->out, "New directory for the smaller model")->required();
  app->add_option("--weights", options->weights,
                  "int8 or int4; int4,head=f16 gives embedding and head another type")
      ->type_name("TYPE[,head=TYPE]")
      ->required();
  CLI::Option* const check =
      app->add_option("--check", options->check,
                      "Text file: also print how likely each of the two models finds it")
          ->check(PathGiven());
  AddWindow(app, &options->check_window)->needs(check);
  AddLimit(app, &options->check_limit)->needs(check)->description("Check only the first N tokens");
}

void AddHealth(CLI::App* app, HealthOptions* options) {
  AddTarget(app, &options->target);
  AddSeconds(app, "--deadline", &options->deadline_seconds,
             "Maximum time to wait in seconds; default 5");
}

void FinishScore(ScoreOptions* options) {
  if (options->tail.has_value() && !(*options->tail > 0 && *options->tail <= 1)) {
    throw UsageError(absl::StrCat("--tail must be above 0 and at most 1; got ", *options->tail));
  }
}

void FinishTarget(TargetOptions* target) {
  if (target->target.empty() && target->model_dir.empty()) {
    throw UsageError("--target HOST:PORT (or RIVULET_TARGET) or --model DIR is required");
  }
  if (!target->target.empty() && !target->model_dir.empty()) {
    throw UsageError(
        "--target and --model exclude each other: --target calls a running server, --model DIR "
        "serves a model in this process; --model-name names a model of the server");
  }
  if (!target->tls_ca.empty() || !target->tls_cert.empty() || !target->tls_server_name.empty()) {
    target->tls = true;
  }
  if (target->target.empty()) return;
  if (absl::StrContains(target->target, "://")) {
    throw UsageError(absl::StrCat("--target must be HOST:PORT, with --tls for TLS; got the URL \"",
                                  target->target, "\""));
  }
  const size_t colon = target->target.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(absl::string_view(target->target).substr(colon + 1), &port) || port == 0 ||
      port > 65535) {
    throw UsageError(absl::StrCat("--target must be HOST:PORT with a port from 1 to 65535; got \"",
                                  target->target, "\""));
  }
}

// Adds a command. When it is parsed, it becomes *command, and `finish` is called after all flags.
template <typename Options>
void Add(CLI::App* app, Command* command, const char* name, const char* help,
         void (*add_flags)(CLI::App*, Options*), void (*finish)(Options*) = nullptr) {
  const auto options = std::make_shared<Options>();
  CLI::App* const parser = app->add_subcommand(name, help);
  add_flags(parser, options.get());
  parser->callback([=] {
    if constexpr (requires { options->target; }) FinishTarget(&options->target);
    if (finish != nullptr) finish(options.get());
    *command = *options;
  });
}

void AddCommands(CLI::App* app, Command* to) {
  app->set_version_flag("--version", "rivulet " RIVULET_VERSION);
  app->require_subcommand(1);
  app->add_subcommand("serve", "Serve models: gRPC, OpenAI's API and a page for the browser");
  Add(app, to, "generate", "Generate text, tokens or images", AddGenerate, FinishGenerate);
  Add(app, to, "chat", "Talk with a model in the terminal", AddChat);
  Add(app, to, "batch", "Generate and score for each line of a file", AddBatch);
  Add(app, to, "score", "Print how likely given tokens are", AddScore, FinishScore);
  Add(app, to, "tokenize", "Print the token ids of a text", AddTokenize);
  Add(app, to, "detokenize", "Print the text of token ids", AddDetokenize);
  Add(app, to, "bench", "Send requests to a server and measure latency and rate", AddBench,
      FinishBench);
  Add(app, to, "models", "List, load and unload the models of a server", AddModels);
  Add(app, to, "sessions", "Open, append to, fork, rewind, snapshot, ... sessions", AddSessions,
      FinishSessions);
  Add(app, to, "load", "Print the current slots, queues, sessions and connections of a server",
      AddLoad);
  Add(app, to, "keys", "Make, list and revoke the API keys in a server's --keys-file", AddKeys);
  Add(app, to, "quantize", "Write a model directory again with weights of 8 or 4 bits",
      AddQuantize);
  Add(app, to, "log-level", "Print or set the minimum level of a server's log", AddLogLevel);
  Add(app, to, "health", "Check health; the exit code is 0 if the server is serving", AddHealth);
  GroupFlags(app);
}

absl::Status Usage(absl::string_view message) {
  return absl::InvalidArgumentError(OneLine(message));
}

std::vector<std::string> NamesOf(const CLI::App& app) {
  std::vector<std::string> names;
  // Groups of options are parsers without a name.
  const auto is_named = [](const CLI::App* sub) { return !sub->get_name().empty(); };
  for (const CLI::App* const sub : app.get_subcommands(is_named)) names.push_back(sub->get_name());
  return names;
}

// The parser of the command (or of its action) that the arguments name, and the words that name it.
std::pair<const CLI::App*, std::string> ParserOf(const CLI::App& app,
                                                 const std::vector<std::string>& args) {
  const CLI::App* parser = &app;
  std::string name;
  for (const std::string& word : args) {
    const auto named =
        parser->get_subcommands([&](const CLI::App* sub) { return sub->get_name() == word; });
    if (named.empty()) break;
    parser = named[0];
    absl::StrAppend(&name, name.empty() ? "" : " ", word);
  }
  return {parser, name};
}

// Flags of llama.cpp and of OpenAI's clients.
const OtherNames& FlagsOfOthers() {
  static const auto* const others = new OtherNames{
      {"-m", {"--model"}},
      {"-p", {"--prompt"}},
      {"-n", {"--num-samples", "--count", "--max-tokens"}},
      {"--n", {"--num-samples", "--count"}},
      {"--temp", {"--temperature"}},
      {"-c", {"--max-context"}},
      {"-t", {"--threads"}},
      {"-ngl", {"--backend cuda"}},
      {"--api-key", {"--key-file FILE"}},
      {"--port", {"--target HOST:PORT"}},
      {"--host", {"--target HOST:PORT"}},
  };
  return *others;
}

absl::StatusOr<Command> Refused(const CLI::App& app, const std::vector<std::string>& args,
                                const CLI::Error& error) {
  const auto [parser, name] = ParserOf(app, args);
  const bool is_ours = dynamic_cast<const UsageError*>(&error) != nullptr;
  // CLI11 checks --help only after it has called our parsers.
  if (is_ours && parser->get_help_ptr()->count() > 0) return ShowText{HelpText(app)};
  const std::string help = absl::StrCat("; see rivulet ", name, name.empty() ? "" : " ", "--help");
  auto [flag, more] = FindUnknownOption(*parser, args, FlagsOfOthers());
  if (flag.empty()) return Usage(absl::StrCat(error.what(), is_ours ? "" : help));
  // If no similar flag exists, the error about a missing option may help.
  constexpr int kUnknown = static_cast<int>(CLI::ExitCodes::ExtrasError);
  if (more.empty() && error.get_exit_code() != kUnknown) more = absl::StrCat("; ", error.what());
  return Usage(absl::StrCat("unknown option ", flag, name.empty() ? "" : " of ", name, more, help));
}

absl::StatusOr<Command> Parse(const std::vector<std::string>& args) {
  CLI::App app{
      "Generates text, tokens and images with trained linear transformers, and scores them.\n"
      "Start here: rivulet serve DIR, or rivulet chat --model DIR (a model directory or a GGUF "
      "file)\n"
      "Example: rivulet generate --model DIR --prompt \"Once upon a time\" --max-tokens 100\n"
      "The flags of a command: rivulet COMMAND --help",
      "rivulet"};
  Command command;
  AddCommands(&app, &command);
  // CLI11's message would not explain an error in the first word.
  const std::string first = args.empty() ? "" : args[0];
  if (first == "serve") return ServeOptions{{args.begin() + 1, args.end()}};
  const auto named =
      app.get_subcommands([&](const CLI::App* sub) { return sub->get_name() == first; });
  if (!absl::StartsWith(first, "-") && named.empty()) {
    const std::vector<std::string> names = NamesOf(app);
    const std::string wrong =
        args.empty() ? "no command given"
                     : absl::StrCat("unknown command \"", first, "\"", Suggestion(first, names));
    return Usage(absl::StrCat(wrong, "; choose one of ", absl::StrJoin(names, ", "),
                              "; see rivulet --help"));
  }
  // Nor in the second word.
  if (!named.empty() && args.size() > 1 && !absl::StartsWith(args[1], "-")) {
    const std::vector<std::string> names = NamesOf(*named[0]);
    if (!names.empty() && !absl::c_linear_search(names, args[1])) {
      return Usage(absl::StrCat("unknown action \"", args[1], "\" of ", first,
                                Suggestion(args[1], names), "; see rivulet ", first, " --help"));
    }
  }
  try {
    // CLI11 expects the arguments in reverse order.
    app.parse(std::vector<std::string>(args.rbegin(), args.rend()));
    return command;
  } catch (const CLI::CallForHelp&) {
    return ShowText{HelpText(app)};
  } catch (const CLI::CallForVersion& version) {
    return ShowText{absl::StrCat(version.what(), "\n")};
  } catch (const CLI::Error& error) {
    return Refused(app, args, error);
  }
}

}  // namespace

absl::StatusOr<Command> ParseCommandLine(std::span<const std::string> args) {
  const CompletedArgs completed = WithEnvironment(args);
  absl::StatusOr<Command> command = Parse(completed.args);
  if (command.ok() || completed.added.empty()) return command;
  return Usage(absl::StrCat(command.status().message(), "; the environment added ",
                            absl::StrJoin(completed.added, " and ")));
}

}  // namespace rivulet
