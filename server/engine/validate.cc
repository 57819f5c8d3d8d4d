// SPDX-License-Identifier: Apache-2.0
#include "server/engine/validate.h"

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "model/backend_options.h"
#include "model/base/error.h"
#include "model/sampler.h"

namespace rivulet {
namespace {

constexpr size_t kMaxReasoningBytes = 64;  // of each text

std::string Element(absl::string_view field, size_t i) { return absl::StrCat(field, "[", i, "]"); }

// Every id of `ids` from index `first` on is in [0, limit).
absl::Status CheckTokens(std::span<const int32_t> ids, size_t first, int limit,
                         absl::string_view field) {
  for (size_t i = first; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < limit) continue;
    const std::string name = Element(field, i);
    return InvalidField(
        "TOKEN_OUT_OF_RANGE", name,
        absl::StrCat(name, " is ", ids[i], "; token ids here are 0 to ", limit - 1, "."));
  }
  return absl::OkStatus();
}

// `value` is in [low, high].
absl::Status CheckRange(int64_t value, int64_t low, int64_t high, absl::string_view reason,
                        absl::string_view field) {
  if (value >= low && value <= high) return absl::OkStatus();
  return InvalidField(reason, field,
                      absl::StrCat(field, " is ", value, "; allowed: ", low, " to ", high, "."));
}

// `count` tokens fit into a sequence.
absl::Status CheckFits(absl::string_view field, int64_t count, const ModelConfig& config) {
  const std::optional<int64_t> limit = config.max_tokens();
  if (!limit || count <= *limit) return absl::OkStatus();
  return TooManyTokens(field, absl::StrCat(field, " holds ", count, " tokens"), *limit,
                       limit == config.model_max_tokens() ? LimitOf::kModel : LimitOf::kContext,
                       "Send fewer");
}

absl::Status CheckPrompt(const GenerateSpec& spec, const ModelConfig& config) {
  const std::vector<int32_t>& prompt = spec.prompt;
  // A session's tokens are checked when the request's turn comes.
  if (prompt.empty() && !config.has_bos() && !spec.session) return EmptyPrompt();
  const int64_t count = static_cast<int64_t>(prompt.size());
  RIVULET_RETURN_IF_ERROR(CheckFits("prompt.tokens", count, config));
  return CheckTokens(prompt, 0, config.vocab_size, "prompt.tokens");
}

// REQUIRES: num_samples is at least 1.
absl::Status CheckRequestTokens(const GenerateSpec& spec, const EngineOptions& options) {
  const int64_t most = options.max_request_tokens / spec.num_samples;
  if (spec.max_tokens <= most) return absl::OkStatus();
  return InvalidField(
      "MAX_TOKENS_OUT_OF_RANGE", "max_tokens",
      absl::StrCat("max_tokens is ", spec.max_tokens, " for each of ", spec.num_samples,
                   " samples; allowed: at most ", most, ", since a request may generate ",
                   options.max_request_tokens, " tokens over all samples."));
}

absl::Status CheckStops(const GenerateSpec& spec, const ModelView& model,
                        const EngineOptions& options) {
  const size_t num_ids = spec.stop_ids.size();
  if (num_ids > static_cast<size_t>(options.max_stop_ids)) {
    return InvalidField("TOO_MANY_STOP_TOKENS", "stop.token_ids",
                        absl::StrCat("stop.token_ids holds ", num_ids, " ids; allowed: at most ",
                                     options.max_stop_ids, "."));
  }
  RIVULET_RETURN_IF_ERROR(
      CheckTokens(spec.stop_ids, 0, model.config->vocab_size, "stop.token_ids"));
  const size_t num_strings = spec.stop_strings.size();
  if (num_strings == 0) return absl::OkStatus();
  if (model.tokenizer == nullptr) {
    return InvalidField(
        "NO_TOKENIZER", "stop.strings",
        absl::StrCat("stop.strings holds ", num_strings, " strings; this model has no tokenizer."));
  }
  if (num_strings > static_cast<size_t>(options.max_stop_strings)) {
    return InvalidField("TOO_MANY_STOP_STRINGS", "stop.strings",
                        absl::StrCat("stop.strings holds ", num_strings,
                                     " strings; allowed: at most ", options.max_stop_strings, "."));
  }
  for (size_t i = 0; i < num_strings; ++i) {
    const size_t bytes = spec.stop_strings[i].size();
    if (bytes >= 1 && bytes <= static_cast<size_t>(options.max_stop_string_bytes)) continue;
    const std::string name = Element("stop.strings", i);
    return InvalidField("STOP_STRING_LENGTH", name,
                        absl::StrCat(name, " is ", bytes, " bytes long; allowed: 1 to ",
                                     options.max_stop_string_bytes, "."));
  }
  return absl::OkStatus();
}

// Options of a reply's text.
absl::Status CheckReplyText(const GenerateSpec& spec, const ModelView& model) {
  if (model.tokenizer == nullptr && (spec.skip_special_tokens || spec.reasoning)) {
    const char* const field = spec.reasoning ? "reasoning" : "skip_special_tokens";
    return InvalidField("NO_TOKENIZER", field,
                        absl::StrCat(field, " is set; this model has no tokenizer."));
  }
  if (!spec.reasoning) return absl::OkStatus();
  for (const auto& [name, text, least] :
       {std::tuple("reasoning.begin", &spec.reasoning->begin, size_t{0}),
        std::tuple("reasoning.end", &spec.reasoning->end, size_t{1})}) {
    if (text->size() >= least && text->size() <= kMaxReasoningBytes) continue;
    return InvalidField("REASONING_INVALID", name,
                        absl::StrCat(name, " is ", text->size(), " bytes long; allowed: ", least,
                                     " to ", kMaxReasoningBytes, "."));
  }
  return absl::OkStatus();
}

absl::Status CheckSpeculation(const Speculation& speculation, const ModelConfig& config) {
  RIVULET_RETURN_IF_ERROR(CheckRange(speculation.drafts.value_or(0), 0, kMostDrafts,
                                     "DRAFTS_OUT_OF_RANGE", "speculation.drafts"));
  const size_t tokens = speculation.prediction.size();
  if (tokens > kMostPrediction) {
    return InvalidField("PREDICTION_TOO_LONG", "speculation.prediction",
                        absl::StrCat("speculation.prediction holds ", tokens,
                                     " tokens; allowed: at most ", kMostPrediction, "."));
  }
  return CheckTokens(speculation.prediction, 0, config.vocab_size, "speculation.tokens");
}

absl::Status CheckMinTokens(const GenerateSpec& spec, const ModelView& model,
                            const EngineOptions& options) {
  if (spec.min_tokens == 0) return absl::OkStatus();
  // The natural length in a session is known when the request's turn comes.
  const int64_t most = spec.max_tokens > 0 ? spec.max_tokens
                       : spec.session      ? options.max_tokens_limit
                                           : MostNewTokens(spec, model, options).asked;
  RIVULET_RETURN_IF_ERROR(
      CheckRange(spec.min_tokens, 0, most, "MIN_TOKENS_OUT_OF_RANGE", "stop.min_tokens"));
  const ModelConfig& config = *model.config;
  const std::vector<int32_t> all = EndTokens(spec, config);
  const std::set<int32_t> ends(all.begin(), all.end());
  if (ends.empty()) return absl::OkStatus();
  const bool mixture = config.output.type == OutputType::kMixtureOfLogistics;
  if (!mixture && std::ssize(ends) < config.num_output_tokens()) return absl::OkStatus();
  return InvalidField(
      "MIN_TOKENS_OUT_OF_RANGE", "stop.min_tokens",
      absl::StrCat("stop.min_tokens is ", spec.min_tokens, "; allowed: 0, since ",
                   mixture ? "this model draws from mixtures, which exclude no stop token."
                           : "each token of this model is a stop token."));
}

absl::Status CheckLogprobs(const GenerateSpec& spec, const ModelConfig& config,
                           const EngineOptions& options) {
  RIVULET_RETURN_IF_ERROR(CheckRange(spec.num_top_logprobs, 0,
                                     std::min(options.max_top_logprobs, config.num_output_tokens()),
                                     "TOP_LOGPROBS_OUT_OF_RANGE", "logprobs.top_n"));
  if (spec.num_top_logprobs == 0 || spec.want_logprobs) return absl::OkStatus();
  return InvalidField("TOP_LOGPROBS_WITHOUT_LOGPROBS", "logprobs.top_n",
                      absl::StrCat("logprobs.top_n is ", spec.num_top_logprobs,
                                   " but logprobs.enabled is false; allowed then: 0."));
}

// `given`: the largest allowed position; with a session, the most tokens that it may have.
absl::Status CheckCache(const PromptCacheSpec& cache, int64_t given, const EngineOptions& options) {
  if (!cache.enabled) return absl::OkStatus();
  if (cache.salt.size() > static_cast<size_t>(options.max_cache_salt_bytes)) {
    return InvalidField(
        "CACHE_SALT_LENGTH", "cache.salt",
        absl::StrCat("cache.salt is ", cache.salt.size(), " bytes long; allowed: at most ",
                     options.max_cache_salt_bytes, "."));
  }
  if (cache.positions.size() > static_cast<size_t>(options.max_cache_positions)) {
    return InvalidField(
        "TOO_MANY_CACHE_POSITIONS", "cache.positions",
        absl::StrCat("cache.positions holds ", cache.positions.size(),
                     " positions; allowed: at most ", options.max_cache_positions, "."));
  }
  for (size_t i = 0; i < cache.positions.size(); ++i) {
    RIVULET_RETURN_IF_ERROR(CheckRange(cache.positions[i], 1, given, "CACHE_POSITION_OUT_OF_RANGE",
                                       Element("cache.positions", i)));
  }
  return absl::OkStatus();
}

absl::Status CheckConstraint(const GenerateSpec& spec, const ModelView& model,
                             const EngineOptions& options) {
  if (!spec.constraint) return absl::OkStatus();
  if (model.tokenizer == nullptr || options.constraints == nullptr) {
    return InvalidField("NO_TOKENIZER", "constraint",
                        "constraint is set; this model has no tokenizer.");
  }
  if (spec.ignore_eos) {
    return InvalidField(
        "CONSTRAINT_INVALID", "stop.ignore_eos",
        "stop.ignore_eos is true beside a constraint, which says where a text ends.");
  }
  if (spec.min_tokens != 0) {
    return InvalidField("CONSTRAINT_INVALID", "stop.min_tokens",
                        absl::StrCat("stop.min_tokens is ", spec.min_tokens,
                                     " beside a constraint, which says where a text ends."));
  }
  if (spec.session) return absl::OkStatus();  // its length is known when its turn comes
  return CheckConstraintBegin(spec, std::ssize(spec.prompt));
}

absl::Status CheckResumedSamples(const GenerateSpec& spec) {
  if (!spec.resume) return absl::OkStatus();
  const std::vector<std::vector<int32_t>>& samples = spec.resume->tokens;
  if (samples.size() != static_cast<size_t>(spec.num_samples)) {
    return InvalidField("RESUME_SAMPLES", "resume.samples",
                        absl::StrCat("resume.samples has ", samples.size(),
                                     " samples; num_samples is ", spec.num_samples, "."));
  }
  return absl::OkStatus();
}

absl::Status CheckOutputPositions(const std::vector<int64_t>& positions, int64_t num_scored,
                                  const ModelConfig& config, const EngineOptions& options) {
  const int64_t num_outputs = static_cast<int64_t>(positions.size());
  const int64_t most = MaxScoreOutputs(options, config);
  if (num_outputs > most) {
    return InvalidField("TOO_MANY_OUTPUT_POSITIONS", "output_positions",
                        absl::StrCat("output_positions holds ", num_outputs,
                                     " positions; allowed: at most ", most, "."));
  }
  for (size_t i = 0; i < positions.size(); ++i) {
    const int64_t position = positions[i];
    if (position >= 0 && position < num_scored) continue;
    const std::string name = Element("output_positions", i);
    return InvalidField("OUTPUT_POSITION_OUT_OF_RANGE", name,
                        absl::StrCat(name, " is ", position, "; allowed: at least 0 and below ",
                                     num_scored, ", the number of scored tokens."));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateGenerate(const GenerateSpec& spec, const ModelView& model,
                              const BackendLimits& limits, const EngineOptions& options) {
  RIVULET_RETURN_IF_ERROR(CheckPrompt(spec, *model.config));
  RIVULET_RETURN_IF_ERROR(ValidateSampling(spec.sampling, *model.config, "sampling."));
  // 0 stands for "absent" here, so the message leaves it out.
  if (spec.max_tokens != 0) {
    RIVULET_RETURN_IF_ERROR(CheckRange(spec.max_tokens, 1, options.max_tokens_limit,
                                       "MAX_TOKENS_OUT_OF_RANGE", "max_tokens"));
  }
  int64_t max_samples = spec.session ? 1 : MaxNumSamples(limits, options);
  if (spec.key != nullptr) max_samples = std::min(max_samples, spec.key->slots().most);
  RIVULET_RETURN_IF_ERROR(
      CheckRange(spec.num_samples, 1, max_samples, "NUM_SAMPLES_OUT_OF_RANGE", "num_samples"));
  RIVULET_RETURN_IF_ERROR(CheckRequestTokens(spec, options));
  RIVULET_RETURN_IF_ERROR(CheckStops(spec, model, options));
  RIVULET_RETURN_IF_ERROR(CheckConstraint(spec, model, options));
  RIVULET_RETURN_IF_ERROR(CheckMinTokens(spec, model, options));
  RIVULET_RETURN_IF_ERROR(CheckReplyText(spec, model));
  RIVULET_RETURN_IF_ERROR(CheckSpeculation(spec.speculation, *model.config));
  const int64_t given =
      spec.session ? options.sessions.max_tokens : static_cast<int64_t>(spec.prompt.size());
  RIVULET_RETURN_IF_ERROR(CheckCache(spec.cache, given, options));
  if (spec.session && spec.session->repeated && !spec.session->position) return PositionNeeded();
  RIVULET_RETURN_IF_ERROR(CheckResumedSamples(spec));
  return CheckLogprobs(spec, *model.config, options);
}

std::vector<int32_t> EndTokens(const GenerateSpec& spec, const ModelConfig& config) {
  std::vector<int32_t> tokens = spec.stop_ids;
  if (config.eos_token_id && !spec.ignore_eos) {
    tokens.push_back(*config.eos_token_id);
    tokens.insert(tokens.end(), config.more_eos_token_ids.begin(), config.more_eos_token_ids.end());
  }
  return tokens;
}

absl::Status CheckResume(const GenerateSpec& spec, const ModelConfig& config, int64_t max_new,
                         uint64_t fingerprint) {
  if (spec.resume->fingerprint != fingerprint) {
    ErrorDetail detail;
    detail.reason = "RESUME_MISMATCH";
    detail.field = "resume.fingerprint";
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     absl::StrCat("resume.fingerprint is ", spec.resume->fingerprint,
                                  "; the fingerprint of this request is ", fingerprint,
                                  ": prompt, parameters or model differ from the lost reply, "
                                  "so the rest of the reply would differ."),
                     detail);
  }
  for (size_t i = 0; i < spec.resume->tokens.size(); ++i) {
    const std::string name = Element("resume.samples", i);
    const std::vector<int32_t>& tokens = spec.resume->tokens[i];
    RIVULET_RETURN_IF_ERROR(CheckTokens(tokens, 0, config.num_output_tokens(), name + ".ids"));
    if (static_cast<int64_t>(tokens.size()) <= max_new) continue;
    return InvalidField("RESUME_TOO_LONG", name,
                        absl::StrCat(name, " has ", tokens.size(),
                                     " tokens; a sample of this request has "
                                     "at most ",
                                     max_new, "."));
  }
  return absl::OkStatus();
}

absl::Status CheckConstraintBegin(const GenerateSpec& spec, int64_t given) {
  if (!spec.constraint || !spec.constraint->begin_position) return absl::OkStatus();
  return CheckRange(*spec.constraint->begin_position, 0, given, "CONSTRAINT_INVALID",
                    "constraint.begin_position");
}

absl::Status PositionNeeded() {
  ErrorDetail detail;
  detail.reason = "POSITION_NEEDED";
  detail.field = "session.position";
  return MakeError(
      absl::StatusCode::kAborted,
      "session.position is absent, and the call was sent before without an answer: only "
      "a call at a position may be repeated.",
      detail);
}

absl::Status TooManyTokens(absl::string_view field, absl::string_view has, int64_t limit,
                           LimitOf of, absl::string_view remedy) {
  ErrorDetail detail;
  detail.reason = "TOO_MANY_TOKENS";
  detail.field = std::string(field);
  const bool of_model = of == LimitOf::kModel;
  return MakeError(
      absl::StatusCode::kOutOfRange,
      absl::StrCat(has, "; ", of_model ? "the model's sequences end at " : "this server allows ",
                   limit, of_model ? ". " : " in a sequence. ", remedy,
                   of == LimitOf::kContext ? ", or raise --max-context." : "."),
      detail);
}

absl::Status EmptyPrompt() {
  return InvalidField("PROMPT_EMPTY", "prompt",
                      "prompt is empty; this model has no bos token, so it needs at least one.");
}

NewTokens MaxNewTokens(const GenerateSpec& spec, int64_t given, const ModelView& model,
                       const EngineOptions& options) {
  const ModelConfig& config = *model.config;
  const auto within = [&](int64_t count, std::optional<int64_t> limit) {
    return limit ? std::min(count, *limit - given) : count;
  };
  const std::optional<int64_t> model_limit = config.model_max_tokens();
  int64_t max_new = spec.max_tokens;
  if (max_new == 0) {
    const ContentConfig& content = config.content;
    if (content.type == ContentType::kImage) {
      const int64_t values = int64_t{content.height} * content.width * content.channels;
      max_new = std::max<int64_t>(0, values - given);
    } else {
      max_new = model_limit ? *model_limit - given : options.default_max_tokens;
    }
    max_new = std::min(
        {max_new, options.max_tokens_limit, options.max_request_tokens / spec.num_samples});
  }
  NewTokens tokens = {within(max_new, config.max_tokens()), within(max_new, model_limit)};
  if (spec.session) {
    for (int64_t* const count : {&tokens.most, &tokens.asked}) {
      *count = within(*count, options.sessions.max_tokens);
    }
  }
  // Too many given tokens are refused elsewhere.
  return {std::max<int64_t>(0, tokens.most), std::max<int64_t>(0, tokens.asked)};
}

NewTokens MostNewTokens(const GenerateSpec& spec, const ModelView& model,
                        const EngineOptions& options) {
  const int64_t prompt = std::ssize(spec.prompt);
  if (!spec.session) return MaxNewTokens(spec, prompt, model, options);
  const int64_t longest = options.sessions.max_tokens;
  // Whether a session has the position is known when its turn comes.
  const int64_t position = std::clamp<int64_t>(spec.session->position.value_or(0), 0, longest);
  const size_t dropped = position > 0 ? spec.start_tokens : 0;
  const int64_t given = position + prompt - static_cast<int64_t>(dropped);
  return MaxNewTokens(spec, given, model, options);
}

absl::Status ValidateScore(const ScoreSpec& spec, const ModelView& model,
                           const EngineOptions& options) {
  const ModelConfig& config = *model.config;
  const int64_t given = static_cast<int64_t>(spec.tokens.size());
  const int64_t unscored = config.has_bos() ? 0 : std::min<int64_t>(1, given);
  const int64_t num_scored = given - unscored;
  if (spec.window < 0) {
    return InvalidField("WINDOW_OUT_OF_RANGE", "window",
                        absl::StrCat("window is ", spec.window,
                                     "; allowed: at least 1, or absent for one window."));
  }
  const bool windowed = spec.window > 0 && spec.window < num_scored;
  const int64_t longest = (windowed ? spec.window : num_scored) + unscored;
  RIVULET_RETURN_IF_ERROR(CheckFits(windowed ? "window" : "content.tokens", longest, config));
  RIVULET_RETURN_IF_ERROR(CheckTokens(std::span(spec.tokens).first(static_cast<size_t>(unscored)),
                                      0, config.vocab_size, "content.tokens"));
  RIVULET_RETURN_IF_ERROR(CheckTokens(spec.tokens, static_cast<size_t>(unscored),
                                      config.num_output_tokens(), "content.tokens"));
  return CheckOutputPositions(spec.output_positions, num_scored, config, options);
}

int64_t MaxNumSamples(const BackendLimits& limits, const EngineOptions& options) {
  const int slots = options.max_tenant_slots > 0
                        ? std::min(options.max_tenant_slots, limits.num_slots)
                        : limits.num_slots;
  return std::min({int64_t{options.max_num_samples}, int64_t{slots}, options.max_request_tokens});
}

absl::Status ValidateAppend(const AppendSpec& spec, const ModelView& model,
                            const EngineOptions& options) {
  const int limit = spec.score ? model.config->num_output_tokens() : model.config->vocab_size;
  RIVULET_RETURN_IF_ERROR(CheckTokens(spec.tokens, 0, limit, "content.tokens"));
  RIVULET_RETURN_IF_ERROR(CheckCache(spec.cache, options.sessions.max_tokens, options));
  // Without a bos the first token of an empty session is not scored; that is known only when its
  // turn comes.
  return CheckOutputPositions(spec.output_positions, static_cast<int64_t>(spec.tokens.size()),
                              *model.config, options);
}

int64_t MaxScoreOutputs(const EngineOptions& options, const ModelConfig& config) {
  return std::min(options.max_score_outputs,
                  options.max_score_output_values / config.output_size());
}

}  // namespace rivulet
