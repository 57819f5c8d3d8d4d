// SPDX-License-Identifier: Apache-2.0
// The limit of matrix products that no longer wait for memory.
#pragma once

#include <cstdint>

namespace rivulet::bench {

// Runs `rounds` rounds of multiply-adds within registers, with the instruction set of the kernels
// (kernels/cpu/cpu_target.h). Returns how many multiplications and additions that were.
int64_t MultiplyAddInRegisters(int64_t rounds);

}  // namespace rivulet::bench
