// SPDX-License-Identifier: Apache-2.0
// mma.sync.m16n8k16 with F16 factors and float32 sums, as a warp exchange: fragments as the PTX
// manual lays them out, k added in ascending order. Hardware adds the 16 products in another order,
// so the emulator's last bits differ.
#pragma once

#include <cstdint>

#include "tests/support/cuda_emulator/block.h"

namespace rivulet::cuda_emulator {

// `to_float`: from the bits of an F16.
inline void MmaF16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                   float (*to_float)(uint16_t)) {
  struct Fragments {
    float a[4][2], b[2][2];  // [register][half]
  } mine;
  for (int i = 0; i < 4; ++i) {
    mine.a[i][0] = to_float(static_cast<uint16_t>(a[i]));
    mine.a[i][1] = to_float(static_cast<uint16_t>(a[i] >> 16));
  }
  for (int i = 0; i < 2; ++i) {
    mine.b[i][0] = to_float(static_cast<uint16_t>(b[i]));
    mine.b[i][1] = to_float(static_cast<uint16_t>(b[i] >> 16));
  }
  static_assert(sizeof mine <= kPayloadBytes);
  constexpr unsigned kAll = 0xFFFFFFFFu;
  const Site site{__FILE__, __LINE__};
  WarpCollective("MmaF16", kAll, &mine, sizeof mine, site);
  const auto lane = [&](int i) {
    return static_cast<const Fragments*>(LanePayload(i, kAll, "MmaF16", site));
  };
  const int g = Lane() / 4, t = Lane() % 4;
  const Fragments *rows[4], *columns[4][2];
  for (int owner = 0; owner < 4; ++owner) {
    rows[owner] = lane(4 * g + owner);
    columns[owner][0] = lane(4 * (2 * t) + owner);
    columns[owner][1] = lane(4 * (2 * t + 1) + owner);
  }
  for (int k = 0; k < 16; ++k) {
    const int owner = k % 8 / 2, high = k / 8, half = k % 2;
    for (int e = 0; e < 4; ++e) {
      // One rounding: the product of two F16 is exact in float32.
      d[e] += rows[owner]->a[2 * high + e / 2][half] * columns[owner][e % 2]->b[high][half];
    }
  }
}

}  // namespace rivulet::cuda_emulator
