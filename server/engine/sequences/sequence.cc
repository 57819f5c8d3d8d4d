// SPDX-License-Identifier: Apache-2.0
#include "server/engine/sequences/sequence.h"

#include "model/base/error.h"

namespace rivulet {

KeptCheckpoint Request::DeepestState(PrefixCache* cache, int64_t most) {
  KeptCheckpoint best, of_cache;
  if (session != nullptr) best = session->From(most);
  if (cached) of_cache = cached->Find(cache, sequence_tokens(), most);
  return of_cache.fed > best.fed ? of_cache : best;
}

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
