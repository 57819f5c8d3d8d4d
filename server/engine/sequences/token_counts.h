// SPDX-License-Identifier: Apache-2.0
// TokenCounts: what penalties know about a sequence, one entry per token id.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "model/backend.h"

namespace rivulet {

class TokenCounts {
 public:
  TokenCounts() = default;
  explicit TokenCounts(std::span<const TokenCount> counts) {
    for (const TokenCount& count : counts) counts_[count.token] = count;
  }

  // `as_output`: it was generated; else it was given.
  void Add(int32_t token, bool as_output) {
    TokenCount& count = counts_[token];
    count.token = token;
    if (as_output) {
      ++count.output_count;
    } else {
      count.in_prompt = true;
    }
  }

  std::vector<TokenCount> All() const {
    std::vector<TokenCount> all;
    all.reserve(counts_.size());
    for (const auto& [token, count] : counts_) all.push_back(count);
    return all;
  }

 private:
  absl::flat_hash_map<int32_t, TokenCount> counts_;
};

}  // namespace rivulet
