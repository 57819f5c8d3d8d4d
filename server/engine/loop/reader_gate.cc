// SPDX-License-Identifier: Apache-2.0
#include "server/engine/loop/reader_gate.h"

namespace rivulet {

bool ReaderGate::Pause(Request* request, absl::Time now) {
  if (request->life.paused() || !request->reader_slow()) return false;
  request->life.Pause(now);
  paused_.push_back(request);
  return true;
}

std::vector<Request*> ReaderGate::Resume() {
  std::vector<Request*> waiting;
  std::erase_if(paused_, [&waiting](Request* request) {
    if (request->reader_slow()) return false;
    if (request->life.Resume()) waiting.push_back(request);
    return true;
  });
  return waiting;
}

absl::Time ReaderGate::EndsAt(const Request& request) const {
  return request.life.paused_since().value_or(absl::InfiniteFuture()) + timeout_;
}

std::vector<Request*> ReaderGate::Yielding(int needed, int parked) const {
  std::vector<Request*> yielding;
  for (Request* request : paused_) {
    if (needed <= 0) break;
    if (request->life.parked()) continue;
    if (parked + request->open_sequences > room_) continue;
    parked += request->open_sequences;
    needed -= request->open_sequences;
    yielding.push_back(request);
  }
  return yielding;
}

void ReaderGate::Leave(Request* request) {
  if (request->life.paused()) std::erase(paused_, request);
}

}  // namespace rivulet
