// SPDX-License-Identifier: Apache-2.0
// RWKV-7's mixer and feed-forward. Equations: model/cpu/cpu_rwkv7.cc, kernels/mixer_rows.h.
#include "kernels/cuda/blocks/mixer_rows_cuda.h"
#include "kernels/gemm.h"
#include "model/cuda/cuda_block_pass.h"

namespace rivulet {
namespace {

using kernels::PaddedColumns;

enum MixRow { kMixR, kMixW, kMixK, kMixV, kMixA, kMixG };

// Where r, k, v lie in `in`, and the first halves of the low-rank products in `low`.
struct Columns {
  Columns(const ModelConfig& c, const CudaRwkv7Layer& own)
      : k(PaddedColumns(c.hidden_size)),
        v(2 * k),
        a(PaddedColumns(own.w.first.n)),
        g(a + PaddedColumns(own.a.first.n)),
        v_mix(g + PaddedColumns(own.g.first.n)) {}
  int k, v, a, g, v_mix;
};

// All products of the six mixes.
absl::Status Project(const CudaBlockPass& p, const CudaRwkv7Layer& own, const Columns& at,
                     bool with_v_mix) {
  const auto product = [&](const CudaWeightMatrix& m, MixRow mix, const CudaBlockPass::Array& y,
                           int column) {
    return p.Product(m, p.a.mix.data + mix * p.a.h.ld, p.a.mix.ld, y.data + column, y.ld);
  };
  RIVULET_RETURN_IF_ERROR(product(own.r, kMixR, p.a.in, 0));
  RIVULET_RETURN_IF_ERROR(product(own.k, kMixK, p.a.in, at.k));
  RIVULET_RETURN_IF_ERROR(product(own.v, kMixV, p.a.in, at.v));
  RIVULET_RETURN_IF_ERROR(product(own.w.first, kMixW, p.a.low, 0));
  RIVULET_RETURN_IF_ERROR(product(own.a.first, kMixA, p.a.low, at.a));
  RIVULET_RETURN_IF_ERROR(product(own.g.first, kMixG, p.a.low, at.g));
  if (with_v_mix) RIVULET_RETURN_IF_ERROR(product(own.v_mix.first, kMixV, p.a.low, at.v_mix));
  float* const low = p.a.low.data;
  const int ld = p.a.low.ld;
  RIVULET_RETURN_IF_ERROR(p.Activate(kernels::Activation::kTanh, low, ld, own.w.first.n));
  RIVULET_RETURN_IF_ERROR(p.Activate(kernels::Activation::kSigmoid, low + at.g, ld, own.g.first.n));
  const auto second = [&](const CudaLowRank& lora, int column, const CudaBlockPass::Array& y) {
    return p.Product(lora.second, low + column, ld, y.data, y.ld);
  };
  RIVULET_RETURN_IF_ERROR(second(own.w, 0, p.a.decay));
  RIVULET_RETURN_IF_ERROR(second(own.a, at.a, p.a.rate));
  RIVULET_RETURN_IF_ERROR(second(own.g, at.g, p.a.gate));
  return with_v_mix ? second(own.v_mix, at.v_mix, p.a.value) : absl::OkStatus();
}

// w, kk, -kk alpha, k and v of the state update.
absl::Status PrepareHeads(const CudaBlockPass& p, const CudaLayer& layer, const Columns& at,
                          bool with_v_mix) {
  kernels::Rwkv7HeadsArgs args;
  args.k = p.a.in.data + at.k;
  args.v = p.a.in.data + at.v;
  args.w = p.a.decay.data;
  args.rate = p.a.rate.data;
  args.v_mix = with_v_mix ? p.a.value.data : nullptr;
  args.first = p.a.first.data;
  args.kk = p.a.kk.data;
  args.minus = p.a.minus.data;
  args.k_k = layer.rwkv7.k_k;
  args.k_a = layer.rwkv7.k_a;
  args.scale = layer.decay_scale;
  args.rows = p.pass.rows;
  args.ld = p.a.in.ld;
  args.ld_w = p.a.decay.ld;
  args.heads = p.config.num_heads;
  args.head_dim = p.config.key_dim;
  return CudaStatus(kernels::Rwkv7HeadsCuda(p.launch, args), "launching RWKV-7's heads");
}

absl::Status FinishHeads(const CudaBlockPass& p, const CudaRwkv7Layer& own, const Columns& at) {
  kernels::Rwkv7OutputsArgs args;
  args.o = p.a.o.data;
  args.r = p.a.in.data;
  args.k = p.a.in.data + at.k;
  args.v = p.a.in.data + at.v;
  args.gate = p.a.gate.data;
  args.weight = own.group_norm;
  args.bias = own.group_norm_bias;
  args.r_k = own.r_k;
  args.eps = float(p.config.value_dim) * p.config.norm_eps;
  args.rows = p.pass.rows;
  args.ld = p.a.in.ld;
  args.ld_o = p.a.o.ld;
  args.heads = p.config.num_heads;
  args.head_dim = p.config.value_dim;
  return CudaStatus(kernels::Rwkv7OutputsCuda(p.launch, args), "launching RWKV-7's outputs");
}

}  // namespace

absl::Status CudaMixRwkv7(const CudaBlockPass& p, const CudaLayer& layer, int index) {
  const int n = p.config.key_dim, ld = p.a.in.ld;
  const bool with_v_mix = index > 0;
  const Columns at(p.config, layer.rwkv7);
  RIVULET_RETURN_IF_ERROR(p.Shift(layer.rwkv7.mix, 6, index, p.state.mixer_shift));
  RIVULET_RETURN_IF_ERROR(Project(p, layer.rwkv7, at, with_v_mix));
  RIVULET_RETURN_IF_ERROR(PrepareHeads(p, layer, at, with_v_mix));
  kernels::CudaRecurrenceArgs args = p.Recurrence(index);
  args.rule = kernels::UpdateRule::kRankOne;
  args.q = {p.a.in.data, ld, n};
  args.k = {p.a.in.data + at.k, ld, n};
  args.v = {p.a.in.data + at.v, ld, n};
  args.w_dim = n;
  args.w = {p.a.decay.data, p.a.decay.ld, n};
  args.a = {p.a.kk.data, p.a.kk.ld, n};
  args.b = {p.a.minus.data, p.a.minus.ld, n};
  RIVULET_RETURN_IF_ERROR(p.Recur(args));
  return FinishHeads(p, layer.rwkv7, at);
}

// ffn = key(h + (h_prev - h) x_k), squared where it is positive.
absl::Status CudaFeedRwkv7(const CudaBlockPass& p, const CudaLayer& layer, int index) {
  RIVULET_RETURN_IF_ERROR(p.Shift(layer.rwkv7.ffn_mix, 1, index, p.state.ffn_shift));
  RIVULET_RETURN_IF_ERROR(p.Product(layer.up, p.a.mix.data, p.a.mix.ld, p.a.ffn.data, p.a.ffn.ld));
  return p.Activate(kernels::Activation::kSquaredRelu, p.a.ffn.data, p.a.ffn.ld, p.config.ffn_size);
}

}  // namespace rivulet
