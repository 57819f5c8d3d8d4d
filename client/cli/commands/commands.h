// SPDX-License-Identifier: Apache-2.0
// The subcommands of `rivulet`. Each writes results to stdout and returns the summary for stderr
// (empty: none), or the error whose line and exit code the program ends with.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/cli/commands/target.h"
#include "client/cli/options/options.h"
#include "rivulet/v1/inference.pb.h"

namespace rivulet {

absl::StatusOr<std::string> RunGenerate(const GenerateOptions& options);
absl::StatusOr<std::string> RunChat(const ChatOptions& options);
absl::StatusOr<std::string> RunScore(const ScoreOptions& options);
absl::StatusOr<std::string> RunTokenize(const TokenizeOptions& options);
absl::StatusOr<std::string> RunDetokenize(const DetokenizeOptions& options);
absl::StatusOr<std::string> RunBench(const BenchOptions& options);
absl::StatusOr<std::string> RunBatch(const BatchOptions& options);
absl::StatusOr<std::string> RunModels(const ModelsOptions& options);
absl::StatusOr<std::string> RunSessions(const SessionsOptions& options);
absl::StatusOr<std::string> RunHealth(const HealthOptions& options);
absl::StatusOr<std::string> RunKeys(const KeysOptions& options);
absl::StatusOr<std::string> RunQuantize(const QuantizeOptions& options);
absl::StatusOr<std::string> RunLoad(const LoadOptions& options);
absl::StatusOr<std::string> RunLogLevel(const LogLevelOptions& options);

// Part of RunGenerate: how it calls Client::Generate, with a deadline that counts from now.
CallOptions GenerateCall(const GenerateOptions& options);

// Part of RunGenerate, for --out: draws the images that `request` (model, prompt, sampling) begins.
absl::StatusOr<std::string> RunDraw(const GenerateOptions& options, const Target& target,
                                    const v1::GetModelReply& model, v1::GenerateRequest request);

// Part of RunModels, for --model without --backend: from the headers of the directory alone.
absl::StatusOr<std::string> DescribeDirectory(const ModelsOptions& options);

// Writes to stdout and flushes. Errors: INVALID_ARGUMENT (stdout is closed or full).
absl::Status WriteOut(const std::string& text);

}  // namespace rivulet
