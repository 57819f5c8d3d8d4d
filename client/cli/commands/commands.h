// SPDX-License-Identifier: Apache-2.0
// The subcommands of `rivulet`. Each writes results to stdout. It returns the summary for stderr
// (empty: none), or the error that gives the program its error line and exit code.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/cli/commands/target.h"
#include "client/cli/options/options.h"
#include "rivulet/v1/inference.pb.h"

namespace rivulet {

absl::StatusOr<std::string> RunCommand(const GenerateOptions& options);
absl::StatusOr<std::string> RunCommand(const ChatOptions& options);
absl::StatusOr<std::string> RunCommand(const ScoreOptions& options);
absl::StatusOr<std::string> RunCommand(const TokenizeOptions& options);
absl::StatusOr<std::string> RunCommand(const DetokenizeOptions& options);
absl::StatusOr<std::string> RunCommand(const BenchOptions& options);
absl::StatusOr<std::string> RunCommand(const BatchOptions& options);
absl::StatusOr<std::string> RunCommand(const ModelsOptions& options);
absl::StatusOr<std::string> RunCommand(const SessionsOptions& options);
absl::StatusOr<std::string> RunCommand(const HealthOptions& options);
absl::StatusOr<std::string> RunCommand(const KeysOptions& options);
absl::StatusOr<std::string> RunCommand(const QuantizeOptions& options);
absl::StatusOr<std::string> RunCommand(const LoadOptions& options);
absl::StatusOr<std::string> RunCommand(const LogLevelOptions& options);
// Becomes another program, and returns only with an error.
absl::StatusOr<std::string> RunCommand(const ServeOptions& options);

// Part of `generate`: the options of its call, with a deadline that counts from now.
CallOptions GenerateCall(const GenerateOptions& options);

// Part of `generate --out`: draws the images that `request` (model, prompt, sampling) begins.
absl::StatusOr<std::string> RunDraw(const GenerateOptions& options, const Target& target,
                                    const v1::GetModelReply& model, v1::GenerateRequest request);

// Part of `models --model DIR` without --backend: reads only the headers of the directory's files.
absl::StatusOr<std::string> DescribeDirectory(const ModelsOptions& options);

// Writes to stdout and flushes. Errors: INVALID_ARGUMENT (stdout is closed or full).
absl::Status WriteOut(const std::string& text);

}  // namespace rivulet
