// SPDX-License-Identifier: Apache-2.0
// Exchange of values between blocks (latency_cuda.h): the lower half of a word is a value, the
// upper half its flag. Included by latency_*.cu only.
#pragma once

#include "kernels/cuda/common/device_cuda.h"

namespace rivulet::kernels {

// Words that blocks exchange: each is read and written whole, past the multiprocessor's cache. A
// pair is 16-byte aligned; its two words need not arrive together.
struct WordPair {
  uint64_t first, second;
};
__device__ __forceinline__ uint64_t LoadWord(const uint64_t* at) {
#if defined(__CUDA_ARCH__)
  uint64_t word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
  return word;
#else
  return *at;
#endif
}
__device__ __forceinline__ WordPair LoadWordPair(const uint64_t* at) {
#if defined(__CUDA_ARCH__)
  WordPair pair;
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(pair.first), "=l"(pair.second)
               : "l"(at)
               : "memory");
  return pair;
#else
  return {at[0], at[1]};
#endif
}
__device__ __forceinline__ void StoreWord(uint64_t* at, uint64_t word) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" : : "l"(at), "l"(word) : "memory");
#else
  *at = word;
#endif
}
__device__ __forceinline__ void StoreWordPair(uint64_t* at, WordPair pair) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};"
               :
               : "l"(at), "l"(pair.first), "l"(pair.second)
               : "memory");
#else
  at[0] = pair.first;
  at[1] = pair.second;
#endif
}

// How long to wait, and the flag that ends all waiting.
struct Watch {
  uint32_t* abort;
  uint64_t patience;  // nanoseconds
};

// One thread's waiting.
class Spin {
 public:
  // Call after each poll without success. False: give up.
  __device__ bool Again(const Watch& watch) {
    SpinPause();
    if (++looks_ % kLooksAClock != 0) return true;
    if (*static_cast<volatile uint32_t*>(watch.abort) != 0) return false;
    const uint64_t now = DeviceNanoseconds();
    if (begin_ == 0) begin_ = now;
    if (now - begin_ <= watch.patience) return true;
    *static_cast<volatile uint32_t*>(watch.abort) = 1;
    return false;
  }

 private:
  unsigned looks_ = 0;
  uint64_t begin_ = 0;
};

__device__ __forceinline__ uint32_t FlagOf(uint64_t word) {
  return static_cast<uint32_t>(word >> 32);
}
__device__ __forceinline__ uint32_t ValueOf(uint64_t word) { return static_cast<uint32_t>(word); }
__device__ __forceinline__ uint64_t Word(uint32_t value, uint32_t flag) {
  return uint64_t{flag} << 32 | value;
}

__device__ __forceinline__ void Send(uint64_t* to, uint32_t value, uint32_t flag) {
  StoreWord(to, Word(value, flag));
}
// Sends two neighbouring words; `to` is 16-byte aligned.
__device__ __forceinline__ void SendTwo(uint64_t* to, uint32_t first, uint32_t second,
                                        uint32_t flag) {
  StoreWordPair(to, {Word(first, flag), Word(second, flag)});
}

// Receives one word. False: given up, `value` is not valid.
__device__ inline bool Receive(const uint64_t* from, uint32_t flag, const Watch& watch,
                               uint32_t* value) {
  for (Spin spin;;) {
    const uint64_t word = LoadWord(from);
    *value = ValueOf(word);
    if (FlagOf(word) == flag) return true;
    if (!spin.Again(watch)) return false;
  }
}

// Receives the pairs first, first + stride, ... of `count` words (16-byte aligned) and calls
// store(i, value) for each word. False: given up, some are missing. kFlight: loads of pairs in
// flight at once.
template <int kFlight = 8, class Store>
__device__ __forceinline__ bool ReceivePairs(const uint64_t* from, int count, int first, int stride,
                                             uint32_t flag, const Watch& watch,
                                             const Store& store) {
  const int pairs = (count + 1) / 2;
#pragma unroll 1
  for (int begin = first; begin < pairs; begin += kFlight * stride) {
    WordPair words[kFlight] = {};
    bool missing;
    Spin spin;
    do {
      missing = false;
#pragma unroll
      for (int j = 0; j < kFlight; ++j) {
        const int i = begin + j * stride;
        if (i < pairs) words[j] = LoadWordPair(from + 2 * static_cast<size_t>(i));
      }
#pragma unroll
      for (int j = 0; j < kFlight; ++j) {
        const int i = begin + j * stride;
        if (i >= pairs) continue;
        missing = missing || FlagOf(words[j].first) != flag ||
                  (2 * i + 1 < count && FlagOf(words[j].second) != flag);
      }
      if (missing && !spin.Again(watch)) return false;
    } while (missing);
#pragma unroll
    for (int j = 0; j < kFlight; ++j) {
      const int i = begin + j * stride;
      if (i >= pairs) continue;
      store(2 * i, ValueOf(words[j].first));
      if (2 * i + 1 < count) store(2 * i + 1, ValueOf(words[j].second));
    }
  }
  return true;
}

}  // namespace rivulet::kernels
