// SPDX-License-Identifier: Apache-2.0
// The peak rate of matrix products that do not wait for memory.
#pragma once

#include <cstdint>

namespace rivulet::bench {

// Runs `rounds` rounds of multiply-adds within registers, with the instruction set of the kernels
// (kernels/cpu/cpu_target.h). Returns the number of multiplications and additions.
int64_t MultiplyAddInRegisters(int64_t rounds);

}  // namespace rivulet::bench
