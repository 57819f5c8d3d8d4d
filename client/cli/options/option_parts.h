// SPDX-License-Identifier: Apache-2.0
// Parts that the commands' parsers share (options.cc), and the parsers of `batch`
// (batch_options.cc), of `bench` (bench_options.cc), of `chat` (chat_options.cc), of `keys`
// (keys_options.cc) and of `sessions` (sessions_options.cc).
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "client/cli/options/options.h"
#include "client/cli/output/text.h"

namespace rivulet {

// The error of a refused command line, thrown while CLI11 parses. `message` names the flag, the
// value and the allowed values.
struct UsageError : CLI::ParseError {
  explicit UsageError(const std::string& message)
      : ParseError(message, CLI::ExitCodes::ValidationError) {}
};

// Refuses the empty path.
CLI::Validator PathGiven();
// Refuses a value of `option` that is not valid UTF-8. Returns `option`.
CLI::Option* Utf8(CLI::Option* option);

// CLI11 reads numbers less strictly than we do: it wraps a negative seed, rounds an integer of more
// than 64 bits, and accepts inf and nan. So these functions read the text of a flag themselves.
// `read` returns false for a value that is not allowed. `allowed` ends the sentence "--flag must
// be".
CLI::Option* AddParsed(CLI::App* app, const std::string& name, const std::string& help,
                       const std::string& allowed,
                       const std::function<bool(const std::string&)>& read);

// A number from `min` to `max`.
template <typename Number>
CLI::Option* AddNumber(CLI::App* app, const char* name, Number* number, double min, double max,
                       const char* allowed, const char* help) {
  return AddParsed(app, name, help, allowed, [=](const std::string& text) {
    double value = 0;
    if (!absl::SimpleAtod(text, &value) || !(value >= min && value <= max)) return false;
    *number = value;
    return true;
  });
}

// A duration of at most 1e9 seconds, so that it can be added to the current time.
template <typename Seconds>
CLI::Option* AddSeconds(CLI::App* app, const char* name, Seconds* seconds, const char* help) {
  constexpr double kLeast = std::numeric_limits<double>::denorm_min();
  return AddNumber(app, name, seconds, kLeast, 1e9, "above 0 and at most 1e9 seconds", help);
}

// Comma-separated integers from 0 to `max`, as a List.
template <typename List, typename Integers>
CLI::Option* AddIntegers(CLI::App* app, const char* name, Integers* integers, int64_t max,
                         const char* help) {
  const auto read = [=](const std::string& text) {
    const auto values = ParseIntegers(text, name, 0, max);
    if (!values.ok()) throw UsageError(std::string(values.status().message()));
    *integers = List(values->begin(), values->end());
  };
  return app->add_option_function<std::string>(name, read, help);
}

template <typename Ids>
CLI::Option* AddIds(CLI::App* app, const char* name, Ids* ids, const char* help) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  return AddIntegers<std::vector<int32_t>>(app, name, ids, kMost, help);
}

void AddTarget(CLI::App* app, TargetOptions* target);
// For commands that need a running server. Returns --target.
CLI::Option* AddRemote(CLI::App* app, TargetOptions* target);
CLI::Option* AddModelName(CLI::App* app, TargetOptions* target);
CLI::Option* AddTenant(CLI::App* app, TargetOptions* target);
// --position, --mark and --cookie.
void AddSessionPlace(CLI::App* app, SessionOptions* session, const char* position_help,
                     const char* mark_help);
void AddCookie(CLI::App* app, SessionOptions* session);
void AddSequenceHash(CLI::App* app, SessionOptions* session);
void AddPrompt(CLI::App* app, const char* help, PromptOptions* prompt);
// --add-special-tokens and --parse-special-tokens.
void AddSpecialTokens(CLI::App* app, SpecialTokenOptions* special);
void AddCache(CLI::App* app, CacheOptions* cache);
void AddChatTemplate(CLI::App* app, std::string* file);
void AddPriority(CLI::App* app, std::string* priority,
                 const char* help = "Order among the tenant's own requests: low, normal or high");
void AddSeed(CLI::App* app, std::optional<uint64_t>* seed, const char* help);
void AddSampling(CLI::App* app, SamplingOptions* sampling,
                 const char* seed_help = "Equal seeds give equal tokens; default: a random seed");
// A number of tokens, whose range the server checks.
void AddCount(CLI::App* app, const char* name, std::optional<int64_t>* count, const char* help);
void AddSpeculate(CLI::App* app, std::optional<int32_t>* drafts);
void AddStop(CLI::App* app, std::vector<std::string>* stop, const char* help);

// The parsers of commands.
void AddBatch(CLI::App* app, BatchOptions* options);
void AddBench(CLI::App* app, BenchOptions* options);
void AddChat(CLI::App* app, ChatOptions* options);
void AddKeys(CLI::App* app, KeysOptions* options);
void AddSessions(CLI::App* app, SessionsOptions* options);

// Check and set the rest after all flags of a command. They throw UsageError.
void FinishBench(BenchOptions* options);
void FinishSessions(SessionsOptions* options);

}  // namespace rivulet
