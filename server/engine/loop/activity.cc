// SPDX-License-Identifier: Apache-2.0
#include "server/engine/loop/activity.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace rivulet {
namespace {

struct Place {
  std::atomic<bool> taken = false;
  std::atomic<bool> named = false;  // `model` is there to be read
  char model[sizeof(LoopState::model)] = {};
  std::atomic<LoopPhase> phase = LoopPhase::kIdle;
  std::atomic<int> rows = 0, steps = 0;
  std::atomic<int64_t> runs = 0;
};

Place loop_places[LoopActivity::kMaxLoops];
thread_local Place* own_place = nullptr;

}  // namespace

const char* Name(LoopPhase phase) {
  switch (phase) {
    case LoopPhase::kIdle:
      return "idle";
    case LoopPhase::kArrivals:
      return "arrivals";
    case LoopPhase::kAdmit:
      return "admit";
    case LoopPhase::kPlan:
      return "plan";
    case LoopPhase::kSubmit:
      return "submit";
    case LoopPhase::kPoll:
      return "poll";
    case LoopPhase::kRecords:
      return "records";
    case LoopPhase::kEnd:
      return "end";
  }
  return "";
}

LoopActivity::LoopActivity(absl::string_view model) {
  const auto free = std::find_if(std::begin(loop_places), std::end(loop_places),
                                 [](Place& place) { return !place.taken.exchange(true); });
  if (free == std::end(loop_places)) return;
  own_place = &*free;
  const size_t length = std::min(model.size(), sizeof(own_place->model) - 1);
  std::memcpy(own_place->model, model.data(), length);
  own_place->model[length] = '\0';
  own_place->phase = LoopPhase::kIdle;
  own_place->rows = own_place->steps = 0;
  own_place->runs = 0;
  own_place->named.store(true, std::memory_order_release);
}

LoopActivity::~LoopActivity() {
  if (own_place == nullptr) return;
  own_place->named = false;
  own_place->taken = false;
  own_place = nullptr;
}

void NotePhase(LoopPhase phase) {
  if (own_place != nullptr) own_place->phase.store(phase, std::memory_order_relaxed);
}

void NoteRun(int rows, int steps) {
  if (own_place == nullptr) return;
  own_place->rows.store(rows, std::memory_order_relaxed);
  own_place->steps.store(steps, std::memory_order_relaxed);
  own_place->runs.store(own_place->runs.load(std::memory_order_relaxed) + 1,
                        std::memory_order_relaxed);
}

bool ReadLoop(size_t index, LoopState* state) {
  const Place& place = loop_places[index];
  if (!place.named.load(std::memory_order_acquire)) return false;
  std::memcpy(state->model, place.model, sizeof(state->model));
  state->phase = place.phase.load(std::memory_order_relaxed);
  state->rows = place.rows.load(std::memory_order_relaxed);
  state->steps = place.steps.load(std::memory_order_relaxed);
  state->runs = place.runs.load(std::memory_order_relaxed);
  return true;
}

}  // namespace rivulet
