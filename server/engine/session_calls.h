// SPDX-License-Identifier: Apache-2.0
// The operations on sessions other than generating and appending. Each becomes one SessionCommand:
// it waits for the earlier requests of its session, holds no slot and submits no run.
//
// Every `done` is called exactly once, on the engine's emitter thread, unless the function itself
// returns an error (as Engine::Call). Closing, listing and snapshots are also accepted in a drain,
// until its deadline, so that sessions can move to another server. Errors that come with `done`:
// NOT_FOUND (SESSION_NOT_FOUND), and the errors named below. Thread: any.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/engine/engine.h"

namespace rivulet {

using SessionDone = std::function<void(absl::StatusOr<SessionInfo>)>;
using SessionsDone = std::function<void(absl::StatusOr<std::vector<SessionInfo>>)>;

struct OpenSpec {
  std::string tenant;
  std::optional<uint64_t> seed;                // absent: drawn
  std::optional<absl::Duration> idle_timeout;  // absent: the engine's default
  absl::Time deadline = absl::InfiniteFuture();
  std::shared_ptr<KeyAccount> key = nullptr;  // its session limit applies, too; null: none
};

// A new session without tokens. Errors: INVALID_ARGUMENT (IDLE_TIMEOUT_OUT_OF_RANGE),
// RESOURCE_EXHAUSTED (SESSION_LIMIT, TENANT_SESSION_LIMIT, API_KEY_SESSION_LIMIT).
absl::StatusOr<RequestId> OpenSession(Engine* engine, OpenSpec spec, SessionDone done);

struct ForkSpec {
  SessionRef session;  // `position`: where to fork, absent: at the end; `mark` is not used
  int count = 1;
  std::optional<uint64_t> seed;  // fork i gets seed + i; absent: drawn
  absl::Time deadline = absl::InfiniteFuture();
  std::shared_ptr<KeyAccount> key = nullptr;  // of the forks; or null
};

// Opens `count` sessions, all or none, with the tokens, marks and idle time-out of this session,
// which does not change. Errors: INVALID_ARGUMENT (FORK_COUNT_OUT_OF_RANGE), OUT_OF_RANGE
// (POSITION_OUT_OF_RANGE), FAILED_PRECONDITION (SESSION_HASH_MISMATCH), RESOURCE_EXHAUSTED
// (SESSION_LIMIT, TENANT_SESSION_LIMIT, API_KEY_SESSION_LIMIT).
absl::StatusOr<RequestId> ForkSession(Engine* engine, ForkSpec spec, SessionsDone done);

// Drops the tokens after the position of `ref`, or after the mark that `ref` names. Errors:
// OUT_OF_RANGE (POSITION_OUT_OF_RANGE), NOT_FOUND (MARK_NOT_FOUND), INVALID_ARGUMENT
// (POSITION_OR_MARK: exactly one is given).
absl::StatusOr<RequestId> RewindSession(Engine* engine, SessionRef ref, absl::Time deadline,
                                        SessionDone done);

// Ends the session, and the requests that run or wait on it with CANCELLED (SESSION_CLOSED).
absl::StatusOr<RequestId> CloseSession(Engine* engine, SessionRef ref,
                                       std::function<void(absl::Status)> done);

// The session as it is now; does not wait for its turn.
absl::StatusOr<RequestId> GetSession(Engine* engine, SessionRef ref, absl::Time deadline,
                                     SessionDone done);

// The tenant's sessions, page by page, the session used longest ago first. No session is missed; a
// session that is used between two pages may come twice.
struct ListSpec {
  std::string tenant;
  int page_size = 0;   // 0: all
  uint64_t after = 0;  // SessionPage::next of the page before; 0: from the beginning
  absl::Time deadline = absl::InfiniteFuture();
};
struct SessionPage {
  std::vector<SessionInfo> sessions;
  uint64_t next = 0;  // 0: this is the last page
};
// Errors: INVALID_ARGUMENT (PAGE_SIZE_OUT_OF_RANGE).
absl::StatusOr<RequestId> ListSessions(Engine* engine, const ListSpec& spec,
                                       std::function<void(absl::StatusOr<SessionPage>)> done);

// What a snapshot holds: everything that determines the further tokens of a session. States are
// shared, not copied.
struct SessionImage {
  std::string tenant;
  uint64_t seed = 0;
  TokenHistory history;
  std::map<std::string, int64_t> marks;
  Checkpoint state;  // the latest that has not seen the last token; `state` null: none
};
using ImageDone = std::function<void(absl::StatusOr<SessionImage>)>;
// The image of the first session.position tokens with their marks; without a position, of all
// tokens. Errors: OUT_OF_RANGE (POSITION_OUT_OF_RANGE).
absl::StatusOr<RequestId> SnapshotSession(Engine* engine, SessionRef ref, absl::Time deadline,
                                          ImageDone done);

// Opens a session from an image. REQUIRES: the image was checked against the model: tokens in the
// vocabulary, a finite state of the right size. Errors: RESOURCE_EXHAUSTED (SESSION_LIMIT,
// TENANT_SESSION_LIMIT, API_KEY_SESSION_LIMIT), OUT_OF_RANGE (TOO_MANY_TOKENS).
struct RestoreSpec {
  std::string tenant;
  std::shared_ptr<KeyAccount> key = nullptr;  // or null
  TokenHistory history;
  uint64_t seed = 0;
  std::map<std::string, int64_t> marks;
  int64_t fed = 0;           // tokens that `state` has seen
  std::vector<float> state;  // [BackendLimits::state_size().At(fed) / 4]; empty: computed again
  std::optional<absl::Duration> idle_timeout;
  absl::Time deadline = absl::InfiniteFuture();
};
absl::StatusOr<RequestId> RestoreSession(Engine* engine, RestoreSpec spec, SessionDone done);
// OK, or the error (TOO_MANY_TOKENS) for a snapshot of `tokens` tokens.
absl::Status CheckRestored(int64_t tokens, const SessionLimits& limits);

}  // namespace rivulet
