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

// p0 p1 p2 p3 to p0 p2 p1 p3.
#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void StorePairs(const int16_t* p, int16_t* pairs) {
  for (int i = 0; i < kQuantizedInputs; i += 4) {
    pairs[i] = p[i];
    pairs[i + 1] = p[i + 2];
    pairs[i + 2] = p[i + 1];
    pairs[i + 3] = p[i + 3];
  }
}
#else
HWY_INLINE void StorePairs(const int16_t* p, int16_t* pairs) {
  const hn::Full128<int16_t> d;
  HWY_ALIGN constexpr uint8_t kOrder[16] = {0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15};
  const auto order = hn::BitCast(d, hn::Load(hn::Full128<uint8_t>(), kOrder));
  for (int i = 0; i < kQuantizedInputs; i += 8) {
    hn::StoreU(hn::TableLookupBytes(hn::Load(d, p + i), order), d, pairs + i);
  }
}
#endif

// The integers p of a group, and the sums of its halves.
HWY_INLINE void Round(const float* x, float inverse, int8_t* integers, int16_t* pairs,
                      int32_t (&sums)[2]) {
  const GroupTag d;
  const GroupInts di;
  const hn::Rebind<int16_t, GroupTag> d16;
  const hn::Rebind<int8_t, GroupTag> d8;
  HWY_ALIGN int16_t wide[kQuantizedInputs];
  for (int half = 0; half < 2; ++half) {
    auto sum = hn::Zero(di);
    for (int i = half * 16; i < half * 16 + 16; i += kGroupLanes) {
      const auto p = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, inverse)));
      sum = hn::Add(sum, p);
      hn::Store(hn::DemoteTo(d16, p), d16, wide + i);
      hn::StoreU(hn::DemoteTo(d8, p), d8, integers + i);
    }
    sums[half] = hn::GetLane(hn::SumOfLanes(di, sum));
  }
  StorePairs(wide, pairs);
}

HWY_INLINE QuantizedScale RoundGroup(const float* x, int8_t* integers, int16_t* pairs) {
  QuantizedScale scale;
  const float largest = Largest(x);
  if (largest >= kLeast && largest <= std::numeric_limits<float>::max()) {
    scale.scale = largest / 127;
    int32_t sums[2];
    Round(x, 127 / largest, integers, pairs, sums);
    scale.offset = -(scale.scale * static_cast<float>(sums[0] + sums[1]));
    for (int half = 0; half < 2; ++half) scale.raised[half] = -128 * sums[half];
    return scale;
  }
  std::fill_n(integers, kQuantizedInputs, int8_t{0});
  std::fill_n(pairs, kQuantizedInputs, int16_t{0});
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
    auto* pairs = reinterpret_cast<int16_t*>(row + layout.pairs);
    auto* scales = reinterpret_cast<QuantizedScale*>(row + layout.scales);
    for (int g = 0; g < layout.groups; ++g) {
      const int left = args.k - g * kQuantizedInputs;
      HWY_ALIGN float filled[kQuantizedInputs] = {};
      if (left < kQuantizedInputs) {
        std::copy_n(x, left, filled);
        x = filled;
      }
      scales[g] = RoundGroup(x, integers, pairs);
      x += kQuantizedInputs;
      integers += kQuantizedInputs;
      pairs += kQuantizedInputs;
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
