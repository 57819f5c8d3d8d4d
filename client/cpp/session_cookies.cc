// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/session_cookies.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace rivulet {

std::string SessionCookies::Get(absl::string_view session_id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = cookies_.find(session_id);
  return found == cookies_.end() ? std::string() : found->second;
}

void SessionCookies::Set(absl::string_view session_id, absl::string_view cookie) {
  if (cookie.empty()) return;
  absl::MutexLock lock(&mutex_);
  order_.emplace_back(session_id);
  cookies_.insert_or_assign(session_id, std::string(cookie));
  while (order_.size() > kMost) {
    cookies_.erase(order_.front());
    order_.pop_front();
  }
}

void SessionCookies::Forget(absl::string_view session_id) {
  absl::MutexLock lock(&mutex_);
  cookies_.erase(session_id);
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
