// SPDX-License-Identifier: Apache-2.0
#include "server/base/token_usage.h"

namespace rivulet {

std::shared_ptr<CallerTokens> TokenUsage::Of(const std::string& tenant, const std::string& key) {
  MutexLock lock(&mutex_);
  const auto found = callers_.find({tenant, key});
  if (found != callers_.end()) return found->second;
  const bool room = callers_.size() < kMostCallers;
  auto& count = callers_[room ? std::pair(tenant, key)
                              : std::pair<std::string, std::string>(kOthers, kOthers)];
  if (count == nullptr) count = std::make_shared<CallerTokens>();
  return count;
}

std::vector<TokenUsage::Caller> TokenUsage::all() const {
  std::vector<Caller> all;
  MutexLock lock(&mutex_);
  all.reserve(callers_.size());
  for (const auto& [name, count] : callers_) {
    all.push_back({name.first, name.second, count->given, count->generated});
  }
  return all;
}

}  // namespace rivulet
