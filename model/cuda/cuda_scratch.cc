// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_scratch.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/attention/linear_attention_cuda.h"
#include "kernels/cuda/gemm/product_rows_cuda.h"
#include "model/base/error.h"
#include "model/cuda/cuda_run_plan.h"

namespace rivulet {
struct CudaScratch::Array {
  float** place;  // null: F16, in half_place
  uint16_t** half_place;
  size_t rows;
  int ld;
  bool prefix;
  size_t bytes() const {
    return rows * size_t(ld) * (place != nullptr ? sizeof(float) : sizeof(uint16_t));
  }
};

std::vector<CudaScratch::Array> CudaScratch::Arrays(const ModelConfig& config,
                                                    const BackendLimits& limits,
                                                    const CudaProductReads& reads, CudaScratch* s) {
  const auto tokens = size_t(limits.max_tokens);
  // A row ends with a line that begins the next one: half of it is the prefix.
  const bool prefix = reads.for_library;
  const int more = prefix ? CudaPadded(kernels::kProductPrefix) : 0;
  s->width_x = CudaPadded(config.hidden_size);
  s->ld_x = s->width_x + more;
  s->ld_attention = CudaPadded(config.num_heads * config.value_dim) + more;
  s->ld_qkv = CudaPadded(config.num_heads * (2 * config.key_dim + config.value_dim + 1));
  // Rows of attention that are gathered for a library lie there.
  if (prefix) s->ld_qkv = std::max(s->ld_qkv, s->ld_attention);
  s->ld_ffn = CudaPadded(config.ffn_size) + more;
  s->ld_features = kernels::AttentionFeatureFloats(config.state_layout());
  std::vector<Array> arrays = {
      {&s->x, nullptr, tokens, s->ld_x, prefix},
      {&s->y, nullptr, tokens, s->ld_x, false},
      {&s->qkv, nullptr, tokens, s->ld_qkv, false},
      {&s->attention, nullptr, tokens, s->ld_attention, prefix},
      {&s->ffn, nullptr, tokens, s->ld_ffn, prefix},
      {nullptr, &s->half, tokens, s->ld_x, prefix},
      {&s->features, nullptr, tokens + tokens / size_t(kCudaLongSegment), s->ld_features, false}};
  // Elsewhere they share memory: a pass has one of the two. But float32 would overwrite prefixes.
  if (prefix && reads.halves) {
    arrays.push_back({nullptr, &s->attention_half, tokens, s->ld_attention, true});
    arrays.push_back({nullptr, &s->ffn_half, tokens, s->ld_ffn, true});
  }
  return arrays;
}

size_t CudaScratch::Bytes(const ModelConfig& config, const BackendLimits& limits,
                          const CudaProductReads& reads) {
  CudaScratch scratch;
  size_t bytes = 0;
  for (const Array& a : Arrays(config, limits, reads, &scratch)) bytes += a.bytes();
  return bytes;
}

// Sets the pointer to column 0, and writes the prefixes before it.
absl::Status CudaScratch::Place(const Array& array, void* memory,
                                const kernels::CudaLaunch& launch) {
  const bool is_half = array.place == nullptr;
  const int skip = array.prefix ? kernels::kProductPrefix : 0;
  if (is_half) *array.half_place = static_cast<uint16_t*>(memory) + skip;
  if (!is_half) *array.place = static_cast<float*>(memory) + skip;
  if (!array.prefix) return absl::OkStatus();
  void* const first = is_half ? static_cast<void*>(*array.half_place) : *array.place;
  return CudaStatus(
      kernels::MarkProductRowsCuda(launch, {first, is_half, array.ld, int(array.rows)}),
      "marking rows");
}

absl::StatusOr<CudaScratch> CudaScratch::Create(const ModelConfig& config,
                                                const BackendLimits& limits,
                                                const CudaProductReads& reads,
                                                const kernels::CudaLaunch& launch) {
  CudaScratch scratch;
  for (const Array& a : Arrays(config, limits, reads, &scratch)) {
    RIVULET_ASSIGN_OR_RETURN(CudaMemory memory, CudaMemory::OnDevice(a.bytes()));
    // Rows of nobody are multiplied, too: with numbers, not with what was there before.
    RIVULET_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(memory.data(), 0, memory.bytes(), launch.stream));
    RIVULET_RETURN_IF_ERROR(scratch.Place(a, memory.data(), launch));
    scratch.memory_.push_back(std::move(memory));
  }
  if (scratch.attention_half == nullptr) {
    scratch.attention_half = reinterpret_cast<uint16_t*>(scratch.attention);
    scratch.ffn_half = reinterpret_cast<uint16_t*>(scratch.ffn);
  }
  return scratch;
}

}  // namespace rivulet
