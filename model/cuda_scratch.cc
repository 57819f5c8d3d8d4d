// SPDX-License-Identifier: Apache-2.0
#include "model/cuda_scratch.h"

#include <algorithm>
#include <utility>

#include "kernels/linear_attention_cuda.h"
#include "model/base/error.h"
#include "model/cuda_run_plan.h"

namespace rivulet {
namespace {

// Head outputs of one piece: about 32 MiB, but enough rows to fill a GPU.
constexpr size_t kHeadFloats = size_t{8} << 20;
constexpr size_t kLeastHeadRows = 128;

// Rows begin on cache lines.
int Padded(int n) { return (n + 31) / 32 * 32; }

}  // namespace

struct CudaScratch::Array {
  float** place;
  size_t rows;
  int ld;
};

std::vector<CudaScratch::Array> CudaScratch::Arrays(const ModelConfig& config,
                                                    const BackendLimits& limits, int head,
                                                    CudaScratch* s) {
  s->ld_x = Padded(config.hidden_size);
  s->ld_qkv = Padded(config.num_heads * (2 * config.key_dim + config.value_dim + 1));
  s->ld_attention = Padded(config.num_heads * config.value_dim);
  s->ld_ffn = Padded(config.ffn_size);
  s->ld_features = kernels::AttentionFeatureFloats(config.state_layout());
  s->ld_outputs = Padded(config.output_size());
  s->ld_adjusted = Padded(config.num_output_tokens());
  const auto tokens = size_t(limits.max_tokens);
  const auto widest = size_t(std::max(s->ld_outputs, s->ld_adjusted));
  s->head_rows = int(
      std::min(tokens, head > 0 ? size_t(head) : std::max(kLeastHeadRows, kHeadFloats / widest)));
  const auto head_rows = size_t(s->head_rows);
  return {{&s->x, tokens, s->ld_x},
          {&s->y, tokens, s->ld_x},
          {&s->qkv, tokens, s->ld_qkv},
          {&s->attention, tokens, s->ld_attention},
          {&s->ffn, tokens, s->ld_ffn},
          {&s->half, tokens, s->ld_x / 2},
          {&s->features, tokens + tokens / size_t(kCudaLongSegment), s->ld_features},
          {&s->outputs, head_rows, s->ld_outputs},
          {&s->adjusted, head_rows, s->ld_adjusted}};
}

size_t CudaScratch::Bytes(const ModelConfig& config, const BackendLimits& limits, int head) {
  CudaScratch scratch;
  size_t bytes = 0;
  for (const Array& a : Arrays(config, limits, head, &scratch)) {
    bytes += a.rows * size_t(a.ld) * sizeof(float);
  }
  return bytes;
}

absl::StatusOr<CudaScratch> CudaScratch::Create(const ModelConfig& config,
                                                const BackendLimits& limits, int head,
                                                cudaStream_t stream) {
  CudaScratch scratch;
  for (const Array& a : Arrays(config, limits, head, &scratch)) {
    RIVULET_ASSIGN_OR_RETURN(CudaMemory memory,
                             CudaMemory::OnDevice(a.rows * size_t(a.ld) * sizeof(float)));
    *a.place = static_cast<float*>(memory.data());
    // Rows of nobody are multiplied, too: with numbers, not with what was there before.
    RIVULET_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(memory.data(), 0, memory.bytes(), stream));
    scratch.memory_.push_back(std::move(memory));
  }
  return scratch;
}

}  // namespace rivulet
