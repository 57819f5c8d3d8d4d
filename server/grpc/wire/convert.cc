// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/wire/convert.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/base/error.h"
#include "server/engine/validate.h"
#include "server/grpc/wire/convert_session.h"
#include "server/grpc/wire/convert_text.h"

namespace rivulet {
namespace {

std::vector<int32_t> Ids(const v1::TokenSequence& tokens) {
  return {tokens.ids().begin(), tokens.ids().end()};
}

absl::StatusOr<std::vector<int32_t>> ImageTokens(const std::string& values, const Model& model,
                                                 absl::string_view field) {
  if (model.config().content.type != ContentType::kImage) {
    return InvalidField("IMAGE_VALUES_NOT_SUPPORTED", field,
                        absl::StrCat(field, " is given, but the content of model \"",
                                     model.config().name, "\" is not an image"));
  }
  std::vector<int32_t> tokens;
  tokens.reserve(values.size());
  for (const char value : values) tokens.push_back(static_cast<unsigned char>(value));
  return tokens;
}

// The tokens of a oneof with tokens, text and image_values; none where it is not set. `position`:
// and `stopped`: as for TokensOfText.
template <typename Request>
absl::StatusOr<GivenTokens> TokensOf(const Request& request, const Model& model,
                                     absl::string_view oneof, std::optional<int64_t> position,
                                     const TextBudget::Stopped& stopped) {
  const TextOptions options = TextOptionsOf(request);
  const std::string field = absl::StrCat(oneof, ".text");
  if (request.has_text()) {
    return TokensOfText(request.text(), model, field, options, position, stopped);
  }
  RIVULET_RETURN_IF_ERROR(CheckNoTextOptions(options, field));
  GivenTokens given;
  if (request.has_image_values()) {
    RIVULET_ASSIGN_OR_RETURN(given.ids, ImageTokens(request.image_values(), model,
                                                    absl::StrCat(oneof, ".image_values")));
  } else {
    given.ids = Ids(request.tokens());
  }
  return given;
}

SamplingParams ToSampling(const v1::SamplingParams& wire) {
  SamplingParams params;
  if (wire.has_temperature()) params.temperature = wire.temperature();
  if (wire.has_top_k()) params.top_k = wire.top_k();
  if (wire.has_top_p()) params.top_p = wire.top_p();
  if (wire.has_min_p()) params.min_p = wire.min_p();
  if (wire.has_repetition_penalty()) params.repetition_penalty = wire.repetition_penalty();
  if (wire.has_frequency_penalty()) params.frequency_penalty = wire.frequency_penalty();
  if (wire.has_presence_penalty()) params.presence_penalty = wire.presence_penalty();
  params.logit_bias.assign(wire.logit_bias().begin(), wire.logit_bias().end());
  std::sort(params.logit_bias.begin(), params.logit_bias.end());  // a map has no order
  params.seed = wire.seed();
  return params;
}

// `value` must be at least 1 where the client gave it.
absl::Status CheckAtLeastOne(absl::string_view reason, absl::string_view field, int64_t value,
                             absl::string_view what_absent_means) {
  if (value >= 1) return absl::OkStatus();
  return InvalidField(reason, field,
                      absl::StrCat(field, " is ", value, "; it must be at least 1, or absent for ",
                                   what_absent_means));
}

absl::StatusOr<Priority> ToPriority(v1::Priority wire) {
  switch (wire) {
    case v1::PRIORITY_UNSPECIFIED:
    case v1::PRIORITY_NORMAL:
      return Priority::kNormal;
    case v1::PRIORITY_LOW:
      return Priority::kLow;
    case v1::PRIORITY_HIGH:
      return Priority::kHigh;
    default:
      return InvalidField("PRIORITY_UNKNOWN", "priority",
                          absl::StrCat("priority is ", static_cast<int>(wire),
                                       "; allowed: 0 (normal), 1 (low), 2 (normal), 3 (high)"));
  }
}

PromptCacheSpec ToCacheSpec(const v1::PromptCache& wire) {
  return {wire.enabled(), wire.salt(), {wire.positions().begin(), wire.positions().end()}};
}

// The fields that ScoreReply and AppendReply share.
template <typename Reply>
void ScoresToWire(const ScoreResult& result, Reply* reply) {
  reply->set_nll_nats(result.nll_nats);
  reply->set_num_scored(result.num_scored);
  for (const auto& outputs : result.outputs) {
    reply->add_outputs()->mutable_values()->Add(outputs.begin(), outputs.end());
  }
  reply->mutable_logprobs()->Add(result.logprobs.begin(), result.logprobs.end());
}

v1::FinishReason ToWire(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kStopToken:
      return v1::FINISH_REASON_STOP_TOKEN;
    case FinishReason::kStopString:
      return v1::FINISH_REASON_STOP_STRING;
    case FinishReason::kConstraint:
      return v1::FINISH_REASON_CONSTRAINT;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

// The fields that GenerateReply and MultiplexPart share.
template <typename Reply>
void DeltaToWire(ReplyDelta delta, Reply* reply) {
  reply->set_sample_index(delta.sample_index);
  reply->set_first_position(delta.first_position);
  reply->mutable_tokens()->Add(delta.tokens.begin(), delta.tokens.end());
  reply->set_text(std::move(delta.text));
  reply->mutable_logprobs()->Add(delta.logprobs.begin(), delta.logprobs.end());
  for (const auto& top : delta.top_logprobs) {
    v1::TopLogprobs* wire = reply->add_top_logprobs();
    for (const TokenLogprob& entry : top) {
      wire->add_token_ids(entry.token);
      wire->add_logprobs(entry.logprob);
    }
  }
  if (delta.session) ToWire(*delta.session, reply->mutable_session());
  if (!delta.finish) return;
  v1::Finish* finish = reply->mutable_finish();
  finish->set_reason(ToWire(delta.finish->reason));
  finish->set_stop_string(std::move(delta.finish->stop_string));
  if (delta.finish->reason == FinishReason::kStopToken) {
    finish->set_stop_token_id(delta.finish->stop_token);
  }
}

void DescribeArchitecture(const ModelConfig& config, v1::ModelArchitecture* wire) {
  wire->set_vocab_size(config.vocab_size);
  if (config.bos_token_id) wire->set_bos_token_id(*config.bos_token_id);
  if (config.eos_token_id) {
    wire->set_eos_token_id(*config.eos_token_id);
    wire->add_eos_token_ids(*config.eos_token_id);
  }
  wire->mutable_eos_token_ids()->Add(config.more_eos_token_ids.begin(),
                                     config.more_eos_token_ids.end());
  wire->set_hidden_size(config.hidden_size);
  wire->set_num_layers(config.num_layers);
  wire->set_num_heads(config.num_heads);
  wire->set_key_dim(config.key_dim);
  wire->set_value_dim(config.value_dim);
  wire->set_ffn_size(config.ffn_size);
  wire->set_kind(config.kind());
  wire->set_key_features(config.key_features());
  wire->set_feature_map(config.feature_map_name());
  if (config.max_tokens()) wire->set_max_sequence_tokens(*config.max_tokens());
  if (config.output.type == OutputType::kCategorical) {
    wire->mutable_categorical();
  } else {
    wire->mutable_mixture_of_logistics()->set_num_mixtures(config.output.num_mixtures);
    wire->mutable_mixture_of_logistics()->set_num_levels(config.output.num_levels);
  }
}

void DescribeContent(const Model& model, v1::ModelContent* wire) {
  const ContentConfig& content = model.config().content;
  switch (content.type) {
    case ContentType::kTokens:
      wire->mutable_tokens();
      return;
    case ContentType::kImage:
      wire->mutable_image()->set_height(content.height);
      wire->mutable_image()->set_width(content.width);
      wire->mutable_image()->set_channels(content.channels);
      return;
    case ContentType::kText:
      wire->mutable_text()->set_alphabet(content.alphabet);
      wire->mutable_text()->set_tokenizer(model.text().tokenizer_kind);
      wire->mutable_text()->set_tokenizer_size(model.tokenizer()->size());
      return;
  }
}

void DescribeText(const ModelText& text, v1::GetModelReply* reply) {
  reply->set_chat_template(text.chat_template);
  reply->set_chat_template_name(text.chat_template_name);
  reply->set_response_template(text.response_template.json);
  reply->set_response_template_name(text.response_template.name);
  for (const SpecialToken& token : text.special_tokens) {
    v1::SpecialToken* const wire = reply->add_special_tokens();
    if (token.id) wire->set_id(*token.id);
    wire->set_content(token.content);
    wire->mutable_roles()->Add(token.roles.begin(), token.roles.end());
  }
}

absl::StatusOr<Constraint> ToConstraint(const v1::Constraint& wire) {
  Constraint constraint;
  switch (wire.form_case()) {
    case v1::Constraint::kJsonSchema:
      constraint.kind = Constraint::Kind::kJsonSchema;
      constraint.text = wire.json_schema();
      break;
    case v1::Constraint::kStructuralTag:
      constraint.kind = Constraint::Kind::kStructuralTag;
      constraint.text = wire.structural_tag();
      break;
    case v1::Constraint::kRegex:
      constraint.kind = Constraint::Kind::kRegex;
      constraint.text = wire.regex();
      break;
    case v1::Constraint::kChoices:
      constraint.kind = Constraint::Kind::kChoices;
      constraint.choices.assign(wire.choices().texts().begin(), wire.choices().texts().end());
      break;
    case v1::Constraint::kJsonObject:
      if (wire.json_object()) break;
      [[fallthrough]];
    case v1::Constraint::FORM_NOT_SET:
      return InvalidField("CONSTRAINT_INVALID", "constraint",
                          "constraint has none of json_schema, json_object, regex, choices and "
                          "structural_tag.");
  }
  if (wire.has_begin_position()) constraint.begin_position = wire.begin_position();
  constraint.after.assign(wire.after().begin(), wire.after().end());
  return constraint;
}

absl::Status AddResume(const v1::GenerateRequest& request, GenerateSpec* spec) {
  if (!request.sampling().has_seed() && !spec->session) {
    return InvalidField("RESUME_NEEDS_SEED", "sampling.seed",
                        "sampling.seed is missing; with resume it must be the seed of the lost "
                        "reply (GenerateReply.seed)");
  }
  const auto& samples = request.resume().samples();
  if (request.resume().has_fingerprint()) {
    spec->resume.emplace();
    spec->resume->fingerprint = request.resume().fingerprint();
    for (const v1::TokenSequence& sample : samples) spec->resume->tokens.push_back(Ids(sample));
    return absl::OkStatus();
  }
  for (int i = 0; i < samples.size(); ++i) {
    if (samples[i].ids().empty()) continue;
    return InvalidField(
        "RESUME_NEEDS_FINGERPRINT", "resume.fingerprint",
        absl::StrCat("resume.fingerprint is missing, but resume.samples[", i, "] has ",
                     samples[i].ids_size(), " tokens; allowed then: none"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Speculation> ToSpeculation(const v1::Speculation& wire, const Model& model,
                                          const TextBudget::Stopped& stopped) {
  Speculation speculation;
  if (wire.has_drafts()) speculation.drafts = wire.drafts();
  if (wire.has_tokens()) speculation.prediction = Ids(wire.tokens());
  if (wire.has_text()) {
    RIVULET_ASSIGN_OR_RETURN(GivenTokens given,
                             TokensOfText(wire.text(), model, "speculation.text",
                                          {.add_special_tokens = false}, /*position=*/1, stopped));
    speculation.prediction = std::move(given.ids);
  }
  return speculation;
}

}  // namespace

absl::StatusOr<GenerateSpec> ToGenerateSpec(const v1::GenerateRequest& request, const Model& model,
                                            const TextBudget::Stopped& stopped) {
  GenerateSpec spec;
  if (request.has_session()) {
    RIVULET_ASSIGN_OR_RETURN(spec.session, ToSessionRef(request.session()));
    spec.session_seed = !request.sampling().has_seed();
  } else if (request.prompt_case() == v1::GenerateRequest::PROMPT_NOT_SET) {
    return InvalidField("PROMPT_MISSING", "prompt",
                        "prompt is required: one of tokens, text or image_values (which may be "
                        "empty for a model with a bos)");
  }
  RIVULET_ASSIGN_OR_RETURN(
      GivenTokens given,
      TokensOf(request, model, "prompt", spec.session ? spec.session->position : 0, stopped));
  spec.prompt = std::move(given.ids);
  spec.start_tokens = given.start;
  spec.sampling = ToSampling(request.sampling());
  if (request.has_num_samples()) {
    RIVULET_RETURN_IF_ERROR(
        CheckAtLeastOne("NUM_SAMPLES_OUT_OF_RANGE", "num_samples", request.num_samples(), "1"));
    spec.num_samples = request.num_samples();
  }
  if (request.has_max_tokens()) {
    RIVULET_RETURN_IF_ERROR(CheckAtLeastOne("MAX_TOKENS_OUT_OF_RANGE", "max_tokens",
                                            request.max_tokens(), "the natural length"));
    spec.max_tokens = request.max_tokens();
  }
  const v1::StopConditions& stop = request.stop();
  spec.stop_ids.assign(stop.token_ids().begin(), stop.token_ids().end());
  spec.stop_strings.assign(stop.strings().begin(), stop.strings().end());
  spec.include_stop_string = stop.include_string();
  spec.ignore_eos = stop.ignore_eos();
  spec.min_tokens = stop.min_tokens();
  spec.skip_special_tokens = request.skip_special_tokens();
  if (request.has_reasoning()) {
    spec.reasoning = {request.reasoning().begin(), request.reasoning().end()};
  }
  spec.want_logprobs = request.logprobs().enabled();
  spec.num_top_logprobs = request.logprobs().top_n();
  spec.cache = ToCacheSpec(request.cache());
  RIVULET_ASSIGN_OR_RETURN(spec.priority, ToPriority(request.priority()));
  RIVULET_ASSIGN_OR_RETURN(spec.speculation, ToSpeculation(request.speculation(), model, stopped));
  if (request.has_resume()) RIVULET_RETURN_IF_ERROR(AddResume(request, &spec));
  if (request.has_constraint()) {
    if (stopped != nullptr) RIVULET_RETURN_IF_ERROR(stopped());
    RIVULET_ASSIGN_OR_RETURN(spec.constraint, ToConstraint(request.constraint()));
  }
  return spec;
}

absl::StatusOr<ScoreSpec> ToScoreSpec(const v1::ScoreRequest& request, const Model& model,
                                      const TextBudget::Stopped& stopped) {
  ScoreSpec spec;
  switch (request.content_case()) {
    case v1::ScoreRequest::kTokens:
      RIVULET_RETURN_IF_ERROR(CheckNoTextOptions(TextOptionsOf(request), "content.text"));
      spec.tokens = Ids(request.tokens());
      break;
    case v1::ScoreRequest::kText: {
      RIVULET_ASSIGN_OR_RETURN(GivenTokens given,
                               TokensOfText(request.text(), model, "content.text",
                                            TextOptionsOf(request), /*position=*/0, stopped));
      spec.tokens = std::move(given.ids);
      break;
    }
    case v1::ScoreRequest::CONTENT_NOT_SET:
      return InvalidField("CONTENT_MISSING", "content",
                          "content is required: one of tokens or text (which may be empty)");
  }
  if (request.has_window()) {
    RIVULET_RETURN_IF_ERROR(
        CheckAtLeastOne("WINDOW_OUT_OF_RANGE", "window", request.window(), "one window"));
    spec.window = request.window();
  }
  spec.output_positions.assign(request.output_positions().begin(),
                               request.output_positions().end());
  spec.want_logprobs = request.logprobs();
  RIVULET_ASSIGN_OR_RETURN(spec.priority, ToPriority(request.priority()));
  return spec;
}

absl::StatusOr<AppendSpec> ToAppendSpec(const v1::AppendRequest& request, const Model& model,
                                        const TextBudget::Stopped& stopped) {
  AppendSpec spec;
  RIVULET_ASSIGN_OR_RETURN(spec.session, RequiredSession(request));
  RIVULET_ASSIGN_OR_RETURN(GivenTokens given,
                           TokensOf(request, model, "content", spec.session.position, stopped));
  spec.tokens = std::move(given.ids);
  spec.start_tokens = given.start;
  if (!request.score() && (request.logprobs() || request.output_positions_size() > 0)) {
    const absl::string_view field = request.logprobs() ? "logprobs" : "output_positions";
    return InvalidField("NEEDS_SCORE", field,
                        absl::StrCat(field, " is set, but score is false; it must be true then"));
  }
  spec.score = request.score();
  spec.output_positions.assign(request.output_positions().begin(),
                               request.output_positions().end());
  spec.cache = ToCacheSpec(request.cache());
  spec.want_logprobs = request.logprobs();
  RIVULET_ASSIGN_OR_RETURN(spec.priority, ToPriority(request.priority()));
  return spec;
}

void ToWire(ReplyDelta delta, v1::GenerateReply* reply) {
  reply->Clear();
  DeltaToWire(std::move(delta), reply);
}

void ToWire(ReplyDelta delta, v1::MultiplexPart* part) { DeltaToWire(std::move(delta), part); }

void ToWire(const Usage& usage, v1::Usage* wire) {
  wire->set_prompt_tokens(usage.prompt_tokens);
  wire->set_completion_tokens(usage.completion_tokens);
  wire->set_cached_prompt_tokens(usage.cached_prompt_tokens);
  wire->set_reasoning_tokens(usage.reasoning_tokens);
  wire->set_drafted_tokens(usage.drafted_tokens);
  wire->set_accepted_tokens(usage.accepted_tokens);
  ToWire(usage.queue_time, wire->mutable_queue_time());
  ToWire(usage.first_token_time, wire->mutable_first_token_time());
  ToWire(usage.total_time, wire->mutable_total_time());
}

void ToWire(const ScoreResult& result, v1::ScoreReply* reply) { ScoresToWire(result, reply); }

void ToWire(const ScoreResult& result, v1::AppendReply* reply) {
  if (result.session) ToWire(*result.session, reply->mutable_progress());
  if (result.durability) ToWire(*result.durability, reply->mutable_durability());
  reply->set_cached_tokens(result.cached_tokens);
  ScoresToWire(result, reply);
}

void ToWire(const EngineLoad& load, v1::ModelLoad* wire) {
  wire->set_slots(load.slots);
  wire->set_slots_used(load.slots_used);
  wire->set_queued(load.queued);
  wire->set_max_queue(load.max_queue);
  wire->set_tokens_per_second(load.tokens_per_second);
  wire->set_tokens_total(load.tokens_total);
  wire->set_sessions(load.client_sessions);
  wire->set_session_state_bytes(load.states.memory_bytes);
  wire->set_states_in_memory(load.states.in_memory);
  wire->set_states_on_disk(load.states.on_disk);
  wire->set_state_disk_bytes(load.states.disk_bytes);
  wire->set_states_forgotten(load.states.forgotten);
  wire->set_state_file_errors(load.states.file_errors);
  wire->set_prompt_cache_hits(load.cache_hits);
  wire->set_prompt_cache_misses(load.cache_misses);
  wire->set_prompt_cache_bytes(load.cache_bytes);
  wire->set_draining(load.draining);
  wire->set_max_tenant_queue(load.max_tenant_queue);
  wire->set_queued_high(load.queued_by_priority[static_cast<size_t>(Priority::kHigh)]);
  wire->set_queued_normal(load.queued_by_priority[static_cast<size_t>(Priority::kNormal)]);
  wire->set_queued_low(load.queued_by_priority[static_cast<size_t>(Priority::kLow)]);
  ToWire(load.oldest_wait, wire->mutable_oldest_wait());
  wire->set_tenants(load.tenants);
  wire->set_parked(load.parked);
  wire->set_preempted(load.preempted);
  wire->set_preempted_total(load.preempted_total);
  wire->set_drafted_total(load.drafted_total);
  wire->set_accepted_total(load.accepted_total);
  wire->set_refused_total(load.refused);
  wire->set_cut_total(load.unread_replies_ended);
}

v1::GetModelReply DescribeModel(const Engine& engine, absl::string_view backend) {
  const Model& model = engine.model();
  v1::GetModelReply reply;
  v1::ModelSummary* summary = reply.mutable_summary();
  summary->set_name(model.config().name);
  summary->set_weights_sha256(model.weights_sha256());
  summary->set_num_parameters(model.tensors().num_parameters());
  summary->set_state_bytes(static_cast<int64_t>(engine.limits().bytes_per_slot));
  summary->set_backend(std::string(backend));
  DescribeArchitecture(model.config().WithContext(engine.limits().context),
                       reply.mutable_architecture());
  DescribeContent(model, reply.mutable_content());
  DescribeText(model.text(), &reply);
  v1::ModelLimits* limits = reply.mutable_limits();
  const EngineOptions& options = engine.options();
  limits->set_max_tokens(std::min(options.max_tokens_limit, options.max_request_tokens));
  limits->set_default_max_tokens(engine.options().default_max_tokens);
  limits->set_max_num_samples(static_cast<int32_t>(MaxNumSamples(engine.limits(), options)));
  limits->set_slots(engine.limits().num_slots);
  limits->set_max_score_outputs(MaxScoreOutputs(engine.options(), engine.model().config()));
  limits->set_max_drafts(engine.limits().drafts.most);
  reply.set_numerics_id(engine.limits().numerics_id);
  reply.set_plan(engine.limits().plan);
  reply.set_products(engine.limits().products);
  reply.set_config_json(model.config_text());
  return reply;
}

}  // namespace rivulet
