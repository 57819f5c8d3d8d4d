// SPDX-License-Identifier: Apache-2.0
#include "client/cli/chat/chat_template.h"

#include <exception>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/output/text.h"
#include "jinja/lexer.h"
#include "jinja/parser.h"
#include "jinja/runtime.h"
#include "json.h"
#include "model/base/error.h"
#include "model/base/file.h"
#include "model/base/strict_json.h"

namespace rivulet {
namespace {

// The engine's message without its picture of the place: "what (line 3, column 5)".
std::string Reason(absl::string_view message) {
  constexpr absl::string_view kAt = " at line ", kError = "\nError: ";
  const size_t at = message.find(kAt), error = message.find(kError);
  if (at != absl::string_view::npos && error != absl::string_view::npos && at < error) {
    const absl::string_view place = message.substr(at + 4);
    return absl::StrCat(OneLine(message.substr(error + kError.size())), " (",
                        place.substr(0, place.find(" in source")), ")");
  }
  return absl::StrJoin(absl::StrSplit(OneLine(message), ' ', absl::SkipEmpty()), " ");
}

}  // namespace

struct ChatTemplate::Program {
  std::string source, shown;
  std::map<std::string, std::string> special_tokens;
  jinja::program parsed;

  absl::Status Refused(const std::exception& error) const {
    return absl::InvalidArgumentError(absl::StrCat(shown, ": ", Reason(error.what())));
  }
};

ChatTemplate::ChatTemplate(std::unique_ptr<Program> program) : program_(std::move(program)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(
    const std::string& source, std::string shown,
    std::map<std::string, std::string> special_tokens) {
  auto program = std::make_unique<Program>();
  program->shown = std::move(shown);
  program->special_tokens = std::move(special_tokens);
  // The engine tells what is wrong by exceptions.
  try {
    jinja::lexer lexer;
    const jinja::lexer_result tokens = lexer.tokenize(source);
    program->source = tokens.source;
    program->parsed = jinja::parse_from_tokens(tokens);
  } catch (const std::exception& error) {
    return program->Refused(error);
  }
  return ChatTemplate(std::move(program));
}

absl::StatusOr<ChatTemplateFile> ReadChatTemplate(const std::string& name) {
  if (name.empty()) return ChatTemplateFile();
  constexpr size_t kMostTemplateBytes = 1 << 20;
  absl::StatusOr<std::string> text = ReadSmallFile(name, kMostTemplateBytes);
  if (!text.ok()) return Annotate(text.status(), absl::StrCat("--chat-template: ", name));
  if (absl::StripAsciiWhitespace(*text).empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--chat-template: ", name, " is empty"));
  }
  ChatTemplateFile file{absl::StrCat("--chat-template ", name), *std::move(text)};
  RIVULET_RETURN_IF_ERROR(ChatTemplate::Parse(file.text, file.name, {}).status());
  return file;
}

absl::StatusOr<ChatTemplate> ChatTemplate::Of(const v1::GetModelReply& model,
                                              const ChatTemplateFile& file) {
  if (!file.name.empty()) return Parse(file.text, file.name, SpecialTokensOf(model));
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
  return Parse(model.chat_template(), absl::StrCat("chat template of ", name),
               SpecialTokensOf(model));
}

absl::StatusOr<std::string> ChatTemplate::Render(const std::vector<ChatMessage>& messages) const {
  common_json values = {{"add_generation_prompt", true}, {"messages", common_json::array()}};
  for (const auto& [role, text] : program_->special_tokens) values[role] = text;
  for (const ChatMessage& message : messages) {
    values["messages"].push_back({{"role", message.role}, {"content", message.content}});
  }
  try {
    jinja::context context(program_->source);
    jinja::global_from_json(context, values, /*mark_input=*/false);
    jinja::runtime runtime(context);
    const jinja::value_array parts = runtime.execute(program_->parsed);
    return jinja::runtime::gather_string_parts(parts)->as_string().str();
  } catch (const std::exception& error) {
    return program_->Refused(error);
  }
}

std::string ChatTemplate::TurnEnd() const {
  // Words that no template writes by itself.
  constexpr char kAnswer[] = "answer-4f1c", kQuestion[] = "question-9b27";
  const absl::StatusOr<std::string> prompt =
      Render({{"user", "first"}, {"assistant", kAnswer}, {"user", kQuestion}});
  if (!prompt.ok()) return "";
  const size_t begin = prompt->find(kAnswer), end = prompt->find(kQuestion);
  if (begin == std::string::npos || end == std::string::npos || end < begin) return "";
  const size_t after = begin + std::string(kAnswer).size();
  const absl::string_view between =
      absl::StripTrailingAsciiWhitespace(absl::string_view(*prompt).substr(after, end - after));
  constexpr size_t kMostStopBytes = 256;  // that the server takes
  return between.size() <= kMostStopBytes ? std::string(between) : "";
}

std::map<std::string, std::string> SpecialTokensOf(const v1::GetModelReply& model) {
  std::map<std::string, std::string> special;
  for (const v1::SpecialToken& token : model.special_tokens()) {
    for (const std::string& role : token.roles()) special[role] = token.content();
  }
  return special;
}

}  // namespace rivulet
