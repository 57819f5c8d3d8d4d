// SPDX-License-Identifier: Apache-2.0
// Turns: when each request got slots, and whether that was fair. Uses the times that the engine
// reports, so it is useless once the clock went back.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/engine/request.h"

namespace rivulet {

// A request that got slots.
struct Served {
  int number = 0;  // in the order of arrival
  std::string tenant;
  Priority priority = Priority::kNormal;
  int slots = 1;
  bool waits_at_once = false;  // waits only for slots: for no session and no state
  bool first = false;          // no request of its tenant could get slots before it
  bool holds = false;          // at least one slot from its admission to its end
  absl::Time arrival, admitted, ended;
};

// Thread: one.
class Turns {
 public:
  void Note(const Served& served) { served_.push_back(served); }

  // Returns an unfairness; empty: none. `preempted`: some requests were; `room`: there was memory
  // for all that wanted to begin.
  std::string Unfair(bool preempted, bool room) const {
    for (const Served& waited : served_) {
      if (!waited.waits_at_once) continue;
      std::map<std::string, int> before;  // by tenant: turns while it waited
      int less_urgent = 0;
      for (const Served& other : served_) {
        const bool own = other.tenant == waited.tenant;
        if (own && Overtakes(other, waited)) {
          return absl::StrCat("#", other.number, " got its slots before #", waited.number);
        }
        if (other.admitted <= waited.arrival || other.admitted >= waited.admitted) continue;
        ++before[other.tenant];
        less_urgent += own && other.priority > waited.priority && other.slots == 1 ? 1 : 0;
        if (waited.first && !own && !preempted && other.slots == 1 && HoldsMore(other)) {
          return absl::StrCat("#", other.number, ", whose tenant held slots, got another before #",
                              waited.number, ", whose tenant held none");
        }
      }
      // In one of eight turns a less urgent request gets slots as its tenant's oldest. A request
      // that needs more slots may have been chosen before.
      if (less_urgent > 1 + before[waited.tenant] / 4) {
        return absl::StrCat(less_urgent, " less urgent ones got slots while #", waited.number,
                            " waited");
      }
      // A tenant that holds nothing is next, after other tenants that hold nothing and have waited
      // for longer.
      if (!waited.first || (preempted && !room)) continue;
      for (const auto& [tenant, turns] : before) {
        if (turns <= 1 || tenant == waited.tenant) continue;
        return absl::StrCat("tenant \"", tenant, "\" had ", turns, " turns while #", waited.number,
                            ", the first of tenant \"", waited.tenant, "\", waited");
      }
    }
    return "";
  }

 private:
  // Whether a later request of the tenant that is no more urgent got slots earlier.
  static bool Overtakes(const Served& later, const Served& waited) {
    return later.number > waited.number && later.waits_at_once &&
           later.priority >= waited.priority && later.admitted < waited.admitted;
  }
  // Whether the request's tenant held other slots when the request got its own.
  bool HoldsMore(const Served& served) const {
    return std::any_of(served_.begin(), served_.end(), [&served](const Served& other) {
      return other.tenant == served.tenant && other.holds && other.admitted < served.admitted &&
             other.ended > served.admitted;
    });
  }

  std::vector<Served> served_;
};

}  // namespace rivulet
