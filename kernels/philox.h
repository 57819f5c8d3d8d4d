// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10, the counter-based random generator of every backend [Salmon et al., SC 2011,
// "Parallel random numbers: as easy as 1, 2, 3"]. A draw is a pure function of key and counter:
//   key     = seed (64 bits)
//   counter = (position low, position high, sample index, draw)
// with position = tokens fed so far, bos counted. So a sequence's randomness does not depend on
// slot, batch or history.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define RIVULET_HOST_DEVICE __host__ __device__
#else
#define RIVULET_HOST_DEVICE
#endif

namespace rivulet::kernels {

struct PhiloxWords {
  uint32_t word[4];
};

RIVULET_HOST_DEVICE inline PhiloxWords Philox4x32(PhiloxWords counter, uint32_t key0,
                                                  uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter.word[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter.word[2];
    counter = {{static_cast<uint32_t>(product1 >> 32) ^ counter.word[1] ^ key0,
                static_cast<uint32_t>(product1),
                static_cast<uint32_t>(product0 >> 32) ^ counter.word[3] ^ key1,
                static_cast<uint32_t>(product0)}};
    key0 += 0x9E3779B9u;  // golden ratio
    key1 += 0xBB67AE85u;  // sqrt(3) - 1
  }
  return counter;
}

// The random words of one draw of one sample at one position.
RIVULET_HOST_DEVICE inline PhiloxWords DrawWords(uint64_t seed, uint64_t position,
                                                 uint32_t sample_index, uint32_t draw) {
  return Philox4x32({{static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32),
                      sample_index, draw}},
                    static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

// Uniform in the open interval (0, 1): 52 bits and a half, exact in double.
RIVULET_HOST_DEVICE inline double UniformOpen(uint32_t high, uint32_t low) {
  const uint64_t bits = ((uint64_t{high} << 32) | low) >> 12;
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

}  // namespace rivulet::kernels
