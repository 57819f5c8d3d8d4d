// SPDX-License-Identifier: Apache-2.0
// Thread block clusters: blocks that run at once and reach into each other's shared memory, with
// barriers that count arrivals and bytes (mbarrier) and bulk copies to several blocks. A copy lands
// when it is asked for or, every other one, only when somebody waits for its barrier: who releases
// memory too early or waits too late reads what is wrong. Of memory order and proxies the emulator
// knows nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tests/support/cuda_emulator/block.h"

namespace rivulet::cuda_emulator {

// Called by kernels of a launch with clusters, on a fiber.
unsigned ClusterRank();
void ClusterBarrier(Site site);  // of all threads of the cluster

// A barrier in the block's shared memory. Its phase ends when `count` have arrived and as many
// bytes have come as were expected.
void InitBarrier(uint64_t* barrier, unsigned count);
void ExpectBytes(uint64_t* barrier, unsigned bytes, Site site);  // arrives, too
// Arrives at what lies at the same place in block `rank` of the cluster.
void ArriveAt(uint64_t* barrier, unsigned rank, Site site);
// Until the phase of that parity has ended.
void AwaitPhase(uint64_t* barrier, unsigned parity, Site site);
// `to` and `barrier`: the same places in every block that `blocks` has a bit for.
void CopyToBlocks(void* to, const void* from, size_t bytes, uint64_t* barrier, unsigned blocks,
                  Site site);

// Between the launches' clusters, by block.cc.
void BeginCluster();
void CheckEndedBlock();  // nothing may be on its way into it

}  // namespace rivulet::cuda_emulator
