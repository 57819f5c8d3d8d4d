// SPDX-License-Identifier: Apache-2.0
// How requests read and change sessions, and the requests that only do that: open, fork, rewind,
// close, list, snapshot, restore (session_calls.h describes them).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/config.h"
#include "server/engine/sequences/live_request.h"
#include "server/engine/session_command.h"
#include "server/sessions/session.h"
#include "server/sessions/session_table.h"

namespace rivulet {

// At ref.position the session had the hash ref.hash; false if `ref` lacks either.
bool WasAsExpected(const SessionRef& ref, const Session& session);
// WasAsExpected, and everything after ref.position came from a cancelled Generate. A client that
// cancels a reply and sends its next request cannot know whether the cancel or the request arrives
// first.
bool FollowsAbandoned(const SessionRef& ref, const Session& session);

// OK, or OUT_OF_RANGE (POSITION_OUT_OF_RANGE): positions are 0 to session.position().
absl::Status CheckPosition(int64_t position, const Session& session);

// Where a request with these tokens continues: ref.position, or the session's end. The result is
// one of the session's positions, so no sum with it overflows. Errors: OUT_OF_RANGE
// (POSITION_OUT_OF_RANGE), FAILED_PRECONDITION (SESSION_HASH_MISMATCH: ref.hash is not the
// session's hash. It may also be the hash at ref.position, if the session holds after it only
// `tokens`, given, or what a cancelled Generate left, or if the request is `repeated`).
absl::StatusOr<int64_t> PositionIn(const Session& session, const SessionRef& ref,
                                   std::span<const int32_t> tokens);

// Goes to ref.position and appends `tokens` there, unless the same tokens were given there before:
// so a repeated request changes nothing. Returns the number of appended tokens, all or 0. Errors,
// which change nothing: OUT_OF_RANGE (POSITION_OUT_OF_RANGE, TOO_MANY_TOKENS), FAILED_PRECONDITION
// (GIVEN_TOKENS_BEYOND_POSITION: only RewindSession drops what the client gave, unless a cancelled
// Generate gave it and ref.hash is the hash at ref.position; MARK_LIMIT; SESSION_HASH_MISMATCH).
// REQUIRES: `tokens` are ids of the model.
absl::StatusOr<int64_t> ExtendSession(const SessionRef& ref, std::span<const int32_t> tokens,
                                      const ModelConfig& config, const SessionLimits& limits,
                                      Session* session);

// Removes the first `start_tokens` of `tokens` unless the request continues at position 0. Does not
// check that the session has the position.
void DropStartTokens(const SessionRef& ref, const Session& session, size_t start_tokens,
                     std::vector<int32_t>* tokens);

// Tokens [begin, end) of the tokens that a sequence of `tokens` feeds; index 0 is the implied bos,
// where there is one.
std::vector<int32_t> FedTokens(std::span<const int32_t> tokens, const ModelConfig& config,
                               int64_t begin, int64_t end);

// Counts the first `fed` of these fed tokens. `history` says which were generated; null: none.
std::vector<TokenCount> CountTokens(std::span<const int32_t> tokens, const TokenHistory* history,
                                    const ModelConfig& config, int64_t fed);

// Needs no slot: the loop carries it out between two runs, when its turn on the session comes.
class LiveSessionCommand final : public LiveRequest {
 public:
  explicit LiveSessionCommand(SessionCommand call);

  KeptCheckpoint BestState(PrefixCache* cache) override;
  absl::Status StartFrom(Checkpoint state, SessionTable* table, absl::Time now) override;
  void CreateSequences() override {}
  void OnReady() override {}
  void OnEnd() override;
  const SessionLookup* lookup() const override { return call_.lookup ? &*call_.lookup : nullptr; }

 private:
  const SessionCommand call_;
};

}  // namespace rivulet
