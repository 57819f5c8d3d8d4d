// SPDX-License-Identifier: Apache-2.0
#include "model/cpu/cpu_network.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/activation.h"
#include "kernels/group_norm.h"
#include "kernels/linear_attention.h"
#include "kernels/quantized.h"
#include "kernels/rms_norm.h"
#include "kernels/sincos.h"
#include "kernels/softmax_attention.h"
#include "model/base/error.h"
#include "model/cpu/cpu_pass.h"

namespace rivulet {
namespace {

using kernels::PaddedColumns;

// Up to this share of inputs that are not 0, skipping the zeros is faster: the hardware reads two
// lines at a time, and whole rows faster than parts (deploy/BENCHMARKS.md).
constexpr double kSparseShare = 0.6;

// y = norm(x) of this thread's rows.
template <class Args>
Args NormOfRows(const CpuPass& p, const NormWeights& norm, const CpuPass::Array& x,
                const CpuPass::Array& y) {
  const IndexRange range = p.RowShare();
  Args args;
  args.x = x.row(range.begin);
  args.y = y.row(range.begin);
  args.weight = norm.weight.data();
  args.x_stride = args.y_stride = size_t(x.ld);
  args.rows = range.end - range.begin;
  args.size = p.config.hidden_size;
  args.eps = p.config.norm_eps;
  return args;
}

void Norm(const CpuPass& p, const NormWeights& norm, const CpuPass::Array& x,
          const CpuPass::Array& y) {
  if (norm.bias.empty()) {
    return kernels::RmsNormCpu(NormOfRows<kernels::RmsNormArgs>(p, norm, x, y));
  }
  auto args = NormOfRows<kernels::GroupNormArgs>(p, norm, x, y);  // of one group: a layer norm
  args.bias = norm.bias.data();
  kernels::GroupNormCpu(args);
}

// The cosines and sines with which the heads of each row are turned, if any.
void FindAngles(const CpuPass& p) {
  const RopeConfig& rope = p.weights.rope;
  const auto half = int(rope.frequencies.size());
  if (half == 0) return;
  p.ForEachToken([&](int row, int32_t, int64_t position) {
    float* const cosines = p.a.rope.row(row);
    for (int i = 0; i < half; ++i) {
      // In double, because positions may be large.
      const double angle = double(position) * rope.frequencies[size_t(i)];
      if (p.encoder != nullptr || p.kind().hybrid) {
        const kernels::SinCos turn(angle);
        cosines[i] = float(turn.cos * rope.factor);
        cosines[half + i] = float(turn.sin * rope.factor);
      } else {  // RetNet keeps the bits of the C library, from before SinCos
        cosines[i] = float(std::cos(angle));
        cosines[half + i] = float(std::sin(angle));
      }
    }
  });
}

// Rows of the embedding, and the angles of their positions where the kind has any.
void Embed(const CpuPass& p) {
  FindAngles(p);
  if (p.encoder != nullptr) return EmbedWithPosition(p);
  const float scale = p.config.block().embedding_multiplier;
  p.ForEachToken([&](int row, int32_t token, int64_t) {
    kernels::UnpackColumn(p.weights.embedding.packed, token, p.x.row(row));
    if (scale != 1) Scale(p.x.row(row), p.x.ld, p.config.hidden_size, 1, scale);
  });
  const Rwkv7Layer* const first = p.weights.layers[0].rwkv7.get();
  if (first == nullptr || first->first_norm.weight.empty()) return;
  Norm(p, first->first_norm, p.x, p.x);
}

void Mix(const CpuPass& p, const LayerWeights& layer, int index) {
  if (layer.attends) return MixSoftmaxHeads(p, layer, index);
  switch (p.kind().mixer) {
    case Mixer::kGated:
      return MixGated(p, layer, index);
    case Mixer::kDelta:
      return MixDelta(p, layer, index);
    case Mixer::kMamba2:
      return MixMamba2(p, layer, index);
    case Mixer::kRwkv7:
      return MixRwkv7(p, layer, index);
    case Mixer::kShortConv:
      return MixShortConv(p, layer, index);
  }
}

// x += ffn(h).
void FeedDense(const CpuPass& p, const LayerWeights& layer) {
  p.Product(layer.up, p.a.h.data, p.a.h.ld, p.a.ffn.data, p.a.ffn.ld, p.rows);
  p.Wait();
  const IndexRange range = p.RowShare();
  float* const ffn = p.a.ffn.row(range.begin);
  const int rows = range.end - range.begin;
  ActivateFfn(p, ffn, p.a.ffn.ld, p.config.ffn_size, rows);
  const float scale = p.config.block().ffn_multiplier;
  if (scale != 1) Scale(ffn, p.a.ffn.ld, p.config.ffn_size, rows, scale);
  p.Wait();
  p.Product(layer.down, p.a.ffn.data, p.a.ffn.ld, p.x.data, p.x.ld, p.rows,
            kernels::Epilogue::kResidual);
}

// x += mix(norm(x)).
void MixLayer(const CpuPass& p, const LayerWeights& layer, int index) {
  Norm(p, layer.norm1, p.x, p.a.h);
  p.Wait();
  if (layer.beside != nullptr) {
    Mix(p, *layer.beside, index);
    p.Product(layer.beside->out, p.o.data, p.o.ld, p.x.data, p.x.ld, p.rows,
              kernels::Epilogue::kResidual);
    p.Wait();
  }
  Mix(p, layer, index);
  p.Product(layer.out, p.o.data, p.o.ld, p.x.data, p.x.ld, p.rows, kernels::Epilogue::kResidual);
  p.Wait();
}

// x += mix(norm(x)); x += ffn(norm(x)). A layer without one of the norms has no such part.
void PreNormLayer(const CpuPass& p, const LayerWeights& layer, int index) {
  if (!layer.norm1.weight.empty()) MixLayer(p, layer, index);
  if (layer.norm2.weight.empty()) return;
  Norm(p, layer.norm2, p.x, p.a.h);
  p.Wait();
  if (layer.experts != nullptr) return FeedExperts(p, layer, index);
  if (p.kind().mixer == Mixer::kRwkv7) {
    FeedRwkv7(p, layer, index);
    p.AddFfn(layer);
  } else {
    FeedDense(p, layer);
  }
  p.Wait();
}

// Kinds "linear" and "softmax": x = norm1(x + attention(x)); x = norm2(x + down(act(up(x)))).
void PostNormLayer(CpuPass& p, const LayerWeights& layer, int index) {
  p.InputProduct(layer, p.x);
  p.Wait();
  p.encoder->softmax ? MixSoftmax(p, index) : MixLinear(p, layer, index);
  p.Wait();
  if (index + 1 == p.config.num_layers) p.KeepOutputRows();
  if (p.rows == 0) return;
  p.Product(layer.out, p.o.data, p.o.ld, p.x.data, p.x.ld, p.rows, kernels::Epilogue::kResidual);
  p.Wait();
  Norm(p, layer.norm1, p.x, p.x);
  p.Wait();
  p.Product(layer.up, p.x.data, p.x.ld, p.a.ffn.data, p.a.ffn.ld, p.rows,
            p.encoder->activation == Activation::kGelu ? kernels::Epilogue::kGelu
                                                       : kernels::Epilogue::kRelu);
  p.Wait();
  p.Product(layer.down, p.a.ffn.data, p.a.ffn.ld, p.x.data, p.x.ld, p.rows,
            kernels::Epilogue::kResidual);
  p.Wait();
  Norm(p, layer.norm2, p.x, p.x);
  p.Wait();
}

// Head outputs of the rows with outputs. `norm`: before the head.
void Head(CpuPass& p, const NormWeights& norm) {
  if (p.rows == 0) return;
  if (!norm.weight.empty()) {
    Norm(p, norm, p.x, p.x);
    p.Wait();
  }
  if (p.thread == 0) p.a.scratch.head_rows = p.x;
  if (p.weights.transform.packed.panels != nullptr) {
    p.Product(p.weights.transform, p.x.data, p.x.ld, p.a.h.data, p.a.h.ld, p.rows,
              kernels::Epilogue::kGelu);
    p.Wait();
    Norm(p, p.weights.transform_norm, p.a.h, p.x);
    p.Wait();
  }
  p.Product(p.weights.Head(), p.x.data, p.x.ld, p.a.outputs.data, p.a.outputs.ld, p.rows);
  p.Wait();
}

}  // namespace

void ActivateFfn(const CpuPass& p, float* ffn, int ld, int columns, int rows) {
  const BlockConfig& block = p.config.block();
  kernels::ActivationArgs args;
  args.rows = rows;
  args.n = columns;
  args.x = args.y = ffn;
  args.x_stride = args.times_stride = args.y_stride = size_t(ld);
  if (block.squared_relu) {
    args.kind = kernels::Activation::kSquaredRelu;
  } else {
    args.kind = kernels::Activation::kSilu;
    args.times = ffn + PaddedColumns(columns);
    if (block.gate_multiplier != 1) Scale(ffn, ld, columns, rows, block.gate_multiplier);
  }
  kernels::ActivationCpu(args);
}

int TokenRows(std::span<const CpuSegment> piece) {
  size_t rows = 0;
  for (const CpuSegment& s : piece) rows += s.tokens.size();
  return int(rows);
}

int OutputRows(std::span<const CpuSegment> piece) {
  size_t rows = 0;
  for (const CpuSegment& s : piece) rows += size_t(s.outputs);
  return int(rows);
}

kernels::GemmArgs CpuPass::ProductArgs(const MatrixWeights& m, const float* input, int ld_input,
                                       float* y, int ldy, int count,
                                       kernels::Epilogue epilogue) const {
  const IndexRange panels = ShareOf(kernels::NumPanels(m.packed.n), thread, threads);
  kernels::GemmArgs args;
  args.w = m.packed;
  args.bias = m.bias.data();
  args.x = input;
  args.y = y;
  args.residual = y;
  args.rows = count;
  args.ldx = ld_input;
  args.ldy = ldy;
  args.epilogue = epilogue;
  args.panel_begin = panels.begin;
  args.panel_end = panels.end;
  return args;
}

void CpuPass::AddFfn(const LayerWeights& layer) const {
  using kernels::Epilogue;
  const kernels::PackedMatrix& w = layer.down.packed;
  if (rows <= kernels::kMostSparseRows && !kernels::IsQuantized(w.type)) {
    std::vector<int32_t>& list = a.scratch.nonzero[size_t(thread)];
    const int count = kernels::FindNonzero(a.ffn.data, rows, a.ffn.ld, w.k, list.data());
    if (double(count) <= kSparseShare * double(w.k)) {
      kernels::GemmArgs args =
          ProductArgs(layer.down, a.ffn.data, a.ffn.ld, x.data, x.ld, rows, Epilogue::kResidual);
      args.nonzero = {list.data(), count};
      return kernels::SparseGemmCpu(args);
    }
  }
  Product(layer.down, a.ffn.data, a.ffn.ld, x.data, x.ld, rows, Epilogue::kResidual);
}

void CpuPass::Product(const MatrixWeights& m, const float* input, int ld_input, float* y, int ldy,
                      int count, kernels::Epilogue epilogue) const {
  const auto is_quantized = [](const MatrixWeights& part) {
    return kernels::IsQuantized(part.packed.type);
  };
  const uint8_t* quantized_rows = nullptr;
  if (is_quantized(m) || std::any_of(m.more.begin(), m.more.end(), is_quantized)) {
    const size_t row = kernels::QuantizedRowLayout(m.packed.k).bytes;
    auto* const all = static_cast<uint8_t*>(a.scratch.quantized[quantized++ % 2].data());
    const IndexRange own = ShareOf(count, thread, threads);
    kernels::QuantizeRowsCpu({input + size_t(own.begin) * size_t(ld_input),
                              all + size_t(own.begin) * row, own.end - own.begin, ld_input,
                              m.packed.k});
    Wait();
    quantized_rows = all;
  }
  const auto multiply = [&](const MatrixWeights& part) {
    kernels::GemmArgs args =
        ProductArgs(part, input, ld_input, y + part.first, ldy, count, epilogue);
    if (thread == 0) a.scratch.matrix_bytes += kernels::PackedSize(args.w.type, args.w.k, args.w.n);
    if (is_quantized(part)) args.quantized_x = quantized_rows;
    kernels::GemmCpu(args);
  };
  multiply(m);
  for (const MatrixWeights& part : m.more) multiply(part);
}

void CpuPass::KeepOutputRows() {
  const int outputs = OutputRows(piece);
  if (outputs == rows) return;
  const IndexRange range = ShareOf(outputs, thread, threads);
  const auto copy = [](const Array& to, int output, const Array& from, int row) {
    std::memcpy(to.row(output), from.row(row), size_t(from.ld) * sizeof(float));
  };
  int row = 0, output = 0;
  for (const CpuSegment& segment : piece) {
    const auto tokens = int(segment.tokens.size());
    for (int t = 0; t < tokens; ++t, ++row) {
      if (t < tokens - segment.outputs) continue;
      if (output >= range.begin && output < range.end) {
        copy(a.kept_x, output, x, row);
        if (a.kept_o.data != nullptr) copy(a.kept_o, output, o, row);
      }
      ++output;
    }
  }
  rows = outputs;
  x = a.kept_x;
  o = a.kept_o;
  Wait();
}

namespace {

// Columns of the arrays of a mixture of experts; 0 without one. expert_in and expert_ffn have
// `chosen` entries a row.
struct ExpertColumns {
  ExpertColumns(const ModelConfig& config, const PackedWeights& weights) {
    const ExpertsConfig* const experts = config.experts();
    if (experts == nullptr) return;
    chosen = experts->router.chosen;
    latent = PaddedColumns(experts->latent_size);
    for (const LayerWeights& layer : weights.layers) {
      if (layer.experts == nullptr) continue;
      scores = PaddedColumns(layer.experts->router.packed.n);
      ffn = chosen * (layer.experts->up.packed.n / experts->router.experts);
      for (const MatrixWeights* m : {&layer.experts->up, &layer.experts->down}) {
        in = std::max(in, PaddedColumns(chosen * int(m->input_row_floats())));
      }
    }
  }
  int chosen = 0, scores = 0, in = 0, ffn = 0, latent = 0;
};

}  // namespace

CpuActivations::CpuActivations(const ModelConfig& c, const PackedWeights& weights,
                               const StateParts& parts, int rows, int threads) {
  const auto* const encoder = std::get_if<EncoderConfig>(&c.network);
  const auto* const block = std::get_if<BlockConfig>(&c.network);
  const BlockKind kind = block == nullptr ? BlockKind() : *block->kind;
  const bool rwkv7 = block != nullptr && kind.mixer == Mixer::kRwkv7,
             mamba2 = block != nullptr && kind.mixer == Mixer::kMamba2,
             swiglu = block != nullptr && !rwkv7;
  const int hidden = PaddedColumns(c.hidden_size),
            keys = PaddedColumns(std::max(c.keys(), c.num_heads)),
            values = PaddedColumns(c.values()),
            ffn_columns = PaddedColumns(
                std::max(c.ffn_size, c.experts() == nullptr ? 0 : c.experts()->shared_size));
  const int queries =
      block != nullptr && block->softmax ? PaddedColumns(block->softmax->queries()) : 0;
  const ExpertColumns columns(c, weights);
  // One list, used twice: to sum the sizes, then to place the arrays.
  const std::pair<Array*, int> arrays[] = {
      {&x, hidden},
      {&h, block != nullptr || encoder->transform ? hidden : 0},
      {&in,
       rwkv7 ? 3 * hidden : PaddedColumns(std::max(weights.columns.n, weights.softmax_columns.n))},
      {&conv, block == nullptr ? 0 : PaddedColumns(block->conv_channels)},
      {&decay, block == nullptr ? 0 : keys},
      {&rate, rwkv7 ? keys : 0},
      {&gate, rwkv7 || kind.low_rank_gate ? values : 0},
      {&low, weights.columns.low_rank},
      {&value, rwkv7 || mamba2 ? values : 0},
      {&first, rwkv7 ? values : 0},
      {&removal, rwkv7 ? 2 * c.keys() : 0},
      {&o, std::max({values, queries, block == nullptr ? 0 : hidden})},
      {&mix, rwkv7 ? 6 * hidden : 0},
      {&ffn, swiglu ? 2 * ffn_columns : ffn_columns},
      {&rope, PaddedColumns(2 * int(weights.rope.frequencies.size()))},
      {&scratch.experts.scores, columns.scores},
      {&scratch.experts.in, columns.in},
      {&scratch.experts.ffn, columns.ffn},
      {&scratch.experts.latent, columns.latent},
      {&scratch.experts.latent_sum, columns.latent},
      {&scratch.pairs, weights.predictor == nullptr ? 0 : PaddedColumns(2 * c.hidden_size)},
      {&kept_x, hidden},
      {&kept_o, encoder == nullptr ? 0 : values},
      {&outputs, PaddedColumns(c.output_size())}};
  size_t floats = 0;
  for (const auto& [array, ld] : arrays) floats += size_t(rows) * size_t(ld);
  memory_ = AlignedBuffer(floats * sizeof(float));
  float* next = memory_.floats();
  for (const auto& [array, ld] : arrays) {
    if (ld > 0) *array = {next, ld};
    next += size_t(rows) * size_t(ld);
  }
  if (rwkv7) scratch.nonzero.assign(size_t(threads), std::vector<int32_t>(size_t(c.ffn_size)));
  if (weights.facts.widest_quantized > 0) {
    const kernels::QuantizedRowLayout row(weights.facts.widest_quantized);
    for (AlignedBuffer& buffer : scratch.quantized)
      buffer = AlignedBuffer(size_t(rows) * row.bytes);
  }
  if (columns.chosen > 0) {
    scratch.experts.lists.resize(size_t(threads));
    scratch.experts.routers.resize(size_t(threads));
    scratch.experts.chosen.resize(size_t(rows * columns.chosen));
    scratch.experts.weights.resize(scratch.experts.chosen.size());
  }
  const std::optional<AttentionPart>& kept = parts.attention;
  const int query_heads = queries > 0 ? block->softmax->num_heads : c.num_heads;
  const size_t attention =
      kept ? kernels::SoftmaxAttentionScratch(query_heads / kept->heads, kept->key_dim,
                                              kept->value_dim, kept->type)
      : encoder != nullptr ? kernels::LinearAttentionScratch(c.key_features())
                           : 0;
  for (int i = 0; attention > 0 && i < threads; ++i) {
    scratch.attention.emplace_back(attention * sizeof(float));
  }
  if (queries > 0 && kept->heads < threads) {
    const int most = (threads - 1) / kept->heads * kept->heads;
    scratch.parts =
        AlignedBuffer(size_t(most) * SharedPartFloats(query_heads / kept->heads, kept->value_dim) *
                      sizeof(float));
  }
}

CpuNetwork::CpuNetwork(const ModelConfig& config, kernels::CacheType cache,
                       std::unique_ptr<const PackedWeights> weights)
    : config_(config),
      parts_(config.WithCache(cache).state()),
      state_(std::holds_alternative<BlockConfig>(config.network) ? BlockState(parts_)
                                                                 : BlockState()),
      weights_(std::move(weights)),
      predictor_parts_(weights_->predictor == nullptr
                           ? std::nullopt
                           : std::optional(StateParts(*parts_.attention))) {}

absl::StatusOr<std::unique_ptr<CpuNetwork>> CpuNetwork::Load(const Model& model,
                                                             const WeightChoice& choice,
                                                             kernels::CacheType cache,
                                                             bool predict) {
  RIVULET_ASSIGN_OR_RETURN(std::unique_ptr<const PackedWeights> weights,
                           PackedWeights::Load(model, choice, predict));
  return std::unique_ptr<CpuNetwork>(new CpuNetwork(model.config(), cache, std::move(weights)));
}

std::unique_ptr<CpuActivations> CpuNetwork::NewActivations(int max_rows, int threads) const {
  return std::make_unique<CpuActivations>(config_, *weights_, parts_, max_rows, threads);
}

std::unique_ptr<CpuReplay> CpuNetwork::NewReplay(int max_tokens, int threads) const {
  return std::make_unique<CpuReplay>(config_, parts_, max_tokens, threads);
}

void CpuNetwork::Pass(std::span<const CpuSegment> piece, CpuActivations& activations, int thread,
                      int threads, SpinBarrier& barrier) const {
  const auto* const encoder = std::get_if<EncoderConfig>(&config_.network);
  CpuPass pass{config_,       encoder,      state_, parts_,  *weights_, weights_->columns,
               piece,         activations,  thread, threads, barrier,   TokenRows(piece),
               activations.x, activations.o};
  pass.expert_load = expert_load_.get();
  Embed(pass);
  pass.Wait();
  for (int i = 0; i < config_.num_layers; ++i) {
    const LayerWeights& layer = weights_->layers[size_t(i)];
    encoder != nullptr ? PostNormLayer(pass, layer, i) : PreNormLayer(pass, layer, i);
  }
  if (encoder == nullptr) pass.KeepOutputRows();
  Head(pass, weights_->final_norm);
}

void CpuNetwork::Predict(std::span<const CpuSegment> piece, const float* hidden,
                         CpuActivations& activations, int thread, int threads,
                         SpinBarrier& barrier) const {
  CpuPass pass{config_,       nullptr,      state_, *predictor_parts_, *weights_, weights_->columns,
               piece,         activations,  thread, threads,           barrier,   TokenRows(piece),
               activations.x, activations.o};
  const PredictorWeights& own = *weights_->predictor;
  const auto n = size_t(config_.hidden_size);
  const CpuArray first = activations.scratch.pairs, second = {first.data + n, first.ld};
  FindAngles(pass);
  pass.ForEachToken([&](int row, int32_t token, int64_t) {
    kernels::UnpackColumn(weights_->embedding.packed, token, first.row(row));
    std::copy_n(hidden + size_t(row) * n, n, second.row(row));
  });
  Norm(pass, own.embedding_norm, first, first);
  Norm(pass, own.hidden_norm, second, second);
  pass.Wait();
  pass.Product(own.fc, first.data, first.ld, pass.x.data, pass.x.ld, pass.rows);
  pass.Wait();
  PreNormLayer(pass, own.layer, 0);
  pass.KeepOutputRows();
  Head(pass, own.norm);
}

}  // namespace rivulet
