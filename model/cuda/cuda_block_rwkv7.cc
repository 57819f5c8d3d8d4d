// SPDX-License-Identifier: Apache-2.0
// RWKV-7's mixer and feed-forward, with the norms before them. Equations:
// model/cpu/cpu_rwkv7.cc, kernels/mixer_rows.h.
#include <iterator>
#include <span>

#include "kernels/cuda/blocks/mixer_rows_cuda.h"
#include "kernels/gemm.h"
#include "model/cuda/cuda_block_pass.h"

namespace rivulet {
namespace {

using kernels::PaddedColumns;

enum MixRow { kMixR, kMixW, kMixK, kMixV, kMixA, kMixG };

// The columns of r, k, v in `in`, and of the first halves of the low-rank products in `low`.
struct Columns {
  Columns(const ModelConfig& c, const CudaRwkv7Layer& own)
      : k(PaddedColumns(c.hidden_size)),
        v(2 * k),
        a(PaddedColumns(own.w.first.n)),
        g(a + PaddedColumns(own.a.first.n)),
        v_mix(g + PaddedColumns(own.g.first.n)) {}
  int k, v, a, g, v_mix;
};

CudaBlockRows Floats(const CudaBlockPass::Array& rows) { return {rows.data, nullptr, rows.ld}; }

// All products of the six mixes: first those that read the mixes, then the second halves of
// low-rank products.
absl::Status Project(const CudaBlockPass& p, const CudaRwkv7Layer& own, const Columns& at,
                     bool with_v_mix) {
  using kernels::Activation;
  const CudaBlockRows in = Floats(p.a.in), low = p.Rows(p.a.low, p.a.half.low);
  const CudaBlockProduct first[] = {
      {&own.r, p.shifted(kMixR), in},
      {&own.k, p.shifted(kMixK), in.From(at.k)},
      {&own.v, p.shifted(kMixV), in.From(at.v)},
      {&own.w.first, p.shifted(kMixW), low, Activation::kTanh},
      {&own.a.first, p.shifted(kMixA), low.From(at.a)},
      {&own.g.first, p.shifted(kMixG), low.From(at.g), Activation::kSigmoid},
      {&own.v_mix.first, p.shifted(kMixV), low.From(at.v_mix)},
  };
  const CudaBlockProduct second[] = {
      {&own.w.second, low, Floats(p.a.decay)},
      {&own.a.second, low.From(at.a), Floats(p.a.rwkv7.rate)},
      {&own.g.second, low.From(at.g), Floats(p.a.gate)},
      {&own.v_mix.second, low.From(at.v_mix), Floats(p.a.rwkv7.value)},
  };
  const size_t without = with_v_mix ? 0 : 1;  // omits the last of each list
  RIVULET_RETURN_IF_ERROR(p.Products(std::span(first).first(std::size(first) - without)));
  return p.Products(std::span(second).first(std::size(second) - without));
}

// w, kk, -kk alpha, k and v of the state update.
absl::Status PrepareHeads(const CudaBlockPass& p, const CudaLayer& layer, const Columns& at,
                          bool with_v_mix) {
  kernels::Rwkv7HeadsArgs args;
  args.k = p.a.in.data + at.k;
  args.v = p.a.in.data + at.v;
  args.w = p.a.decay.data;
  args.rate = p.a.rwkv7.rate.data;
  args.v_mix = with_v_mix ? p.a.rwkv7.value.data : nullptr;
  args.first = p.a.rwkv7.first.data;
  args.kk = p.a.rwkv7.kk.data;
  args.minus = p.a.rwkv7.minus.data;
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
  return CudaStatus(kernels::Rwkv7OutputsCuda(p.launch, args, p.mixed().halves()),
                    "launching RWKV-7's outputs");
}

}  // namespace

absl::Status CudaMixRwkv7(const CudaBlockPass& p, const CudaLayer& layer, int index,
                          const float* x) {
  const int n = p.config.key_dim, ld = p.a.in.ld;
  const bool with_v_mix = index > 0;
  const Columns at(p.config, layer.rwkv7);
  RIVULET_RETURN_IF_ERROR(
      p.Shift(layer.norm1, x, layer.rwkv7.mix, CudaScratch::kMixes, index, p.state.mixer_shift));
  RIVULET_RETURN_IF_ERROR(Project(p, layer.rwkv7, at, with_v_mix));
  RIVULET_RETURN_IF_ERROR(PrepareHeads(p, layer, at, with_v_mix));
  kernels::CudaRecurrenceArgs args = p.Recurrence(index);
  args.rule = kernels::UpdateRule::kRankOne;
  args.q = {p.a.in.data, ld, n};
  args.k = {p.a.in.data + at.k, ld, n};
  args.v = {p.a.in.data + at.v, ld, n};
  args.w_dim = n;
  args.w = {p.a.decay.data, p.a.decay.ld, n};
  args.a = {p.a.rwkv7.kk.data, p.a.rwkv7.kk.ld, n};
  args.b = {p.a.rwkv7.minus.data, p.a.rwkv7.minus.ld, n};
  RIVULET_RETURN_IF_ERROR(p.Recur(args));
  return FinishHeads(p, layer.rwkv7, at);
}

// fed = key(h + (h_prev - h) x_k), squared if it is positive, else 0.
absl::Status CudaFeedRwkv7(const CudaBlockPass& p, const CudaLayer& layer, int index,
                           const float* x) {
  constexpr auto kActivation = kernels::Activation::kSquaredRelu;
  RIVULET_RETURN_IF_ERROR(
      p.Shift(layer.norm2, x, layer.rwkv7.ffn_mix, 1, index, p.state.ffn_shift));
  if (p.many() && p.products.Takes(CudaProduct::kFfn1, p.pass.rows)) {
    RIVULET_RETURN_IF_ERROR(p.Product(layer.up, p.shifted(0), p.a.ffn.data, p.a.ffn.ld));
    return p.Activate(kActivation, p.a.ffn, p.config.ffn_size, nullptr, p.fed());
  }
  const CudaBlockProduct up[] = {{&layer.up, p.shifted(0), p.fed(), kActivation}};
  return p.Products(up);
}

}  // namespace rivulet
