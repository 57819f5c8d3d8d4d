// SPDX-License-Identifier: Apache-2.0
// `rivulet chat`: lines of stdin are questions or commands; answers go to stdout, everything else
// to stderr.
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/chat/chat_template.h"
#include "client/cli/chat/conversation.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/interruption.h"
#include "client/cli/input/line_reader.h"
#include "client/cli/input/request_fields.h"
#include "client/cli/output/exit_code.h"
#include "client/cli/output/output_file.h"
#include "client/cli/output/part_json.h"
#include "model/base/error.h"
#include "model/base/utf8.h"
#include "nlohmann/json.hpp"

namespace rivulet {
namespace {

constexpr char kHelp[] =
    R"(/reset         forget the conversation, except the system's message
/undo          forget the last question and its answer
/fork          go on in a copy of the conversation, with another seed
/switch N      go to conversation N
/save FILE     write the conversation to a file
/load FILE     continue the conversation of a file
/system TEXT   set the system's message; without TEXT: none
/tools FILE    let the model call the tools of a JSON array, as OpenAI's requests have it
/result TEXT   the result of a call; after the last one the model goes on
/seed N        answer with this seed; without N: with a random one
/exit          end, as Ctrl-D does
//TEXT         ask something that begins with a slash
A line that ends with \ continues on the next one. Ctrl-C stops an answer or
drops a question that is not asked yet.
)";

// While this exists, an interruption stops its token. A signal handler must not do so itself.
class StopOnInterrupt {
 public:
  StopOnInterrupt()
      : thread_([this](const std::stop_token& end) {
          std::mutex mutex;
          std::condition_variable_any ended;  // only `end` wakes it
          std::unique_lock lock(mutex);
          while (!end.stop_requested() && !Interruption::came()) {
            ended.wait_for(lock, end, std::chrono::milliseconds(20), [] { return false; });
          }
          if (Interruption::came()) source_.request_stop();
        }) {}
  std::stop_token token() const { return source_.get_token(); }

 private:
  std::stop_source source_;
  std::jthread thread_;
};

void Say(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

class Chat {
 public:
  Chat(const ChatOptions& options, Conversation first)
      : options_(options), interactive_(isatty(STDIN_FILENO) == 1) {
    conversations_.push_back(std::move(first));
  }

  // Runs until stdin ends. Without a terminal the first error ends the run.
  absl::Status Run();
  void Close() {
    for (Conversation& conversation : conversations_) conversation.Close();
  }
  std::string Summary() const {
    return absl::StrCat(answers_, answers_ == 1 ? " answer of " : " answers of ", tokens_,
                        " tokens, ", given_, " of ", prompt_,
                        " prompt tokens were new to the session, seed ",
                        conversations_[current_].seed());
  }

 private:
  Conversation& current() { return conversations_[current_]; }
  // nullopt at the end, or after a signal.
  absl::StatusOr<std::optional<std::string>> ReadLine();
  absl::StatusOr<std::optional<std::string>> ReadQuestion();
  // Without a question: behind results of calls.
  absl::Status Ask(const std::optional<std::string>& question);
  // Runs a line "/NAME ARGUMENT".
  absl::Status Do(absl::string_view name, const std::string& argument);
  absl::Status Fork();
  absl::Status Switch(const std::string& argument);
  absl::Status Load(const std::string& path);
  absl::Status LoadTools(const std::string& path);
  absl::Status AddResult(const std::string& text);
  absl::Status SetSeed(const std::string& argument);

  const ChatOptions& options_;
  const bool interactive_;
  LineReader lines_{"-"};
  std::vector<Conversation> conversations_;
  size_t current_ = 0;
  bool ended_ = false;
  // Of all answers.
  int64_t answers_ = 0, tokens_ = 0, given_ = 0, prompt_ = 0;
};

absl::Status Chat::Run() {
  while (!ended_) {
    RIVULET_ASSIGN_OR_RETURN(const std::optional<std::string> line, ReadQuestion());
    if (!line.has_value()) return absl::OkStatus();
    const std::string& text = *line;
    if (absl::StripAsciiWhitespace(text).empty()) continue;
    absl::Status status;
    if (text[0] != '/' || absl::StartsWith(text, "//")) {
      status = Ask(text[0] == '/' ? text.substr(1) : text);
    } else {
      const size_t space = std::min(text.find(' '), text.size());
      status = Do(absl::string_view(text).substr(0, space),
                  std::string(absl::StripAsciiWhitespace(text.substr(space))));
    }
    if (status.ok()) continue;
    if (!interactive_) return status;
    Say(ErrorLine(status));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string>> Chat::ReadLine() {
  // Waits here and not in a read, which would continue after a signal.
  while (!Interruption::came() && !lines_.ready()) {
    pollfd waiting = {STDIN_FILENO, POLLIN, 0};
    constexpr int kMilliseconds = 100;
    poll(&waiting, 1, kMilliseconds);
  }
  if (Interruption::came()) return std::optional<std::string>();
  RIVULET_ASSIGN_OR_RETURN(const std::optional<absl::string_view> line, lines_.Next());
  if (!line.has_value()) return std::optional<std::string>();
  if (!IsUtf8(*line)) return absl::InvalidArgumentError("stdin: a line is not valid UTF-8");
  return std::optional<std::string>(std::string(*line));
}

absl::StatusOr<std::optional<std::string>> Chat::ReadQuestion() {
  std::string text;
  for (;;) {
    if (interactive_) {
      const std::string number =
          conversations_.size() > 1 ? absl::StrCat(current_ + 1) : std::string();
      std::fprintf(stderr, "%s> ", text.empty() ? number.c_str() : "");
    }
    absl::StatusOr<std::optional<std::string>> line = ReadLine();
    // The terminal drops the typed part of the line.
    if (interactive_ && line.ok() && !line->has_value() && Interruption::TakeInt()) {
      text.clear();
      Say("");
      continue;
    }
    if (!line.ok() || !line->has_value()) return line;
    text += **line;
    if (!absl::EndsWith(text, "\\")) return std::optional<std::string>(std::move(text));
    text.back() = '\n';
  }
}

// Prints an answer as it comes: content and calls on stdout, reasoning on stderr.
class Printer {
 public:
  void Print(const nlohmann::ordered_json& delta) {
    if (const auto text = delta.find("reasoning_content"); text != delta.end()) {
      const bool dim = isatty(STDERR_FILENO) == 1;
      std::fprintf(stderr, dim ? "\033[2m%s\033[0m" : "%s", text->get<std::string>().c_str());
      thought_ = true;
    }
    if (const auto text = delta.find("content"); text != delta.end()) {
      Write(text->get<std::string>());
    }
    const auto calls = delta.find("tool_calls");
    if (calls == delta.end()) return;
    for (const nlohmann::ordered_json& call : *calls) {
      const nlohmann::ordered_json& function = call["function"];
      const std::string begin = written_ && !ends_line_ ? "\n" : "";
      Write(absl::StrCat(begin, "call ", function["name"].get<std::string>(), " ",
                         function["arguments"].get<std::string>(), "\n"));
    }
  }
  absl::Status End() {
    if (written_ && !ends_line_) Write("\n");
    if (thought_ && !written_) Say("");
    return printed_;
  }

 private:
  void Write(std::string text) {
    if (!written_) text = std::string(absl::StripLeadingAsciiWhitespace(text));
    if (text.empty() || !printed_.ok()) return;
    if (thought_ && !written_) Say("\n");  // models often begin an answer with a space
    written_ = true;
    ends_line_ = text.back() == '\n';
    printed_ = WriteOut(text);
  }

  absl::Status printed_;
  bool thought_ = false, written_ = false, ends_line_ = false;
};

absl::Status Chat::Ask(const std::optional<std::string>& question) {
  if (options_.show_prompt && question.has_value()) {
    RIVULET_ASSIGN_OR_RETURN(const std::string prompt, current().Prompt(*question));
    Say(prompt);
  }
  Printer printer;
  absl::StatusOr<Answer> answer;
  {
    const StopOnInterrupt stop;
    const auto print = [&](const nlohmann::ordered_json& delta) { printer.Print(delta); };
    answer = question.has_value() ? current().Ask(*question, print, stop.token())
                                  : current().AskOn(print, stop.token());
  }
  const bool stopped = Interruption::came();
  Interruption::TakeInt();
  RIVULET_RETURN_IF_ERROR(printer.End());
  if (stopped && !answer.ok()) {
    Say("stopped before the answer began");
    return absl::OkStatus();
  }
  if (!answer.ok()) return answer.status();
  ++answers_;
  tokens_ += answer->tokens;
  given_ += answer->given_tokens;
  prompt_ += answer->prompt_tokens;
  if (answer->reopened) Say("the server had lost the session; it was given the conversation again");
  if (answer->stopped) Say("stopped");
  if (!answer->error.empty()) Say(answer->error);
  if (current().num_waiting() > 0) Say("/result TEXT gives the model the result of a call");
  if (answer->cut) Say(absl::StrCat("cut at --max-tokens after ", answer->tokens, " tokens"));
  if (options_.stats) {
    Say(absl::StrFormat("%d of %d prompt tokens were new, %d tokens in %.2f s%s",
                        answer->given_tokens, answer->prompt_tokens, answer->tokens,
                        answer->seconds, DraftsSummary(answer->usage)));
  }
  return absl::OkStatus();
}

absl::Status Chat::Do(absl::string_view name, const std::string& argument) {
  const auto needs_file = [&] {
    return absl::InvalidArgumentError(absl::StrCat(name, " needs a file: ", name, " FILE"));
  };
  if (name == "/help") {
    std::fputs(kHelp, stderr);
  } else if (name == "/exit") {
    ended_ = true;
  } else if (name == "/reset") {
    current().Reset();
  } else if (name == "/undo") {
    if (!current().Undo()) return absl::FailedPreconditionError("/undo: there is no answer yet");
  } else if (name == "/fork") {
    return Fork();
  } else if (name == "/switch") {
    return Switch(argument);
  } else if (name == "/save") {
    return argument.empty() ? needs_file() : WriteTextFile(argument, current().ToJson());
  } else if (name == "/load") {
    return argument.empty() ? needs_file() : Load(argument);
  } else if (name == "/tools") {
    return argument.empty() ? needs_file() : LoadTools(argument);
  } else if (name == "/result") {
    return AddResult(argument);
  } else if (name == "/system") {
    current().SetSystem(argument);
  } else if (name == "/seed") {
    return SetSeed(argument);
  } else {
    return absl::InvalidArgumentError(absl::StrCat("unknown command \"", name,
                                                   "\"; /help lists the commands, //",
                                                   name.substr(1), " asks this"));
  }
  return absl::OkStatus();
}

absl::Status Chat::Fork() {
  RIVULET_ASSIGN_OR_RETURN(Conversation fork,
                           current().Fork(current().seed() + conversations_.size()));
  conversations_.push_back(std::move(fork));
  const size_t from = std::exchange(current_, conversations_.size() - 1);
  Say(absl::StrCat("conversation ", current_ + 1, ", a copy of ", from + 1, ", seed ",
                   current().seed(), "; /switch ", from + 1, " goes back"));
  return absl::OkStatus();
}

absl::Status Chat::Switch(const std::string& argument) {
  size_t number = 0;
  if (!absl::SimpleAtoi(argument, &number) || number < 1 || number > conversations_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("/switch must be 1 to ", conversations_.size(), "; got \"", argument, "\""));
  }
  current_ = number - 1;
  return absl::OkStatus();
}

absl::Status Chat::Load(const std::string& path) {
  RIVULET_ASSIGN_OR_RETURN(const std::string text, ReadBytes(path, "/load"));
  RIVULET_RETURN_IF_ERROR(current().SetJson(text, path));
  Say(absl::StrCat(current().num_answers(), " answers, seed ", current().seed()));
  return absl::OkStatus();
}

absl::Status Chat::LoadTools(const std::string& path) {
  RIVULET_ASSIGN_OR_RETURN(const std::string text, ReadBytes(path, "/tools"));
  return current().SetTools(text, path);
}

absl::Status Chat::AddResult(const std::string& text) {
  RIVULET_RETURN_IF_ERROR(current().AddResult(text));
  return current().num_waiting() > 0 ? absl::OkStatus() : Ask(std::nullopt);
}

absl::Status Chat::SetSeed(const std::string& argument) {
  std::optional<uint64_t> seed;
  if (!argument.empty() && !absl::SimpleAtoi(argument, &seed.emplace())) {
    return absl::InvalidArgumentError(
        absl::StrCat("/seed must be an integer from 0 to 2^64-1; got \"", argument, "\""));
  }
  current().SetSeed(seed);
  Say(absl::StrCat("seed ", current().seed()));
  return absl::OkStatus();
}

absl::StatusOr<ChatTemplate> TemplateOf(const ChatOptions& options, const v1::GetModelReply& model,
                                        TemplateProcess* process) {
  const std::string& name = model.summary().name();
  RIVULET_ASSIGN_OR_RETURN(const ChatTemplateFile file,
                           ReadChatTemplate(options.chat_template, process));
  if (file.name.empty() && !model.chat_template_name().empty()) {
    Say(absl::StrCat("the model \"", name, "\" has no chat template; using the built-in one, ",
                     model.chat_template_name()));
  }
  absl::StatusOr<ChatTemplate> form = ChatTemplate::Of(model, file, process);
  // The name in the documentation.
  if (!form.ok()) return Annotate(form.status(), "NO_CHAT_TEMPLATE");
  return form;
}

v1::GenerateRequest RequestOf(const ChatOptions& options, const v1::GetModelReply& model) {
  v1::GenerateRequest request;
  request.set_model(model.summary().name());
  SetSampling(options.sampling, request.mutable_sampling());
  if (options.max_tokens.has_value()) request.set_max_tokens(*options.max_tokens);
  if (options.drafts.has_value()) request.mutable_speculation()->set_drafts(*options.drafts);
  for (const std::string& stop : options.stop) request.mutable_stop()->add_strings(stop);
  return request;
}

}  // namespace

absl::StatusOr<std::string> RunCommand(const ChatOptions& options) {
  RIVULET_ASSIGN_OR_RETURN(const Target target, OpenTarget(options.target));
  RIVULET_ASSIGN_OR_RETURN(const v1::GetModelReply model,
                           target.client().GetModel(target.model_name()));
  if (!model.content().has_text()) {
    return absl::FailedPreconditionError(
        absl::StrCat("model \"", model.summary().name(), "\" has no tokenizer; chat needs one"));
  }
  TemplateProcess process;
  RIVULET_ASSIGN_OR_RETURN(const ChatTemplate form, TemplateOf(options, model, &process));
  // A server in this process would fail again in the same way.
  const ChatSetup setup = {&target.client(), &form, model, RequestOf(options, model),
                           options.target.model_dir.empty()};
  RIVULET_ASSIGN_OR_RETURN(Conversation first, Conversation::Open(&setup));
  first.SetSystem(options.system);
  if (isatty(STDIN_FILENO) == 1) Say("/help lists the commands");
  const Interruption interruption(/*flags=*/0);
  Chat chat(options, std::move(first));
  const absl::Status status = chat.Run();
  chat.Close();
  if (!status.ok()) return status;
  return chat.Summary();
}

}  // namespace rivulet
