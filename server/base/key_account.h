// SPDX-License-Identifier: Apache-2.0
// The limits of all calls with one API key together, and KeyAccount, which counts their use.
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
  // Bytes of texts to tokenize and of constraints; each id to detokenize counts as four bytes.
  int64_t text_bytes_per_minute = 0;
  int64_t slots = 0;     // per model, held by its requests at once
  int64_t sessions = 0;  // per model, opened with it and still open

  bool operator==(const KeyLimits&) const = default;
};

// The most of something that the holder of a key may have at once.
struct KeyShare {
  std::string key;  // its name; "": callers without a key
  int64_t most = std::numeric_limits<int64_t>::max();
};

// Thread: any. Times: as RateBucket.
class KeyAccount {
 public:
  // `name`: of the key.
  KeyAccount(std::string name, const KeyLimits& limits, absl::Time now);

  const std::string& name() const { return name_; }

  // Sets limits that hold from now on. If a rate changes, the amount that may be taken at once
  // stays, up to one minute of the new rate.
  void SetLimits(const KeyLimits& limits, absl::Time now);

  // Counts a request. Errors: RESOURCE_EXHAUSTED (API_KEY_REQUEST_RATE) with the time after which a
  // request may be made; a refused request does not count.
  absl::Status TakeRequest(absl::Time now);

  // Whether a request that takes tokens may begin. Errors: RESOURCE_EXHAUSTED (API_KEY_TOKEN_QUOTA)
  // with the time after which a request may begin.
  absl::Status CheckTokens(absl::Time now);
  // Counts tokens that a running request was given or has generated. They may exceed the quota: a
  // running reply is not ended.
  void TakeTokens(int64_t count, absl::Time now);

  // Counts a request's text, which may have more bytes than are left. Errors: RESOURCE_EXHAUSTED
  // (API_KEY_TEXT_RATE) with the time after which a text may come; a refused text does not count.
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
