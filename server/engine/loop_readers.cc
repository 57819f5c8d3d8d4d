// SPDX-License-Identifier: Apache-2.0
// Replies that nobody reads. One whose untaken bytes exceed the limit is paused: it has no rows. It
// keeps its slots while nobody wants them, which costs nothing; to requests that wait it gives them
// up, its states go to host memory, and once it is read it waits for slots again, at its old place.
#include <algorithm>
#include <utility>

#include "model/base/error.h"
#include "server/engine/loop.h"

namespace rivulet {

void Loop::NotePause(Request* request) {
  if (request->paused_since || !request->reader_slow()) return;
  request->paused_since = now_;
  paused_.push_back(request);
  next_deadline_ = std::min(next_deadline_, now_ + options_.reader_timeout);
}

void Loop::ResumeReaders() {
  std::erase_if(paused_, [this](Request* request) {
    if (request->reader_slow()) return false;
    request->paused_since.reset();
    if (request->parked) {
      request->resumed = now_;
      request->waits_for_slots = true;
      request->tenant_key =
          admission_.Add(request->id, request->tenant, request->priority, request->open_sessions);
    }
    return true;
  });
}

absl::Status Loop::ParkReaders() {
  if (paused_.empty() || admission_.empty()) return absl::OkStatus();
  int needed = -pool_.free() - static_cast<int>(freed_.size());
  for (int i = 0; i < kNumPriorities; ++i) {
    needed += admission_.slots_needed(static_cast<Priority>(i));
  }
  for (Request* request : paused_) {
    if (needed <= 0) break;
    if (request->parked) continue;
    const int64_t parked = num_parked_ + request->open_sessions;
    const auto slot_bytes = static_cast<int64_t>(backend_->limits().bytes_per_slot);
    if (parked * slot_bytes > options_.max_parked_bytes) continue;
    needed -= request->open_sessions;
    RIVULET_RETURN_IF_ERROR(Park(request));
  }
  return absl::OkStatus();
}

absl::Status Loop::Park(Request* request) {
  for (auto& session : request->sessions) {
    if (session->ended) continue;
    RIVULET_ASSIGN_OR_RETURN(session->parked, ReadState(session->slot));
    ++num_parked_;
    freed_.push_back(std::exchange(session->slot, kGuardSlot));
    admission_.GiveBack(request->tenant, 1);
  }
  std::erase_if(running_,
                [request](const Session* session) { return session->request == request; });
  request->parked = true;
  return absl::OkStatus();
}

}  // namespace rivulet
