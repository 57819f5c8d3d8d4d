// SPDX-License-Identifier: Apache-2.0
#include "client/cli/input/request_fields.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace rivulet {

void SetSampling(const SamplingOptions& options, v1::SamplingParams* sampling) {
  if (options.temperature.has_value()) sampling->set_temperature(*options.temperature);
  if (options.top_k.has_value()) sampling->set_top_k(*options.top_k);
  if (options.top_p.has_value()) sampling->set_top_p(*options.top_p);
  if (options.min_p.has_value()) sampling->set_min_p(*options.min_p);
  if (options.repetition_penalty.has_value()) {
    sampling->set_repetition_penalty(*options.repetition_penalty);
  }
  if (options.frequency_penalty.has_value()) {
    sampling->set_frequency_penalty(*options.frequency_penalty);
  }
  if (options.presence_penalty.has_value()) {
    sampling->set_presence_penalty(*options.presence_penalty);
  }
  for (const auto& [id, bias] : options.logit_bias) (*sampling->mutable_logit_bias())[id] = bias;
  if (options.seed.has_value()) sampling->set_seed(*options.seed);
}

absl::StatusOr<std::string> ReadBytes(const std::string& path, absl::string_view option) {
  std::error_code ignored;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  const auto fail = [&](absl::string_view why) {
    return absl::NotFoundError(absl::StrCat(option, ": ", path, ": ", why));
  };
  if (!file.is_open()) return fail(std::strerror(errno));
  // A directory opens like a file.
  if (std::filesystem::is_directory(path, ignored)) return fail("is a directory; expected a file");
  bytes << file.rdbuf();
  if (bytes.bad()) return fail("cannot be read");
  return bytes.str();
}

absl::Status SetConstraint(const ConstraintOptions& options, v1::GenerateRequest* request) {
  if (!options.json_schema.empty()) {
    absl::StatusOr<std::string> schema = ReadBytes(options.json_schema, "--json-schema");
    if (!schema.ok()) return schema.status();
    request->mutable_constraint()->set_json_schema(*std::move(schema));
  }
  if (options.regex) request->mutable_constraint()->set_regex(*options.regex);
  for (const std::string& choice : options.choices) {
    request->mutable_constraint()->mutable_choices()->add_texts(choice);
  }
  return absl::OkStatus();
}

void SetSession(const SessionOptions& options, v1::SessionRef* session) {
  session->set_session_id(options.id);
  if (options.position.has_value()) session->set_position(*options.position);
  if (options.sequence_hash.has_value()) session->set_sequence_hash(*options.sequence_hash);
  session->set_mark(options.mark);
}

void SetCache(const CacheOptions& options, v1::PromptCache* cache) {
  cache->set_enabled(options.enabled);
  cache->set_salt(options.salt);
  cache->mutable_positions()->Add(options.positions.begin(), options.positions.end());
}

v1::Priority ToPriority(absl::string_view name) {
  if (name == "low") return v1::PRIORITY_LOW;
  if (name == "high") return v1::PRIORITY_HIGH;
  return name == "normal" ? v1::PRIORITY_NORMAL : v1::PRIORITY_UNSPECIFIED;
}

}  // namespace rivulet
