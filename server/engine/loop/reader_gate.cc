// SPDX-License-Identifier: Apache-2.0
#include "server/engine/loop/reader_gate.h"

namespace rivulet {

bool ReaderGate::Pause(Request* request, absl::Time now) {
  if (request->life.paused() || !request->reader_slow()) return false;
  request->life.Pause(now);
  turns_[request] = ++last_turn_;
  paused_.emplace(last_turn_, request);
  return true;
}

std::vector<Request*> ReaderGate::Resume(std::span<Request* const> read) {
  std::map<uint64_t, Request*> waiting;
  for (Request* request : read) {
    // Not paused: it was read in time. Still slow: more came in the same run.
    const auto turn = turns_.find(request);
    if (turn == turns_.end() || request->reader_slow()) continue;
    if (request->life.Resume()) waiting.emplace(turn->second, request);
    paused_.erase(turn->second);
    turns_.erase(turn);
  }
  std::vector<Request*> in_turn;
  in_turn.reserve(waiting.size());
  for (const auto& [turn, request] : waiting) in_turn.push_back(request);
  return in_turn;
}

absl::Time ReaderGate::EndsAt(const Request& request) const {
  return request.life.paused_since().value_or(absl::InfiniteFuture()) + timeout_;
}

std::vector<Request*> ReaderGate::Yielding(
    int needed, int64_t parked, absl::FunctionRef<int64_t(const Request&)> bytes_of) const {
  std::vector<Request*> yielding;
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

void ReaderGate::Leave(Request* request) {
  const auto turn = turns_.find(request);
  if (turn == turns_.end()) return;
  paused_.erase(turn->second);
  turns_.erase(turn);
}

}  // namespace rivulet
