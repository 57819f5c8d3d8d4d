// SPDX-License-Identifier: Apache-2.0
#include "server/engine/session.h"

#include "model/base/error.h"

namespace rivulet {

void Request::KeepState(int64_t fed, StatePtr state, PrefixCache* cache) {
  keep.NoteKept(fed);
  if (session != nullptr) session->Keep({fed, state});
  if (cached && keep.HasPoint(fed)) cached->Keep(cache, sequence_tokens(), fed, std::move(state));
}

absl::Status NonFiniteError(absl::string_view message) {
  ErrorDetail detail;
  detail.reason = "NON_FINITE_OUTPUT";
  return MakeError(absl::StatusCode::kDataLoss, message, detail);
}

}  // namespace rivulet
