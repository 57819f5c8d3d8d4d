// SPDX-License-Identifier: Apache-2.0
#include "client/cli/chat/conversation.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/output/text.h"
#include "nlohmann/json.hpp"

namespace rivulet {
namespace {

using nlohmann::ordered_json;

constexpr char kSystem[] = "system", kUser[] = "user", kAssistant[] = "assistant";
constexpr char kFormat[] = "rivulet-chat";
constexpr int kVersion = 1;

// Whether the session or its tokens are lost: it was idle for too long, or its server was replaced.
bool IsLost(const absl::Status& status) {
  const std::string reason = GetErrorInfo(status).reason;
  return reason == "SESSION_NOT_FOUND" || reason == "POSITION_OUT_OF_RANGE";
}

absl::StatusOr<std::vector<ChatMessage>> ParseMessages(const ordered_json& json,
                                                       const std::string& shown) {
  const auto bad = [&](absl::string_view field, absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(shown, ": ", field, " ", what));
  };
  const auto list = json.find("messages");
  if (list == json.end() || !list->is_array()) return bad("messages", "must be an array");
  std::vector<ChatMessage> messages;
  for (const ordered_json& entry : *list) {
    const std::string field = absl::StrCat("messages[", messages.size(), "]");
    const auto text = [&](const char* name) {
      return entry.is_object() && entry.contains(name) && entry[name].is_string();
    };
    if (!text("role") || !text("content")) {
      return bad(field, "must have the texts role and content");
    }
    ChatMessage message = {entry["role"].get<std::string>(), entry["content"].get<std::string>()};
    // Questions and answers alternate, after at most one system message.
    const bool has_system = !messages.empty() && messages[0].role == kSystem;
    const size_t turn = messages.size() - (has_system ? 1 : 0);
    const bool is_system = messages.empty() && message.role == kSystem;
    if (!is_system && message.role != (turn % 2 == 0 ? kUser : kAssistant)) {
      return bad(absl::StrCat(field, ".role"),
                 absl::StrCat("must be \"", turn % 2 == 0 ? kUser : kAssistant, "\"; got \"",
                              OneLine(message.role), "\""));
    }
    messages.push_back(std::move(message));
  }
  if (!messages.empty() && messages.back().role == kUser) {
    return bad("messages", "must end with an answer");
  }
  return messages;
}

}  // namespace

absl::StatusOr<Conversation> Conversation::Open(const ChatSetup* setup) {
  Conversation conversation(setup);
  const v1::SamplingParams& sampling = setup->request.sampling();
  const auto seed = sampling.has_seed() ? std::optional(sampling.seed()) : std::nullopt;
  if (absl::Status status = conversation.OpenSession(seed); !status.ok()) return status;
  return conversation;
}

absl::Status Conversation::OpenSession(std::optional<uint64_t> seed) {
  v1::OpenSessionRequest request;
  request.set_model(setup_->request.model());
  if (seed.has_value()) request.set_seed(*seed);
  const absl::StatusOr<v1::OpenSessionReply> reply = setup_->client->OpenSession(request);
  if (!reply.ok()) return reply.status();
  session_id_ = reply->session().session_id();
  seed_ = reply->session().seed();
  held_.clear();
  may_hold_more_ = false;
  return absl::OkStatus();
}

std::string Conversation::ToJson() const {
  ordered_json json = {{"format", kFormat},
                       {"version", kVersion},
                       {"model", setup_->model.summary().name()},
                       {"seed", seed_},
                       {"messages", ordered_json::array()}};
  for (const ChatMessage& message : messages_) {
    json["messages"].push_back({{"role", message.role}, {"content", message.content}});
  }
  return json.dump(1) + "\n";
}

absl::Status Conversation::SetJson(absl::string_view text, const std::string& shown) {
  const ordered_json json =
      ordered_json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  const auto bad = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(shown, ": ", what));
  };
  if (!json.is_object() || json.value("format", ordered_json()) != kFormat) {
    return bad("is not a file of /save");
  }
  if (json.value("version", ordered_json()) != kVersion) {
    return bad(absl::StrCat("version must be ", kVersion));
  }
  const auto seed = json.find("seed");
  if (seed == json.end() || !seed->is_number_unsigned()) {
    return bad("seed must be an integer from 0 to 2^64-1");
  }
  absl::StatusOr<std::vector<ChatMessage>> messages = ParseMessages(json, shown);
  if (!messages.ok()) return messages.status();
  messages_ = *std::move(messages);
  seed_ = seed->get<uint64_t>();
  return absl::OkStatus();
}

absl::StatusOr<std::string> Conversation::Prompt(const std::string& question) const {
  std::vector<ChatMessage> messages = messages_;
  messages.push_back({kUser, question});
  return setup_->chat_template->Render(messages);
}

absl::StatusOr<std::vector<int32_t>> Conversation::Tokens(const std::string& prompt) const {
  v1::TokenizeRequest request;
  request.set_model(setup_->request.model());
  request.set_text(prompt);
  request.set_add_special_tokens(false);  // the template writes them out
  const absl::StatusOr<v1::TokenizeReply> reply = setup_->client->Tokenize(request);
  if (!reply.ok()) return reply.status();
  return std::vector<int32_t>(reply->ids().begin(), reply->ids().end());
}

absl::Status Conversation::GoBack(const std::vector<int32_t>& tokens) {
  const auto end = std::mismatch(held_.begin(), held_.end(), tokens.begin(), tokens.end()).first;
  if (end == held_.end() && !may_hold_more_) return absl::OkStatus();
  v1::RewindSessionRequest request;
  request.set_model(setup_->request.model());
  request.set_session_id(session_id_);
  request.set_position(end - held_.begin());
  const absl::StatusOr<v1::RewindSessionReply> reply = setup_->client->RewindSession(request);
  if (!reply.ok()) return reply.status();
  held_.erase(end, held_.end());
  may_hold_more_ = false;
  return absl::OkStatus();
}

absl::StatusOr<Answer> Conversation::Generate(const std::vector<int32_t>& tokens, std::string* text,
                                              absl::FunctionRef<void(absl::string_view)> on_text,
                                              const std::stop_token& stop) {
  v1::GenerateRequest request = setup_->request;
  request.mutable_session()->set_session_id(session_id_);
  request.mutable_session()->set_position(static_cast<int64_t>(held_.size()));
  request.mutable_sampling()->set_seed(seed_);
  const auto rest = tokens.begin() + static_cast<std::ptrdiff_t>(held_.size());
  request.mutable_tokens()->mutable_ids()->Add(rest, tokens.end());
  Answer answer;
  answer.prompt_tokens = static_cast<int64_t>(tokens.size());
  answer.given_tokens = request.tokens().ids_size();
  CallOptions options;
  options.stop = stop;
  options.resume = setup_->resume;
  const absl::Time start = absl::Now();
  std::vector<int32_t> generated;
  const absl::Status status = setup_->client->Generate(
      request,
      [&](const v1::GenerateReply& part) {
        generated.insert(generated.end(), part.tokens().begin(), part.tokens().end());
        *text += part.text();
        on_text(part.text());
        if (part.has_finish()) answer.cut = part.finish().reason() == v1::FINISH_REASON_LENGTH;
        return true;
      },
      options);
  answer.stopped = stop.stop_requested();
  may_hold_more_ = !status.ok();
  if (!status.ok() && !(answer.stopped && !text->empty())) return status;
  held_.assign(tokens.begin(), tokens.end());
  held_.insert(held_.end(), generated.begin(), generated.end());
  answer.tokens = static_cast<int64_t>(generated.size());
  answer.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  return answer;
}

absl::StatusOr<Answer> Conversation::Ask(const std::string& question,
                                         absl::FunctionRef<void(absl::string_view)> on_text,
                                         std::stop_token stop) {
  const absl::StatusOr<std::string> prompt = Prompt(question);
  if (!prompt.ok()) return prompt.status();
  const absl::StatusOr<std::vector<int32_t>> tokens = Tokens(*prompt);
  if (!tokens.ok()) return tokens.status();
  std::string text;
  const auto once = [&]() -> absl::StatusOr<Answer> {
    if (absl::Status status = GoBack(*tokens); !status.ok()) return status;
    return Generate(*tokens, &text, on_text, stop);
  };
  absl::StatusOr<Answer> answer = once();
  const bool lost = IsLost(answer.status()) && text.empty();
  if (lost) {
    if (absl::Status status = OpenSession(seed_); !status.ok()) return status;
    answer = once();
  }
  if (!answer.ok()) return answer;
  answer->reopened = lost;
  messages_.push_back({kUser, question});
  messages_.push_back({kAssistant, std::move(text)});
  return answer;
}

bool Conversation::Undo() {
  if (num_answers() == 0) return false;
  messages_.resize(messages_.size() - 2);
  return true;
}

void Conversation::Reset() {
  const bool has_system = !messages_.empty() && messages_[0].role == kSystem;
  messages_.resize(has_system ? 1 : 0);
}

void Conversation::SetSystem(const std::string& content) {
  if (!messages_.empty() && messages_[0].role == kSystem) messages_.erase(messages_.begin());
  if (!content.empty()) messages_.insert(messages_.begin(), {kSystem, content});
}

void Conversation::SetSeed(std::optional<uint64_t> seed) {
  std::random_device device;
  seed_ = seed.value_or(device());
}

size_t Conversation::num_answers() const { return messages_.size() / 2; }

absl::StatusOr<Conversation> Conversation::Fork(uint64_t seed) const {
  v1::ForkSessionRequest request;
  request.set_model(setup_->request.model());
  request.mutable_session()->set_session_id(session_id_);
  request.mutable_session()->set_position(static_cast<int64_t>(held_.size()));
  request.set_seed(seed);
  const absl::StatusOr<v1::ForkSessionReply> reply = setup_->client->ForkSession(request);
  Conversation fork = *this;
  if (IsLost(reply.status())) {
    if (absl::Status status = fork.OpenSession(seed); !status.ok()) return status;
    return fork;
  }
  if (!reply.ok()) return reply.status();
  fork.session_id_ = reply->sessions(0).session_id();
  fork.seed_ = seed;
  fork.may_hold_more_ = false;
  return fork;
}

void Conversation::Close() {
  v1::CloseSessionRequest request;
  request.set_model(setup_->request.model());
  request.set_session_id(session_id_);
  // The session or its server may be gone already. An open session closes by itself when idle.
  (void)setup_->client->CloseSession(request);
}

}  // namespace rivulet
