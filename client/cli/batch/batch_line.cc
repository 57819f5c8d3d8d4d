// SPDX-License-Identifier: Apache-2.0
#include "client/cli/batch/batch_line.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "model/base/error.h"
#include "model/base/json_reader.h"
#include "model/base/strict_json.h"
#include "model/base/suggestion.h"

namespace rivulet {
namespace {

using Kind = JsonValue::Kind;

constexpr JsonRules kLineRules = {.invalid = "INVALID_PARAMETER",
                                  .unsupported = "UNSUPPORTED_PARAMETER",
                                  .unknown_may_be_null = true};
// The length of a text is checked against the server's limit when the line is sent.
constexpr JsonLimits kLineLimits = {.max_depth = 80,  // schemas have up to 64
                                    .max_values = size_t{1} << 24,
                                    .max_token_bytes = std::numeric_limits<size_t>::max()};
// A short line has exactly one of these members.
constexpr std::array<absl::string_view, 3> kKinds = {"prompt", "messages", "score"};
constexpr int64_t kCompletionMaxTokens = 16;  // OpenAI's, of /v1/completions

// Does `action` with the value of a member, if the object has it.
template <typename Action>
absl::Status IfThere(JsonReader* object, absl::string_view name, Kind kind, const Action& action) {
  RIVULET_ASSIGN_OR_RETURN(const JsonValue* value, object->Get(name, kind, /*may_miss=*/true));
  if (value != nullptr) action(*value);
  return absl::OkStatus();
}

template <typename Action>
absl::Status IfNumber(JsonReader* object, absl::string_view name, const Action& action) {
  const JsonValue* const value = object->Find(name);
  if (value == nullptr) return absl::OkStatus();
  // Beyond float32 the conversion is undefined.
  constexpr double kMost = std::numeric_limits<float>::max();
  if (!value->is_number() || value->number < -kMost || value->number > kMost) {
    return object->Invalid(name, "is ", Describe(*value), "; allowed: a number that float32 holds");
  }
  action(static_cast<float>(value->number));
  return absl::OkStatus();
}

absl::StatusOr<int32_t> TokenId(const JsonValue& value, absl::string_view path) {
  if (value.kind == Kind::kInteger && value.integer >= std::numeric_limits<int32_t>::min() &&
      value.integer <= std::numeric_limits<int32_t>::max()) {
    return static_cast<int32_t>(value.integer);
  }
  return kLineRules.Invalid(path, "is ", Describe(value),
                            "; allowed: a token id, an integer of 32 bits");
}

absl::Status AddIds(const JsonValue& array, absl::string_view path,
                    google::protobuf::RepeatedField<int32_t>* ids) {
  for (size_t i = 0; i < array.items.size(); ++i) {
    RIVULET_ASSIGN_OR_RETURN(const int32_t id,
                             TokenId(array.items[i], absl::StrCat(path, "[", i, "]")));
    ids->Add(id);
  }
  return absl::OkStatus();
}

// A text or token ids, or an array of one of these. `Request`: one with the members `text` and
// `tokens`.
template <typename Request>
absl::Status ReadContent(JsonReader* object, absl::string_view name, Request* request) {
  const JsonValue* value = object->Find(name);
  if (value == nullptr) return object->Invalid(name, "is missing; allowed: a text or token ids");
  std::string path(name);
  const bool is_list =
      value->kind == Kind::kArray && value->items.size() == 1 &&
      (value->items[0].kind == Kind::kString || value->items[0].kind == Kind::kArray);
  if (is_list) {
    value = &value->items[0];
    path += "[0]";
  }
  if (value->kind == Kind::kString) {
    request->set_text(value->text);
    return absl::OkStatus();
  }
  if (value->kind != Kind::kArray) {
    return object->Invalid(name, "is ", Describe(*value), "; allowed: a text or token ids");
  }
  if (!value->items.empty() && value->items[0].kind != Kind::kInteger) {
    return object->Unsupported(name, "is ", Describe(*value),
                               "; supported: one text, or token ids; one prompt a line");
  }
  return AddIds(*value, path, request->mutable_tokens()->mutable_ids());
}

absl::Status ReadSeed(JsonReader* body, v1::SamplingParams* sampling) {
  const JsonValue* const value = body->Find("seed");
  if (value == nullptr) return absl::OkStatus();
  uint64_t seed = 0;
  const bool fits = value->kind == Kind::kInteger
                        ? value->integer >= 0
                        : value->kind == Kind::kHugeInteger && absl::SimpleAtoi(value->text, &seed);
  if (!fits) {
    return body->Invalid("seed", "is ", Describe(*value),
                         "; allowed: an integer from 0 to 2^64 - 1");
  }
  sampling->set_seed(value->kind == Kind::kInteger ? static_cast<uint64_t>(value->integer) : seed);
  return absl::OkStatus();
}

absl::Status ReadLogitBias(JsonReader* body, v1::SamplingParams* sampling) {
  if (body->Find("logit_bias") == nullptr) return absl::OkStatus();
  RIVULET_ASSIGN_OR_RETURN(const JsonValue* bias, body->Get("logit_bias", Kind::kObject));
  RIVULET_ASSIGN_OR_RETURN(JsonReader entries, body->Object("logit_bias"));
  for (const std::string& key : bias->keys) {
    int32_t id = 0;
    if (!absl::SimpleAtoi(key, &id)) {
      return body->Invalid("logit_bias", "has the key ", Quoted(key), "; allowed: token ids");
    }
    RIVULET_RETURN_IF_ERROR(IfNumber(
        &entries, key, [&](float value) { (*sampling->mutable_logit_bias())[id] = value; }));
  }
  return absl::OkStatus();
}

absl::Status ReadSampling(JsonReader* body, v1::SamplingParams* s) {
  RIVULET_RETURN_IF_ERROR(IfNumber(body, "temperature", [s](float v) { s->set_temperature(v); }));
  RIVULET_RETURN_IF_ERROR(IfNumber(body, "top_p", [s](float v) { s->set_top_p(v); }));
  RIVULET_RETURN_IF_ERROR(IfNumber(body, "min_p", [s](float v) { s->set_min_p(v); }));
  RIVULET_RETURN_IF_ERROR(
      IfNumber(body, "repetition_penalty", [s](float v) { s->set_repetition_penalty(v); }));
  RIVULET_RETURN_IF_ERROR(
      IfNumber(body, "frequency_penalty", [s](float v) { s->set_frequency_penalty(v); }));
  RIVULET_RETURN_IF_ERROR(
      IfNumber(body, "presence_penalty", [s](float v) { s->set_presence_penalty(v); }));
  if (body->Find("top_k") != nullptr) {
    int top_k = 0;
    RIVULET_RETURN_IF_ERROR(body->Int("top_k", 0, std::numeric_limits<int32_t>::max(), &top_k));
    s->set_top_k(top_k);
  }
  RIVULET_RETURN_IF_ERROR(ReadLogitBias(body, s));
  return ReadSeed(body, s);
}

// Adds the texts of the array `name`.
absl::Status AddTexts(JsonReader* object, absl::string_view name,
                      google::protobuf::RepeatedPtrField<std::string>* texts) {
  return object->ForEach(name, [texts](const JsonValue& item, absl::string_view path) {
    if (item.kind != Kind::kString) {
      return kLineRules.Invalid(path, "is ", Describe(item), "; allowed: a text");
    }
    texts->Add(std::string(item.text));
    return absl::OkStatus();
  });
}

absl::Status ReadStop(JsonReader* body, v1::StopConditions* stop) {
  const JsonValue* const value = body->Find("stop");
  if (value != nullptr && value->kind == Kind::kString) {
    stop->add_strings(value->text);
  } else if (value != nullptr && value->kind != Kind::kArray) {
    return body->Invalid("stop", "is ", Describe(*value), "; allowed: a text or an array of texts");
  } else if (value != nullptr) {
    RIVULET_RETURN_IF_ERROR(AddTexts(body, "stop", stop->mutable_strings()));
  }
  RIVULET_ASSIGN_OR_RETURN(const JsonValue* ids,
                           body->Get("stop_token_ids", Kind::kArray, /*may_miss=*/true));
  if (ids != nullptr) {
    RIVULET_RETURN_IF_ERROR(AddIds(*ids, "stop_token_ids", stop->mutable_token_ids()));
  }
  RIVULET_RETURN_IF_ERROR(
      IfThere(body, "include_stop_str_in_output", Kind::kBool,
              [stop](const JsonValue& v) { stop->set_include_string(v.boolean); }));
  RIVULET_RETURN_IF_ERROR(IfThere(body, "min_tokens", Kind::kInteger,
                                  [stop](const JsonValue& v) { stop->set_min_tokens(v.integer); }));
  return IfThere(body, "ignore_eos", Kind::kBool,
                 [stop](const JsonValue& v) { stop->set_ignore_eos(v.boolean); });
}

absl::Status ReadSpeculation(JsonReader* body, v1::GenerateRequest* request) {
  constexpr char kName[] = "rivulet_speculation";
  const JsonValue* const value = body->Find(kName);
  const auto is = [&](absl::string_view text) {
    return value->kind == Kind::kString && value->text == text;
  };
  if (value == nullptr || is("auto")) return absl::OkStatus();
  int drafts = 0;
  if (value->kind == Kind::kInteger) {
    RIVULET_RETURN_IF_ERROR(body->Int(kName, 0, 16, &drafts));
  } else if (!is("off")) {
    return body->Invalid(kName, "is ", Describe(*value),
                         "; allowed: \"auto\", \"off\" or an integer from 0 to 16");
  }
  request->mutable_speculation()->set_drafts(drafts);
  return absl::OkStatus();
}

// Of a short line: the log-probabilities as numbers.
absl::Status ReadLogprobs(JsonReader* body, bool openai, v1::LogprobOptions* logprobs) {
  if (openai) {
    for (const char* const name : {"logprobs", "top_logprobs"}) {
      const JsonValue* const value = body->Find(name);
      if (value == nullptr || (value->kind == Kind::kBool && !value->boolean)) continue;
      return body->Unsupported(name, "is ", Describe(*value),
                               "; supported: only in the short form of a line");
    }
    return absl::OkStatus();
  }
  bool enabled = false;
  int top = 0;
  RIVULET_RETURN_IF_ERROR(body->Bool("logprobs", &enabled, false));
  RIVULET_RETURN_IF_ERROR(body->Int("top_logprobs", 0, 20, &top, 0));
  if (top > 0 && !enabled) return body->Invalid("top_logprobs", "needs logprobs = true");
  if (!enabled) return absl::OkStatus();
  logprobs->set_enabled(true);
  logprobs->set_top_n(top);
  return absl::OkStatus();
}

absl::Status ReadMaxTokens(JsonReader* body, bool is_chat, v1::GenerateRequest* request) {
  const bool other = is_chat && body->Find("max_completion_tokens") != nullptr;
  if (other && body->Find("max_tokens") != nullptr) {
    return body->Invalid("max_tokens", "must not be given beside max_completion_tokens");
  }
  const char* const name = other ? "max_completion_tokens" : "max_tokens";
  const JsonValue* const value = body->Find(name);
  if (value == nullptr) return absl::OkStatus();
  if (value->kind != Kind::kInteger) {
    return body->Invalid(name, "is ", Describe(*value), "; allowed: an integer from 1 to ",
                         std::numeric_limits<int32_t>::max());
  }
  request->set_max_tokens(value->integer);
  return absl::OkStatus();
}

// OpenAI's fields for which the gateway accepts only one value, or that have no effect.
absl::Status ReadOthers(JsonReader* body, bool is_chat, int samples) {
  RIVULET_RETURN_IF_ERROR(body->Only("stream", "false"));
  RIVULET_RETURN_IF_ERROR(body->Only("stream_options", "null"));
  body->Known({"user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
               "service_tier", "metadata"});
  if (!is_chat) {
    RIVULET_RETURN_IF_ERROR(body->Only("echo", "false"));
    RIVULET_RETURN_IF_ERROR(body->Only("suffix", "\"\""));
    return body->Only("best_of", absl::StrCat(samples));
  }
  return absl::OkStatus();
}

absl::Status ReadSchema(JsonReader* given, absl::string_view name, v1::GenerateRequest* request) {
  const JsonValue* const schema = given->Find(name);
  if (schema == nullptr || (schema->kind != Kind::kObject && schema->kind != Kind::kBool)) {
    return given->Invalid(name, "is ", schema == nullptr ? "missing" : Describe(*schema),
                          "; allowed: a JSON schema");
  }
  request->mutable_constraint()->set_json_schema(ToJson(*schema));
  return absl::OkStatus();
}

absl::Status ReadFormat(JsonReader format, v1::GenerateRequest* request) {
  enum class Type : uint8_t { kText, kObject, kSchema } type = Type::kText;
  RIVULET_RETURN_IF_ERROR(format.Choice<Type>(
      "type",
      {{"text", Type::kText}, {"json_object", Type::kObject}, {"json_schema", Type::kSchema}},
      &type));
  if (type == Type::kObject) request->mutable_constraint()->set_json_object(true);
  if (type != Type::kSchema) return absl::OkStatus();
  RIVULET_ASSIGN_OR_RETURN(
      JsonReader given, format.Object("json_schema", {"name", "description", "strict", "schema"}));
  return ReadSchema(&given, "schema", request);
}

// "response_format", or vLLM's "structured_outputs".
absl::Status ReadConstraint(JsonReader* body, v1::GenerateRequest* request) {
  const bool structured = body->Find("structured_outputs") != nullptr;
  if (body->Find("response_format") != nullptr) {
    if (structured)
      return body->Invalid("structured_outputs", "must not be given beside response_format");
    RIVULET_ASSIGN_OR_RETURN(JsonReader format,
                             body->Object("response_format", {"type", "json_schema"}));
    return ReadFormat(std::move(format), request);
  }
  if (!structured) return absl::OkStatus();
  const std::initializer_list<absl::string_view> kForms = {"json", "regex", "choice", "json_object",
                                                           "structural_tag"};
  RIVULET_ASSIGN_OR_RETURN(JsonReader given, body->Object("structured_outputs", kForms));
  const auto forms = std::ranges::count_if(
      kForms, [&](absl::string_view form) { return given.Find(form) != nullptr; });
  if (forms != 1) {
    return body->Invalid("structured_outputs", "has ", forms, " forms; allowed: one of ",
                         absl::StrJoin(kForms, ", "));
  }
  v1::Constraint* const constraint = request->mutable_constraint();
  if (const JsonValue* const schema = given.Find("json"); schema != nullptr) {
    if (schema->kind != Kind::kString) return ReadSchema(&given, "json", request);
    constraint->set_json_schema(schema->text);
    return absl::OkStatus();
  }
  if (const JsonValue* const tag = given.Find("structural_tag"); tag != nullptr) {
    if (tag->kind != Kind::kString && tag->kind != Kind::kObject) {
      return given.Invalid("structural_tag", "is ", Describe(*tag), "; allowed: a structural tag");
    }
    constraint->set_structural_tag(tag->kind == Kind::kString ? tag->text : ToJson(*tag));
    return absl::OkStatus();
  }
  if (given.Find("regex") != nullptr) return given.Text("regex", constraint->mutable_regex());
  if (given.Find("choice") != nullptr) {
    return AddTexts(&given, "choice", constraint->mutable_choices()->mutable_texts());
  }
  constraint->set_json_object(true);
  return given.Only("json_object", "true");
}

// What completions and chats have in common.
absl::Status ReadGenerate(JsonReader* body, bool is_chat, BatchLine* line,
                          v1::GenerateRequest* request) {
  RIVULET_RETURN_IF_ERROR(ReadSampling(body, request->mutable_sampling()));
  RIVULET_RETURN_IF_ERROR(ReadStop(body, request->mutable_stop()));
  RIVULET_RETURN_IF_ERROR(ReadMaxTokens(body, is_chat, request));
  RIVULET_RETURN_IF_ERROR(ReadConstraint(body, request));
  RIVULET_RETURN_IF_ERROR(ReadSpeculation(body, request));
  RIVULET_RETURN_IF_ERROR(ReadLogprobs(body, line->openai, request->mutable_logprobs()));
  RIVULET_RETURN_IF_ERROR(IfThere(body, "add_special_tokens", Kind::kBool, [&](const JsonValue& v) {
    request->set_add_special_tokens(v.boolean);
  }));
  RIVULET_RETURN_IF_ERROR(
      IfThere(body, "parse_special_tokens", Kind::kBool,
              [&](const JsonValue& v) { request->set_parse_special_tokens(v.boolean); }));
  RIVULET_RETURN_IF_ERROR(
      IfThere(body, "skip_special_tokens", Kind::kBool,
              [&](const JsonValue& v) { request->set_skip_special_tokens(v.boolean); }));
  RIVULET_RETURN_IF_ERROR(body->Bool("return_token_ids", &line->tokens_wanted, false));
  int samples = 1;
  RIVULET_RETURN_IF_ERROR(body->Int("n", 1, 1024, &samples, 1));
  if (body->Find("n") != nullptr) request->set_num_samples(samples);
  return ReadOthers(body, is_chat, samples);
}

absl::Status ReadCompletion(JsonReader* body, BatchLine* line, v1::GenerateRequest request) {
  if (line->openai && !request.has_max_tokens()) request.set_max_tokens(kCompletionMaxTokens);
  absl::Status status = ReadContent(body, "prompt", &request);
  if (status.ok()) status = ReadGenerate(body, /*is_chat=*/false, line, &request);
  line->request = std::move(request);
  return status;
}

absl::Status ReadChat(JsonReader* body, BatchLine* line, v1::GenerateRequest request) {
  ChatRequest chat{std::move(request), nlohmann::ordered_json::object()};
  const absl::Status status = ReadGenerate(body, /*is_chat=*/true, line, &chat.generate);
  // Those of worker/chats.py, which checks them, as in the gateway.
  for (const char* const name :
       {"messages", "tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs",
        "reasoning_effort", "add_generation_prompt", "continue_final_message", "functions",
        "function_call", "modalities", "store", "prediction"}) {
    const JsonValue* const value = body->Find(name);
    if (value == nullptr || !status.ok()) continue;
    chat.conversation[name] = nlohmann::ordered_json::parse(ToJson(*value));
  }
  line->request = std::move(chat);
  return status;
}

absl::Status ReadScore(JsonReader* body, BatchLine* line, v1::ScoreRequest request) {
  absl::Status status = ReadContent(body, "score", &request);
  bool logprobs = false;
  if (status.ok()) status = body->Bool("logprobs", &logprobs, false);
  if (status.ok()) {
    status = IfThere(body, "window", Kind::kInteger,
                     [&](const JsonValue& v) { request.set_window(v.integer); });
  }
  request.set_logprobs(logprobs);
  line->request = std::move(request);
  return status;
}

// Whether a short line has exactly one of the members that name its kind.
absl::Status CheckKind(const JsonValue& short_line) {
  int named = 0, given = 0;
  for (const absl::string_view kind : kKinds) {
    const JsonValue* const value = short_line.Find(kind);
    named += value != nullptr ? 1 : 0;
    given += value != nullptr && value->kind != Kind::kNull ? 1 : 0;
  }
  if (given == 1) return absl::OkStatus();
  for (const std::string& key : short_line.keys) {
    const std::string meant = named == 0 ? Suggestion(key, {kKinds.begin(), kKinds.end()}) : "";
    if (meant.empty()) continue;
    return kLineRules.Unsupported(key, "is ", Describe(*short_line.Find(key)), ", an unknown field",
                                  meant);
  }
  return InvalidField("INVALID_PARAMETER", "",
                      "the line must hold exactly one of prompt, messages and score, or "
                      "custom_id, method, url and body");
}

absl::Status ReadBody(JsonReader* body, absl::string_view url, const BatchDefaults& defaults,
                      BatchLine* line) {
  v1::GenerateRequest generate = defaults.generate;
  v1::ScoreRequest score = defaults.score;
  RIVULET_RETURN_IF_ERROR(IfThere(body, "model", Kind::kString, [&](const JsonValue& v) {
    generate.set_model(v.text);
    score.set_model(v.text);
  }));
  const bool is_chat =
      url.empty() ? body->Find("messages") != nullptr : url == "/v1/chat/completions";
  const bool is_score = url.empty() && body->Find("score") != nullptr;
  // For the long form; CheckKind has checked a short line. Any of these fields may be null.
  for (const absl::string_view kind : kKinds) {
    if (kind == (is_chat ? "messages" : is_score ? "score" : "prompt")) continue;
    if (const JsonValue* const value = body->Find(kind); value != nullptr) {
      return body->Unsupported(kind, "is ", Describe(*value), ", which ", url, " does not take");
    }
  }
  RIVULET_RETURN_IF_ERROR(is_chat    ? ReadChat(body, line, std::move(generate))
                          : is_score ? ReadScore(body, line, std::move(score))
                                     : ReadCompletion(body, line, std::move(generate)));
  return body->CheckNoOthers();
}

}  // namespace

const std::string& BatchLine::model() const {
  if (const auto* const generate = std::get_if<v1::GenerateRequest>(&request)) {
    return generate->model();
  }
  if (const auto* const chat = std::get_if<ChatRequest>(&request)) return chat->generate.model();
  return std::get<v1::ScoreRequest>(request).model();
}

absl::Status ParseBatchLine(absl::string_view text, const BatchDefaults& defaults,
                            BatchLine* line) {
  if (absl::StripAsciiWhitespace(text).empty()) {
    return InvalidField("INVALID_JSON", "", "the line is empty");
  }
  const absl::StatusOr<JsonValue> value = ParseStrictJson(text, kLineLimits);
  if (!value.ok()) return InvalidField("INVALID_JSON", "", value.status().message());
  if (value->kind != Kind::kObject) {
    return InvalidField("INVALID_JSON", "",
                        absl::StrCat("the line is ", Describe(*value), "; allowed: an object"));
  }
  RIVULET_ASSIGN_OR_RETURN(JsonReader object, JsonReader::Of(kLineRules, *value, ""));
  line->openai = value->Find("url") != nullptr || value->Find("body") != nullptr;
  RIVULET_RETURN_IF_ERROR(IfThere(&object, "custom_id", Kind::kString,
                                  [line](const JsonValue& v) { line->custom_id = v.text; }));
  if (!line->openai) {
    RIVULET_RETURN_IF_ERROR(CheckKind(*value));
    return ReadBody(&object, "", defaults, line);
  }

  if (!line->custom_id.has_value()) return object.Invalid("custom_id", "is missing");
  RIVULET_RETURN_IF_ERROR(object.Only("method", "\"POST\""));
  RIVULET_RETURN_IF_ERROR(object.Only("url", "\"/v1/completions\", \"/v1/chat/completions\""));
  std::string url;
  RIVULET_RETURN_IF_ERROR(object.Text("url", &url));
  RIVULET_ASSIGN_OR_RETURN(const JsonValue* given, object.Get("body", Kind::kObject));
  RIVULET_RETURN_IF_ERROR(object.CheckNoOthers());
  // Fields are named as in the body, like in OpenAI's errors.
  RIVULET_ASSIGN_OR_RETURN(JsonReader body, JsonReader::Of(kLineRules, *given, ""));
  return ReadBody(&body, url, defaults, line);
}

}  // namespace rivulet
