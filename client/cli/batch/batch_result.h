// SPDX-License-Identifier: Apache-2.0
// One line of the output of `rivulet batch`, in the form of the line of input that it answers. It
// begins with {"line":N, the number of the line of input. A result does not depend on the time at
// which it was computed, so an interrupted batch has the same output as an uninterrupted one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/cli/batch/batch_line.h"
#include "rivulet/v1/inference.pb.h"
#include "rivulet/v1/multiplex.pb.h"

namespace rivulet {

// The parts of a reply, put together.
struct BatchReply {
  struct Sample {
    std::string text;
    std::vector<int32_t> tokens;
    std::vector<float> logprobs;
    std::vector<v1::TopLogprobs> top_logprobs;
    v1::Finish finish;
    ReplyParts::Added parts;  // of a chat
  };
  std::vector<Sample> samples;
  uint64_t seed = 0;
  v1::Usage usage;

  void Take(const v1::MultiplexPart& part);
  // Of a chat, once it is complete. `parts`: of the request.
  void Divide(const ReplyParts& parts);
};

// An error of the server or of ParseBatchLine(), in parts.
struct BatchError {
  absl::StatusCode code = absl::StatusCode::kUnknown;
  std::string reason, field, message, request_id;  // empty: not known
};

// Fields are named as in a line of input.
BatchError ToBatchError(const absl::Status& status);

// The values that all OpenAI objects of a batch carry.
struct BatchStamp {
  int64_t created = 0;   // seconds since 1970
  std::string model;     // for lines that name no model
  bool is_text = false;  // results hold text; else tokens
};

// Each ends with a newline.
std::string GenerateResult(int64_t number, const BatchLine& line, const BatchStamp& stamp,
                           const BatchReply& reply);
std::string ScoreResult(int64_t number, const BatchLine& line, const v1::ScoreReply& reply);
std::string ErrorResult(int64_t number, const BatchLine& line, const BatchError& error);

// The line of input that a line of output answers: its number and custom_id. nullopt: the line of
// output is not from this program, or is damaged.
struct AnsweredLine {
  int64_t number = 0;
  std::optional<std::string> custom_id;
};
std::optional<AnsweredLine> ReadResult(absl::string_view result);

}  // namespace rivulet
