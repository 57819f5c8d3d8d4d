// SPDX-License-Identifier: Apache-2.0
// The inline sampling mathematics of kernels/ compiled for the GPU, against the same lines on the
// host: Philox bit for bit, likelihoods within float32, draws equal except for the few that an ulp
// of expf moves over an edge.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "kernels/categorical.h"
#include "kernels/mixture_of_logistics.h"
#include "kernels/philox.h"
#include "tests/support/cuda_on_device.h"

namespace rivulet::kernels {
namespace {

constexpr int kMixtures = 10, kLevels = 256, kVocab = 65, kDraws = 1 << 16;

struct Results {
  uint32_t philox[kDraws];
  int32_t level[kDraws], token[kDraws];
  float log_prob[kLevels];
};

// One draw of everything; host and device run these lines.
__host__ __device__ void Draw(int i, const float* head, const float* logits, Results* out) {
  const PhiloxWords words = DrawWords(42, static_cast<uint64_t>(i), 1, 0);
  out->philox[i] = words.word[0] ^ words.word[1] ^ words.word[2] ^ words.word[3];
  out->level[i] = SampleMixture({kMixtures, kLevels, false, -1}, head, 1.0f, words);
  float scratch[kVocab];
  for (int j = 0; j < kVocab; ++j) scratch[j] = logits[j];
  CategoricalParams params;
  params.temperature = 0.8f;
  params.top_k = 40;
  params.top_p = 0.9f;
  params.min_p = 0.01f;
  out->token[i] = SampleCategorical(params, scratch, kVocab, words);
  if (i < kLevels) out->log_prob[i] = MixtureLogProb({kMixtures, kLevels, false, -1}, head, i);
}

__global__ void DrawAll(const float* head, const float* logits, Results* out) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < kDraws) Draw(i, head, logits, out);
}

int Fail(const char* what, cudaError_t error) {
  fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  return 1;
}

int Compare(const Results& host, const Results& device) {
  int philox = 0, levels = 0, tokens = 0;
  double worst = 0;
  for (int i = 0; i < kDraws; ++i) {
    philox += host.philox[i] != device.philox[i];
    levels += host.level[i] != device.level[i];
    tokens += host.token[i] != device.token[i];
  }
  for (int i = 0; i < kLevels; ++i) {
    worst = fmax(worst, fabs(static_cast<double>(host.log_prob[i] - device.log_prob[i])));
  }
  printf(
      "philox differences %d, levels %d, tokens %d of %d draws; worst log-likelihood error %.2g\n",
      philox, levels, tokens, kDraws, worst);
  const bool good = philox == 0 && levels < kDraws / 1000 && tokens < kDraws / 1000 && worst < 1e-3;
  return good ? 0 : 1;
}

int Main() {
  if (const int code = rivulet::testing::ExitCodeWithoutDevice(); code != 0) return code;
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> inputs(3 * kMixtures + kVocab);
  for (float& v : inputs) v = uniform(random);
  for (int k = 0; k < kMixtures; ++k)
    inputs[static_cast<size_t>(2 * kMixtures + k)] -= 3;  // narrow components
  float* device_inputs = nullptr;
  Results* device_results = nullptr;
  if (auto e = cudaMalloc(&device_inputs, inputs.size() * sizeof(float)))
    return Fail("cudaMalloc", e);
  if (auto e = cudaMalloc(&device_results, sizeof(Results))) return Fail("cudaMalloc", e);
  if (auto e = cudaMemcpy(device_inputs, inputs.data(), inputs.size() * sizeof(float),
                          cudaMemcpyHostToDevice)) {
    return Fail("cudaMemcpy", e);
  }
  DrawAll<<<(kDraws + 127) / 128, 128>>>(device_inputs, device_inputs + 3 * kMixtures,
                                         device_results);
  if (auto e = cudaGetLastError()) return Fail("launch", e);
  std::vector<Results> host(1), device(1);
  if (auto e = cudaMemcpy(device.data(), device_results, sizeof(Results), cudaMemcpyDeviceToHost)) {
    return Fail("cudaMemcpy", e);
  }
  for (int i = 0; i < kDraws; ++i) Draw(i, inputs.data(), inputs.data() + 3 * kMixtures, &host[0]);
  cudaFree(device_inputs);
  cudaFree(device_results);
  return Compare(host[0], device[0]);
}

}  // namespace
}  // namespace rivulet::kernels

int main() { return rivulet::kernels::Main(); }
