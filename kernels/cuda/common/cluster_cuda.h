// SPDX-License-Identifier: Apache-2.0
// Thread block clusters (compute capability 9.0): barriers in shared memory that count arrivals and
// bytes, and copies that bring the same bytes to all blocks of a cluster with one read. Included by
// .cu files only; what calls these is compiled for sm_90a and launched there alone. (Elsewhere they
// do nothing: multicast exists on sm_90 as on later targets, but is promised to be fast on 90a.)
//
// A transfer, seen by one of the blocks: ExpectBytes on a barrier of one arrival; ArriveAt every
// block's "free" barrier, which counts one arrival a block; once one's own "free" phase has ended
// all have room, and CopyToBlocks may send a share; AwaitPhase on the first barrier ends when the
// shares of all blocks are here. Parities alternate, beginning with 0.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/async_copy_cuda.h"

namespace rivulet::kernels {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define RIVULET_HAS_CLUSTERS 1
#endif

// This block's place in its cluster.
__device__ __forceinline__ unsigned ClusterRank() {
#if defined(RIVULET_HAS_CLUSTERS)
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#elif defined(RIVULET_CUDA_EMULATED)
  return cuda_emulator::ClusterRank();
#else
  return 0;
#endif
}

// All threads of the cluster: what they wrote to shared memory before is visible after.
__device__ __forceinline__ void ClusterBarrier() {
#if defined(RIVULET_HAS_CLUSTERS)
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
#elif defined(RIVULET_CUDA_EMULATED)
  cuda_emulator::ClusterBarrier({__FILE__, __LINE__});
#endif
}

// Makes a barrier of `count` arrivals; one thread. A ClusterBarrier follows before anyone uses it.
__device__ __forceinline__ void InitBarrier(uint64_t* barrier, unsigned count) {
#if defined(RIVULET_HAS_CLUSTERS)
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], %1;\nfence.mbarrier_init.release.cluster;" ::"r"(
          SharedAddress(barrier)),
      "r"(count)
      : "memory");
#elif defined(RIVULET_CUDA_EMULATED)
  cuda_emulator::InitBarrier(barrier, count);
#endif
}

// Arrives at a barrier of this block, whose phase will also take so many bytes.
__device__ __forceinline__ void ExpectBytes(uint64_t* barrier, unsigned bytes) {
#if defined(RIVULET_HAS_CLUSTERS)
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(
                   SharedAddress(barrier)),
               "r"(bytes)
               : "memory");
#elif defined(RIVULET_CUDA_EMULATED)
  cuda_emulator::ExpectBytes(barrier, bytes, {__FILE__, __LINE__});
#endif
}

// Arrives at the barrier that lies at the same place in block `rank` of the cluster. Without
// ".release.cluster" the release would reach this block's threads alone.
__device__ __forceinline__ void ArriveAt(uint64_t* barrier, unsigned rank) {
#if defined(RIVULET_HAS_CLUSTERS)
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(there)
               : "r"(SharedAddress(barrier)), "r"(rank));
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(there)
               : "memory");
#elif defined(RIVULET_CUDA_EMULATED)
  cuda_emulator::ArriveAt(barrier, rank, {__FILE__, __LINE__});
#endif
}

// Until the phase of that parity has ended.
__device__ __forceinline__ void AwaitPhase(uint64_t* barrier, unsigned parity) {
#if defined(RIVULET_HAS_CLUSTERS)
  unsigned ended = 0;
  while (ended == 0) {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; "
        "selp.u32 %0, 1, 0, p; }"
        : "=r"(ended)
        : "r"(SharedAddress(barrier)), "r"(parity)
        : "memory");
  }
#elif defined(RIVULET_CUDA_EMULATED)
  cuda_emulator::AwaitPhase(barrier, parity, {__FILE__, __LINE__});
#endif
}

// `bytes` (a multiple of 16) from device memory to the place of `to` (16-byte aligned) in each of
// the first `blocks` blocks of the cluster, where they count at the place of `barrier`. One thread.
__device__ __forceinline__ void CopyToBlocks(void* to, const void* from, unsigned bytes,
                                             uint64_t* barrier, unsigned blocks) {
  const auto mask = static_cast<uint16_t>((1u << blocks) - 1);
#if defined(RIVULET_HAS_CLUSTERS)
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1], %2, [%3], %4;" ::"r"(SharedAddress(to)),
      "l"(from), "r"(bytes), "r"(SharedAddress(barrier)), "h"(mask)
      : "memory");
#elif defined(RIVULET_CUDA_EMULATED)
  cuda_emulator::CopyToBlocks(to, from, bytes, barrier, mask, {__FILE__, __LINE__});
#else
  (void)mask;
#endif
}

// What this thread did to shared memory so far comes before what CopyToBlocks writes there.
__device__ __forceinline__ void BeforeBulkCopies() {
#if defined(RIVULET_HAS_CLUSTERS)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

}  // namespace rivulet::kernels
