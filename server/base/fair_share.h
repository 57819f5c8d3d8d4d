// SPDX-License-Identifier: Apache-2.0
// The fair share of a limited resource that one tenant may hold.
#pragma once

#include <algorithm>
#include <cstdint>

namespace rivulet {

// The most places that a tenant may hold in all, if it holds `own_used` now and all tenants hold
// `all_used` of `total`. A tenant may take a place while it holds less than 7 times the free
// places. So a lone tenant gets seven eighths; k tenants that take turns get 7 / (7k + 1) each; a
// later tenant gets seven eighths of the free places. A tenant's first place is refused only if no
// place is free. Never less than own_used. O(1). REQUIRES: 0 <= own_used <= all_used <= total <
// 2^59.
constexpr int64_t MostFor(int64_t total, int64_t all_used, int64_t own_used) {
  // The largest n for which the last of n places is still allowed:
  // own_used + n - 1 < 7 (left - (n - 1)).
  const int64_t more = (7 * (total - all_used + 1) - own_used) / 8;
  return own_used + std::max<int64_t>(more, 0);
}

}  // namespace rivulet
