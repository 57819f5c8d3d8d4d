// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/quantized_rows_cpu.cc"
#include "hwy/foreach_target.h"
// (must stand before highway.h)
#include <algorithm>
#include <bit>
#include <limits>

#include "hwy/highway.h"
#include "kernels/quantized.h"

HWY_BEFORE_NAMESPACE();
namespace rivulet::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At least 4 lanes, except HWY_SCALAR's one: the 32 inputs are whole vectors.
using GroupTag = hn::CappedTag<float, 16>;
using GroupInts = hn::Rebind<int32_t, GroupTag>;
inline constexpr int kGroupLanes = static_cast<int>(HWY_MIN(HWY_LANES(float), 16));
inline constexpr float kLeast = 0x1p-100f;  // below it 127 / x would not be finite

// max |x|; infinity or NaN where a value is not finite. Without the sign, floats sort like their
// bits, NaN last.
HWY_INLINE float Largest(const float* x) {
  const GroupInts di;
  auto largest = hn::Zero(di);
  for (int i = 0; i < kQuantizedInputs; i += kGroupLanes) {
    const auto bits = hn::BitCast(di, hn::Abs(hn::LoadU(GroupTag(), x + i)));
    largest = hn::Max(largest, bits);
  }
  const int32_t bits = hn::GetLane(hn::MaxOfLanes(di, largest));
  return std::bit_cast<float>(bits);
}

// The integers p of a group, and the sums of its halves.
HWY_INLINE void Round(const float* x, float inverse, int8_t* integers, int32_t (&sums)[2]) {
  const GroupTag d;
  const GroupInts di;
  const hn::Rebind<int8_t, GroupTag> d8;
  for (int half = 0; half < 2; ++half) {
    auto sum = hn::Zero(di);
    for (int i = half * 16; i < half * 16 + 16; i += kGroupLanes) {
      const auto p = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, inverse)));
      sum = hn::Add(sum, p);
      hn::StoreU(hn::DemoteTo(d8, p), d8, integers + i);
    }
    sums[half] = hn::GetLane(hn::SumOfLanes(di, sum));
  }
}

HWY_INLINE QuantizedScale RoundGroup(const float* x, int8_t* integers) {
  QuantizedScale scale;
  const float largest = Largest(x);
  if (largest >= kLeast && largest <= std::numeric_limits<float>::max()) {
    scale.scale = largest / 127;
    int32_t sums[2];
    Round(x, 127 / largest, integers, sums);
    scale.offset = -(scale.scale * static_cast<float>(sums[0] + sums[1]));
    for (int half = 0; half < 2; ++half) scale.raised[half] = -128 * sums[half];
    return scale;
  }
  std::fill_n(integers, kQuantizedInputs, int8_t{0});
  if (!(largest < kLeast)) scale.scale = std::numeric_limits<float>::quiet_NaN();
  scale.offset = -(scale.scale * 0.0f);
  return scale;
}

void QuantizeRows(const QuantizeRowsArgs& args) {
  const QuantizedRowLayout layout(args.k);
  for (int r = 0; r < args.rows; ++r) {
    const float* x = args.x + size_t(r) * size_t(args.ldx);
    uint8_t* const row = static_cast<uint8_t*>(args.y) + size_t(r) * layout.bytes;
    auto* integers = reinterpret_cast<int8_t*>(row);
    auto* scales = reinterpret_cast<QuantizedScale*>(row + layout.scales);
    for (int g = 0; g < layout.groups; ++g) {
      const int left = args.k - g * kQuantizedInputs;
      HWY_ALIGN float filled[kQuantizedInputs] = {};
      if (left < kQuantizedInputs) {
        std::copy_n(x, left, filled);
        x = filled;
      }
      scales[g] = RoundGroup(x, integers);
      x += kQuantizedInputs;
      integers += kQuantizedInputs;
    }
  }
}

}  // namespace rivulet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rivulet::kernels {

HWY_EXPORT(QuantizeRows);

void QuantizeRowsCpu(const QuantizeRowsArgs& args) { HWY_DYNAMIC_DISPATCH(QuantizeRows)(args); }

}  // namespace rivulet::kernels
#endif
