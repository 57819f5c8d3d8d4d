// SPDX-License-Identifier: Apache-2.0
// A step's chain of kernels, replayed many times: launched one by one, with programmatic dependent
// launch, as a graph, and as a graph of dependent launches. Each replay goes on from what the one
// before left behind, so one early read anywhere changes the bits at the end.
#include "kernels/cuda/attention/linear_attention_cuda.h"
#include "kernels/cuda/gemm/gemm_cuda.h"
#include "kernels/cuda/rows/layer_norm_cuda.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/cuda_attention_case.h"
#include "tests/support/cuda_matrix.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels::cuda_chain_test {
namespace {

#if defined(RIVULET_CUDA_EMULATED)
constexpr int kReplays = 4;
#else
constexpr int kReplays = 1000;
#endif
constexpr int kRows = 16, kHeads = 8, kDim = 32, kHidden = kHeads * kDim, kQkv = 3 * kHidden;

std::vector<CudaSegment> OneTokenEach() {
  std::vector<CudaSegment> segments;
  for (int i = 0; i < kRows; ++i) segments.push_back({i, i, 1, i});
  return segments;
}

// x -> norm, qkv -> attention -> out + residual -> norm -> x
class Chain {
 public:
  Chain()
      : attention_({FeatureMapKind::kElu, kHeads, kDim, kDim, 0, false, 5}, kRows),
        qkv_(WeightType::kF16, kHidden, kQkv, 1, 0.1f),
        out_(WeightType::kF16, kHidden, kHidden, 2, 0.1f),
        ones_(std::vector<float>(kHidden, 1)),
        zeros_(std::vector<float>(kHidden, 0)),
        segments_(OneTokenEach()),
        omega_(attention_.omega),
        states_(StatesOf(attention_, kRows)),
        x_(RandomFloats(size_t{kRows} * kHidden, 4)),
        normed_(size_t{kRows} * kHidden),
        y_(size_t{kRows} * kHidden),
        queries_(size_t(kRows * attention_.ld)),
        attended_(size_t(kRows * attention_.LdOut())) {}

  void Launch(const CudaLaunch& launch) {
    CudaGemmArgs qkv;
    qkv.w = qkv_.device();
    qkv.a = x_.data();
    qkv.out = queries_.data();
    qkv.rows = kRows;
    qkv.lda = qkv.ld_norm_out = kHidden;
    qkv.ld_out = attention_.ld;
    qkv.norm_weight = ones_.data();
    qkv.norm_bias = zeros_.data();
    qkv.norm_out = normed_.data();
    qkv.norm_eps = 1e-5f;
    RIVULET_EXPECT_CUDA(GemmCuda(launch, qkv));
    CudaAttentionArgs args =
        CudaArgsOf(attention_, segments_, queries_, omega_, states_, attended_);
    args.rows = kRows;
    RIVULET_EXPECT_CUDA(AttentionCuda(launch, args));
    CudaGemmArgs out;
    out.w = out_.device();
    out.a = attended_.data();
    out.residual = normed_.data();
    out.out = y_.data();
    out.rows = kRows;
    out.lda = attention_.LdOut();
    out.ld_residual = out.ld_out = kHidden;
    out.epilogue = Epilogue::kResidual;
    RIVULET_EXPECT_CUDA(GemmCuda(launch, out));
    RIVULET_EXPECT_CUDA(LayerNormCuda(launch, {y_.data(), x_.data(), ones_.data(), zeros_.data(),
                                               kRows, kHidden, kHidden, 1e-5f}));
  }
  // x, then the states.
  std::vector<float> Left() const {
    std::vector<float> all = x_.Copy();
    const std::vector<float> states = states_.Copy();
    all.insert(all.end(), states.begin(), states.end());
    return all;
  }

 private:
  AttentionCase attention_;
  DeviceMatrix qkv_, out_;
  DeviceArray<float> ones_, zeros_;
  DeviceArray<CudaSegment> segments_;
  DeviceArray<float> omega_, states_, x_, normed_, y_, queries_, attended_;
};

std::vector<float> Replayed(bool overlap, bool graph) {
#if defined(RIVULET_CUDA_EMULATED)
  rivulet::cuda_emulator::Reset();
#endif
  CudaLaunch launch;
  launch.overlap = overlap;
  RIVULET_EXPECT_CUDA(cudaStreamCreateWithFlags(&launch.stream, cudaStreamNonBlocking));
  RIVULET_EXPECT_CUDA(
      cudaDeviceGetAttribute(&launch.multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  Chain chain;
  if (graph) {
    cudaGraph_t captured = nullptr;
    cudaGraphExec_t exec = nullptr;
    RIVULET_EXPECT_CUDA(cudaStreamBeginCapture(launch.stream, cudaStreamCaptureModeRelaxed));
    chain.Launch(launch);
    RIVULET_EXPECT_CUDA(cudaStreamEndCapture(launch.stream, &captured));
    RIVULET_EXPECT_CUDA(cudaGraphInstantiate(&exec, captured, 0));
    for (int i = 0; i < kReplays; ++i) RIVULET_EXPECT_CUDA(cudaGraphLaunch(exec, launch.stream));
    RIVULET_EXPECT_CUDA(cudaStreamSynchronize(launch.stream));
    RIVULET_EXPECT_CUDA(cudaGraphExecDestroy(exec));
    RIVULET_EXPECT_CUDA(cudaGraphDestroy(captured));
  } else {
    for (int i = 0; i < kReplays; ++i) chain.Launch(launch);
  }
  RIVULET_EXPECT_CUDA(cudaStreamSynchronize(launch.stream));
  RIVULET_EXPECT_CUDA(cudaStreamDestroy(launch.stream));
  return chain.Left();
}

// Each waits for the device after every chain: nothing can come too early.
class CudaChainTest : public ::testing::Test {
 protected:
  static void ExpectBits(bool overlap, bool graph) {
    int major = 0;
    RIVULET_EXPECT_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (overlap && major < 9) GTEST_SKIP() << "no programmatic dependent launch on this device";
    Chain alone;
    CudaLaunch launch;
    RIVULET_EXPECT_CUDA(
        cudaDeviceGetAttribute(&launch.multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    RIVULET_EXPECT_CUDA(cudaStreamCreateWithFlags(&launch.stream, cudaStreamNonBlocking));
    for (int i = 0; i < kReplays; ++i) {
      alone.Launch(launch);
      RIVULET_EXPECT_CUDA(cudaStreamSynchronize(launch.stream));
    }
    RIVULET_EXPECT_CUDA(cudaStreamDestroy(launch.stream));
    const std::vector<float> expected = alone.Left();
    for (const float v : expected) ASSERT_TRUE(std::isfinite(v));
    EXPECT_TRUE(SameBits(Replayed(overlap, graph), expected)) << kReplays << " replays";
  }
};

TEST_F(CudaChainTest, LaunchedOneByOne) { ExpectBits(false, false); }
TEST_F(CudaChainTest, WithDependentLaunch) { ExpectBits(true, false); }
TEST_F(CudaChainTest, AsAGraph) { ExpectBits(false, true); }
TEST_F(CudaChainTest, AsAGraphOfDependentLaunches) { ExpectBits(true, true); }

}  // namespace
}  // namespace rivulet::kernels::cuda_chain_test
