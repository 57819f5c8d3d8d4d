// SPDX-License-Identifier: Apache-2.0
// Scalar conversions between float32 and the 16-bit formats, round to nearest even. Used where
// weights are packed and by tests; kernels widen in registers.
#pragma once

#include <bit>
#include <cstdint>

namespace rivulet::kernels {

inline uint16_t F32ToBf16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  return static_cast<uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}

inline float Bf16ToF32(uint16_t h) { return std::bit_cast<float>(uint32_t{h} << 16); }

inline float F16ToF32(uint16_t h) {
  const uint32_t sign = uint32_t{h & 0x8000u} << 16;
  const uint32_t exponent = (h >> 10) & 0x1Fu;
  const uint32_t mantissa = h & 0x3FFu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float subnormal = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -subnormal : subnormal;
}

// Overflows to infinity, as IEEE does. Without branches, so that loops become vectors.
inline uint16_t F32ToF16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f), sign = (u >> 16) & 0x8000u, m = u & 0x7FFFFFFFu;
  const uint32_t normal = (m + 0xFFFu + ((m >> 13) & 1u) - (112u << 23)) >> 13;
  // F16 below 2^-14 has the spacing 2^-24, like float32 from 0.5 on: the addition rounds.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(m) + 0.5f) - 0x3F000000u;
  const uint32_t finite = m < (113u << 23) ? subnormal : normal;
  const uint32_t infinite = m > 0x7F800000u ? 0x7E00u : 0x7C00u;
  return static_cast<uint16_t>(sign | (m < 0x477FF000u ? finite : infinite));
}

}  // namespace rivulet::kernels
