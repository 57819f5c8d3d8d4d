// SPDX-License-Identifier: Apache-2.0
// Replies that give up their slots: their states go to host memory, and when they get slots again
// they go on bit for bit.
//
// Those that nobody reads (reader_gate.h): they wait again, at their old places, once they are read.
// Those of a tenant above its share (admission.h): they wait again at once, also where nobody reads
// them.
#include <algorithm>
#include <limits>
#include <utility>

#include "model/base/error.h"
#include "server/engine/loop/loop.h"

namespace rivulet {

void Loop::NotePause(Request* request) {
  if (!readers_.Pause(request, now_)) return;
  admission_.EndQuantum(request->id);
  next_deadline_ = std::min(next_deadline_, readers_.EndsAt(*request));
}

void Loop::ResumeReaders() {
  for (Request* request : readers_.Resume()) {
    request->times.resumed = now_;
    AddToAdmission(request, request->open_sequences);
  }
}

absl::Status Loop::ParkReaders() {
  if (readers_.empty() || admission_.empty()) return absl::OkStatus();
  int needed = -slots_.free_soon();
  for (int i = 0; i < kNumPriorities; ++i) {
    needed += admission_.slots_needed(static_cast<Priority>(i));
  }
  // What waits may wait for slots of its own tenant alone.
  if (options_.max_tenant_slots > 0) needed = std::numeric_limits<int>::max();
  const int parked = slots_.parked() - admission_.preempted();
  for (Request* request : readers_.Yielding(needed, parked)) {
    RIVULET_RETURN_IF_ERROR(slots_.Park(*request));
    request->life.Go(RequestLife::State::kParked);
    admission_.GiveBack(request->id, request->open_sequences);
  }
  return absl::OkStatus();
}

absl::Status Loop::PreemptOthers() {
  for (const RequestId id : admission_.Victims(slots_.free_soon(), run_.number())) {
    Request* const request = requests_.at(id).get();
    RIVULET_RETURN_IF_ERROR(slots_.Park(*request));
    request->life.Go(RequestLife::State::kWaitsAgain);
    request->times.resumed = now_;
    admission_.Preempt(id);
    progress_.preemptions += request->open_sequences;
  }
  return absl::OkStatus();
}

}  // namespace rivulet
