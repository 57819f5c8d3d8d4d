// SPDX-License-Identifier: Apache-2.0
// The part of cuBLASLt's binary interface (libcublasLt.so.13) that Rivulet uses. The library is
// opened at run time, so no build needs its headers; if they are installed,
// tests/conformance/cuda_cublaslt_abi_test.cc compares every number and size with them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace rivulet::cublaslt {

using Status = int;  // 0: success
using Handle = void*;
using Desc = void*;        // of a product
using Layout = void*;      // of a matrix; column-major
using Preference = void*;  // for the search of algorithms

struct Algorithm {
  uint64_t data[8];
};
struct HeuristicResult {
  Algorithm algorithm;
  size_t workspace_bytes;
  Status state;
  float waves;
  int reserved[4];
};

inline constexpr int kR32F = 0, kR16F = 2;              // types of elements
inline constexpr int kCompute32F = 68;                  // float32 sums
inline constexpr int kCompute32FPedantic = 69;          // without conversion of the factors
inline constexpr int kDescTransA = 3, kTranspose = 1;   // attribute of a product; int32
inline constexpr int kPrefMaxWorkspaceBytes = 1;        // uint64
inline constexpr int kPrefReductionSchemeMask = 3;      // uint32
inline constexpr int kConfigId = 0;                     // of an algorithm; int32
inline constexpr int kConfigTile = 1;                   // uint32
inline constexpr int kConfigSplitK = 2;                 // int32
inline constexpr int kConfigReductionScheme = 3;        // uint32; 0: none
inline constexpr int kConfigStages = 6;                 // uint32
inline constexpr int kCapNumericalFlags = 15;           // uint64, below
inline constexpr uint64_t kFlagFma = 1, kFlagHmma = 2;  // the unit that multiplies
inline constexpr uint64_t kFlagOperationMask = 0xFF;    // of those
inline constexpr uint64_t kFlagSums32F = 2 << 8;        // the type of sums
inline constexpr uint64_t kFlagSumsMask = 0xFF << 8;    // of those
inline constexpr uint64_t kFlagInput16F = 0x01 << 16;   // the type of inputs
inline constexpr uint64_t kFlagInput32F = 0x08 << 16;   // of those; TF32 is 0x04 << 16
inline constexpr uint64_t kFlagInputMask = 0xFF << 16;  // of those

// The functions, under their names without "cublasLt".
struct Functions {
  Status (*Create)(Handle*);
  Status (*Destroy)(Handle);
  size_t (*GetVersion)();
  Status (*MatmulDescCreate)(Desc*, int compute, int scale);
  Status (*MatmulDescDestroy)(Desc);
  Status (*MatmulDescSetAttribute)(Desc, int attribute, const void* value, size_t bytes);
  Status (*MatrixLayoutCreate)(Layout*, int type, uint64_t rows, uint64_t columns, int64_t ld);
  Status (*MatrixLayoutDestroy)(Layout);
  Status (*MatmulPreferenceCreate)(Preference*);
  Status (*MatmulPreferenceDestroy)(Preference);
  Status (*MatmulPreferenceSetAttribute)(Preference, int attribute, const void* value,
                                         size_t bytes);
  Status (*MatmulAlgoGetHeuristic)(Handle, Desc, Layout a, Layout b, Layout c, Layout d, Preference,
                                   int wanted, HeuristicResult*, int* found);
  Status (*MatmulAlgoCheck)(Handle, Desc, Layout a, Layout b, Layout c, Layout d, const Algorithm*,
                            HeuristicResult*);
  Status (*MatmulAlgoConfigGetAttribute)(const Algorithm*, int attribute, void* value, size_t bytes,
                                         size_t* written);
  Status (*MatmulAlgoCapGetAttribute)(const Algorithm*, int attribute, void* value, size_t bytes,
                                      size_t* written);
  Status (*Matmul)(Handle, Desc, const void* alpha, const void* a, Layout, const void* b, Layout,
                   const void* beta, const void* c, Layout, void* d, Layout, const Algorithm*,
                   void* workspace, size_t workspace_bytes, cudaStream_t);
};

}  // namespace rivulet::cublaslt
