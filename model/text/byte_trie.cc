// SPDX-License-Identifier: Apache-2.0
#include "model/text/byte_trie.h"

#include <algorithm>

namespace rivulet {

bool ByteTrie::Insert(absl::string_view bytes, int32_t value) {
  uint32_t node = 0;
  for (const char byte : bytes) {
    uint32_t& child = node == 0 ? first_[static_cast<uint8_t>(byte)]
                                : next_.try_emplace(Edge(node, byte)).first->second;
    if (child == 0) {
      child = static_cast<uint32_t>(values_.size());
      values_.push_back(-1);
    }
    node = child;
  }
  if (node == 0 || values_[node] >= 0) return false;
  values_[node] = value;
  longest_ = std::max(longest_, bytes.size());
  return true;
}

ByteTrie::Match ByteTrie::Longest(absl::string_view text, uint64_t* steps) const {
  Match match;
  uint32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    ++*steps;
    if (node == 0) {
      node = first_[static_cast<uint8_t>(text[i])];
      if (node == 0) break;
    } else {
      const auto found = next_.find(Edge(node, text[i]));
      if (found == next_.end()) break;
      node = found->second;
    }
    if (values_[node] >= 0) match = {i + 1, values_[node]};
  }
  return match;
}

}  // namespace rivulet
