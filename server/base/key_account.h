// SPDX-License-Identifier: Apache-2.0
// What the calls with one API key may take together, and KeyAccount, which counts what they took.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/base/mutex.h"
#include "server/base/rate_bucket.h"

namespace rivulet {

// 0: not limited.
struct KeyLimits {
  int64_t requests_per_minute = 0;  // calls, and the requests of a Multiplex
  int64_t tokens_per_minute = 0;    // given and generated
  // of texts that are to become tokens; of ids that are to become text, four each
  int64_t text_bytes_per_minute = 0;
  int64_t slots = 0;     // of a model, that its requests hold at once
  int64_t sessions = 0;  // of a model, that were opened with it and are open

  bool operator==(const KeyLimits&) const = default;
};

// How many of something the holder of a key may have at once.
struct KeyShare {
  std::string key;  // its name; "": whoever has no key
  int64_t most = std::numeric_limits<int64_t>::max();
};

// Thread: any. Times: as RateBucket.
class KeyAccount {
 public:
  // `name`: of the key.
  KeyAccount(std::string name, const KeyLimits& limits, absl::Time now);

  // In force from now on. A limit on a rate that is changed keeps what may be taken now, at most
  // the new rate's minute.
  void SetLimits(const KeyLimits& limits, absl::Time now);

  // A request is made. Errors: RESOURCE_EXHAUSTED (API_KEY_REQUEST_RATE) with the time after which
  // one may be made; then this one does not count.
  absl::Status TakeRequest(absl::Time now);

  // Whether a request that takes tokens may begin. Errors: RESOURCE_EXHAUSTED
  // (API_KEY_TOKEN_QUOTA) with the time after which one may.
  absl::Status CheckTokens(absl::Time now);
  // A request that has begun was given `count` tokens, or has generated them. They may be more than
  // there are: a reply that runs is not cut.
  void TakeTokens(int64_t count, absl::Time now);

  // A request has a text of so many bytes, which may be more than there are. Errors:
  // RESOURCE_EXHAUSTED (API_KEY_TEXT_RATE) with the time after which one may come; then this one
  // does not count.
  absl::Status TakeText(int64_t bytes, absl::Time now);

  KeyShare slots() const { return Share(&KeyLimits::slots); }
  KeyShare sessions() const { return Share(&KeyLimits::sessions); }

 private:
  KeyShare Share(int64_t KeyLimits::*limit) const;

  const std::string name_;
  mutable Mutex mutex_;
  KeyLimits limits_ ABSL_GUARDED_BY(mutex_);
  std::optional<RateBucket> requests_ ABSL_GUARDED_BY(mutex_);  // none: not limited
  std::optional<RateBucket> tokens_ ABSL_GUARDED_BY(mutex_);    // likewise
  std::optional<RateBucket> text_ ABSL_GUARDED_BY(mutex_);      // likewise
};

}  // namespace rivulet
