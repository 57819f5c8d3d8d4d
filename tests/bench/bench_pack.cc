// SPDX-License-Identifier: Apache-2.0
// Packing weights for a GPU on one core, from memory to memory: bytes of the host's weights a
// second, by their type and that of the device.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "kernels/cuda_packing.h"

namespace rivulet::kernels {
namespace {

void BM_Pack(benchmark::State& state, WeightType from, WeightType to) {
  constexpr int kK = 4096, kN = 8192;  // more than caches hold
  const size_t bytes = PackedSize(from, kK, kN);
  std::vector<float> panels(bytes / sizeof(float)), column(kK);
  for (int i = 0; i < kK; ++i) column[size_t(i)] = float(i % 255 - 127) / 1024;
  for (int n = 0; n < kN; ++n) {
    if (!PackWeights(from, column.data(), 1, kK, n, panels.data())) {
      state.SkipWithError("the weights do not fit");
      return;
    }
  }
  std::vector<uint8_t> packed(CudaPackedSize(to, kK, kN));
  for (auto _ : state) {
    bool fits = PackForCuda(to, {from, kK, kN, panels.data()}, 0, kN, 0, packed.data());
    benchmark::DoNotOptimize(fits);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * int64_t(bytes));
}
BENCHMARK_CAPTURE(BM_Pack, f16, WeightType::kF16, WeightType::kF16)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Pack, bf16, WeightType::kBF16, WeightType::kF16)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Pack, f32, WeightType::kF32, WeightType::kF32)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Pack, int8, WeightType::kInt8, WeightType::kInt8)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace rivulet::kernels

BENCHMARK_MAIN();
