// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/multiply_add_peak_cpu.cc"
#include "hwy/foreach_target.h"
// (must stand before highway.h)
#include "hwy/highway.h"
#include "tests/bench/multiply_add_peak.h"

HWY_BEFORE_NAMESPACE();
namespace rivulet::bench::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

int64_t MultiplyAdds(int64_t rounds) {
  constexpr int kChains = 12;  // more than two units with a latency of four to five cycles need
  const hn::ScalableTag<float> d;
  hn::Vec<decltype(d)> sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = hn::Set(d, float(i));
  const volatile float half = 0.5f;  // or the compiler computes the sums
  const auto factor = hn::Set(d, half);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) sums[i] = hn::MulAdd(sums[i], factor, factor);
  }
  auto sum = sums[0];
  for (int i = 1; i < kChains; ++i) sum = hn::Add(sum, sums[i]);
  volatile float result = hn::GetLane(sum);
  static_cast<void>(result);
  return rounds * kChains * 2 * int64_t(hn::Lanes(d));
}

}  // namespace rivulet::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rivulet::bench {

HWY_EXPORT(MultiplyAdds);

int64_t MultiplyAddInRegisters(int64_t rounds) {
  return HWY_DYNAMIC_DISPATCH(MultiplyAdds)(rounds);
}

}  // namespace rivulet::bench
#endif
