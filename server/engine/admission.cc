// SPDX-License-Identifier: Apache-2.0
#include "server/engine/admission.h"

#include <algorithm>

namespace rivulet {

bool Admission::Tenant::waits() const {
  return std::any_of(lines.begin(), lines.end(), [](const auto& line) { return !line.empty(); });
}

RequestId Admission::Tenant::oldest() const {
  RequestId first = ~RequestId{0};
  for (const auto& line : lines) {
    if (!line.empty()) first = std::min(first, *line.begin());
  }
  return first;
}

uint64_t Admission::Add(RequestId id, const std::string& tenant, Priority priority, int slots) {
  const auto [place, is_new] = tenants_.try_emplace(tenant);
  if (is_new) {
    place->second.key = ++last_key_;
    place->second.turn = ++last_turn_;
  }
  turns_.emplace(TurnOf(place->second), place);
  place->second.lines[static_cast<size_t>(priority)].insert(id);
  waiting_.emplace(id, Waiting{place, priority, slots});
  needed_[static_cast<size_t>(priority)] += slots;
  return place->second.key;
}

void Admission::Remove(RequestId id) {
  const auto found = waiting_.find(id);
  const Waiting waiting = found->second;
  waiting_.erase(found);
  Tenant& tenant = waiting.tenant->second;
  tenant.lines[static_cast<size_t>(waiting.priority)].erase(id);
  needed_[static_cast<size_t>(waiting.priority)] -= waiting.slots;
  if (next_ == id) next_ = 0;
  if (tenant.waits()) return;
  turns_.erase(TurnOf(tenant));
  tenant.turns_since_oldest = 0;
  Forget(waiting.tenant);
}

std::optional<RequestId> Admission::Next(int free_slots) {
  // Without a free slot nothing is chosen: somebody more urgent may come before there is one.
  if (waiting_.empty() || free_slots == 0) return std::nullopt;
  if (next_ == 0) next_ = Choose();
  const RequestId id = next_;
  const Waiting waiting = waiting_.at(id);
  if (waiting.slots > free_slots) return std::nullopt;
  Tenant& tenant = waiting.tenant->second;
  const bool oldest = tenant.oldest() == id;
  SetHeld(waiting.tenant, tenant.held + waiting.slots);  // first: who holds slots is not forgotten
  Remove(id);
  if (tenant.waits()) tenant.turns_since_oldest = oldest ? 0 : tenant.turns_since_oldest + 1;
  return id;
}

RequestId Admission::Choose() {
  const Tenant& tenant = turns_.begin()->second->second;
  if (tenant.turns_since_oldest >= kOldestEvery - 1) return tenant.oldest();
  const auto first = std::find_if(tenant.lines.begin(), tenant.lines.end(),
                                  [](const auto& line) { return !line.empty(); });
  return *first->begin();
}

void Admission::GiveBack(const std::string& tenant, int slots) {
  const auto found = tenants_.find(tenant);
  const int held = found->second.held - slots;
  if (!found->second.waits()) {
    found->second.held = held;
    return Forget(found);
  }
  turns_.erase(TurnOf(found->second));
  found->second.held = held;
  turns_.emplace(TurnOf(found->second), found);
}

void Admission::SetHeld(Tenants::iterator tenant, int held) {
  turns_.erase(TurnOf(tenant->second));
  tenant->second.held = held;
  tenant->second.turn = ++last_turn_;
  turns_.emplace(TurnOf(tenant->second), tenant);
}

void Admission::Forget(Tenants::iterator tenant) {
  if (tenant->second.held == 0 && !tenant->second.waits()) tenants_.erase(tenant);
}

}  // namespace rivulet
