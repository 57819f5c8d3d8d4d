// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/session_cookies.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace rivulet {

std::string SessionCookies::Get(absl::string_view session_id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = places_.find(session_id);
  return found == places_.end() ? std::string() : found->second->second;
}

void SessionCookies::Set(absl::string_view session_id, absl::string_view cookie) {
  if (cookie.empty()) return;
  absl::MutexLock lock(&mutex_);
  const auto found = places_.find(session_id);
  if (found != places_.end()) {
    found->second->second = std::string(cookie);
    return;
  }
  places_[session_id] = order_.emplace(order_.end(), session_id, cookie);
  if (order_.size() <= kMost) return;
  places_.erase(order_.front().first);
  order_.pop_front();
}

void SessionCookies::Forget(absl::string_view session_id) {
  absl::MutexLock lock(&mutex_);
  const auto found = places_.find(session_id);
  if (found == places_.end()) return;
  order_.erase(found->second);
  places_.erase(found);
}

std::string SessionCookies::Received(const grpc::ClientContext& context, std::string sent) {
  std::string received;
  const auto& metadata = context.GetServerInitialMetadata();
  const auto [begin, end] = metadata.equal_range("set-cookie");
  for (auto entry = begin; entry != end; ++entry) {
    absl::string_view pair(entry->second.data(), entry->second.size());
    pair = absl::StripAsciiWhitespace(pair.substr(0, pair.find(';')));
    absl::StrAppend(&received, received.empty() ? "" : "; ", pair);
  }
  return received.empty() ? std::move(sent) : received;
}

}  // namespace rivulet
