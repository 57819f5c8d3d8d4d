// SPDX-License-Identifier: Apache-2.0
#include "server/engine/loop/reader_gate.h"

namespace rivulet {

bool ReaderGate::Pause(LiveRequest* request, absl::Time now) {
  if (request->life.paused() || !request->reader_slow()) return false;
  request->life.Pause(now);
  turns_[request] = ++last_turn_;
  paused_.emplace(last_turn_, request);
  return true;
}

std::vector<LiveRequest*> ReaderGate::Resume(std::span<LiveRequest* const> read) {
  std::map<uint64_t, LiveRequest*> waiting;
  for (LiveRequest* request : read) {
    // Not paused: it was read in time. Still slow: more came in the same run.
    const auto turn = turns_.find(request);
    if (turn == turns_.end() || request->reader_slow()) continue;
    if (request->life.Resume()) waiting.emplace(turn->second, request);
    paused_.erase(turn->second);
    turns_.erase(turn);
  }
  std::vector<LiveRequest*> in_turn;
  in_turn.reserve(waiting.size());
  for (const auto& [turn, request] : waiting) in_turn.push_back(request);
  return in_turn;
}

absl::Time ReaderGate::EndsAt(const LiveRequest& request) const {
  return request.life.paused_since().value_or(absl::InfiniteFuture()) + timeout_;
}

std::vector<LiveRequest*> ReaderGate::Yielding(
    int needed, int64_t parked, absl::FunctionRef<int64_t(const LiveRequest&)> bytes_of) const {
  std::vector<LiveRequest*> yielding;
  for (const auto& [turn, request] : paused_) {
    if (needed <= 0) break;
    if (request->life.in_host_memory()) continue;
    const int64_t bytes = bytes_of(*request);
    if (parked + bytes > room_) continue;
    parked += bytes;
    needed -= request->open_sequences;
    yielding.push_back(request);
  }
  return yielding;
}

void ReaderGate::Leave(LiveRequest* request) {
  const auto turn = turns_.find(request);
  if (turn == turns_.end()) return;
  paused_.erase(turn->second);
  turns_.erase(turn);
}

}  // namespace rivulet
