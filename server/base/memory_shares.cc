// SPDX-License-Identifier: Apache-2.0
#include "server/base/memory_shares.h"

#include <malloc.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "model/base/error.h"
#include "server/base/fair_share.h"

namespace rivulet {
namespace {

// Freed memory that the process may keep: the allocator by itself gives little back to the system,
// because the freed pieces lie among others.
constexpr int64_t kMostKept = int64_t{64} << 20;

}  // namespace

absl::Status MemoryShares::Refused(absl::string_view message) const {
  return Exhausted(reason_, absl::Seconds(1), message);
}

absl::Status MemoryShares::Take(const std::string& tenant, int64_t bytes) {
  MutexLock lock(&mutex_);
  const auto found = taken_by_.find(tenant);
  const int64_t own = found == taken_by_.end() ? 0 : found->second;
  if (taken_ + bytes > bytes_) {
    return Refused(absl::StrCat("the ", holders_, " hold ", taken_,
                                " bytes of memory, and this one needs ", bytes,
                                " more; all together may hold ", bytes_));
  }
  const int64_t most = MostFor(bytes_, taken_, own);
  if (own + bytes > most) {
    return Refused(absl::StrCat("this tenant's ", holders_, " hold ", own,
                                " bytes of memory, and this one needs ", bytes,
                                " more; its share is now ", most, " of ", bytes_));
  }
  taken_ += bytes;
  taken_by_[tenant] = own + bytes;
  return absl::OkStatus();
}

void MemoryShares::Give(const std::string& tenant, int64_t bytes) {
  bool give_back = false;
  {
    MutexLock lock(&mutex_);
    taken_ -= bytes;
    const auto found = taken_by_.find(tenant);
    if ((found->second -= bytes) == 0) taken_by_.erase(found);
    kept_ += bytes;
    give_back = kept_ >= kMostKept;
    if (give_back) kept_ = 0;
  }
  if (give_back) malloc_trim(0);
}

}  // namespace rivulet
