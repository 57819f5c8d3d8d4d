// SPDX-License-Identifier: Apache-2.0
#include "model/cpu/cpu_forward.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/embed.h"
#include "kernels/gemm.h"
#include "kernels/layer_norm.h"
#include "kernels/linear_attention.h"
#include "model/cpu/cpu_shares.h"

namespace rivulet {
namespace {

using kernels::Epilogue;
using kernels::PaddedColumns;

}  // namespace

// One thread's view of a pass.
struct CpuForward::Part {
  std::span<const CpuSegment> piece;
  CpuScratch& scratch;
  int thread, threads;
  SpinBarrier& barrier;
  // The rows in work: all token rows, from the middle of the last layer on those whose outputs are
  // wanted.
  int rows;
  float* x;
  float* attention;

  // This thread's panels of y = epilogue(input W + b).
  void Gemm(const CpuMatrix& m, const float* input, int ld_input, float* y, int ldy,
            Epilogue epilogue) const {
    ShareOfProduct(m, input, ld_input, y, ldy, rows, epilogue, thread, threads);
  }

  // This thread's rows of x = LayerNorm(x).
  void Norm(const CpuNorm& norm, const ModelConfig& config) const {
    const IndexRange range = ShareOf(rows, thread, threads);
    kernels::LayerNormArgs args;
    args.y = x + size_t(range.begin) * size_t(scratch.ld_x);
    args.x = args.y;
    args.weight = norm.weight.data();
    args.bias = norm.bias.data();
    args.rows = range.end - range.begin;
    args.n = config.hidden_size;
    args.ld = scratch.ld_x;
    args.eps = config.norm_eps;
    kernels::LayerNormCpu(args);
  }
};

CpuScratch::CpuScratch(const ModelConfig& config, int rows, int threads)
    : max_rows(rows),
      ld_x(PaddedColumns(config.hidden_size)),
      ld_qkv(PaddedColumns(config.num_heads * (2 * config.key_dim + config.value_dim + 1))),
      ld_attention(PaddedColumns(config.num_heads * config.value_dim)),
      ld_ffn(PaddedColumns(config.ffn_size)),
      ld_outputs(PaddedColumns(config.output_size())) {
  // One list, walked twice: to add up the sizes, then to place the arrays.
  const std::pair<float**, int> arrays[] = {{&x, ld_x},
                                            {&qkv, ld_qkv},
                                            {&attention, ld_attention},
                                            {&ffn, ld_ffn},
                                            {&kept_x, ld_x},
                                            {&kept_attention, ld_attention},
                                            {&outputs, ld_outputs}};
  size_t floats = 0;
  for (const auto& array : arrays) floats += size_t(rows) * size_t(array.second);
  memory_ = AlignedBuffer(floats * sizeof(float));
  float* next = memory_.floats();
  for (const auto& array : arrays) {
    *array.first = next;
    next += size_t(rows) * size_t(array.second);
  }
  for (int i = 0; i < threads; ++i) {
    features.emplace_back(kernels::LinearAttentionScratch(config.key_features()) * sizeof(float));
  }
}

CpuForward::CpuForward(const ModelConfig& config, std::unique_ptr<const CpuWeights> weights)
    : config_(config),
      owned_(std::move(weights)),
      weights_(*owned_),
      facts_{weights_.bytes(), weights_.multiply_adds(), weights_.type, weights_.lossless} {}

std::unique_ptr<CpuActivations> CpuForward::NewActivations(int max_rows, int threads) const {
  return std::make_unique<CpuScratch>(config_, max_rows, threads);
}

int TokenRows(std::span<const CpuSegment> piece) {
  size_t rows = 0;
  for (const CpuSegment& s : piece) rows += s.tokens.size();
  return int(rows);
}

int OutputRows(std::span<const CpuSegment> piece) {
  size_t rows = 0;
  for (const CpuSegment& s : piece)
    rows += s.all_outputs ? s.tokens.size() : (s.last_output ? 1 : 0);
  return int(rows);
}

void CpuForward::Embed(const Part& p) const {
  const IndexRange range = ShareOf(p.rows, p.thread, p.threads);
  kernels::EmbedArgs args;
  args.tokens = weights_.embedding.data();
  args.columns = config_.embedding_columns();
  args.ld = p.scratch.ld_x;
  args.concat = config_.encoder().combine == PositionCombine::kConcat;
  std::vector<float> late_position;
  int row = 0;
  for (const CpuSegment& segment : p.piece) {
    for (size_t t = 0; t < segment.tokens.size(); ++t, ++row) {
      if (row < range.begin || row >= range.end) continue;
      if (config_.encoder().position != PositionType::kNone) {
        args.position_columns = args.columns;
        const int64_t position = segment.position + int64_t(t);
        if (position < weights_.position_rows) {
          args.positions = weights_.positions.data() + size_t(position) * size_t(args.columns);
        } else {
          late_position.resize(size_t(args.columns));
          kernels::SinusoidalPosition(position, args.columns, late_position.data());
          args.positions = late_position.data();
        }
      }
      kernels::EmbedCpu(args, segment.tokens[t],
                        p.scratch.x + size_t(row) * size_t(p.scratch.ld_x));
    }
  }
}

// Heads of segments are independent; each thread takes a contiguous share of (segment, head), so
// that a state is touched by one thread and stays in its cache.
void CpuForward::Attention(const Part& p, const CpuLayer& layer, int layer_index) const {
  const kernels::StateLayout layout = config_.state_layout();
  const int heads = config_.num_heads, key_dim = config_.key_dim, value_dim = config_.value_dim;
  const IndexRange range = ShareOf(int(p.piece.size()) * heads, p.thread, p.threads);
  CpuScratch& s = p.scratch;
  kernels::LinearAttentionArgs args;
  args.features = layout.features;
  args.value_dim = value_dim;
  args.ld = size_t(s.ld_qkv);
  args.ld_out = size_t(s.ld_attention);
  args.clamp = config_.encoder().normalizer == Normalizer::kClampMin;
  args.normalizer = config_.encoder().normalizer_value;
  args.scratch = s.features[size_t(p.thread)].floats();
  int row = 0;
  for (int i = 0; i < int(p.piece.size()); ++i) {
    const CpuSegment& segment = p.piece[size_t(i)];
    args.tokens = int(segment.tokens.size());
    const int first = std::max(range.begin - i * heads, 0),
              last = std::min(range.end - i * heads, heads);
    for (int h = first; h < last; ++h) {
      const float* qkv = s.qkv + size_t(row) * args.ld;
      args.map = layer.maps[size_t(h)];
      args.query = qkv + h * key_dim;
      args.key = qkv + (heads + h) * key_dim;
      args.value = qkv + 2 * heads * key_dim + h * value_dim;
      args.gate = config_.encoder().gate == Gate::kRfa ? qkv + heads * (2 * key_dim + value_dim) + h
                                                       : nullptr;
      args.out = s.attention + size_t(row) * args.ld_out + size_t(h * value_dim);
      args.s = segment.state + layout.s_offset(layer_index, h);
      args.z = segment.state + layout.z_offset(layer_index, h);
      const bool last_head = h + 1 == heads;
      const CpuSegment* after = i + 1 < int(p.piece.size()) ? &segment + 1 : nullptr;
      args.next_s = !last_head         ? args.s + layout.s_floats_per_head()
                    : after == nullptr ? nullptr
                                       : after->state + layout.s_offset(layer_index, 0);
      kernels::LinearAttentionCpu(args);
    }
    row += args.tokens;
  }
}

// Post-norm: x = norm1(x + attention(x)); x = norm2(x + linear2(act(linear1(x)))).
void CpuForward::Layer(Part& p, int layer_index) const {
  const CpuLayer& layer = weights_.layers[size_t(layer_index)];
  CpuScratch& s = p.scratch;
  const Epilogue activation =
      config_.encoder().activation == Activation::kGelu ? Epilogue::kGelu : Epilogue::kRelu;
  p.Gemm(layer.qkv, p.x, s.ld_x, s.qkv, s.ld_qkv, Epilogue::kNone);
  p.barrier.Wait();
  Attention(p, layer, layer_index);
  p.barrier.Wait();
  if (layer_index + 1 == config_.num_layers) KeepOutputRows(p);
  if (p.rows == 0) return;
  p.Gemm(layer.out, p.attention, s.ld_attention, p.x, s.ld_x, Epilogue::kResidual);
  p.barrier.Wait();
  p.Norm(layer.norm1, config_);
  p.barrier.Wait();
  p.Gemm(layer.ffn1, p.x, s.ld_x, s.ffn, s.ld_ffn, activation);
  p.barrier.Wait();
  p.Gemm(layer.ffn2, s.ffn, s.ld_ffn, p.x, s.ld_x, Epilogue::kResidual);
  p.barrier.Wait();
  p.Norm(layer.norm2, config_);
  p.barrier.Wait();
}

// After the last state update only the rows whose outputs are wanted matter: one of a whole prompt.
void CpuForward::KeepOutputRows(Part& p) const {
  CpuScratch& s = p.scratch;
  const int outputs = OutputRows(p.piece);
  if (outputs == p.rows) return;
  const IndexRange range = ShareOf(outputs, p.thread, p.threads);
  const auto copy = [&](float* to, const float* from, int ld, int row, int output) {
    std::memcpy(to + size_t(output) * size_t(ld), from + size_t(row) * size_t(ld),
                size_t(ld) * sizeof(float));
  };
  int row = 0, output = 0;
  for (const CpuSegment& segment : p.piece) {
    const size_t last = segment.tokens.size() - 1;
    for (size_t t = 0; t <= last; ++t, ++row) {
      if (!segment.all_outputs && !(segment.last_output && t == last)) continue;
      if (output >= range.begin && output < range.end) {
        copy(s.kept_x, p.x, s.ld_x, row, output);
        copy(s.kept_attention, p.attention, s.ld_attention, row, output);
      }
      ++output;
    }
  }
  p.rows = outputs;
  p.x = s.kept_x;
  p.attention = s.kept_attention;
  p.barrier.Wait();
}

void CpuForward::Head(Part& p) const {
  CpuScratch& s = p.scratch;
  if (p.rows == 0) return;
  if (config_.encoder().final_norm) {
    p.Norm(weights_.final_norm, config_);
    p.barrier.Wait();
  }
  p.Gemm(weights_.head, p.x, s.ld_x, s.outputs, s.ld_outputs, Epilogue::kNone);
  p.barrier.Wait();
}

void CpuForward::Pass(std::span<const CpuSegment> piece, CpuActivations& activations, int thread,
                      int threads, SpinBarrier& barrier) const {
  auto& scratch = static_cast<CpuScratch&>(activations);
  Part part{piece,   scratch,          thread,    threads,
            barrier, TokenRows(piece), scratch.x, scratch.attention};
  Embed(part);
  barrier.Wait();
  for (int i = 0; i < config_.num_layers; ++i) Layer(part, i);
  Head(part);
}

}  // namespace rivulet
