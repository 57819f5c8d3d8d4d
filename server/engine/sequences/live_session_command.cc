// SPDX-License-Identifier: Apache-2.0
#include "server/engine/sequences/live_session_command.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/checked.h"
#include "model/base/error.h"
#include "server/engine/sequences/sequence.h"
#include "server/engine/validate.h"

namespace rivulet {
namespace {

absl::Status Refuse(absl::StatusCode code, absl::string_view reason, absl::string_view field,
                    absl::string_view message) {
  ErrorDetail detail;
  detail.reason = std::string(reason);
  detail.field = std::string(field);
  return MakeError(code, message, detail);
}

absl::Status CheckOnlyGeneratedAfter(int64_t position, const Session& session) {
  for (int64_t i = position; i < session.position(); ++i) {
    if (session.history.generated(i)) continue;
    return Refuse(absl::StatusCode::kFailedPrecondition, "GIVEN_TOKENS_BEYOND_POSITION", "position",
                  absl::StrCat("position is ", position, ", but token ", i,
                               " was given, not generated; RewindSession drops given tokens."));
  }
  return absl::OkStatus();
}

// Exactly these tokens were given at `position`, which may be any number, before (a repetition).
bool Holds(const Session& session, int64_t position, std::span<const int32_t> tokens) {
  const int64_t count = static_cast<int64_t>(tokens.size());
  const std::optional<int64_t> end = CheckedAdd(position, count);
  if (position < 0 || !end || *end > session.position()) return false;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = position + i;
    if (session.history.generated(at) ||
        session.history.token(at) != tokens[static_cast<size_t>(i)])
      return false;
  }
  return true;
}

// `count` tokens given at `position` fit into the session.
absl::Status CheckLength(int64_t position, int64_t count, const ModelConfig& config,
                         const SessionLimits& limits) {
  const std::optional<int64_t> of_sequence = config.max_tokens();
  const int64_t limit = std::min(of_sequence.value_or(limits.max_tokens), limits.max_tokens);
  if (position + count <= limit) return absl::OkStatus();
  const LimitOf of = limit == config.model_max_tokens() ? LimitOf::kModel
                     : limit == of_sequence             ? LimitOf::kContext
                                                        : LimitOf::kSessions;
  return TooManyTokens("tokens",
                       absl::StrCat("with ", count, " tokens at position ", position,
                                    " the session would hold ", position + count, " tokens"),
                       limit, of, "Send fewer or go back to an earlier position");
}

// OK if the session has the hash ref.hash, or had it at ref.position and only has tokens after it
// that a cancelled Generate left or that this request gives, or the request is `repeated`.
absl::Status CheckUnchanged(const SessionRef& ref, std::span<const int32_t> tokens,
                            const Session& session) {
  if (!ref.hash || *ref.hash == session.history.hash()) return absl::OkStatus();
  if (WasAsExpected(ref, session)) {
    const bool done = !tokens.empty() && Holds(session, *ref.position, tokens) &&
                      *ref.position + static_cast<int64_t>(tokens.size()) == session.position();
    if (done || ref.repeated || FollowsAbandoned(ref, session)) return absl::OkStatus();
  }
  return Refuse(absl::StatusCode::kFailedPrecondition, "SESSION_HASH_MISMATCH", "sequence_hash",
                absl::StrCat("sequence_hash is ", absl::Hex(*ref.hash, absl::kZeroPad16),
                             ", but the hash of the session, now at position ", session.position(),
                             ", is ", absl::Hex(session.history.hash(), absl::kZeroPad16),
                             ": another request has continued the session."));
}

}  // namespace

bool WasAsExpected(const SessionRef& ref, const Session& session) {
  const int64_t position = ref.position.value_or(-1);
  if (!ref.hash || position < 0 || position > session.position()) return false;
  return session.history.HashAt(position) == *ref.hash;
}

bool FollowsAbandoned(const SessionRef& ref, const Session& session) {
  return session.abandoned_from && ref.position >= *session.abandoned_from &&
         WasAsExpected(ref, session);
}

absl::Status CheckPosition(int64_t position, const Session& session) {
  if (position >= 0 && position <= session.position()) return absl::OkStatus();
  return Refuse(absl::StatusCode::kOutOfRange, "POSITION_OUT_OF_RANGE", "position",
                absl::StrCat("position is ", position, "; this session's are 0 to ",
                             session.position(), "."));
}

absl::StatusOr<int64_t> PositionIn(const Session& session, const SessionRef& ref,
                                   std::span<const int32_t> tokens) {
  RIVULET_RETURN_IF_ERROR(CheckUnchanged(ref, tokens, session));
  const int64_t position = ref.position.value_or(session.position());
  RIVULET_RETURN_IF_ERROR(CheckPosition(position, session));
  return position;
}

absl::StatusOr<int64_t> ExtendSession(const SessionRef& ref, std::span<const int32_t> tokens,
                                      const ModelConfig& config, const SessionLimits& limits,
                                      Session* session) {
  RIVULET_ASSIGN_OR_RETURN(int64_t position, PositionIn(*session, ref, tokens));
  if (Holds(*session, position, tokens)) {
    position += static_cast<int64_t>(tokens.size());
    tokens = {};
  }
  if (!FollowsAbandoned(ref, *session)) {
    RIVULET_RETURN_IF_ERROR(CheckOnlyGeneratedAfter(position, *session));
  }
  RIVULET_RETURN_IF_ERROR(
      CheckLength(position, static_cast<int64_t>(tokens.size()), config, limits));
  const auto& marks = session->marks();
  if (!ref.mark.empty() && !marks.contains(ref.mark) &&
      marks.size() >= static_cast<size_t>(limits.max_marks)) {
    return Refuse(absl::StatusCode::kFailedPrecondition, "MARK_LIMIT", "mark",
                  absl::StrCat("the session has ", marks.size(), " marks; allowed: at most ",
                               limits.max_marks, "."));
  }
  session->Rewind(position);
  for (const int32_t token : tokens) session->history.Append(token, /*generated=*/false);
  return static_cast<int64_t>(tokens.size());
}

void DropStartTokens(const SessionRef& ref, const Session& session, size_t start_tokens,
                     std::vector<int32_t>* tokens) {
  if (ref.position.value_or(session.position()) == 0) return;
  tokens->erase(tokens->begin(), tokens->begin() + static_cast<std::ptrdiff_t>(start_tokens));
}

std::vector<int32_t> FedTokens(std::span<const int32_t> tokens, const ModelConfig& config,
                               int64_t begin, int64_t end) {
  std::vector<int32_t> fed;
  fed.reserve(static_cast<size_t>(end - begin) + 1);  // FillRow relies on no reallocation
  const int64_t bos = config.has_bos() ? 1 : 0;
  if (begin < bos && begin < end) fed.push_back(*config.bos_token_id);
  for (int64_t i = std::max(begin, bos); i < end; ++i)
    fed.push_back(tokens[static_cast<size_t>(i - bos)]);
  return fed;
}

std::vector<TokenCount> CountTokens(std::span<const int32_t> tokens, const TokenHistory* history,
                                    const ModelConfig& config, int64_t fed) {
  TokenCounts counts;
  const int64_t bos = config.has_bos() ? 1 : 0;
  if (bos == 1 && fed > 0) counts.Add(*config.bos_token_id, false);
  for (int64_t i = 0; i < fed - bos; ++i) {
    counts.Add(tokens[static_cast<size_t>(i)], history != nullptr && history->generated(i));
  }
  return counts.All();
}

LiveSessionCommand::LiveSessionCommand(SessionCommand call) : call_(std::move(call)) {
  kind = call_.kind;
  num_slots = 0;
  account.tenant = call_.tenant;
  session_ref = call_.session;
  closes_session = call_.close && call_.session.has_value();
  while_draining = call_.while_draining;
  times.deadline = call_.deadline;
}

KeptCheckpoint LiveSessionCommand::BestState(PrefixCache* /*cache*/) {
  if (!call_.with_state) return {};
  const int64_t end = session->position();
  const int64_t position = std::clamp<int64_t>(session_ref->position.value_or(end), 0, end);
  return session->From(std::max<int64_t>(0, session->total() - end + position - 1));
}

absl::Status LiveSessionCommand::StartFrom(Checkpoint state, SessionTable* table, absl::Time now) {
  return call_.act == nullptr ? absl::OkStatus() : call_.act(table, session, now, state);
}

void LiveSessionCommand::OnEnd() { call_.done(std::move(status)); }

}  // namespace rivulet
