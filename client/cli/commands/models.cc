// SPDX-License-Identifier: Apache-2.0
// `rivulet models` and `rivulet health`.
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/cli/commands/commands.h"
#include "client/cli/output/text.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"
#include "nlohmann/json.hpp"

namespace rivulet {
namespace {

// The models of a command: the named one, or all.
absl::StatusOr<std::vector<std::string>> NamesToShow(const Target& target,
                                                     const CallOptions& call) {
  if (!target.model_name().empty()) return std::vector<std::string>{target.model_name()};
  RIVULET_ASSIGN_OR_RETURN(const v1::ListModelsReply reply, target.client().ListModels(call));
  std::vector<std::string> names;
  for (const v1::ModelSummary& model : reply.models()) names.push_back(model.name());
  return names;
}

std::string ContentName(const v1::ModelContent& content) {
  switch (content.kind_case()) {
    case v1::ModelContent::kImage:
      return absl::StrCat("image ", content.image().height(), "x", content.image().width(), "x",
                          content.image().channels());
    case v1::ModelContent::kText:
      return "text";
    case v1::ModelContent::kTokens:
    case v1::ModelContent::KIND_NOT_SET:
      break;
  }
  return "tokens";
}

std::string ModelJson(const v1::GetModelReply& model) {
  const v1::ModelArchitecture& a = model.architecture();
  nlohmann::ordered_json json = {{"name", model.summary().name()},
                                 {"content", ContentName(model.content())},
                                 {"num_parameters", model.summary().num_parameters()},
                                 {"state_bytes", model.summary().state_bytes()},
                                 {"backend", model.summary().backend()},
                                 {"weights_sha256", model.summary().weights_sha256()},
                                 {"numerics_id", model.numerics_id()},
                                 {"plan", model.plan()},
                                 {"products", model.products()},
                                 {"kind", a.kind()},
                                 {"vocab_size", a.vocab_size()},
                                 {"hidden_size", a.hidden_size()},
                                 {"num_layers", a.num_layers()},
                                 {"num_heads", a.num_heads()},
                                 {"feature_map", a.feature_map()}};
  if (a.has_bos_token_id()) json["bos_token_id"] = a.bos_token_id();
  if (a.has_eos_token_id()) {
    json["eos_token_id"] = a.eos_token_id();
    json["eos_token_ids"] = a.eos_token_ids();
  }
  if (model.content().has_text()) {
    const v1::TextContent& text = model.content().text();
    json["tokenizer"] = {{"kind", text.tokenizer()}, {"size", text.tokenizer_size()}};
  }
  if (!model.chat_template().empty()) json["chat_template"] = model.chat_template();
  if (!model.chat_template_name().empty()) {
    json["chat_template_name"] = model.chat_template_name();
  }
  for (const v1::SpecialToken& token : model.special_tokens()) {
    nlohmann::ordered_json entry = {
        {"id", nullptr}, {"content", token.content()}, {"roles", token.roles()}};
    if (token.has_id()) entry["id"] = token.id();
    json["special_tokens"].push_back(std::move(entry));
  }
  if (a.has_max_sequence_tokens()) json["max_sequence_tokens"] = a.max_sequence_tokens();
  json["limits"] = {{"max_tokens", model.limits().max_tokens()},
                    {"default_max_tokens", model.limits().default_max_tokens()},
                    {"max_num_samples", model.limits().max_num_samples()},
                    {"slots", model.limits().slots()},
                    {"max_score_outputs", model.limits().max_score_outputs()},
                    {"max_message_bytes", model.limits().max_message_bytes()},
                    {"max_drafts", model.limits().max_drafts()}};
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

absl::string_view HealthName(HealthStatus status) {
  switch (status) {
    case HealthStatus::kServing:
      return "SERVING";
    case HealthStatus::kNotServing:
      return "NOT_SERVING";
    case HealthStatus::kUnknown:
      break;
  }
  return "UNKNOWN";
}

std::string SummaryJson(const v1::ModelSummary& summary) {
  const nlohmann::ordered_json json = {{"name", summary.name()},
                                       {"num_parameters", summary.num_parameters()},
                                       {"state_bytes", summary.state_bytes()},
                                       {"backend", summary.backend()},
                                       {"weights_sha256", summary.weights_sha256()}};
  return json.dump() + "\n";
}

absl::StatusOr<std::string> Load(const ModelsOptions& options, const Target& target) {
  v1::LoadModelRequest request;
  request.set_model(options.name);
  RIVULET_ASSIGN_OR_RETURN(const v1::LoadModelReply reply, target.client().LoadModel(request));
  const v1::ModelSummary& model = reply.model();
  if (options.json) {
    RIVULET_RETURN_IF_ERROR(WriteOut(SummaryJson(model)));
  }
  return absl::StrCat("loaded ", model.name(), ": ",
                      Compact(static_cast<double>(model.num_parameters())), " parameters, ",
                      model.backend());
}

absl::StatusOr<std::string> Unload(const ModelsOptions& options, const Target& target) {
  v1::UnloadModelRequest request;
  request.set_model(options.name);
  if (options.drain_seconds.has_value()) {
    const timespec drain = absl::ToTimespec(absl::Seconds(*options.drain_seconds));
    request.mutable_drain_timeout()->set_seconds(drain.tv_sec);
    request.mutable_drain_timeout()->set_nanos(static_cast<int32_t>(drain.tv_nsec));
  }
  RIVULET_ASSIGN_OR_RETURN(const v1::UnloadModelReply reply, target.client().UnloadModel(request));
  if (options.json) {
    const nlohmann::ordered_json json = {{"name", options.name},
                                         {"all_ended", reply.all_ended()},
                                         {"sessions_closed", reply.sessions_closed()}};
    RIVULET_RETURN_IF_ERROR(WriteOut(json.dump() + "\n"));
  }
  return absl::StrCat("unloaded ", options.name, ": ",
                      reply.all_ended() ? "every reply ended by itself" : "some replies were cut",
                      ", ", reply.sessions_closed(), " sessions closed");
}

}  // namespace

absl::StatusOr<std::string> RunCommand(const ModelsOptions& options) {
  if (!options.target.model_dir.empty() && options.target.backend == "auto") {
    return DescribeDirectory(options);
  }
  RIVULET_ASSIGN_OR_RETURN(const Target target, OpenTarget(options.target));
  if (options.action == ModelsAction::kLoad) return Load(options, target);
  if (options.action == ModelsAction::kUnload) return Unload(options, target);
  RIVULET_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesToShow(target, {}));
  std::vector<std::vector<std::string>> rows = {
      {"NAME", "CONTENT", "PARAMETERS", "STATE", "SLOTS", "NUMERICS", "WEIGHTS SHA-256"}};
  std::string json;
  for (const std::string& name : names) {
    RIVULET_ASSIGN_OR_RETURN(const v1::GetModelReply model, target.client().GetModel(name));
    const v1::ModelSummary& summary = model.summary();
    rows.push_back({name, ContentName(model.content()),
                    Compact(static_cast<double>(summary.num_parameters())),
                    absl::StrFormat("%.1f KiB", static_cast<double>(summary.state_bytes()) / 1024),
                    absl::StrCat(model.limits().slots()), model.numerics_id(),
                    summary.weights_sha256().substr(0, 12)});
    json += ModelJson(model);
  }
  RIVULET_RETURN_IF_ERROR(WriteOut(options.json ? json : Table(rows)));
  return std::string();
}

absl::StatusOr<std::string> RunCommand(const HealthOptions& options) {
  RIVULET_ASSIGN_OR_RETURN(const Target target, OpenTarget(options.target));
  const CallOptions call = {.deadline = absl::Now() + absl::Seconds(options.deadline_seconds)};
  absl::StatusOr<std::vector<std::string>> names = NamesToShow(target, call);
  // Health needs no key, but the list of models does: without a key, only the server's own health
  // is asked for. A refused key is an error, because nobody would notice it otherwise.
  if (GetErrorInfo(names.status()).reason == "API_KEY_MISSING") names.emplace();
  if (!names.ok()) return names.status();
  // The server as a whole, unless one model was asked for.
  if (target.model_name().empty()) names->insert(names->begin(), "");
  std::vector<std::vector<std::string>> rows;
  std::string failing;
  for (const std::string& name : *names) {
    const absl::StatusOr<HealthStatus> health = target.client().Health(name, call);
    if (absl::IsNotFound(health.status())) {  // gRPC's message does not name the service
      return absl::NotFoundError(absl::StrCat("model ", Quoted(name), " is not served here"));
    }
    if (!health.ok()) return health.status();
    const std::string shown = name.empty() ? "server" : name;
    rows.push_back({shown, std::string(HealthName(*health))});
    if (*health != HealthStatus::kServing && failing.empty()) {
      failing = absl::StrCat(shown, " is ", HealthName(*health));
    }
  }
  RIVULET_RETURN_IF_ERROR(WriteOut(Table(rows)));
  if (!failing.empty()) return absl::UnavailableError(failing);
  return std::string();
}

}  // namespace rivulet
