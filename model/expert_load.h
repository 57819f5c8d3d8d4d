// SPDX-License-Identifier: Apache-2.0
// Counts how often each expert of a model was chosen.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace rivulet {

// Thread: any; counts are read while they grow.
class ExpertLoad {
 public:
  ExpertLoad(int layers, int experts)
      : experts_(experts), counts_(size_t(layers) * size_t(experts)) {}

  int experts() const { return experts_; }
  int layers() const { return static_cast<int>(counts_.size()) / experts_; }
  void Add(int layer, int expert, int rows) {
    counts_[At(layer, expert)].fetch_add(uint64_t(rows), std::memory_order_relaxed);
  }
  // Token rows that `expert` of `layer` computed; 0 for layers without experts.
  uint64_t rows(int layer, int expert) const {
    return counts_[At(layer, expert)].load(std::memory_order_relaxed);
  }

 private:
  size_t At(int layer, int expert) const {
    return size_t(layer) * size_t(experts_) + size_t(expert);
  }
  const int experts_;
  std::vector<std::atomic<uint64_t>> counts_;  // [layers, experts]
};

}  // namespace rivulet
