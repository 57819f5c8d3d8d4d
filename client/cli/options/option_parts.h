// SPDX-License-Identifier: Apache-2.0
// What the commands' parsers share (options.cc), and the parsers of `batch` (batch_options.cc), of
// `bench` (bench_options.cc), of `chat` (chat_options.cc), of `keys` (keys_options.cc) and of
// `sessions` (sessions_options.cc).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cli/options/options.h"

namespace rivulet {

// What CLI11 does not parse into its final form, or not strictly: it wraps a negative seed, takes
// the nearest integer for one of more than 64 bits, and knows inf and nan.
struct RawValues {
  std::optional<std::string> seed, max_tokens, deadline, tokens, values, stop_tokens, outputs;
  std::optional<std::string> sequence_hash;
  std::optional<std::string> rate, think, duration, warmup, idle, drain, patience, pause;
  std::vector<std::string> logit_bias;
};

// Refuses the empty path.
CLI::Validator PathGiven();

void AddTarget(CLI::App* app, TargetOptions* target);
// Only a running server will do. Returns --target.
CLI::Option* AddRemote(CLI::App* app, TargetOptions* target);
CLI::Option* AddTenant(CLI::App* app, TargetOptions* target);
// --position, --mark and --cookie.
void AddSessionPlace(CLI::App* app, SessionOptions* session, const char* position_help,
                     const char* mark_help);
void AddCookie(CLI::App* app, SessionOptions* session);
void AddSequenceHash(CLI::App* app, RawValues* raw);
void AddPrompt(CLI::App* app, const char* help, PromptOptions* prompt, RawValues* raw);
// --add-special-tokens and --parse-special-tokens.
void AddSpecialTokens(CLI::App* app, SpecialTokenOptions* special);
void AddCache(CLI::App* app, CacheOptions* cache);
void AddChatTemplate(CLI::App* app, std::string* file);
void AddPriority(CLI::App* app, std::string* priority);
void AddSessions(CLI::App* app, SessionsOptions* options, RawValues* raw);
void AddChat(CLI::App* app, ChatOptions* options, RawValues* raw);
void AddKeys(CLI::App* app, KeysOptions* options);
void AddSampling(CLI::App* app, SamplingOptions* sampling, RawValues* raw);
void AddBench(CLI::App* app, BenchOptions* options, RawValues* raw);
void AddBatch(CLI::App* app, BatchOptions* options, RawValues* raw);

// The error of a command line, on one line. INVALID_ARGUMENT.
absl::Status Usage(absl::string_view message);

// Each checks its part after CLI11. Errors: INVALID_ARGUMENT naming option and value.
absl::Status CheckUtf8(absl::string_view option, absl::string_view text);
absl::Status CheckTarget(TargetOptions* target);
absl::StatusOr<double> ParseSeconds(const std::string& text, absl::string_view option);
absl::Status ParseMaxTokens(const RawValues& raw, std::optional<int64_t>* max_tokens);
absl::Status FinishSampling(const RawValues& raw, SamplingOptions* sampling);
absl::Status FinishPrompt(const RawValues& raw, PromptOptions* prompt);
absl::Status FinishSession(const RawValues& raw, SessionOptions* session);
absl::Status FinishCache(const CacheOptions& cache);
absl::Status FinishSessions(const RawValues& raw, SessionsOptions* options);
absl::Status FinishChat(const RawValues& raw, ChatOptions* options);
absl::Status FinishKeys(const KeysOptions& options);
absl::Status FinishBatch(const RawValues& raw, BatchOptions* options);
absl::Status FinishBench(const RawValues& raw, BenchOptions* options);

}  // namespace rivulet
