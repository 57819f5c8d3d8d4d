// SPDX-License-Identifier: Apache-2.0
// TokenUsage: counts the tokens that each caller of a model has given and generated.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/base/mutex.h"

namespace rivulet {

// The counters of one caller, which requests increase while they run. Thread: any.
struct CallerTokens {
  std::atomic<int64_t> given = 0;      // in accepted requests; resumed tokens included
  std::atomic<int64_t> generated = 0;  // and put into a reply
};

// Without keys clients name their tenant themselves, so the number of callers that are counted by
// name is bounded: the first callers are. Thread: any.
class TokenUsage {
 public:
  static constexpr size_t kMostCallers = 1000;
  // Tenant and key of all other callers; no tenant and no key can have this name.
  static constexpr char kOthers[] = "(others)";

  // `key`: the name of an API key; "": none. Never null.
  std::shared_ptr<CallerTokens> Of(const std::string& tenant, const std::string& key);

  struct Caller {
    std::string tenant, key;
    int64_t given = 0, generated = 0;
  };
  // By tenant, then key.
  std::vector<Caller> all() const;

 private:
  mutable Mutex mutex_;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<CallerTokens>> callers_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace rivulet
