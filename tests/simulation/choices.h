// SPDX-License-Identifier: Apache-2.0
// Choices: the decisions of a schedule, from a seed or from a fuzzer's bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>

namespace rivulet {

// Thread: one.
class Choices {
 public:
  explicit Choices(uint64_t seed) : random_(seed) {}
  // Returns 0 once the bytes are used up.
  Choices(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  // False: the bytes are used up. A seed is never used up.
  bool more() const { return data_ == nullptr || left_ > 0; }

  // 0 to n - 1. REQUIRES: 1 <= n <= 65536.
  int Below(int n) {
    if (n <= 1) return 0;
    if (data_ == nullptr) return static_cast<int>(random_() % static_cast<uint64_t>(n));
    uint32_t value = Byte();
    if (n > 256) value = value << 8 | Byte();
    return static_cast<int>(value % static_cast<uint32_t>(n));
  }
  int Between(int low, int high) { return low + Below(high - low + 1); }
  // Returns false once the bytes are used up.
  bool OneIn(int n) { return Below(n) == n - 1; }

 private:
  uint8_t Byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }

  std::mt19937_64 random_;
  const uint8_t* data_ = nullptr;
  size_t left_ = 0;
};

}  // namespace rivulet
