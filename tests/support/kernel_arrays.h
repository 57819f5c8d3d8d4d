// SPDX-License-Identifier: Apache-2.0
// Shared helpers for tests of kernels: random arrays, arrays between red zones, and every
// instruction set of this machine.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
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

// Floats that are initially NaN, between red zones that must stay untouched. 64-byte aligned.
class GuardedFloats {
 public:
  explicit GuardedFloats(size_t n) : n_(n), memory_(n + 2 * kZone + 16, kPoison) {
    const size_t misaligned =
        reinterpret_cast<uintptr_t>(memory_.data() + kZone) % 64 / sizeof(float);
    begin_ = kZone + (misaligned == 0 ? 0 : 16 - misaligned);
    for (size_t i = 0; i < n; ++i) data()[i] = std::numeric_limits<float>::quiet_NaN();
  }
  explicit GuardedFloats(const std::vector<float>& values) : GuardedFloats(values.size()) {
    std::copy(values.begin(), values.end(), data());
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

// Calls f(name) once for every instruction set of build and machine, with the kernels restricted to
// it.
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

// Equal bits; a NaN equals the same NaN.
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

// Every element is within `tolerance` (a number, or a function of the expected value) of the
// expected element. Where `expected` is NaN, the bits must be equal, because nothing may be written
// there.
template <class T, class Tolerance>
::testing::AssertionResult Near(const std::vector<float>& got, const std::vector<T>& expected,
                                const Tolerance& tolerance) {
  if (got.size() != expected.size())
    return ::testing::AssertionFailure() << "sizes " << got.size() << ", " << expected.size();
  for (size_t i = 0; i < got.size(); ++i) {
    const auto want = static_cast<float>(expected[i]);
    double allowed = 0;
    if constexpr (std::is_invocable_v<Tolerance, double>) {
      allowed = tolerance(double{expected[i]});
    } else {
      allowed = tolerance;
    }
    if (!(std::fabs(double{got[i]} - double{expected[i]}) <= allowed) &&
        std::memcmp(&got[i], &want, sizeof(float)) != 0) {
      return ::testing::AssertionFailure()
             << "element " << i << ": " << got[i] << ", expected " << expected[i];
    }
  }
  return ::testing::AssertionSuccess();
}

// Tolerances of Near.
inline auto Relative(double tolerance) {
  return [=](double expected) { return tolerance * (1 + std::fabs(expected)); };
}
inline auto AtLeastOne(double tolerance) {
  return [=](double expected) { return tolerance * std::max(1.0, std::fabs(expected)); };
}

// `run(y)` fills an array that is initially NaN. Checks that it is near `expected` on every CPU
// target, with equal bits on the targets with fused multiply-add.
template <class T, class Tolerance, class F>
void ExpectOnEveryCpuTarget(const std::vector<T>& expected, const Tolerance& tolerance,
                            const F& run) {
  std::vector<float> first;
  ForEachCpuTarget([&](const std::string& target) {
    GuardedFloats y(expected.size());
    run(y.data());
    ASSERT_TRUE(y.Intact()) << target;
    const std::vector<float> got = y.Copy();
    ASSERT_TRUE(Near(got, expected, tolerance)) << target;
    if (!CpuTargetFuses()) return;
    if (first.empty()) first = got;
    ASSERT_TRUE(SameBits(got, first)) << target;
  });
}

}  // namespace rivulet::kernels
