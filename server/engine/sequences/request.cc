// SPDX-License-Identifier: Apache-2.0
#include "server/engine/sequences/request.h"

#include <utility>

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

}  // namespace rivulet
