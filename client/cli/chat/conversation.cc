// SPDX-License-Identifier: Apache-2.0
#include "client/cli/chat/conversation.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/output/text.h"
#include "model/base/error.h"
#include "nlohmann/json.hpp"

namespace rivulet {
namespace {

using nlohmann::ordered_json;

constexpr char kSystem[] = "system", kUser[] = "user", kAssistant[] = "assistant", kTool[] = "tool";
constexpr char kCalls[] = "tool_calls";
// What a conversation keeps of an answer.
constexpr absl::string_view kMembers[] = {"content", "reasoning_content", kCalls};
constexpr char kFormat[] = "rivulet-chat";
constexpr int kVersion = 1;

// Whether the session or its tokens are lost: it was idle for too long, or its server was replaced.
bool IsLost(const absl::Status& status) {
  const std::string reason = GetErrorInfo(status).reason;
  return reason == "SESSION_NOT_FOUND" || reason == "POSITION_OUT_OF_RANGE";
}

bool AreCalls(const ordered_json& calls) {
  return calls.is_array() && absl::c_all_of(calls, [](const ordered_json& call) {
           return call.is_object() && call.contains("id") && call["id"].is_string();
         });
}

// Whether a message of this role may follow; `expected`: one that may.
bool MayFollow(const std::vector<ordered_json>& messages, const std::string& role,
               const char** expected) {
  const ordered_json* const last = messages.empty() ? nullptr : &messages.back();
  const std::string before = last == nullptr ? "" : (*last)["role"].get<std::string>();
  const bool answered = before != kUser && before != kTool;
  *expected = answered ? kUser : kAssistant;
  if (role == *expected || (last == nullptr && role == kSystem)) return true;
  if (before == kTool) return role == kTool || role == kUser;  // calls may stay without results
  return role == kTool && before == kAssistant && last->contains(kCalls);
}

absl::StatusOr<std::vector<ordered_json>> ParseMessages(const ordered_json& json,
                                                        const std::string& shown) {
  const auto bad = [&](absl::string_view field, absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(shown, ": ", field, " ", what));
  };
  const auto list = json.find("messages");
  if (list == json.end() || !list->is_array()) return bad("messages", "must be an array");
  std::vector<ordered_json> messages;
  for (const ordered_json& entry : *list) {
    const std::string field = absl::StrCat("messages[", messages.size(), "]");
    const auto text = [&](const char* name) {
      return entry.is_object() && entry.contains(name) && entry[name].is_string();
    };
    if (!text("role") || !(text("content") || entry.contains(kCalls))) {
      return bad(field, "must have the texts role and content");
    }
    if (entry.contains(kCalls) && !AreCalls(entry[kCalls])) {
      return bad(absl::StrCat(field, ".tool_calls"), "must be an array of calls with a text id");
    }
    const std::string role = entry["role"].get<std::string>();
    if (const char* expected = nullptr; !MayFollow(messages, role, &expected)) {
      return bad(absl::StrCat(field, ".role"),
                 absl::StrCat("must be \"", expected, "\"; got \"", OneLine(role), "\""));
    }
    messages.push_back(entry);
  }
  if (!messages.empty() && messages.back()["role"] == kUser) {
    return bad("messages", "must end with an answer");
  }
  return messages;
}

}  // namespace

absl::StatusOr<Conversation> Conversation::Open(const ChatSetup* setup) {
  Conversation conversation(setup);
  const v1::SamplingParams& sampling = setup->request.sampling();
  const auto seed = sampling.has_seed() ? std::optional(sampling.seed()) : std::nullopt;
  RIVULET_RETURN_IF_ERROR(conversation.OpenSession(seed));
  return conversation;
}

absl::Status Conversation::OpenSession(std::optional<uint64_t> seed) {
  v1::OpenSessionRequest request;
  request.set_model(setup_->request.model());
  if (seed.has_value()) request.set_seed(*seed);
  RIVULET_ASSIGN_OR_RETURN(const v1::OpenSessionReply reply, setup_->client->OpenSession(request));
  session_id_ = reply.session().session_id();
  seed_ = reply.session().seed();
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
  for (const ordered_json& message : messages_) json["messages"].push_back(message);
  if (!tools_.is_null()) json["tools"] = tools_;
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
  RIVULET_ASSIGN_OR_RETURN(messages_, ParseMessages(json, shown));
  tools_ = json.value("tools", ordered_json());
  FindWaiting();
  seed_ = seed->get<uint64_t>();
  return absl::OkStatus();
}

absl::StatusOr<ReplyParts> Conversation::Apply(const std::vector<ordered_json>& messages,
                                               v1::GenerateRequest* request) const {
  ordered_json body = {{"messages", messages}};
  if (!tools_.is_null()) body["tools"] = tools_;
  return setup_->chat_template->Apply(body, absl::StrCat("call_", messages.size(), "_"), request);
}

absl::StatusOr<std::string> Conversation::Prompt(const std::string& question) const {
  std::vector<ordered_json> messages = messages_;
  messages.push_back({{"role", kUser}, {"content", question}});
  v1::GenerateRequest request;
  RIVULET_RETURN_IF_ERROR(Apply(messages, &request).status());
  return request.text();
}

absl::Status Conversation::SetTools(absl::string_view text, const std::string& shown) {
  ordered_json tools =
      ordered_json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!tools.is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(shown, ": must be a JSON array of tools"));
  }
  std::swap(tools, tools_);
  const absl::Status status = Prompt("").status();
  if (!status.ok()) std::swap(tools, tools_);
  return status.ok() ? status : Annotate(status, shown);
}

void Conversation::FindWaiting() {
  waiting_.clear();
  size_t results = 0;
  for (auto message = messages_.rbegin(); message != messages_.rend(); ++message, ++results) {
    if ((*message)["role"] == kTool) continue;
    if (!message->contains(kCalls)) return;
    for (const ordered_json& call : (*message)[kCalls]) waiting_.push_back(call["id"]);
    waiting_.erase(waiting_.begin(),
                   waiting_.begin() + static_cast<ptrdiff_t>(std::min(results, waiting_.size())));
    return;
  }
}

absl::Status Conversation::AddResult(const std::string& text) {
  if (waiting_.empty()) return absl::FailedPreconditionError("/result: no call waits for a result");
  messages_.push_back({{"role", kTool}, {"tool_call_id", waiting_.front()}, {"content", text}});
  waiting_.erase(waiting_.begin());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> Conversation::Tokens(const std::string& prompt) const {
  v1::TokenizeRequest request;
  request.set_model(setup_->request.model());
  request.set_text(prompt);
  request.set_add_special_tokens(false);  // the template writes them out
  RIVULET_ASSIGN_OR_RETURN(const v1::TokenizeReply reply, setup_->client->Tokenize(request));
  return std::vector<int32_t>(reply.ids().begin(), reply.ids().end());
}

absl::Status Conversation::GoBack(const std::vector<int32_t>& tokens) {
  const auto end = std::mismatch(held_.begin(), held_.end(), tokens.begin(), tokens.end()).first;
  if (end == held_.end() && !may_hold_more_) return absl::OkStatus();
  v1::RewindSessionRequest request;
  request.set_model(setup_->request.model());
  request.set_session_id(session_id_);
  request.set_position(end - held_.begin());
  RIVULET_RETURN_IF_ERROR(setup_->client->RewindSession(request).status());
  held_.erase(end, held_.end());
  may_hold_more_ = false;
  return absl::OkStatus();
}

// An answer that is being asked for.
struct Conversation::Try {
  v1::GenerateRequest request;
  ReplyParts parts;
  OnDelta on_delta;
  const std::stop_token& stop;
  Answer answer = {};
  ordered_json message = {{"role", kAssistant}, {"content", ""}};
  bool begun = false;

  // Adds text to the message, and tells of it.
  void Take(absl::string_view text, ReplyParts::End end) {
    begun = begun || !text.empty();
    const ReplyParts::Added added = parts.Add(text, end);
    if (!added.error.empty()) answer.error = added.error;
    for (const auto& [name, value] : added.delta.items()) {
      if (!absl::c_linear_search(kMembers, name)) continue;
      ordered_json& to = message[name];
      if (value.is_string()) {
        to = to.is_string() ? to.get<std::string>() + value.get<std::string>()
                            : value.get<std::string>();
      } else if (value.is_array() && to.is_array()) {
        to.insert(to.end(), value.begin(), value.end());
      } else {
        to = value;
      }
    }
    if (!added.delta.empty()) on_delta(added.delta);
  }
};

absl::Status Conversation::Generate(const std::vector<int32_t>& tokens, Try* one) {
  using End = ReplyParts::End;
  v1::GenerateRequest request = one->request;
  request.clear_add_special_tokens();  // of the text, in place of which it has tokens
  request.mutable_session()->set_session_id(session_id_);
  request.mutable_session()->set_position(static_cast<int64_t>(held_.size()));
  request.mutable_sampling()->set_seed(seed_);
  const auto rest = tokens.begin() + static_cast<std::ptrdiff_t>(held_.size());
  request.mutable_tokens()->mutable_ids()->Add(rest, tokens.end());
  Answer& answer = one->answer;
  answer.prompt_tokens = static_cast<int64_t>(tokens.size());
  answer.given_tokens = request.tokens().ids_size();
  CallOptions options;
  options.stop = one->stop;
  options.resume = setup_->resume;
  const absl::Time start = absl::Now();
  std::vector<int32_t> generated;
  bool ended = false;
  const absl::Status status = setup_->client->Generate(
      request,
      [&](const v1::GenerateReply& part) {
        generated.insert(generated.end(), part.tokens().begin(), part.tokens().end());
        ended = part.has_finish();
        if (part.has_usage()) answer.usage = part.usage();
        answer.cut = ended && part.finish().reason() == v1::FINISH_REASON_LENGTH;
        one->Take(part.text(), answer.cut ? End::kCut : ended ? End::kEnd : End::kNot);
        return true;
      },
      options);
  answer.stopped = one->stop.stop_requested();
  may_hold_more_ = !status.ok();
  if (!status.ok() && !(answer.stopped && one->begun)) return status;
  if (!ended) one->Take("", End::kCut);
  held_.assign(tokens.begin(), tokens.end());
  held_.insert(held_.end(), generated.begin(), generated.end());
  answer.tokens = static_cast<int64_t>(generated.size());
  answer.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  return absl::OkStatus();
}

absl::StatusOr<Answer> Conversation::Ask(const std::string& question, OnDelta on_delta,
                                         const std::stop_token& stop) {
  std::vector<ordered_json> messages = messages_;
  messages.push_back({{"role", kUser}, {"content", question}});
  return AskWith(std::move(messages), on_delta, stop);
}

absl::StatusOr<Answer> Conversation::AskOn(OnDelta on_delta, const std::stop_token& stop) {
  return AskWith(messages_, on_delta, stop);
}

absl::StatusOr<Answer> Conversation::AskWith(std::vector<ordered_json> messages, OnDelta on_delta,
                                             const std::stop_token& stop) {
  Try one = {setup_->request, {}, on_delta, stop};
  RIVULET_ASSIGN_OR_RETURN(one.parts, Apply(messages, &one.request));
  RIVULET_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, Tokens(one.request.text()));
  const auto once = [&]() -> absl::Status {
    RIVULET_RETURN_IF_ERROR(GoBack(tokens));
    return Generate(tokens, &one);
  };
  absl::Status status = once();
  const bool lost = IsLost(status) && !one.begun;
  if (lost) {
    RIVULET_RETURN_IF_ERROR(OpenSession(seed_));
    status = once();
  }
  if (!status.ok()) return status;
  one.answer.reopened = lost;
  messages.push_back(std::move(one.message));
  messages_ = std::move(messages);
  FindWaiting();
  return one.answer;
}

bool Conversation::Undo() {
  const auto is_answer = [](const ordered_json& message) { return message["role"] == kAssistant; };
  const auto answer = std::find_if(messages_.rbegin(), messages_.rend(), is_answer);
  if (answer == messages_.rend()) return false;
  const auto before = std::find_if(answer + 1, messages_.rend(), [&](const ordered_json& message) {
    return is_answer(message) || message["role"] == kSystem;
  });
  messages_.erase(before.base(), messages_.end());
  FindWaiting();
  return true;
}

void Conversation::Reset() {
  const bool has_system = !messages_.empty() && messages_[0]["role"] == kSystem;
  messages_.resize(has_system ? 1 : 0);
  waiting_.clear();
}

void Conversation::SetSystem(const std::string& content) {
  if (!messages_.empty() && messages_[0]["role"] == kSystem) messages_.erase(messages_.begin());
  if (content.empty()) return;
  // Not within insert(), which would take the pairs for two messages.
  const ordered_json message = {{"role", kSystem}, {"content", content}};
  messages_.insert(messages_.begin(), message);
}

void Conversation::SetSeed(std::optional<uint64_t> seed) {
  std::random_device device;
  seed_ = seed.value_or(device());
}

size_t Conversation::num_answers() const {
  return static_cast<size_t>(
      std::count_if(messages_.begin(), messages_.end(),
                    [](const ordered_json& message) { return message["role"] == kAssistant; }));
}

absl::StatusOr<Conversation> Conversation::Fork(uint64_t seed) const {
  v1::ForkSessionRequest request;
  request.set_model(setup_->request.model());
  request.mutable_session()->set_session_id(session_id_);
  request.mutable_session()->set_position(static_cast<int64_t>(held_.size()));
  request.set_seed(seed);
  const absl::StatusOr<v1::ForkSessionReply> reply = setup_->client->ForkSession(request);
  Conversation fork = *this;
  if (IsLost(reply.status())) {
    RIVULET_RETURN_IF_ERROR(fork.OpenSession(seed));
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
