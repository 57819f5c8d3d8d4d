// SPDX-License-Identifier: Apache-2.0
// A conversation with a model, and the session that holds its tokens on the server.
// Tested by: tests/e2e/cli/chat_test.py
#pragma once

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cli/chat/chat_template.h"
#include "nlohmann/json.hpp"
#include "rivulet/client.h"

namespace rivulet {

// Settings for all conversations of a chat.
struct ChatSetup {
  const Client* client;
  const ChatTemplate* chat_template;
  v1::GetModelReply model;
  v1::GenerateRequest request;  // its seed, if set, is the seed of the first conversation
  bool resume = true;           // as CallOptions::resume
};

// Numbers about an answer.
struct Answer {
  int64_t prompt_tokens = 0;  // of the whole conversation before the answer
  int64_t given_tokens = 0;   // prompt_tokens that the session did not hold
  int64_t tokens = 0;         // generated
  v1::Usage usage;            // of the server, unless the answer was stopped
  double seconds = 0;
  bool cut = false;       // it ended at max_tokens
  bool stopped = false;   // by `stop`
  bool reopened = false;  // the server had lost the session: all was given again
  std::string error;      // why the rest of it could not be divided, and is content; or ""
};

// Thread: one. Every method that calls the server may return the server's errors.
class Conversation {
 public:
  // Opens the session. `setup` must live longer.
  static absl::StatusOr<Conversation> Open(const ChatSetup* setup);
  // From the text of ToJson(). Errors: INVALID_ARGUMENT naming `shown` and the field.
  absl::Status SetJson(absl::string_view text, const std::string& shown);
  std::string ToJson() const;

  // The prompt that Ask() would give. Errors: those of ChatTemplate::Apply.
  absl::StatusOr<std::string> Prompt(const std::string& question) const;

  // Asks. The session goes back to the longest common prefix of its tokens and the prompt's tokens,
  // and is then given the rest of the prompt. `on_delta` gets the answer in pieces, as members of a
  // message. An answer that `stop` cuts off is kept; a failed answer leaves the conversation
  // unchanged.
  using OnDelta = absl::FunctionRef<void(const nlohmann::ordered_json& delta)>;
  absl::StatusOr<Answer> Ask(const std::string& question, OnDelta on_delta,
                             const std::stop_token& stop);

  // The tools that the model may call: the text of an array, as in OpenAI's requests. Errors:
  // INVALID_ARGUMENT naming `shown`.
  absl::Status SetTools(absl::string_view text, const std::string& shown);
  // The result of the first call of the last answer that has none. Then AskOn() goes on. Errors:
  // FAILED_PRECONDITION: no call waits.
  absl::Status AddResult(const std::string& text);
  // Number of calls that wait for a result.
  size_t num_waiting() const { return waiting_.size(); }
  // As Ask, without a question: after results.
  absl::StatusOr<Answer> AskOn(OnDelta on_delta, const std::stop_token& stop);

  // Forgets the last question and its answer. Returns false if there is none.
  bool Undo();
  void Reset();                                // forgets all but the system's message
  void SetSystem(const std::string& content);  // empty: none
  void SetSeed(std::optional<uint64_t> seed);  // absent: a random one
  uint64_t seed() const { return seed_; }
  size_t num_answers() const;

  // An independent copy. Its session is a fork of this conversation's session.
  absl::StatusOr<Conversation> Fork(uint64_t seed) const;

  // Closes the session.
  void Close();

 private:
  explicit Conversation(const ChatSetup* setup) : setup_(setup) {}
  // Without a seed the server draws one.
  absl::Status OpenSession(std::optional<uint64_t> seed);
  absl::StatusOr<std::vector<int32_t>> Tokens(const std::string& prompt) const;
  // Leaves in the session at most the first tokens that it shares with `tokens`.
  absl::Status GoBack(const std::vector<int32_t>& tokens);
  struct Try;
  absl::Status Generate(const std::vector<int32_t>& tokens, Try* one);
  // Asks for an answer to these messages.
  absl::StatusOr<Answer> AskWith(std::vector<nlohmann::ordered_json> messages, OnDelta on_delta,
                                 const std::stop_token& stop);
  absl::StatusOr<ReplyParts> Apply(const std::vector<nlohmann::ordered_json>& messages,
                                   v1::GenerateRequest* request) const;
  void FindWaiting();

  const ChatSetup* setup_;
  std::vector<nlohmann::ordered_json> messages_;
  nlohmann::ordered_json tools_;      // null: none
  std::vector<std::string> waiting_;  // ids of calls of the last answer without a result
  std::string session_id_;
  std::vector<int32_t> held_;   // the session's known tokens
  bool may_hold_more_ = false;  // after an answer that was stopped or failed
  uint64_t seed_ = 0;
};

}  // namespace rivulet
