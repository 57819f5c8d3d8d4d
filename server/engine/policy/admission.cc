// SPDX-License-Identifier: Apache-2.0
#include "server/engine/policy/admission.h"

#include <algorithm>
#include <utility>

namespace rivulet {

bool Admission::KeyQueue::empty() const {
  return std::all_of(waiting.begin(), waiting.end(), [](const auto& ids) { return ids.empty(); });
}

RequestId Admission::KeyQueue::oldest() const {
  RequestId first = ~RequestId{0};
  for (const auto& ids : waiting) {
    if (!ids.empty()) first = std::min(first, *ids.begin());
  }
  return first;
}

// The request whose turn it is.
RequestId Admission::KeyQueue::next() const {
  if (turns_since_oldest >= kOldestEvery - 1) return oldest();
  return *std::find_if(waiting.begin(), waiting.end(), [](const auto& ids) {
            return !ids.empty();
          })->begin();
}

uint64_t Admission::Add(RequestId id, const std::string& tenant, Priority priority, int slots,
                        const KeyShare& key) {
  const auto [place, is_new] = tenants_.try_emplace(tenant);
  if (is_new) {
    place->second.number = ++last_number_;
    place->second.turn = ++last_turn_;
  }
  const Keys::iterator of_key = keys_.try_emplace(key.key).first;
  Key& share = of_key->second;
  const bool was_limited = share.limited(), differs = share.most != key.most;
  share.most = key.most;
  limited_keys_ += int{share.limited()} - int{was_limited};
  ++share.requests;
  Wait(id, {place, of_key, priority, slots, /*preempted=*/false});
  if (differs) {
    for (const Tenants::iterator other : share.tenants) Rank(other, share);
  }
  Rank(place, share);
  return place->second.number;
}

// The caller must call Rank.
void Admission::Wait(RequestId id, const Waiting& waiting) {
  const auto priority = static_cast<size_t>(waiting.priority);
  waiting.tenant->second.queues[&waiting.key->second].waiting[priority].insert(id);
  waiting.key->second.tenants.insert(waiting.tenant);
  waiting_.emplace(id, waiting);
  needed_[priority] += waiting.slots;
}

// A request of the key neither waits nor holds slots any more.
void Admission::Leave(Keys::iterator key) {
  if (--key->second.requests > 0) return;
  limited_keys_ -= int{key->second.limited()};
  keys_.erase(key);
}

void Admission::Remove(RequestId id) {
  const Waiting waiting = waiting_.at(id);
  Drop(id);
  PlaceBid(waiting.tenant);
  Leave(waiting.key);
  Forget(waiting.tenant);
}

// The caller must place the bid of the tenant and call Leave for the key.
void Admission::Drop(RequestId id) {
  const auto found = waiting_.find(id);
  const Waiting waiting = found->second;
  waiting_.erase(found);
  Tenant& tenant = waiting.tenant->second;
  const auto priority = static_cast<size_t>(waiting.priority);
  tenant.queues.at(&waiting.key->second).waiting[priority].erase(id);
  needed_[priority] -= waiting.slots;
  if (waiting.preempted) {
    tenant.preempted_waiting.erase({waiting.priority, id});
    tenant.preempted -= waiting.slots;
    preempted_ -= waiting.slots;
  }
  if (next_ == id) next_.reset();
  RankQueue(&tenant, waiting.key->second);
  if (tenant.queues.count(&waiting.key->second) == 0) {
    waiting.key->second.tenants.erase(waiting.tenant);
  }
  if (!tenant.waits()) tenant.turns_since_oldest = 0;
}

std::optional<RequestId> Admission::Next(int free_slots, uint64_t run) {
  // Without a free slot nothing is chosen: a more urgent request may come before a slot is free.
  if (waiting_.empty() || free_slots == 0) return std::nullopt;
  next_ = Choose();
  if (!next_) return std::nullopt;
  const RequestId id = *next_;
  const Waiting waiting = waiting_.at(id);
  if (waiting.slots > free_slots) return std::nullopt;
  Tenant& tenant = waiting.tenant->second;
  Key& key = waiting.key->second;
  const bool oldest = tenant.queues.at(&key).oldest() == id;
  const bool oldest_next = !tenant.next_by_age.empty() && *tenant.next_by_age.begin() >= id;
  const uint64_t due = run + static_cast<uint64_t>(limits_.quantum);
  holding_.emplace(id, Holding{waiting.tenant, waiting.key, waiting.priority, waiting.slots, due});
  tenant.due.emplace(due, id);
  SetHeld(waiting.tenant, tenant.held + waiting.slots, ++last_turn_);
  key.held += waiting.slots;
  Drop(id);
  const auto queue = tenant.queues.find(&key);
  if (queue != tenant.queues.end()) {
    int& turns = queue->second.turns_since_oldest;
    turns = oldest ? 0 : turns + 1;
  }
  if (tenant.waits()) tenant.turns_since_oldest = oldest_next ? 0 : tenant.turns_since_oldest + 1;
  Changed(waiting.tenant, key);
  return id;
}

// The claim of a request for `slots` slots whose tenant holds `held` slots.
Admission::Claim Admission::ClaimOf(int held, int slots) const {
  if (held == 0) return Claim::kOfFirst;
  const auto tenants = static_cast<int64_t>(tenants_.size());
  return (held + slots) * tenants <= limits_.slots ? Claim::kOfShare : Claim::kNone;
}

// Whether the tenant's next request may get slots, if enough are free.
bool Admission::MayGo(const Bid& bid) const {
  if (bid.slots == 0 || bid.held + bid.slots > limits_.max_tenant_slots) return false;
  if (bid.again || preempted_ == 0) return true;
  const int begun = bid.held + bid.preempted;
  const int64_t left = limits_.max_begun - held_ - preempted_ - bid.slots;
  if (begun == 0) return left >= 0;
  return begun + bid.slots <= std::min<int64_t>(limits_.slots, left);
}

// The tenant's next request. REQUIRES: a request fits its key.
RequestId Admission::NextOf(const Tenant& tenant) {
  const bool by_age = tenant.turns_since_oldest >= kOldestEvery - 1;
  return by_age ? *tenant.next_by_age.begin() : tenant.next.begin()->second;
}

// The tenant's preempted request that is next if no other request may begin.
std::optional<RequestId> Admission::PreemptedOf(const Tenant& tenant) const {
  for (const auto& [priority, id] : tenant.preempted_waiting) {
    const Waiting& waiting = waiting_.at(id);
    if (tenant.held + waiting.slots > limits_.max_tenant_slots) continue;
    if (waiting.key->second.Fits(waiting.slots)) return id;
  }
  return std::nullopt;
}

// The next request of all: the present next_, unless another request has a larger claim. Among
// equal claims, the tenant that holds the fewest slots has its turn, and among these the tenant
// whose last turn was longest ago.
std::optional<RequestId> Admission::Choose() const {
  std::optional<RequestId> best;
  Claim claim = Claim::kNone;
  std::pair<int, uint64_t> turn = {-1, 0};
  // Its key may have got slots meanwhile, for a request with a larger claim.
  if (next_) {
    const Waiting& waiting = waiting_.at(*next_);
    if (waiting.key->second.Fits(waiting.slots)) best = next_;
    claim = ClaimOf(waiting.tenant->second.held, waiting.slots);
  }
  for (const auto& [bid, tenants] : bids_) {
    if (best && claim == Claim::kOfFirst && bid.held > turn.first) break;
    ++looked_at_;
    const bool goes = MayGo(bid);
    if (!goes && bid.preempted_slots == 0) continue;
    const Claim claims = ClaimOf(bid.held, goes ? bid.slots : bid.preempted_slots);
    const auto& [last, tenant] = *tenants.begin();
    const std::pair of_bid(bid.held, last);
    if (best && (claims < claim || (claims == claim && of_bid > turn))) continue;
    best = goes ? NextOf(tenant->second) : *PreemptedOf(tenant->second);
    claim = claims;
    turn = of_bid;
  }
  return best;
}

std::vector<RequestId> Admission::Victims(int free_slots, uint64_t run) {
  std::vector<RequestId> victims;
  if (waiting_.empty() || tenants_.size() == 1) return victims;
  const std::optional<RequestId> id = Choose();
  if (!id) return victims;
  const Waiting& waiting = waiting_.at(*id);
  const Claim claim = ClaimOf(waiting.tenant->second.held, waiting.slots);
  const int more = waiting.preempted ? 0 : waiting.slots;
  if (claim == Claim::kNone || held_ + preempted_ + more > limits_.max_begun) return victims;
  struct Other {
    int held;  // once the victims so far have gone
    std::set<std::pair<uint64_t, RequestId>>::const_iterator next, end;
  };
  std::vector<Other> others;
  for (const Tenants::iterator holder : holders_) {
    const Tenant& tenant = holder->second;
    if (holder == waiting.tenant) continue;
    others.push_back({tenant.held, tenant.due.begin(), tenant.due.upper_bound({run, ~0ull})});
  }
  const auto tenants = static_cast<int64_t>(tenants_.size());
  const auto slots_of = [this](const Other& other) {
    return holding_.at(other.next->second).slots;
  };
  const auto stays_at_share = [&](const Other& other) {
    return (other.held - slots_of(other)) * tenants >= limits_.slots;
  };
  int missing = waiting.slots - free_slots;
  while (missing > 0) {
    Other* most = nullptr;
    for (Other& other : others) {
      while (claim == Claim::kOfShare && other.next != other.end && !stays_at_share(other)) {
        ++other.next;
      }
      if (other.next != other.end && (most == nullptr || other.held > most->held)) most = &other;
    }
    if (most == nullptr) return {};  // not enough are due
    victims.push_back(most->next->second);
    missing -= slots_of(*most);
    most->held -= slots_of(*most);
    ++most->next;
  }
  // A large victim may have made an earlier small victim needless.
  std::erase_if(victims, [&](RequestId victim) {
    const int slots = holding_.at(victim).slots;
    if (missing + slots > 0) return false;
    missing += slots;
    return true;
  });
  next_ = id;
  return victims;
}

void Admission::Preempt(RequestId id) {
  const Holding holding = holding_.at(id);
  Tenant& tenant = holding.tenant->second;
  holding_.erase(id);
  tenant.due.erase({holding.due, id});
  holding.key->second.held -= holding.slots;
  Wait(id, {holding.tenant, holding.key, holding.priority, holding.slots, /*preempted=*/true});
  tenant.preempted_waiting.emplace(holding.priority, id);
  tenant.preempted += holding.slots;
  preempted_ += holding.slots;
  SetHeld(holding.tenant, tenant.held - holding.slots, tenant.turn);
  Changed(holding.tenant, holding.key->second);
}

void Admission::EndQuantum(RequestId id) {
  Holding& holding = holding_.at(id);
  auto& due = holding.tenant->second.due;
  due.erase({holding.due, id});
  holding.due = 0;
  due.emplace(0, id);
}

void Admission::GiveBack(RequestId id, int slots) {
  const auto found = holding_.find(id);
  const Tenants::iterator tenant = found->second.tenant;
  const Keys::iterator key = found->second.key;
  found->second.slots -= slots;
  key->second.held -= slots;
  SetHeld(tenant, tenant->second.held - slots, tenant->second.turn);
  Changed(tenant, key->second);
  if (found->second.slots == 0) {
    tenant->second.due.erase({found->second.due, id});
    holding_.erase(found);
    Leave(key);
  }
  Forget(tenant);
}

void Admission::SetHeld(Tenants::iterator tenant, int held, uint64_t turn) {
  held_ += held - tenant->second.held;
  tenant->second.held = held;
  tenant->second.turn = turn;
  if (held > 0) {
    holders_.insert(tenant);
  } else {
    holders_.erase(tenant);
  }
}

// Call this when the slots of the tenant and the key have changed, or they had a turn.
void Admission::Changed(Tenants::iterator tenant, const Key& key) {
  // Queues of other tenants may fit the key now, or no longer fit it.
  if (key.limited()) {
    for (const Tenants::iterator other : key.tenants) Rank(other, key);
  }
  Rank(tenant, key);
}

void Admission::Rank(Tenants::iterator tenant, const Key& key) {
  RankQueue(&tenant->second, key);
  PlaceBid(tenant);
}

// Updates the tenant's ranking of its queue for `key`, if it has one.
void Admission::RankQueue(Tenant* tenant, const Key& key) {
  const auto found = tenant->queues.find(&key);
  if (found == tenant->queues.end()) return;
  KeyQueue& queue = found->second;
  std::optional<Ranked> ranked;
  if (!queue.empty()) {
    const RequestId id = queue.next();
    const Waiting& waiting = waiting_.at(id);
    if (key.Fits(waiting.slots)) ranked.emplace(waiting.priority, id);
  }
  if (ranked != queue.ranked) {
    if (queue.ranked) {
      tenant->next.erase(*queue.ranked);
      tenant->next_by_age.erase(queue.ranked->second);
    }
    if (ranked) {
      tenant->next.insert(*ranked);
      tenant->next_by_age.insert(ranked->second);
    }
    queue.ranked = ranked;
  }
  if (queue.empty()) tenant->queues.erase(found);
}

void Admission::PlaceBid(Tenants::iterator tenant) {
  Tenant& of = tenant->second;
  std::optional<std::pair<Bid, uint64_t>> place;
  const std::optional<RequestId> preempted = PreemptedOf(of);
  if (!of.next.empty() || preempted) {
    Bid bid{of.held, of.preempted, 0, false, preempted ? waiting_.at(*preempted).slots : 0};
    if (!of.next.empty()) {
      const Waiting& next = waiting_.at(NextOf(of));
      bid.slots = next.slots;
      bid.again = next.preempted;
    }
    place.emplace(bid, of.turn);
  }
  if (place == of.bid) return;
  if (of.bid) {
    const auto same = bids_.find(of.bid->first);
    same->second.erase(of.bid->second);
    if (same->second.empty()) bids_.erase(same);
  }
  if (place) bids_[place->first].emplace(place->second, tenant);
  of.bid = place;
}

void Admission::Forget(Tenants::iterator tenant) {
  if (tenant->second.held == 0 && !tenant->second.waits()) tenants_.erase(tenant);
}

}  // namespace rivulet
