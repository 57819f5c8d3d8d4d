// SPDX-License-Identifier: Apache-2.0
// What tests of kernels share: random arrays, arrays between red zones, and every instruction set
// of this machine.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_target.h"

namespace rivulet::kernels {

// Deterministic floats in [low, high].
inline std::vector<float> RandomFloats(size_t n, uint32_t seed, float low = -1, float high = 1) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> v(n);
  for (float& x : v) x = uniform(random);
  return v;
}

// Floats that begin as NaN, between red zones that must stay untouched. 64-byte aligned.
class GuardedFloats {
 public:
  explicit GuardedFloats(size_t n) : n_(n), memory_(n + 2 * kZone + 16, kPoison) {
    const size_t misaligned =
        reinterpret_cast<uintptr_t>(memory_.data() + kZone) % 64 / sizeof(float);
    begin_ = kZone + (misaligned == 0 ? 0 : 16 - misaligned);
    for (size_t i = 0; i < n; ++i) data()[i] = std::numeric_limits<float>::quiet_NaN();
  }
  float* data() { return memory_.data() + begin_; }
  float& operator[](size_t i) { return data()[i]; }
  std::vector<float> Copy() { return {data(), data() + n_}; }
  bool Intact() const {
    for (size_t i = 0; i < memory_.size(); ++i) {
      if ((i < begin_ || i >= begin_ + n_) && memory_[i] != kPoison) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kZone = 64;
  static constexpr float kPoison = 12345.5f;
  size_t n_, begin_;
  std::vector<float> memory_;
};

// Calls f(name) once for every instruction set that build and machine have, the kernels restricted
// to it.
template <class F>
void ForEachCpuTarget(const F& f) {
  int found = 0;
  for (const char* target : {"AVX3_DL", "AVX3", "AVX2", "NEON", "SCALAR", "EMU128"}) {
    if (!SetCpuTargetForTest(target)) continue;
    ++found;
    f(std::string(target));
  }
  SetCpuTargetForTest("");
  EXPECT_GE(found, 1);
}

// Same bits, NaN equal to the same NaN.
inline ::testing::AssertionResult SameBits(const std::vector<float>& a,
                                           const std::vector<float>& b) {
  if (a.size() != b.size())
    return ::testing::AssertionFailure() << "sizes " << a.size() << ", " << b.size();
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) {
      return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << " and " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace rivulet::kernels
