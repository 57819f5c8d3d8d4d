// SPDX-License-Identifier: Apache-2.0
#include "server/base/key_account.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

void SetRate(int64_t per_minute, absl::Time now, std::optional<RateBucket>* bucket) {
  if (per_minute == 0) {
    bucket->reset();
  } else if (bucket->has_value()) {
    (*bucket)->SetRate(per_minute, now);
  } else {
    bucket->emplace(per_minute, now);
  }
}

}  // namespace

KeyAccount::KeyAccount(std::string name, const KeyLimits& limits, absl::Time now)
    : name_(std::move(name)) {
  SetLimits(limits, now);
}

void KeyAccount::SetLimits(const KeyLimits& limits, absl::Time now) {
  MutexLock lock(&mutex_);
  limits_ = limits;
  SetRate(limits.requests_per_minute, now, &requests_);
  SetRate(limits.tokens_per_minute, now, &tokens_);
  SetRate(limits.text_bytes_per_minute, now, &text_);
}

absl::Status KeyAccount::TakeRequest(absl::Time now) {
  MutexLock lock(&mutex_);
  if (!requests_) return absl::OkStatus();
  const absl::Duration wait = requests_->TimeUntilOne(now);
  if (wait == absl::ZeroDuration()) {
    requests_->Take(1, now);
    return absl::OkStatus();
  }
  return Exhausted(
      "API_KEY_REQUEST_RATE", wait,
      absl::StrCat("The key has made as many requests as it may, ", limits_.requests_per_minute,
                   " a minute; it may make the next one in ", absl::FormatDuration(wait), "."));
}

absl::Status KeyAccount::CheckTokens(absl::Time now) {
  MutexLock lock(&mutex_);
  const absl::Duration wait = tokens_ ? tokens_->TimeUntilOne(now) : absl::ZeroDuration();
  if (wait == absl::ZeroDuration()) return absl::OkStatus();
  return Exhausted("API_KEY_TOKEN_QUOTA", wait,
                   absl::StrCat("The requests of the key have taken as many tokens as they may, ",
                                limits_.tokens_per_minute, " a minute; the next one may come in ",
                                absl::FormatDuration(wait), "."));
}

absl::Status KeyAccount::TakeText(int64_t bytes, absl::Time now) {
  MutexLock lock(&mutex_);
  if (!text_ || bytes == 0) return absl::OkStatus();
  const absl::Duration wait = text_->TimeUntilOne(now);
  if (wait == absl::ZeroDuration()) {
    text_->Take(bytes, now);
    return absl::OkStatus();
  }
  return Exhausted("API_KEY_TEXT_RATE", wait,
                   absl::StrCat("The texts of the key's requests have as many bytes as they may, ",
                                limits_.text_bytes_per_minute, " a minute; the next one may come ",
                                "in ", absl::FormatDuration(wait), "."));
}

KeyShare KeyAccount::Share(int64_t KeyLimits::*limit) const {
  KeyShare share{.key = name_};
  MutexLock lock(&mutex_);
  if (limits_.*limit > 0) share.most = limits_.*limit;
  return share;
}

void KeyAccount::TakeTokens(int64_t count, absl::Time now) {
  MutexLock lock(&mutex_);
  if (tokens_) tokens_->Take(count, now);
}

}  // namespace rivulet
