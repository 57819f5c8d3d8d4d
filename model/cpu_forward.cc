// SPDX-License-Identifier: Apache-2.0
#include "model/cpu_forward.h"

#include <algorithm>
#include <cstring>

#include "kernels/embed.h"
#include "kernels/gemm.h"
#include "kernels/layer_norm.h"
#include "kernels/linear_attention.h"

namespace rivulet {
namespace {

using kernels::Epilogue;
using kernels::PaddedColumns;

struct Range {
  int begin, end;
};

// Share of `thread` in 0 .. n - 1, contiguous.
Range Share(int n, int thread, int threads) {
  return {int(int64_t{n} * thread / threads), int(int64_t{n} * (thread + 1) / threads)};
}

}  // namespace

// One thread's view of a pass.
struct CpuForward::Part {
  std::span<const CpuSegment> piece;
  CpuScratch& scratch;
  int rows, thread, threads;
  SpinBarrier& barrier;

  // This thread's panels of y = epilogue(x W + b) over `rows` rows.
  void Gemm(const CpuMatrix& m, const float* x, int ldx, float* y, int ldy, int gemm_rows,
            Epilogue epilogue) const {
    const Range panels = Share(kernels::NumPanels(m.packed.n), thread, threads);
    kernels::GemmArgs args;
    args.w = m.packed;
    args.bias = m.bias.data();
    args.x = x;
    args.y = y;
    args.residual = y;
    args.rows = gemm_rows;
    args.ldx = ldx;
    args.ldy = ldy;
    args.epilogue = epilogue;
    args.panel_begin = panels.begin;
    args.panel_end = panels.end;
    kernels::GemmCpu(args);
  }

  // This thread's rows of y = LayerNorm(x).
  void Norm(const CpuNorm& norm, float eps, const float* x, float* y, int norm_rows, int n,
            int ld) const {
    const Range range = Share(norm_rows, thread, threads);
    kernels::LayerNormArgs args;
    args.x = x + size_t(range.begin) * size_t(ld);
    args.y = y + size_t(range.begin) * size_t(ld);
    args.weight = norm.weight.data();
    args.bias = norm.bias.data();
    args.rows = range.end - range.begin;
    args.n = n;
    args.ld = ld;
    args.eps = eps;
    kernels::LayerNormCpu(args);
  }
};

CpuScratch::CpuScratch(const ModelConfig& config, int rows)
    : max_rows(rows),
      ld_x(PaddedColumns(config.hidden_size)),
      ld_qkv(PaddedColumns(config.num_heads * (2 * config.key_dim + config.value_dim + 1))),
      ld_attention(PaddedColumns(config.num_heads * config.value_dim)),
      ld_ffn(PaddedColumns(config.ffn_size)),
      ld_outputs(PaddedColumns(config.output_size())) {
  const size_t n = size_t(rows);
  const size_t floats = n * (2 * size_t(ld_x) + size_t(ld_qkv) + size_t(ld_attention) +
                             size_t(ld_ffn) + size_t(ld_outputs));
  memory_ = AlignedBuffer(floats * sizeof(float));
  x = memory_.floats();
  qkv = x + n * size_t(ld_x);
  attention = qkv + n * size_t(ld_qkv);
  ffn = attention + n * size_t(ld_attention);
  gathered = ffn + n * size_t(ld_ffn);
  outputs = gathered + n * size_t(ld_x);
}

int CpuForward::TokenRows(std::span<const CpuSegment> piece) {
  size_t rows = 0;
  for (const CpuSegment& s : piece) rows += s.tokens.size();
  return int(rows);
}

int CpuForward::OutputRows(std::span<const CpuSegment> piece) {
  size_t rows = 0;
  for (const CpuSegment& s : piece)
    rows += s.all_outputs ? s.tokens.size() : (s.last_output ? 1 : 0);
  return int(rows);
}

void CpuForward::Embed(const Part& p) const {
  const Range range = Share(p.rows, p.thread, p.threads);
  kernels::EmbedArgs args;
  args.tokens = weights_.embedding.data();
  args.columns = config_.embedding_columns();
  args.ld = p.scratch.ld_x;
  args.concat = config_.position.combine == PositionCombine::kConcat;
  std::vector<float> late_position;
  int row = 0;
  for (const CpuSegment& segment : p.piece) {
    for (size_t t = 0; t < segment.tokens.size(); ++t, ++row) {
      if (row < range.begin || row >= range.end) continue;
      if (config_.position.type != PositionType::kNone) {
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
  const Range range = Share(int(p.piece.size()) * heads, p.thread, p.threads);
  CpuScratch& s = p.scratch;
  kernels::LinearAttentionArgs args;
  args.features = layout.features;
  args.value_dim = value_dim;
  args.ld = size_t(s.ld_qkv);
  args.ld_out = size_t(s.ld_attention);
  args.clamp = config_.normalizer == Normalizer::kClampMin;
  args.normalizer = config_.normalizer_value;
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
      args.gate =
          config_.gate == Gate::kRfa ? qkv + heads * (2 * key_dim + value_dim) + h : nullptr;
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
void CpuForward::Layer(const Part& p, int layer_index) const {
  const CpuLayer& layer = weights_.layers[size_t(layer_index)];
  CpuScratch& s = p.scratch;
  const int hidden = config_.hidden_size;
  const float eps = config_.layer_norm_eps;
  const Epilogue activation =
      config_.activation == Activation::kGelu ? Epilogue::kGelu : Epilogue::kRelu;
  p.Gemm(layer.qkv, s.x, s.ld_x, s.qkv, s.ld_qkv, p.rows, Epilogue::kNone);
  p.barrier.Wait();
  Attention(p, layer, layer_index);
  p.barrier.Wait();
  p.Gemm(layer.out, s.attention, s.ld_attention, s.x, s.ld_x, p.rows, Epilogue::kResidual);
  p.barrier.Wait();
  p.Norm(layer.norm1, eps, s.x, s.x, p.rows, hidden, s.ld_x);
  p.barrier.Wait();
  p.Gemm(layer.ffn1, s.x, s.ld_x, s.ffn, s.ld_ffn, p.rows, activation);
  p.barrier.Wait();
  p.Gemm(layer.ffn2, s.ffn, s.ld_ffn, s.x, s.ld_x, p.rows, Epilogue::kResidual);
  p.barrier.Wait();
  p.Norm(layer.norm2, eps, s.x, s.x, p.rows, hidden, s.ld_x);
  p.barrier.Wait();
}

// Gathers the rows that want outputs, then final norm and head over them alone.
void CpuForward::Head(const Part& p) const {
  CpuScratch& s = p.scratch;
  const int outputs = OutputRows(p.piece);
  if (outputs == 0) return;
  const Range range = Share(outputs, p.thread, p.threads);
  int row = 0, output = 0;
  for (const CpuSegment& segment : p.piece) {
    const size_t last = segment.tokens.size() - 1;
    for (size_t t = 0; t <= last; ++t, ++row) {
      if (!segment.all_outputs && !(segment.last_output && t == last)) continue;
      if (output >= range.begin && output < range.end) {
        std::memcpy(s.gathered + size_t(output) * size_t(s.ld_x),
                    s.x + size_t(row) * size_t(s.ld_x), size_t(s.ld_x) * sizeof(float));
      }
      ++output;
    }
  }
  if (config_.final_norm) {
    p.Norm(weights_.final_norm, config_.layer_norm_eps, s.gathered, s.gathered, outputs,
           config_.hidden_size, s.ld_x);
  }
  p.barrier.Wait();
  p.Gemm(weights_.head, s.gathered, s.ld_x, s.outputs, s.ld_outputs, outputs, Epilogue::kNone);
  p.barrier.Wait();
}

void CpuForward::Pass(std::span<const CpuSegment> piece, CpuScratch& scratch, int thread,
                      int threads, SpinBarrier& barrier) const {
  const Part part{piece, scratch, TokenRows(piece), thread, threads, barrier};
  Embed(part);
  barrier.Wait();
  for (int i = 0; i < config_.num_layers; ++i) Layer(part, i);
  Head(part);
}

}  // namespace rivulet
