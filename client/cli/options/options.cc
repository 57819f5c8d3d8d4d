// SPDX-License-Identifier: Apache-2.0
#include "client/cli/options/options.h"

#include <utility>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/options/environment.h"
#include "client/cli/options/option_parts.h"
#include "client/cli/output/text.h"
#include "model/base/suggestion.h"

namespace rivulet {
namespace {

void AddGenerate(CLI::App* app, GenerateOptions* options, RawValues* raw) {
  AddTarget(app, &options->target);
  AddPrompt(app, "The prompt: what to continue", options, raw);
  AddSpecialTokens(app, &options->special);
  CLI::Option* const session =
      app->add_option("--session", options->session.id,
                      "Continue this session (see rivulet sessions); the prompt is appended to it")
          ->needs(app->get_option("--target"));
  AddSessionPlace(app, &options->session, "Continue at this position; default: the session's end",
                  "Set a mark at the position after the reply, for rewind");
  AddTenant(app, &options->target)->needs(app->get_option("--target"));
  AddSequenceHash(app, raw);
  for (const char* const name : {"--position", "--mark", "--cookie", "--sequence-hash"}) {
    app->get_option(name)->needs(session);
  }
  AddCache(app, &options->cache);
  AddPriority(app, &options->priority);
  AddSampling(app, &options->sampling, raw);
  app->add_option("--num-samples", options->num_samples,
                  "Number of continuations of the prompt; default 1");
  app->add_option("--max-tokens", raw->max_tokens, "Maximum number of tokens of each continuation");
  app->add_option("--stop", options->stop,
                  "End when the output would contain this text; repeatable")
      ->expected(1)
      ->take_all();
  app->add_option("--stop-token", raw->stop_tokens,
                  "End when one of these token ids is sampled: 1,2,3");
  app->add_flag("--ignore-eos", options->ignore_eos, "Do not end at the model's end token");
  CLI::Option* const json =
      app->add_flag("--json", options->json, "Print each part of the reply as a line of JSON");
  CLI::Option* const logprobs =
      app->add_flag("--logprobs", options->logprobs, "Also the log-probability of each token")
          ->needs(json);
  app->add_option("--top-logprobs", options->top_logprobs,
                  "Also the N most likely tokens at each position")
      ->needs(logprobs);
  app->add_option("--deadline", raw->deadline, "Maximum duration of the call in seconds");
  app->add_flag_callback(
      "--no-resume", [options] { options->resume = false; },
      "End with an error when the reply is cut off, instead of going on where it was");
  CLI::Option* const out =
      app->add_option("--out", options->out, "Image models: write --count images to this PNG file")
          ->check(PathGiven())
          ->excludes(json);
  app->add_option("--count", options->count, "Number of images; default 1")
      ->check(CLI::Range(1, 65536))
      ->needs(out);
  app->add_option("--columns", options->columns, "Images per row of the PNG file; default 8")
      ->check(CLI::Range(1, 65536))
      ->needs(out);
  for (const char* const name :
       {"--num-samples", "--max-tokens", "--stop", "--stop-token", "--session", "--cache"}) {
    app->get_option(name)->excludes(out);
  }
}

void AddScore(CLI::App* app, ScoreOptions* options, RawValues* raw) {
  AddTarget(app, &options->target);
  CLI::Option_group* const input = app->add_option_group("Input", "What to score, one of");
  CLI::Option* const lines =
      input
          ->add_option("--input", options->input,
                       R"(File with lines {"tokens":[...]} or {"text":"..."}, and "id"; -: stdin)")
          ->check(PathGiven());
  CLI::Option* const idx =
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
  app->add_option("--limit", options->limit, "Score only the first N images")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->needs(idx);
  app->add_option("--tail", options->tail,
                  "Score only the last fraction of the text, above 0 and at most 1")
      ->needs(text);
  app->add_option("--outputs", raw->outputs,
                  "Also print the raw outputs that predict these scored tokens: 0,1,...");
  app->add_option("--window", options->window,
                  "Score windows of N tokens, each from an empty state")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  AddPriority(app, &options->priority);
}

void AddTokenize(CLI::App* app, TokenizeOptions* options) {
  AddTarget(app, &options->target);
  CLI::Option_group* const input = app->add_option_group("Input", "What to tokenize, one of");
  input->add_option("--text", options->text, "Text");
  input->add_option("--file", options->file, "Text file; -: stdin")->check(PathGiven());
  input->require_option(1);
  AddSpecialTokens(app, &options->special);
  app->add_flag("--json", options->json, "Print ids and byte offsets as a line of JSON");
}

void AddDetokenize(CLI::App* app, DetokenizeOptions* options, RawValues* raw) {
  AddTarget(app, &options->target);
  app->add_option("--tokens", raw->tokens, "Token ids: 1,2,3")->required();
  app->add_flag("--skip-special-tokens", options->skip_special_tokens,
                "Leave out control tokens, such as the end of a text");
  app->add_flag("--bytes", options->bytes,
                "Print the bytes that the tokens stand for, whether they are UTF-8 or not");
}

absl::Status FinishTokenize(TokenizeOptions* options) {
  if (absl::Status status = CheckTarget(&options->target); !status.ok()) return status;
  return CheckUtf8("--text", options->text.value_or(""));
}

absl::Status FinishDetokenize(const RawValues& raw, DetokenizeOptions* options) {
  if (absl::Status status = CheckTarget(&options->target); !status.ok()) return status;
  auto ids = ParseIds(*raw.tokens, "--tokens");
  if (!ids.ok()) return ids.status();
  options->tokens = *std::move(ids);
  return absl::OkStatus();
}

absl::Status FinishGenerate(GenerateOptions* options, const RawValues& raw) {
  if (absl::Status status = CheckTarget(&options->target); !status.ok()) return status;
  if (absl::Status status = FinishPrompt(raw, options); !status.ok()) return status;
  if (absl::Status status = FinishSession(raw, &options->session); !status.ok()) return status;
  if (absl::Status status = FinishCache(options->cache); !status.ok()) return status;
  for (const std::string& stop : options->stop) {
    if (absl::Status status = CheckUtf8("--stop", stop); !status.ok()) return status;
  }
  if (raw.stop_tokens.has_value()) {
    auto ids = ParseIds(*raw.stop_tokens, "--stop-token");
    if (!ids.ok()) return ids.status();
    options->stop_tokens = *std::move(ids);
  }
  if (absl::Status status = ParseMaxTokens(raw, &options->max_tokens); !status.ok()) return status;
  if (raw.deadline.has_value()) {
    const absl::StatusOr<double> seconds = ParseSeconds(*raw.deadline, "--deadline");
    if (!seconds.ok()) return seconds.status();
    options->deadline_seconds = *seconds;
  }
  return FinishSampling(raw, &options->sampling);
}

void AddModels(CLI::App* app, ModelsOptions* options, RawValues* raw) {
  AddTarget(app, &options->target);
  app->add_flag("--json", options->json, "Print each model as a line of JSON");
  app->require_subcommand(0, 1);
  const auto add = [&](const char* name, const char* help, ModelsAction action) {
    CLI::App* const sub = app->add_subcommand(name, help);
    sub->callback([options, action] { options->action = action; });
    sub->add_option("NAME", options->name, "Name of the model")->required();
    AddRemote(sub, &options->target)
        ->required()
        ->description("The server's --admin-listen address, HOST:PORT");
    sub->add_flag("--json", options->json, "Print the result as a line of JSON");
    return sub;
  };
  add("load", "Load a model from the server's --model-repository or --model", ModelsAction::kLoad);
  add("unload", "Unload a model and free its memory", ModelsAction::kUnload)
      ->add_option("--drain-timeout", raw->drain,
                   "Seconds for which running requests may continue; default: the server's");
}

void AddLoad(CLI::App* app, LoadOptions* options) {
  AddRemote(app, &options->target)->required();
  app->add_option("--model-name", options->target.model_name, "Print only this model");
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
  app->add_option("DIR", options->model_dir, "Model directory")->required();
  app->add_option("OUT", options->out, "New directory for the smaller model")->required();
  app->add_option("--weights", options->weights,
                  "int8 or int4; int4,head=f16 gives embedding and head another type")
      ->type_name("TYPE[,head=TYPE]")
      ->required();
  app->add_option("--check", options->check,
                  "Text file: also print how likely each of the two models finds it")
      ->check(PathGiven());
}

absl::Status FinishModels(const RawValues& raw, ModelsOptions* options) {
  if (absl::Status status = CheckUtf8("NAME", options->name); !status.ok()) return status;
  if (raw.drain.has_value()) {
    double& seconds = options->drain_seconds.emplace();
    if (!absl::SimpleAtod(*raw.drain, &seconds) || !(seconds >= 0 && seconds <= 86'400)) {
      return Usage(
          absl::StrCat("--drain-timeout must be 0 to 86400 seconds; got \"", *raw.drain, "\""));
    }
  }
  return CheckTarget(&options->target);
}

absl::Status FinishHealth(HealthOptions* options, const RawValues& raw) {
  if (absl::Status status = CheckTarget(&options->target); !status.ok()) return status;
  if (!raw.deadline.has_value()) return absl::OkStatus();
  const absl::StatusOr<double> seconds = ParseSeconds(*raw.deadline, "--deadline");
  if (!seconds.ok()) return seconds.status();
  options->deadline_seconds = *seconds;
  return absl::OkStatus();
}

absl::Status FinishScore(ScoreOptions* options, const RawValues& raw) {
  if (absl::Status status = CheckTarget(&options->target); !status.ok()) return status;
  if (raw.outputs.has_value()) {
    auto outputs = ParseIntegers(*raw.outputs, "--outputs", 0, int64_t{1} << 40);
    if (!outputs.ok()) return outputs.status();
    options->outputs = *std::move(outputs);
  }
  if (options->tail.has_value() && !(*options->tail > 0 && *options->tail <= 1)) {
    return Usage(absl::StrCat("--tail must be above 0 and at most 1; got ", *options->tail));
  }
  return absl::OkStatus();
}

// A command's parser, and what it fills.
template <typename Options>
struct Subcommand {
  CLI::App* parser;
  Options options = {};
};

// The parser of every command, and what it fills.
struct CommandLine {
  CommandLine() {
    app.set_version_flag("--version", "rivulet " RIVULET_VERSION);
    app.require_subcommand(1);
    AddGenerate(generate.parser, &generate.options, &raw);
    AddScore(score.parser, &score.options, &raw);
    AddChat(chat.parser, &chat.options, &raw);
    AddTokenize(tokenize.parser, &tokenize.options);
    AddDetokenize(detokenize.parser, &detokenize.options, &raw);
    AddBench(bench.parser, &bench.options, &raw);
    AddBatch(batch.parser, &batch.options, &raw);
    AddModels(on_models, &models, &raw);
    AddLoad(load.parser, &load.options);
    AddKeys(keys.parser, &keys.options);
    AddQuantize(quantize.parser, &quantize.options);
    AddLogLevel(log_level.parser, &log_level.options);
    AddSessions(on_sessions, &sessions, &raw);
    AddTarget(health.parser, &health.options.target);
    health.parser->add_option("--deadline", raw.deadline,
                              "Maximum time to wait in seconds; default 5");
  }

  // After parsing: the command that was given.
  absl::StatusOr<Command> Finish() {
    absl::Status status;
    if (generate.parser->parsed()) {
      status = FinishGenerate(&generate.options, raw);
      if (status.ok()) return generate.options;
    } else if (score.parser->parsed()) {
      status = FinishScore(&score.options, raw);
      if (status.ok()) return score.options;
    } else if (chat.parser->parsed()) {
      status = FinishChat(raw, &chat.options);
      if (status.ok()) return chat.options;
    } else if (tokenize.parser->parsed()) {
      status = FinishTokenize(&tokenize.options);
      if (status.ok()) return tokenize.options;
    } else if (detokenize.parser->parsed()) {
      status = FinishDetokenize(raw, &detokenize.options);
      if (status.ok()) return detokenize.options;
    } else if (bench.parser->parsed()) {
      status = FinishBench(raw, &bench.options);
      if (status.ok()) return bench.options;
    } else if (batch.parser->parsed()) {
      status = FinishBatch(raw, &batch.options);
      if (status.ok()) return batch.options;
    } else if (on_models->parsed()) {
      status = FinishModels(raw, &models);
      if (status.ok()) return models;
    } else if (on_sessions->parsed()) {
      status = FinishSessions(raw, &sessions);
      if (status.ok()) return sessions;
    } else if (load.parser->parsed()) {
      status = CheckTarget(&load.options.target);
      if (status.ok()) return load.options;
    } else if (log_level.parser->parsed()) {
      status = CheckTarget(&log_level.options.target);
      if (status.ok()) return log_level.options;
    } else if (quantize.parser->parsed()) {
      return quantize.options;
    } else if (keys.parser->parsed()) {
      status = FinishKeys(keys.options);
      if (status.ok()) return keys.options;
    } else {
      status = FinishHealth(&health.options, raw);
      if (status.ok()) return health.options;
    }
    return status;
  }

  CLI::App app{
      "Generates text, tokens and images with trained linear transformers, and scores them.",
      "rivulet"};
  ModelsOptions models;
  SessionsOptions sessions;
  RawValues raw;
  Subcommand<GenerateOptions> generate{
      app.add_subcommand("generate", "Generate text, tokens or images")};
  Subcommand<ChatOptions> chat{app.add_subcommand("chat", "Talk with a model in the terminal")};
  Subcommand<BatchOptions> batch{
      app.add_subcommand("batch", "Generate and score for each line of a file")};
  Subcommand<ScoreOptions> score{app.add_subcommand("score", "Print how likely given tokens are")};
  Subcommand<TokenizeOptions> tokenize{
      app.add_subcommand("tokenize", "Print the token ids of a text")};
  Subcommand<DetokenizeOptions> detokenize{
      app.add_subcommand("detokenize", "Print the text of token ids")};
  Subcommand<BenchOptions> bench{
      app.add_subcommand("bench", "Send requests to a server and measure latency and rate")};
  CLI::App* const on_models =
      app.add_subcommand("models", "List, load and unload the models of a server");
  CLI::App* const on_sessions =
      app.add_subcommand("sessions", "Open, append to, fork, rewind, snapshot, ... sessions");
  Subcommand<LoadOptions> load{app.add_subcommand(
      "load", "Print the current slots, queues, sessions and connections of a server")};
  Subcommand<KeysOptions> keys{
      app.add_subcommand("keys", "Make, list and revoke the API keys in a server's --keys-file")};
  Subcommand<QuantizeOptions> quantize{
      app.add_subcommand("quantize", "Write a model directory again with weights of 8 or 4 bits")};
  Subcommand<LogLevelOptions> log_level{
      app.add_subcommand("log-level", "Print or set the least level of a server's log")};
  Subcommand<HealthOptions> health{
      app.add_subcommand("health", "Check health; the exit code is 0 if the server is serving")};
};

std::vector<std::string> NamesOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* const sub : app.get_subcommands({})) names.push_back(sub->get_name());
  return names;
}

// The parser of the command that the arguments name, or of its action, and how both are written.
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

absl::Status Refused(const CLI::App& app, const std::vector<std::string>& args,
                     const CLI::Error& error) {
  const auto [parser, name] = ParserOf(app, args);
  const std::string help = absl::StrCat("; see rivulet ", name, name.empty() ? "" : " ", "--help");
  auto [flag, more] = FindUnknownOption(*parser, args);
  if (flag.empty()) return Usage(absl::StrCat(error.what(), help));
  // Where no other flag was meant, what is missing may say what to give in its place.
  constexpr int kUnknown = static_cast<int>(CLI::ExitCodes::ExtrasError);
  if (more.empty() && error.get_exit_code() != kUnknown) more = absl::StrCat("; ", error.what());
  return Usage(absl::StrCat("unknown option ", flag, name.empty() ? "" : " of ", name, more, help));
}

absl::StatusOr<Command> Parse(const std::vector<std::string>& args) {
  CommandLine line;
  // CLI11 would not say what is wrong with the first word.
  const std::string first = args.empty() ? "" : args[0];
  const auto is_first = [&first](const CLI::App* sub) { return sub->get_name() == first; };
  if (!absl::StartsWith(first, "-") && line.app.get_subcommands(is_first).empty()) {
    const std::vector<std::string> names = NamesOf(line.app);
    const std::string wrong =
        args.empty() ? "no command given"
                     : absl::StrCat("unknown command \"", first, "\"", Suggestion(first, names));
    return Usage(absl::StrCat(wrong, "; choose one of ", absl::StrJoin(names, ", "),
                              "; see rivulet --help"));
  }
  // Nor with the second.
  for (const CLI::App* const app : {line.on_models, line.on_sessions, line.keys.parser}) {
    if (args.size() < 2 || first != app->get_name() || absl::StartsWith(args[1], "-")) continue;
    const auto is_named = [&](const CLI::App* sub) { return sub->get_name() == args[1]; };
    if (!app->get_subcommands(is_named).empty()) continue;
    return Usage(absl::StrCat("unknown action \"", args[1], "\" of ", first,
                              Suggestion(args[1], NamesOf(*app)), "; see rivulet ", first,
                              " --help"));
  }
  try {
    // CLI11 takes the arguments from the end.
    line.app.parse(std::vector<std::string>(args.rbegin(), args.rend()));
  } catch (const CLI::CallForHelp&) {
    for (const CLI::App* const sub : line.app.get_subcommands()) {
      return ShowText{sub->help("rivulet")};
    }
    return ShowText{line.app.help()};
  } catch (const CLI::CallForVersion& version) {
    return ShowText{absl::StrCat(version.what(), "\n")};
  } catch (const CLI::Error& error) {
    return Refused(line.app, args, error);
  }
  return line.Finish();
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
