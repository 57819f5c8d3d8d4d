// SPDX-License-Identifier: Apache-2.0
// Options of the command line as parts of a request.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cli/options/options.h"
#include "rivulet/v1/inference.pb.h"

namespace rivulet {

// Sets the given options; the server has defaults for the rest.
void SetSampling(const SamplingOptions& options, v1::SamplingParams* sampling);

// The bytes of a file. Errors: NOT_FOUND naming `option` and the path, also for a directory.
absl::StatusOr<std::string> ReadBytes(const std::string& path, absl::string_view option);

// Sets the prompt or content oneof of a request; without an option, to an empty list of tokens.
// Errors: those of ReadBytes.
template <typename Request>
absl::Status SetPrompt(const PromptOptions& options, Request* request) {
  if (options.prompt.has_value()) {
    request->set_text(*options.prompt);
  } else if (options.values.has_value()) {
    request->set_image_values(*options.values);
  } else if (!options.values_file.empty()) {
    absl::StatusOr<std::string> bytes = ReadBytes(options.values_file, "--values-file");
    if (!bytes.ok()) return bytes.status();
    if (bytes->empty()) {
      return absl::NotFoundError("--values-file: " + options.values_file + ": is empty");
    }
    request->set_image_values(*std::move(bytes));
  } else {
    request->mutable_tokens();
    if (options.tokens.has_value()) {
      request->mutable_tokens()->mutable_ids()->Add(options.tokens->begin(), options.tokens->end());
    }
  }
  return absl::OkStatus();
}

// Sets the given options.
template <typename Request>
void SetSpecialTokens(const SpecialTokenOptions& options, Request* request) {
  if (options.add.has_value()) request->set_add_special_tokens(*options.add);
  if (options.parse.has_value()) request->set_parse_special_tokens(*options.parse);
}

// Sets what is given. Errors: those of ReadBytes.
absl::Status SetConstraint(const ConstraintOptions& options, v1::GenerateRequest* request);
void SetSession(const SessionOptions& options, v1::SessionRef* session);
void SetCache(const CacheOptions& options, v1::PromptCache* cache);
// `name`: as in GenerateOptions::priority.
v1::Priority ToPriority(absl::string_view name);

}  // namespace rivulet
