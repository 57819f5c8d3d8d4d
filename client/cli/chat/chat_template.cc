// SPDX-License-Identifier: Apache-2.0
#include "client/cli/chat/chat_template.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "model/base/error.h"
#include "model/base/file.h"
#include "model/base/strict_json.h"
#include "model/base/utf8.h"

namespace rivulet {
namespace {

using nlohmann::ordered_json;

// A template's error, with what names the template.
absl::Status Named(const absl::Status& status, const std::string& shown) {
  absl::string_view message = status.message();
  if (!absl::ConsumePrefix(&message, "messages: the model's chat template: ")) return status;
  return MakeError(status.code(), absl::StrCat(shown, ": ", message), GetErrorDetail(status));
}

// The texts of a model's special tokens by role, as templates name them.
ordered_json SpecialTokensOf(const v1::GetModelReply& model) {
  ordered_json special = ordered_json::object();
  for (const v1::SpecialToken& token : model.special_tokens()) {
    for (const std::string& role : token.roles()) special[role] = token.content();
  }
  return special;
}

// {FORM: VALUE}, as the worker takes it.
ordered_json FormOf(const v1::Constraint& constraint) {
  switch (constraint.form_case()) {
    case v1::Constraint::kJsonSchema:
      return {{"json_schema", constraint.json_schema()}};
    case v1::Constraint::kJsonObject:
      return {{"json_object", true}};
    case v1::Constraint::kRegex:
      return {{"regex", constraint.regex()}};
    case v1::Constraint::kChoices:
      return {{"choices", std::vector<std::string>(constraint.choices().texts().begin(),
                                                   constraint.choices().texts().end())}};
    case v1::Constraint::kStructuralTag:
      return {{"structural_tag", constraint.structural_tag()}};
    case v1::Constraint::FORM_NOT_SET:
      break;
  }
  return nullptr;
}

// `made`: the worker's, of the same form as `constraint` or a structural tag.
void SetConstraint(const ordered_json& made, v1::Constraint* constraint) {
  if (made.contains("structural_tag")) {
    constraint->set_structural_tag(made["structural_tag"].get<std::string>());
  }
  if (!made.contains("after")) return;
  for (const ordered_json& after : made["after"]) constraint->add_after(after.get<std::string>());
}

}  // namespace

ReplyParts::ReplyParts(const ordered_json& made, absl::string_view id, TemplateProcess* process)
    : process_(process) {
  ordered_json reading = made["reading"];
  reading["id"] = std::string(id);
  reading_ = reading.dump();
  progress_ = made["progress"].dump();
  untold_ = made["untold"].get<std::string>();
}

ReplyParts::Added ReplyParts::Add(absl::string_view text, End end) {
  Added added;
  if (!reading_.empty()) {
    constexpr const char* kEnds[] = {"", "end", "cut"};
    const absl::StatusOr<std::string> answer =
        process_->Run(TemplateProcess::Job::kDivide,
                      absl::StrCat("[", reading_, ",", progress_, ",", JsonString(text), ",\"",
                                   kEnds[static_cast<int>(end)], "\"]"));
    if (answer.ok()) {
      ordered_json read = ordered_json::parse(*answer);
      progress_ = read["progress"].dump();
      untold_ = read["untold"].get<std::string>();
      added.calls = calls_ = read["progress"]["calls"] > 0;
      added.delta = std::move(read["delta"]);
      added.message = std::move(read["message"]);
      if (read["error"].is_null()) return added;
      added.code = read["error"]["code"].get<std::string>();
      added.error = read["error"]["message"].get<std::string>();
      return added;
    }
    added.code = GetErrorDetail(answer.status()).reason;
    added.error =
        absl::StrCat(answer.status().message(), "; the rest of the reply is given as content");
  }
  reading_.clear();
  const std::string content = absl::StrCat(std::exchange(untold_, ""), text);
  added.calls = calls_;
  if (!content.empty()) added.delta = {{"content", content}};
  added.message = {{"role", "assistant"}, {"content", content}, {"refusal", nullptr}};
  return added;
}

absl::StatusOr<ChatTemplateFile> ReadChatTemplate(const std::string& name,
                                                  TemplateProcess* process) {
  if (name.empty()) return ChatTemplateFile();
  constexpr size_t kMostTemplateBytes = 1 << 20;
  absl::StatusOr<std::string> text = ReadSmallFile(name, kMostTemplateBytes);
  if (!text.ok()) return Annotate(text.status(), absl::StrCat("--chat-template: ", name));
  if (absl::StripAsciiWhitespace(*text).empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--chat-template: ", name, " is empty"));
  }
  ChatTemplateFile file{absl::StrCat("--chat-template ", name), *std::move(text)};
  if (!IsUtf8(file.text)) {
    return absl::InvalidArgumentError(absl::StrCat(file.name, " is not valid UTF-8"));
  }
  const absl::Status status =
      process
          ->Run(TemplateProcess::Job::kCheck,
                ordered_json::array({file.text, ordered_json::object()}).dump())
          .status();
  if (!status.ok() && GetErrorDetail(status).reason != "CHAT_TEMPLATE_TOO_HARD") {
    return Named(status, file.name);
  }
  return file;
}

absl::StatusOr<ChatTemplate> ChatTemplate::Of(const v1::GetModelReply& model,
                                              const ChatTemplateFile& file,
                                              TemplateProcess* process) {
  if (!file.name.empty()) return ChatTemplate(model, file.text, file.name, process);
  const std::string& name = model.summary().name();
  if (model.chat_template().empty()) {
    ErrorDetail detail;
    detail.reason = "NO_CHAT_TEMPLATE";
    detail.field = "messages";
    return MakeError(
        absl::StatusCode::kFailedPrecondition,
        absl::StrCat("the model ", Quoted(name),
                     " has no chat template; --chat-template FILE gives one (Jinja, as in the "
                     "chat_template.jinja of models that have one)"),
        detail);
  }
  return ChatTemplate(model, model.chat_template(), absl::StrCat("chat template of ", name),
                      process);
}

ChatTemplate::ChatTemplate(const v1::GetModelReply& model, const std::string& source,
                           std::string shown, TemplateProcess* process)
    : shown_(std::move(shown)),
      asked_({{"template", source},
              {"special_tokens", SpecialTokensOf(model)},
              {"response_template", model.response_template()}}),
      process_(process) {}

absl::StatusOr<ReplyParts> ChatTemplate::Apply(const ordered_json& body, absl::string_view id,
                                               v1::GenerateRequest* request) const {
  ordered_json asked = asked_;
  asked["body"] = body;
  asked["constraint"] = FormOf(request->constraint());
  const absl::StatusOr<std::string> answer =
      process_->Run(TemplateProcess::Job::kChat, asked.dump());
  if (!answer.ok()) return Named(answer.status(), shown_);
  const ordered_json made = ordered_json::parse(*answer);
  request->set_text(made["prompt"].get<std::string>());
  request->set_add_special_tokens(false);  // the template writes them
  if (!made["constraint"].is_null()) {
    SetConstraint(made["constraint"], request->mutable_constraint());
  } else if (const std::string end = made["turn_end"].get<std::string>();
             !end.empty() && request->stop().strings().empty()) {
    request->mutable_stop()->add_strings(end);
  }
  if (const ordered_json& reasoning = made["reasoning"]; !reasoning.is_null()) {
    request->mutable_reasoning()->set_begin(reasoning["begin"].get<std::string>());
    request->mutable_reasoning()->set_end(reasoning["end"].get<std::string>());
  }
  if (std::string text = made["prediction"].get<std::string>(); !text.empty()) {
    request->mutable_speculation()->set_text(std::move(text));
  }
  if (made["reading"].is_null()) return ReplyParts();
  request->clear_skip_special_tokens();  // they may tell the parts of the reply apart
  return ReplyParts(made, id, process_);
}

}  // namespace rivulet
