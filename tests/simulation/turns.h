// SPDX-License-Identifier: Apache-2.0
// Turns: who got slots when, and whether that was fair. It follows from the times that the engine
// tells, so it is of no use once the clock went back.
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
  bool waits_at_once = false;  // for slots: for no session, and for no state
  bool first = false;          // its tenant had no other request then
  absl::Time arrival, admitted;
};

// Thread: one.
class Turns {
 public:
  void Note(const Served& served) { served_.push_back(served); }

  // What was unfair; empty: nothing.
  std::string Unfair() const {
    for (const Served& waited : served_) {
      if (!waited.waits_at_once) continue;
      std::map<std::string, int> before;  // by tenant: turns while it waited
      for (const Served& other : served_) {
        if (other.tenant == waited.tenant) {
          if (Overtakes(other, waited)) {
            return absl::StrCat("#", other.number, " got its slots before #", waited.number);
          }
        } else if (other.admitted > waited.arrival && other.admitted < waited.admitted) {
          ++before[other.tenant];
        }
      }
      // A tenant that holds nothing is next, but for those that hold nothing either and have
      // waited for longer.
      if (!waited.first || waited.priority != Priority::kHigh) continue;
      for (const auto& [tenant, turns] : before) {
        if (turns <= 1) continue;
        return absl::StrCat("tenant \"", tenant, "\" had ", turns, " turns while #", waited.number,
                            ", the first of tenant \"", waited.tenant, "\", waited");
      }
    }
    return "";
  }

 private:
  // A tenant's request that came later and is no more urgent.
  static bool Overtakes(const Served& later, const Served& waited) {
    return later.number > waited.number && later.waits_at_once &&
           later.priority >= waited.priority && later.admitted < waited.admitted;
  }

  std::vector<Served> served_;
};

}  // namespace rivulet
