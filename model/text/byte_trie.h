// SPDX-License-Identifier: Apache-2.0
// A map from byte strings to numbers; finds the longest string that a text begins with.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace rivulet {

// Thread: const calls from any thread.
class ByteTrie {
 public:
  struct Match {
    size_t length = 0;   // bytes; 0: no string of the set
    int32_t value = -1;  // of the string
  };

  // False, without a change, if `bytes` is empty or already in the set. REQUIRES: value >= 0.
  bool Insert(absl::string_view bytes, int32_t value);

  // The longest string of the set that `text` begins with. Adds the number of visited nodes, at
  // most longest() + 1, to *steps.
  Match Longest(absl::string_view text, uint64_t* steps) const;

  size_t longest() const { return longest_; }  // bytes

 private:
  static uint64_t Edge(uint32_t node, char byte) {
    return uint64_t{node} << 8 | static_cast<uint8_t>(byte);
  }

  // The children of the root, by byte: every byte of a text visits the root. 0: none.
  std::array<uint32_t, 256> first_ = {};
  absl::flat_hash_map<uint64_t, uint32_t> next_;  // Edge -> node
  std::vector<int32_t> values_ = {-1};            // of a node; -1: no string ends there
  size_t longest_ = 0;
};

}  // namespace rivulet
