// SPDX-License-Identifier: Apache-2.0
// TokenUsage: how many tokens each caller of a model has given and generated.
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

// What requests count their tokens in, as they come. Thread: any.
struct CallerTokens {
  std::atomic<int64_t> given = 0;      // in accepted requests; of a resumed reply, its tokens too
  std::atomic<int64_t> generated = 0;  // and put into a reply
};

// Clients may name their tenant themselves where there are no keys, so there is a bound on the
// callers that are counted by their name: the first ones. Thread: any.
class TokenUsage {
 public:
  static constexpr size_t kMostCallers = 1000;
  // Tenant and key of all others; no tenant and no key has such a name.
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
