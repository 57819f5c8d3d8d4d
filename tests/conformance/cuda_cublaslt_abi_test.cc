// SPDX-License-Identifier: Apache-2.0
// Our description of cuBLASLt's binary interface beside NVIDIA's headers and library, where a build
// finds them. No device is needed.
#include <cublasLt.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <type_traits>

#include "model/cuda/cublaslt.h"
#include "model/cuda/cublaslt_abi.h"

namespace rivulet::cublaslt {
namespace {

static_assert(CUBLAS_STATUS_SUCCESS == 0);
static_assert(kR32F == CUDA_R_32F && kR16F == CUDA_R_16F);
static_assert(kCompute32F == CUBLAS_COMPUTE_32F);
static_assert(kCompute32FPedantic == CUBLAS_COMPUTE_32F_PEDANTIC);
static_assert(kDescTransA == CUBLASLT_MATMUL_DESC_TRANSA && kTranspose == CUBLAS_OP_T);
static_assert(kPrefMaxWorkspaceBytes == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(kPrefReductionSchemeMask == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
static_assert(kConfigId == CUBLASLT_ALGO_CONFIG_ID);
static_assert(kConfigTile == CUBLASLT_ALGO_CONFIG_TILE_ID);
static_assert(kConfigStages == CUBLASLT_ALGO_CONFIG_STAGES_ID);
static_assert(kConfigSplitK == CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
static_assert(kConfigReductionScheme == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
static_assert(CUBLASLT_REDUCTION_SCHEME_NONE == 0);
static_assert(kCapNumericalFlags == CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS);
static_assert(kFlagFma == CUBLASLT_NUMERICAL_IMPL_FLAGS_FMA);
static_assert(kFlagHmma == CUBLASLT_NUMERICAL_IMPL_FLAGS_HMMA);
static_assert(kFlagOperationMask == CUBLASLT_NUMERICAL_IMPL_FLAGS_OP_TYPE_MASK);
static_assert(kFlagSums32F == CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_32F);
static_assert(kFlagSumsMask == CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_TYPE_MASK);
static_assert(kFlagInput16F == CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16F);
static_assert(kFlagInput32F == CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_32F);
static_assert(kFlagInputMask == CUBLASLT_NUMERICAL_IMPL_FLAGS_OP_INPUT_TYPE_MASK);
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(HeuristicResult) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(HeuristicResult, workspace_bytes) ==
              offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(HeuristicResult, state) == offsetof(cublasLtMatmulHeuristicResult_t, state));

// The value that a function of ours and one of theirs take in the same place is passed the same
// way: both are of one size, and both pointers or both numbers. Floats occur in neither.
template <class Ours, class Theirs>
constexpr bool kAlike =
    sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>;
template <class R, class... Ours, class S, class... Theirs>
constexpr bool Alike(R (*)(Ours...), S (*)(Theirs...)) {
  if constexpr (sizeof...(Ours) != sizeof...(Theirs)) {
    return false;
  } else {
    return (kAlike<R, S> && ... && kAlike<Ours, Theirs>);
  }
}
#define RIVULET_ALIKE(name) \
  static_assert(Alike(decltype(Functions::name){}, decltype(&cublasLt##name){}))
RIVULET_ALIKE(Create);
RIVULET_ALIKE(Destroy);
RIVULET_ALIKE(GetVersion);
RIVULET_ALIKE(MatmulDescCreate);
RIVULET_ALIKE(MatmulDescDestroy);
RIVULET_ALIKE(MatmulDescSetAttribute);
RIVULET_ALIKE(MatrixLayoutCreate);
RIVULET_ALIKE(MatrixLayoutDestroy);
RIVULET_ALIKE(MatmulPreferenceCreate);
RIVULET_ALIKE(MatmulPreferenceDestroy);
RIVULET_ALIKE(MatmulPreferenceSetAttribute);
RIVULET_ALIKE(MatmulAlgoGetHeuristic);
RIVULET_ALIKE(MatmulAlgoCheck);
RIVULET_ALIKE(MatmulAlgoConfigGetAttribute);
RIVULET_ALIKE(MatmulAlgoCapGetAttribute);
RIVULET_ALIKE(Matmul);

TEST(CudaCublasLtAbiTest, TheRealLibraryHasEveryFunction) {
  const auto library = CublasLt::Open(RIVULET_CUBLASLT_LIBRARY);
  if (library.ok()) return;  // there is a device, too
  EXPECT_THAT(std::string(library.status().message()),
              ::testing::HasSubstr("does not work on this device: cublasLtCreate says"));
}

}  // namespace
}  // namespace rivulet::cublaslt
