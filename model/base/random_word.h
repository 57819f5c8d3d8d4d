// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace rivulet {

// 64 unpredictable bits from the system's generator. Ends the process if there is no generator.
// Takes a third of a microsecond; std::random_device, which asks the processor for true entropy,
// takes a hundred times as long on some virtual machines. Thread: any.
uint64_t RandomWord();

// Uniform in [0, 1), with the 53 bits of a double.
inline double RandomFraction() { return static_cast<double>(RandomWord() >> 11) * 0x1p-53; }

}  // namespace rivulet
