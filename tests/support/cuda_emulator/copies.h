// SPDX-License-Identifier: Apache-2.0
// cp.async and ldmatrix. A copy happens when it is asked for or, every other one, only when its
// thread waits for it: a kernel that waits too late, or for too little, reads what was there
// before.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rivulet::cuda_emulator {

void CopyAsync(void* to, const void* from, size_t bytes, size_t valid);  // the rest are zeros
void CommitCopies();
void WaitForCopies(size_t open_groups);
void LoadTiles(uint32_t (&r)[4], const void* row);

}  // namespace rivulet::cuda_emulator
