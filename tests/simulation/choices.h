// SPDX-License-Identifier: Apache-2.0
// Choices: where a schedule's decisions come from, a seed or the bytes of a fuzzer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>

namespace rivulet {

// Thread: one.
class Choices {
 public:
  explicit Choices(uint64_t seed) : random_(seed) {}
  // Zeros once the bytes are used up.
  Choices(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  // False: the bytes are used up. A seed never is.
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
  // Bytes that are used up say no.
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
