// SPDX-License-Identifier: Apache-2.0
// cp.async and ldmatrix. Every other copy happens only when its thread waits for it, the rest at
// once: a kernel that waits too late, or for too few copies, reads old data.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rivulet::cuda_emulator {

void CopyAsync(void* to, const void* from, size_t bytes, size_t valid);  // the rest are zeros
void CommitCopies();
void WaitForCopies(size_t open_groups);
void LoadTiles(uint32_t (&r)[4], const void* row);

}  // namespace rivulet::cuda_emulator
