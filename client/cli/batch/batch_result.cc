// SPDX-License-Identifier: Apache-2.0
#include "client/cli/batch/batch_result.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/cli/batch/problems.h"
#include "client/cli/output/json_parts.h"
#include "client/cli/output/text.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"
#include "nlohmann/json.hpp"
#include "rivulet/client.h"

namespace rivulet {
namespace {

constexpr absl::string_view kStart = "{\"line\":";

// Statuses, types and names of fields, from the file that the gateway reads too.
const nlohmann::json& Problems() {
  static const auto* const tables = new nlohmann::json(nlohmann::json::parse(kProblems));
  return *tables;
}

// The paths of rivulet.v1 as fields of a line.
std::string FieldInLine(const std::string& path, bool is_score) {
  const size_t bracket = std::min(path.find('['), path.size());
  const std::string name = path.substr(0, bracket), index = path.substr(bracket);
  std::string field = Problems()["names"].value(name, "");
  // The gateway scores the `prompt` of a completion.
  if (is_score && field == "prompt") field = "score";
  if (!field.empty()) return field + index;
  return std::string(absl::StripPrefix(path, is_score ? "" : "sampling."));
}

// The message. If it begins with the path of a field, the field's name in a line replaces the path.
std::string InLine(const BatchError& error, const std::string& field) {
  if (error.field.empty() || !absl::StartsWith(error.message, error.field)) return error.message;
  const absl::string_view rest = absl::string_view(error.message).substr(error.field.size());
  const bool is_whole = absl::StartsWith(rest, " ") || absl::StartsWith(rest, ":");
  return is_whole ? absl::StrCat(field, rest) : error.message;
}

std::string Head(int64_t number, const BatchLine& line) {
  std::string head = absl::StrCat(kStart, number);
  if (line.openai) absl::StrAppend(&head, ",\"id\":\"batch_req_", number, "\"");
  if (line.custom_id.has_value()) {
    absl::StrAppend(&head, ",\"custom_id\":", JsonString(*line.custom_id));
  }
  return head;
}

std::string ParsingError(const ReplyParts::Added& parts) {
  if (parts.error.empty()) return "";
  return absl::StrCat(",\"parsing_error\":{\"code\":", JsonString(parts.code),
                      ",\"message\":", JsonString(parts.error), "}");
}

// `"text":"...","finish":"length"`, and the other requested fields.
void AppendSample(const BatchReply::Sample& sample, bool text, bool tokens, std::string* out) {
  const nlohmann::ordered_json& message = sample.parts.message;
  const bool is_chat = !message.is_null();
  if (text) {
    std::string shown = sample.text;
    if (is_chat) shown = message["content"].is_null() ? "" : message["content"].get<std::string>();
    absl::StrAppend(out, "\"text\":", JsonString(shown), ",");
  }
  for (const char* const name : {"reasoning_content", "tool_calls"}) {
    if (!is_chat || !message.contains(name)) continue;
    absl::StrAppend(out, "\"", name, "\":", message[name].dump(), ",");
  }
  if (tokens || !text) {
    AppendJsonList("tokens", sample.tokens, out);
    out->push_back(',');
  }
  if (!sample.logprobs.empty()) {
    AppendJsonList("logprobs", sample.logprobs, out);
    out->push_back(',');
  }
  if (!sample.top_logprobs.empty()) {
    AppendJsonList("top_logprobs", sample.top_logprobs, out);
    out->push_back(',');
  }
  absl::StrAppend(out, "\"finish\":\"", FinishReasonName(sample.finish.reason()), "\"",
                  ParsingError(sample.parts));
  if (!sample.finish.stop_string().empty()) {
    absl::StrAppend(out, ",\"stop_string\":", JsonString(sample.finish.stop_string()));
  }
}

std::string ShortResult(std::string out, const BatchLine& line, bool text,
                        const BatchReply& reply) {
  if (reply.samples.size() == 1) {
    out.push_back(',');
    AppendSample(reply.samples[0], text, line.tokens_wanted, &out);
  } else {
    out.push_back(',');
    AppendJsonList("samples", reply.samples, &out,
                   [&](const BatchReply::Sample& sample, std::string* to) {
                     to->push_back('{');
                     AppendSample(sample, text, line.tokens_wanted, to);
                     to->push_back('}');
                   });
  }
  absl::StrAppend(&out, ",\"seed\":", reply.seed,
                  ",\"usage\":{\"prompt_tokens\":", reply.usage.prompt_tokens(),
                  ",\"completion_tokens\":", reply.usage.completion_tokens(), "}}\n");
  return out;
}

void AppendChoice(const BatchLine& line, const BatchReply& reply, size_t index, bool text,
                  std::string* out) {
  const BatchReply::Sample& sample = reply.samples[index];
  absl::StrAppend(out, "{\"index\":", index);
  if (!sample.parts.message.is_null()) {
    absl::StrAppend(out, ",\"message\":", sample.parts.message.dump());
  } else {
    absl::StrAppend(out, ",\"text\":", JsonString(text ? sample.text : ""));
  }
  if (line.tokens_wanted || !text) {
    out->push_back(',');
    AppendJsonList("token_ids", sample.tokens, out);
  }
  const bool length = sample.finish.reason() == v1::FINISH_REASON_LENGTH;
  absl::StrAppend(out, ",\"logprobs\":null,\"finish_reason\":\"",
                  length               ? "length"
                  : sample.parts.calls ? "tool_calls"
                                       : "stop",
                  "\"", ParsingError(sample.parts), "}");
}

std::string OpenAiResult(std::string out, int64_t number, const BatchLine& line,
                         const BatchStamp& stamp, const BatchReply& reply) {
  const bool chat = std::holds_alternative<ChatRequest>(line.request);
  absl::StrAppend(&out, ",\"response\":{\"status_code\":200,\"request_id\":\"batch_req_", number,
                  "\",\"body\":{\"id\":\"", chat ? "chatcmpl-" : "cmpl-", number,
                  "\",\"object\":\"", chat ? "chat.completion" : "text_completion",
                  "\",\"created\":", stamp.created,
                  ",\"model\":", JsonString(line.model().empty() ? stamp.model : line.model()),
                  ",\"choices\":[");
  for (size_t i = 0; i < reply.samples.size(); ++i) {
    if (i > 0) out.push_back(',');
    AppendChoice(line, reply, i, stamp.is_text, &out);
  }
  const int64_t prompt = reply.usage.prompt_tokens(), completion = reply.usage.completion_tokens();
  absl::StrAppend(
      &out, "],\"usage\":{\"prompt_tokens\":", prompt, ",\"completion_tokens\":", completion,
      ",\"total_tokens\":", prompt + completion,
      ",\"completion_tokens_details\":{\"reasoning_tokens\":", reply.usage.reasoning_tokens(),
      "}},\"seed\":", reply.seed, "}},\"error\":null}\n");
  return out;
}

int HttpStatus(const BatchError& error) {
  const int status = Problems()["statuses"].value(absl::StatusCodeToString(error.code), 500);
  return Problems()["reasons"].value(error.reason, status);
}

std::string ErrorType(int status) {
  return Problems()["types"].value(absl::StrCat(status),
                                   status >= 500 ? "server_error" : "invalid_request_error");
}

std::string JsonOrNull(const std::string& text) { return text.empty() ? "null" : JsonString(text); }

}  // namespace

void BatchReply::Take(const v1::MultiplexPart& part) {
  if (part.has_seed()) seed = part.seed();
  if (part.has_usage()) usage = part.usage();
  // If a part holds only the usage, its other fields have no meaning.
  if (part.tokens_size() == 0 && part.text().empty() && !part.has_finish()) return;
  const size_t index = static_cast<size_t>(std::max(part.sample_index(), 0));
  if (samples.size() <= index) samples.resize(index + 1);
  Sample& sample = samples[index];
  sample.text += part.text();
  sample.tokens.insert(sample.tokens.end(), part.tokens().begin(), part.tokens().end());
  sample.logprobs.insert(sample.logprobs.end(), part.logprobs().begin(), part.logprobs().end());
  sample.top_logprobs.insert(sample.top_logprobs.end(), part.top_logprobs().begin(),
                             part.top_logprobs().end());
  if (part.has_finish()) sample.finish = part.finish();
}

void BatchReply::Divide(const ReplyParts& parts) {
  for (Sample& sample : samples) {
    const bool cut = sample.finish.reason() == v1::FINISH_REASON_LENGTH;
    ReplyParts one = parts;
    sample.parts = one.Add(sample.text, cut ? ReplyParts::End::kCut : ReplyParts::End::kEnd);
  }
}

BatchError ToBatchError(const absl::Status& status) {
  BatchError error;
  error.code = status.code();
  error.message = OneLine(status.message());
  if (const ErrorDetail own = GetErrorDetail(status); !own.reason.empty()) {
    error.reason = own.reason;
    error.field = own.field;
    return error;
  }
  const ErrorInfo info = GetErrorInfo(status);
  error.reason = info.reason;
  error.field = info.field;
  error.request_id = info.request_id;
  return error;
}

std::string GenerateResult(int64_t number, const BatchLine& line, const BatchStamp& stamp,
                           const BatchReply& reply) {
  if (line.openai) return OpenAiResult(Head(number, line), number, line, stamp, reply);
  return ShortResult(Head(number, line), line, stamp.is_text, reply);
}

std::string ScoreResult(int64_t number, const BatchLine& line, const v1::ScoreReply& reply) {
  if (!std::isfinite(reply.nll_nats())) {
    return ErrorResult(
        number, line,
        {absl::StatusCode::kInternal, "", "", "the server sent a number that is not finite", ""});
  }
  std::string out = absl::StrCat(Head(number, line), ",\"nll_nats\":");
  AppendNumber(reply.nll_nats(), &out);
  absl::StrAppend(&out, ",\"num_scored\":", reply.num_scored());
  // JSON has no number for an infinite perplexity or for the perplexity of no tokens.
  const double perplexity = Perplexity(reply.nll_nats(), reply.num_scored());
  if (std::isfinite(perplexity)) {
    out += ",\"perplexity\":";
    AppendNumber(perplexity, &out);
  }
  if (reply.logprobs_size() > 0) {
    out.push_back(',');
    AppendJsonList("logprobs", reply.logprobs(), &out);
  }
  out += "}\n";
  return out;
}

std::string ErrorResult(int64_t number, const BatchLine& line, const BatchError& error) {
  std::string out = Head(number, line);
  const std::string code = absl::StatusCodeToString(error.code);
  const bool is_score = std::holds_alternative<v1::ScoreRequest>(line.request);
  const std::string field = FieldInLine(error.field, is_score);
  const std::string message = InLine(error, field);
  if (!line.openai) {
    absl::StrAppend(&out, ",\"error\":{\"code\":\"", code,
                    "\",\"reason\":", JsonOrNull(error.reason), ",\"field\":", JsonOrNull(field),
                    ",\"message\":", JsonString(message));
    if (!error.request_id.empty()) {
      absl::StrAppend(&out, ",\"request_id\":", JsonString(error.request_id));
    }
    out += "}}\n";
    return out;
  }
  const int status = HttpStatus(error);
  absl::StrAppend(&out, ",\"response\":{\"status_code\":", status, ",\"request_id\":",
                  error.request_id.empty() ? absl::StrCat("\"batch_req_", number, "\"")
                                           : JsonString(error.request_id),
                  ",\"body\":{\"error\":{\"message\":", JsonString(message), ",\"type\":\"",
                  ErrorType(status), "\",\"param\":", JsonOrNull(field),
                  ",\"code\":", JsonString(error.reason.empty() ? code : error.reason),
                  "}}},\"error\":null}\n");
  return out;
}

std::optional<AnsweredLine> ReadResult(absl::string_view result) {
  if (!absl::StartsWith(result, kStart)) return std::nullopt;
  const auto json = nlohmann::json::parse(result.begin(), result.end(), nullptr,
                                          /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  const auto number = json.find("line");
  if (number == json.end() || !number->is_number_integer()) return std::nullopt;
  AnsweredLine line = {number->get<int64_t>(), std::nullopt};
  const auto id = json.find("custom_id");
  const bool has_id = id != json.end();
  if (json.size() < (has_id ? 3 : 2)) return std::nullopt;  // it does not identify the line
  if (!has_id) return line;
  if (!id->is_string()) return std::nullopt;
  line.custom_id = id->get<std::string>();
  return line;
}

}  // namespace rivulet
