// SPDX-License-Identifier: Apache-2.0
// Admission: who waits for slots, who gets the next slots, and who must give up slots for that. No
// clock, no threads, no backend: its answers follow from the calls alone.
//
// Slots are shared evenly between tenants: the next slots go to the tenant that holds the fewest,
// and among equals to the tenant whose last turn was longest ago (a new tenant counts as having
// just had its turn). A tenant that is alone gets all slots.
//
// Preemption. A request does not wait for others to end if its tenant holds nothing, or would hold
// no more than its share (slots / tenants that wait or hold some) with it. Then requests of the
// tenants that hold most give up their slots, the requests that have held slots longest first, and
// wait again at their old places. A request keeps its slots for at least a quantum of runs. A
// tenant that holds slots already takes none from a tenant that would fall below its share. So a
// tenant's first request waits for at most
//     quantum * tenants    runs
// where `tenants` wait or hold slots when the request arrives: each other tenant that holds nothing
// has one turn before it, and two turns are at most a quantum apart.
//
// The states of preempted requests take memory, so at most max_begun samples hold slots or are
// preempted. While samples are preempted, a tenant may begin more samples only if the number that
// it then has begun is at most the slots and at most what is then left of max_begun. A tenant that
// has begun none begins if there is room.
//
// Between a tenant's own requests priority decides, and within one priority the order of arrival.
// While a tenant's oldest request waits, it gets one of every kOldestEvery turns of the tenant, at
// any priority. So a request behind m older requests waits for at most kOldestEvery * (m + 1)
// turns.
//
// A request that needs n slots, once it is next, waits until n are free. Another request overtakes
// it only if the other may preempt and this one may not. So a large request cannot starve.
//
// Requests of one API key may together hold a limited number of slots. A request that waits for
// slots of its key delays only requests of that key: within a tenant each key has a queue of its
// own, and so have the requests without a key. The rules for a tenant's own requests hold within a
// queue; of every kOldestEvery turns of the tenant, one goes to the queue whose request came first.
// If a key's limit was lowered below the need of a request, the request gets its slots when the key
// holds none.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/base/key_account.h"
#include "server/engine/request.h"

namespace rivulet {

struct AdmissionLimits {
  int slots = std::numeric_limits<int>::max();
  int max_tenant_slots = std::numeric_limits<int>::max();  // slots of one tenant at once
  int64_t max_begun = 0;  // samples that hold slots or were preempted; 0: nothing is preempted
  int quantum = 1;        // runs
};

class Admission {
 public:
  static constexpr int kOldestEvery = 8;

  explicit Admission(const AdmissionLimits& limits = {}) : limits_(limits) {}

  // `id` begins to wait. Ids are in order of arrival, so a preempted request gets its old place.
  // `key`: the request's key; its limit holds for all requests of the key from now on. Returns the
  // number of the tenant, which stays the same until the tenant neither waits nor holds slots.
  // REQUIRES: `id` does not wait, 1 <= slots <= max_tenant_slots.
  uint64_t Add(RequestId id, const std::string& tenant, Priority priority, int slots,
               const KeyShare& key = {});
  // `id` stops waiting. REQUIRES: it waits.
  void Remove(RequestId id);
  // The request that gets its slots now and holds them from then on; nullopt: none waits, or the
  // next request needs more slots than are free. `run`: the number of runs so far.
  std::optional<RequestId> Next(int free_slots, uint64_t run);
  // `id` gives back `slots` of the slots that it holds. REQUIRES: it holds them.
  void GiveBack(RequestId id, int slots);

  // Requests that must give up all their slots now so that the next request gets enough; empty
  // where the next request may not preempt, or not yet. The caller calls Preempt for each of them
  // before it calls Next again.
  std::vector<RequestId> Victims(int free_slots, uint64_t run);
  // `id` has given up its slots and waits for the same number again.
  void Preempt(RequestId id);
  // `id`, which holds slots, cannot use them: it may be preempted at any time.
  void EndQuantum(RequestId id);

  bool empty() const { return waiting_.empty(); }
  // The waiting request that arrived first. REQUIRES: !empty().
  RequestId oldest() const { return waiting_.begin()->first; }
  // Slots that the waiting requests of one priority need.
  int slots_needed(Priority priority) const { return needed_[static_cast<size_t>(priority)]; }
  // Tenants that wait or hold slots.
  int tenants() const { return static_cast<int>(tenants_.size()); }
  // Samples that wait because they were preempted.
  int preempted() const { return preempted_; }
  // Whether requests may be waiting only because of the limit of their key.
  bool limits_keys() const { return limited_keys_ > 0; }
  // The tenants that the choices have examined since the start: this is what the choices cost.
  int64_t looked_at() const { return looked_at_; }

 private:
  struct Key;
  using Ranked = std::pair<Priority, RequestId>;
  // Waiting requests of one tenant and key; at least one.
  struct KeyQueue {
    std::array<std::set<RequestId>, kNumPriorities> waiting;
    int turns_since_oldest = 0;    // its turns since its oldest request had one
    std::optional<Ranked> ranked;  // its next request if the key has room: in Tenant::next
    bool empty() const;
    RequestId oldest() const;  // REQUIRES: !empty()
    RequestId next() const;    // likewise
  };
  // What decides whether a tenant's next request may go, and with what Claim. Tenants with equal
  // bids take turns, so a choice looks at one tenant per bid.
  struct Bid {
    int held = 0, preempted = 0;  // slots of the tenant
    int slots = 0;                // its next request needs them; 0: no request fits its key
    bool again = false;           // that request was preempted
    // Slots of the preempted request that may go if the next request may not; 0: none.
    int preempted_slots = 0;
    auto operator<=>(const Bid&) const = default;
  };
  struct Tenant {
    uint64_t number = 0;
    int held = 0;                // slots
    int preempted = 0;           // slots that its preempted requests wait for
    uint64_t turn = 0;           // the number of its last turn
    int turns_since_oldest = 0;  // its turns since the queue of the oldest `next` had one
    std::map<const Key*, KeyQueue> queues;
    std::set<Ranked> next;                         // next requests of its queues that fit their
                                                   // keys
    std::set<RequestId> next_by_age;               // the same
    std::set<Ranked> preempted_waiting;            // its preempted requests, also in `queues`
    std::set<std::pair<uint64_t, RequestId>> due;  // requests with slots, by end of quantum
    std::optional<std::pair<Bid, uint64_t>> bid;   // bid and turn: its place in bids_
    bool waits() const { return !queues.empty(); }
  };
  using Tenants = std::map<std::string, Tenant>;
  struct ByName {
    bool operator()(Tenants::iterator a, Tenants::iterator b) const { return a->first < b->first; }
  };
  using TenantSet = std::set<Tenants::iterator, ByName>;
  // A key that has requests here, or "no key", which has no limit.
  struct Key {
    int64_t most = KeyShare().most;
    int held = 0;       // slots
    int requests = 0;   // that wait or hold slots
    TenantSet tenants;  // with a queue of this key
    bool limited() const { return most < KeyShare().most; }
    // Whether the key may hold `slots` more.
    bool Fits(int slots) const { return held == 0 || int64_t{held} + slots <= most; }
  };
  using Keys = std::map<std::string, Key>;  // by name
  struct Waiting {
    Tenants::iterator tenant;
    Keys::iterator key;
    Priority priority;
    int slots;
    bool preempted;
  };
  struct Holding {
    Tenants::iterator tenant;
    Keys::iterator key;
    Priority priority;
    int slots;
    uint64_t due;
  };
  // Whether others must make room for a request.
  enum class Claim : uint8_t { kNone, kOfShare, kOfFirst };

  void Wait(RequestId id, const Waiting& waiting);
  void Drop(RequestId id);
  Claim ClaimOf(int held, int slots) const;
  bool MayGo(const Bid& bid) const;
  static RequestId NextOf(const Tenant& tenant);
  std::optional<RequestId> PreemptedOf(const Tenant& tenant) const;
  std::optional<RequestId> Choose() const;
  void Changed(Tenants::iterator tenant, const Key& key);
  void Rank(Tenants::iterator tenant, const Key& key);
  void RankQueue(Tenant* tenant, const Key& key);
  void PlaceBid(Tenants::iterator tenant);
  void SetHeld(Tenants::iterator tenant, int held, uint64_t turn);
  void Forget(Tenants::iterator tenant);
  void Leave(Keys::iterator key);

  const AdmissionLimits limits_;
  Tenants tenants_;
  Keys keys_;
  std::map<RequestId, Waiting> waiting_;
  std::map<RequestId, Holding> holding_;
  std::map<Bid, std::map<uint64_t, Tenants::iterator>> bids_;  // within a bid by turn (all differ)
  TenantSet holders_;                                          // of slots
  std::array<int, kNumPriorities> needed_{};
  int held_ = 0, preempted_ = 0, limited_keys_ = 0;
  uint64_t last_turn_ = 0, last_number_ = 0;
  mutable int64_t looked_at_ = 0;
  std::optional<RequestId> next_;  // chosen, and waits for slots
};

}  // namespace rivulet
