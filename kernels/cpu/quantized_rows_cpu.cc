// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/quantized_rows_cpu.cc"
#include "hwy/foreach_target.h"
// (must stand before highway.h)
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "kernels/quantized.h"

HWY_BEFORE_NAMESPACE();
namespace rivulet::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using GroupTag = hn::CappedTag<float, 16>;
inline constexpr int kGroupLanes = static_cast<int>(HWY_MIN(HWY_LANES(float), 16));
inline constexpr float kLeast = 0x1p-100f;  // below it 127 / x would not be finite

// max |x|; NaN where a value is not finite.
HWY_INLINE float Largest(const float* x) {
  const GroupTag d;
  auto largest = hn::Zero(d), poison = hn::Zero(d);  // 0 * x is NaN where x is not finite
  for (int i = 0; i < kQuantizedInputs; i += kGroupLanes) {
    const auto v = hn::LoadU(d, x + i);
    largest = hn::Max(largest, hn::Abs(v));
    poison = hn::MulAdd(v, hn::Zero(d), poison);
  }
  HWY_ALIGN float lanes[2][kGroupLanes];
  hn::Store(largest, d, lanes[0]);
  hn::Store(poison, d, lanes[1]);
  float most = 0, sum = 0;
  for (int i = 0; i < kGroupLanes; ++i) {
    most = std::max(most, lanes[0][i]);
    sum += lanes[1][i];
  }
  return most + sum;
}

// The integers p of a group, and their sum.
HWY_INLINE int32_t Round(const float* x, float inverse, int32_t* p) {
  const GroupTag d;
  const hn::Rebind<int32_t, GroupTag> di;
  int32_t sum = 0;
  for (int i = 0; i < kQuantizedInputs; i += kGroupLanes) {
    const auto v = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, inverse)));
    hn::StoreU(v, di, p + i);
  }
  for (int i = 0; i < kQuantizedInputs; ++i) sum += p[i];
  return sum;
}

HWY_INLINE QuantizedScale RoundGroup(const float* x, int8_t* integers, int16_t* pairs) {
  HWY_ALIGN int32_t p[kQuantizedInputs] = {};
  QuantizedScale scale = {0, 0, 0};
  const float largest = Largest(x);
  int32_t sum = 0;
  if (std::isnan(largest)) {
    scale.scale = std::numeric_limits<float>::quiet_NaN();
  } else if (largest >= kLeast) {
    scale.scale = largest / 127;
    sum = Round(x, 127 / largest, p);
  }
  for (int i = 0; i < kQuantizedInputs; ++i) integers[i] = static_cast<int8_t>(p[i]);
  for (int i = 0; i < kQuantizedInputs; i += 4) {
    pairs[i] = static_cast<int16_t>(p[i]);
    pairs[i + 1] = static_cast<int16_t>(p[i + 2]);
    pairs[i + 2] = static_cast<int16_t>(p[i + 1]);
    pairs[i + 3] = static_cast<int16_t>(p[i + 3]);
  }
  scale.offset = -(scale.scale * static_cast<float>(sum));
  scale.unsigned_zero = -128 * sum;
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
