// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_block_forward.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/blocks/causal_conv_cuda.h"
#include "kernels/cuda/blocks/element_rows_cuda.h"
#include "kernels/cuda/blocks/group_rows_cuda.h"
#include "kernels/cuda/blocks/mixer_rows_cuda.h"
#include "kernels/cuda/blocks/token_shift_cuda.h"
#include "kernels/cuda/gemm/gemm_cuda.h"
#include "kernels/cuda/gemm/gemm_group_cuda.h"
#include "kernels/cuda/gemm/gemm_wide_cuda.h"
#include "kernels/cuda/gemm/product_rows_cuda.h"
#include "kernels/cuda/rows/embed_cuda.h"
#include "model/base/error.h"
#include "model/cuda/cuda_block_pass.h"
#include "model/cuda/cuda_limits.h"
#include "model/cuda/cuda_product_args.h"
#include "model/cuda/cuda_softmax_attention.h"

namespace rivulet {
namespace {

using kernels::CudaLaunch;
using kernels::PaddedColumns;

// y = norm(x): with a bias a layer norm, else an RMS norm. Row r of y is the norm of row gather[r]
// of x, if gather is not null.
absl::Status Norm(const CudaBlockPass& p, const CudaNorm& norm, const float* x,
                  const CudaBlockRows& y, int rows, const int32_t* gather = nullptr) {
  const auto fill = [&](auto args) {
    args.x = x;
    args.y = y.data == nullptr ? p.a.h.data : y.data;
    args.weight = norm.weight;
    args.x_stride = args.y_stride = size_t(p.a.x.ld);
    args.rows = rows;
    args.size = p.config.hidden_size;
    args.eps = p.config.norm_eps;
    return args;
  };
  if (norm.bias == nullptr) {
    return CudaStatus(
        kernels::RmsNormCuda(p.launch, fill(kernels::RmsNormArgs()), {}, gather, y.halves()),
        "launching a norm");
  }
  kernels::GroupNormArgs args = fill(kernels::GroupNormArgs());  // of one group
  args.bias = norm.bias;
  return CudaStatus(kernels::GroupNormCuda(p.launch, args, gather, y.halves()), "launching a norm");
}

absl::Status Embed(const CudaBlockPass& p) {
  kernels::CudaEmbedArgs args;
  args.table = p.weights.embedding;
  args.type = p.weights.embedding_type;
  args.columns = p.config.hidden_size;
  args.tokens = p.pass.tokens;
  args.out = p.a.x.data;
  args.rows = p.pass.rows;
  args.ld = p.a.x.ld;
  RIVULET_RETURN_IF_ERROR(
      CudaStatus(kernels::EmbedCuda(p.launch, args), "launching the embedding"));
  const float scale = p.config.block().embedding_multiplier;
  if (scale != 1) {
    RIVULET_RETURN_IF_ERROR(p.Activate(kernels::Activation::kIdentity, p.a.x, p.config.hidden_size,
                                       nullptr, {p.a.x.data, nullptr, p.a.x.ld}, {1, scale}));
  }
  const CudaNorm& first = p.weights.layers[0].rwkv7.first_norm;
  if (first.weight == nullptr) return absl::OkStatus();
  return Norm(p, first, p.a.x.data, {p.a.x.data, nullptr, p.a.x.ld}, p.pass.rows);
}

absl::Status Mix(const CudaBlockPass& p, const CudaLayer& layer, int index, const float* x) {
  switch (p.kind().mixer) {
    case Mixer::kGated:
      return CudaMixGated(p, layer, index);
    case Mixer::kDelta:
      return CudaMixDelta(p, layer, index);
    case Mixer::kMamba2:
      return CudaMixMamba2(p, layer, index);
    case Mixer::kRwkv7:
      return CudaMixRwkv7(p, layer, index, x);
    case Mixer::kShortConv:
      return CudaMixShortConv(p, layer, index);
  }
  return absl::InternalError("a kind without a mixer");
}

// fed = silu(gate h) * (up h), h = norm(x), with the scales of a hybrid.
absl::Status FeedSwiglu(const CudaBlockPass& p, const CudaLayer& layer, const float* x) {
  const CudaBlockPass::Array& ffn = p.a.ffn;
  const BlockConfig& block = p.config.block();
  RIVULET_RETURN_IF_ERROR(Norm(p, layer.norm2, x, p.normed(), p.pass.rows));
  RIVULET_RETURN_IF_ERROR(p.Product(layer.up, p.normed(), ffn.data, ffn.ld));
  return p.Activate(kernels::Activation::kSilu, ffn, p.config.ffn_size,
                    ffn.data + PaddedColumns(p.config.ffn_size), p.fed(),
                    {block.gate_multiplier, block.ffn_multiplier});
}

// y = x + mix(norm(x)); x = y + ffn(norm(y)). Without a feed-forward x and y are swapped.
absl::Status Layer(const CudaBlockPass& p, const CudaLayer& layer, int index, float** x,
                   float** y) {
  const int ld = p.a.x.ld;
  const bool rwkv7 = p.kind().mixer == Mixer::kRwkv7;
  if (!rwkv7) RIVULET_RETURN_IF_ERROR(Norm(p, layer.norm1, *x, p.normed(), p.pass.rows));
  if (layer.softmax.attends) {
    RIVULET_RETURN_IF_ERROR(CudaMixSoftmax(p, layer.softmax, index));
    RIVULET_RETURN_IF_ERROR(p.Product(layer.softmax.out, p.mixed(), *y, ld, *x));
    std::swap(*x, *y);
  }
  if (layer.mixes) {
    RIVULET_RETURN_IF_ERROR(Mix(p, layer, index, *x));
    RIVULET_RETURN_IF_ERROR(p.Product(layer.out, p.mixed(), *y, ld, *x));
    std::swap(*x, *y);
  }
  if (p.config.ffn_size == 0) return absl::OkStatus();
  RIVULET_RETURN_IF_ERROR(rwkv7 ? CudaFeedRwkv7(p, layer, index, *x) : FeedSwiglu(p, layer, *x));
  RIVULET_RETURN_IF_ERROR(p.Product(layer.down, p.fed(), *y, ld, *x));
  std::swap(*x, *y);
  return absl::OkStatus();
}

}  // namespace

bool CudaBlockPass::Wide(const CudaWeightMatrix& w) const {
  // With fewer columns rounding x costs as much as the product (estimated).
  constexpr int kLeastColumns = 64;
  return pass.rows >= options.many_rows && w.type != kernels::WeightType::kF32 &&
         (w.product || w.n >= kLeastColumns) && w.k <= a.half.columns;
}

absl::Status CudaBlockPass::Product(const CudaWeightMatrix& w, const CudaBlockRows& x, float* out,
                                    int ld_out, const float* residual) const {
  const auto run = [&](const auto* from) {
    return Launch(launch, WithResidual(rivulet::Product(w, from, x.ld, out, ld_out, pass.rows),
                                       residual, ld_out));
  };
  if (x.half == nullptr) {
    return kind().hybrid && Wide(w) ? Rounded(w, x.data, x.ld, out, ld_out, residual) : run(x.data);
  }
  if (w.product && products.Takes(*w.product, pass.rows)) {
    return products.Run(*w.product, w.index, x.half, residual, out, pass.rows, launch.stream);
  }
  return run(x.half);
}

absl::Status CudaBlockPass::Product(const CudaWeightMatrix& w, const float* x, int ldx, float* out,
                                    int ld_out) const {
  if (Wide(w)) return Rounded(w, x, ldx, out, ld_out, nullptr);
  return Launch(launch, rivulet::Product(w, x, ldx, out, ld_out, pass.rows));
}

absl::Status CudaBlockPass::Rounded(const CudaWeightMatrix& w, const float* x, int ldx, float* out,
                                    int ld_out, const float* residual) const {
  const CudaBlockRows rounded = {nullptr, a.half.x.data, a.half.x.ld};
  RIVULET_RETURN_IF_ERROR(Activate(kernels::Activation::kIdentity, {const_cast<float*>(x), ldx},
                                   w.k, nullptr, rounded));  // only reads x
  return Product(w, rounded, out, ld_out, residual);
}

// A launch for products with weights in float32, and one for all others.
template <class In>
static absl::Status LaunchGroups(const CudaBlockPass& p,
                                 std::span<const CudaBlockProduct> products) {
  for (const bool f32 : {true, false}) {
    kernels::CudaProductGroup<In> group;
    for (const CudaBlockProduct& product : products) {
      const CudaWeightMatrix& w = *product.w;
      const bool library = product.in.half != nullptr && w.product.has_value() &&
                           p.products.Takes(*w.product, p.pass.rows);
      if ((w.type == kernels::WeightType::kF32) != f32 || library) continue;
      if (group.count == kernels::kMostGroupProducts) {
        return absl::InternalError("more products at once than a group has");
      }
      kernels::CudaGroupProduct<In>& of = group.of[group.count++];
      of.w = w;
      if constexpr (std::is_same_v<In, float>) {
        of.a = product.in.data;
      } else {
        of.a = product.in.half;
      }
      of.out = product.out.data;
      of.out_half = product.out.half;
      of.rows = p.pass.rows;
      of.lda = product.in.ld;
      of.ld_out = product.out.ld;
      of.activation = product.activation;
    }
    RIVULET_RETURN_IF_ERROR(
        CudaStatus(kernels::GemmGroupCuda(p.launch, group), "launching matrix products"));
  }
  return absl::OkStatus();
}

absl::Status CudaBlockPass::Products(std::span<const CudaBlockProduct> all) const {
  if (!many()) return LaunchGroups<float>(*this, all);
  for (const CudaBlockProduct& product : all) {
    const CudaWeightMatrix& w = *product.w;
    if (!w.product || !products.Takes(*w.product, pass.rows)) continue;
    RIVULET_RETURN_IF_ERROR(products.Run(*w.product, w.index, product.in.half, nullptr,
                                         product.out.data, pass.rows, launch.stream));
  }
  return LaunchGroups<uint16_t>(*this, all);
}

absl::Status CudaBlockPass::Activate(kernels::Activation kind, const Array& x, int n,
                                     const float* times, const CudaBlockRows& y,
                                     const kernels::CudaScales& scales) const {
  kernels::ActivationArgs args;
  args.kind = kind;
  args.rows = pass.rows;
  args.n = n;
  args.x = args.y = x.data;
  args.times = times;
  args.x_stride = args.times_stride = args.y_stride = size_t(x.ld);
  return CudaStatus(kernels::ActivationCuda(launch, args, y.halves(), scales),
                    "launching an activation");
}

absl::Status CudaBlockPass::Shift(const CudaNorm& norm, const float* x, const float* mix, int mixes,
                                  int layer, size_t part) const {
  const CudaBlockRows y = Rows(a.mix, a.half.mix);
  kernels::CudaTokenShiftArgs args;
  args.segments = pass.segments;
  args.num_segments = pass.num_segments;
  args.rows = pass.rows;
  args.x = x;
  args.weight = norm.weight;
  args.bias = norm.bias;
  args.eps = config.norm_eps;
  args.mix = mix;
  args.y = y.data;
  args.y_half = y.half;
  args.ld_x = a.x.ld;
  args.ld_y = y.ld;
  args.mix_stride = y.ld / CudaScratch::kMixes;
  args.n = config.hidden_size;
  args.mixes = mixes;
  args.states = states;
  args.floats_per_slot = state.floats_per_slot;
  args.offset = Offset(layer, part);
  return CudaStatus(kernels::TokenShiftCuda(launch, args), "launching a token shift");
}

kernels::CudaRecurrenceArgs CudaBlockPass::Recurrence(int layer) const {
  kernels::CudaRecurrenceArgs args;
  args.segments = pass.segments;
  args.num_segments = pass.num_segments;
  args.heads = config.num_heads;
  args.key_dim = config.key_dim;
  args.value_dim = config.value_dim;
  args.states = states;
  args.floats_per_slot = state.floats_per_slot;
  args.s_offset = Offset(layer, state.s);
  args.y = a.o.data;
  args.ld_y = a.o.ld;
  args.rows = pass.rows;
  return args;
}

absl::Status CudaBlockPass::Recur(const kernels::CudaRecurrenceArgs& args) const {
  return CudaStatus(kernels::RecurrenceCuda(launch, args), "launching a state update");
}

absl::StatusOr<std::unique_ptr<CudaNetwork>> CudaBlockForward::Create(
    const Model& model, const CudaBackendOptions& options, const CudaShared& shared) {
  const ModelConfig& config = model.config();
  RIVULET_RETURN_IF_ERROR(CheckCudaSoftmax(config, options.cache));
  const std::vector<LayerParts>& layers = config.block().layers;
  if (std::any_of(layers.begin(), layers.end(), [](const LayerParts& layer) {
        return !layer.mixes() || layer.ffn != FeedForward::kDense;
      })) {
    return MakeError(absl::StatusCode::kUnimplemented,
                     absl::StrCat("backend \"cuda\" cannot run this model: ", config.kind(),
                                  " has experts, or layers of one part; use --backend cpu"),
                     {"MODEL_UNSUPPORTED", "backend", {}});
  }
  if (config.key_dim > kernels::kMaxCudaKeyDim) {
    return MakeError(absl::StatusCode::kUnimplemented,
                     absl::StrCat("backend \"cuda\" cannot run this model: a head has ",
                                  config.key_dim, " keys; allowed: 1 to ", kernels::kMaxCudaKeyDim),
                     {"MODEL_UNSUPPORTED", "backend", {}});
  }
  if (config.block().kind->mixer == Mixer::kRwkv7 &&
      config.hidden_size > kernels::kMaxCudaShiftColumns) {
    return MakeError(
        absl::StatusCode::kUnimplemented,
        absl::StrCat("backend \"cuda\" cannot run this model: hidden_size is ", config.hidden_size,
                     "; allowed with a token shift: 1 to ", kernels::kMaxCudaShiftColumns),
        {"MODEL_UNSUPPORTED", "backend", {}});
  }
  RIVULET_ASSIGN_OR_RETURN(std::unique_ptr<PackedWeights> host,
                           PackedWeights::Load(model, CudaWeightChoice(model, options)));
  return std::unique_ptr<CudaNetwork>(
      new CudaBlockForward(model, std::move(host), options, shared));
}

std::string CudaBlockForward::WhyNoLibrary() const {
  // A library's product has the same shape in every layer.
  if (config_.block().kind->hybrid) {
    return absl::StrCat("products of ", config_.kind(), ", whose layers differ, run on no library");
  }
  if (CudaHalves(options_)) return "";
  return absl::StrCat("products of ", config_.kind(), " in float32 run on no library");
}

absl::Status CudaBlockForward::Prepare() const {
  RIVULET_CUDA_RETURN_IF_ERROR(kernels::PrepareCausalConvCuda());
  RIVULET_CUDA_RETURN_IF_ERROR(kernels::PrepareElementRowsCuda());
  RIVULET_CUDA_RETURN_IF_ERROR(kernels::PrepareEmbedCuda());
  RIVULET_CUDA_RETURN_IF_ERROR(kernels::PrepareGemmCuda());
  RIVULET_CUDA_RETURN_IF_ERROR(kernels::PrepareGroupRowsCuda());
  RIVULET_CUDA_RETURN_IF_ERROR(kernels::PrepareMixerRowsCuda());
  RIVULET_CUDA_RETURN_IF_ERROR(kernels::PrepareProductRowsCuda());
  RIVULET_CUDA_RETURN_IF_ERROR(kernels::PrepareRecurrenceCuda());
  if (parts_.attention) RIVULET_CUDA_RETURN_IF_ERROR(kernels::PrepareSoftmaxAttentionCuda());
  RIVULET_CUDA_RETURN_IF_ERROR(kernels::PrepareTokenShiftCuda());
  RIVULET_CUDA_RETURN_IF_ERROR(kernels::PrepareWideGemmCuda());
  return absl::OkStatus();
}

CudaProductPlaces CudaBlockForward::Places(int max_tokens) const {
  const CudaScratch& s = scratch_;
  const auto rows = [max_tokens](const CudaScratch::Halves& halves) {
    return kernels::CudaProductRows{halves.data, true, halves.ld, max_tokens};
  };
  const kernels::CudaProductRows half = rows(s.half.x);
  const bool rwkv7 = config_.block().kind->mixer == Mixer::kRwkv7;
  const kernels::CudaProductRows normed = rwkv7 ? rows(s.half.mix) : half;
  CudaProductPlaces places;
  places[size_t(CudaProduct::kQkv)] = {normed, s.in.data, s.in.ld, nullptr, false};
  places[size_t(CudaProduct::kOut)] = {half, s.y.data, s.y.ld, s.x.data, false};
  if (config_.ffn_size > 0) {
    places[size_t(CudaProduct::kFfn1)] = {normed, s.ffn.data, s.ffn.ld, nullptr, false};
    places[size_t(CudaProduct::kFfn2)] = {rwkv7 ? rows(s.half.ffn) : half, s.y.data, s.y.ld,
                                          s.x.data, false};
  }
  CudaProductPlace& head = places[size_t(CudaProduct::kHead)];
  head = {half, outputs_.outputs, outputs_.ld_outputs, nullptr, false};
  head.a.rows = outputs_.head_rows;
  return places;
}

CudaBlockPass CudaBlockForward::Pass(const CudaLaunch& launch, const CudaPass& pass) const {
  BlockState state(parts_);
  state.floats_per_slot = slots_.floats_per_slot();
  return {config_,         state,     parts_,   weights_, scratch_,
          slots_.states(), products_, options_, launch,   pass};
}

absl::Status CudaBlockForward::Layers(const CudaLaunch& launch, const CudaPass& pass) const {
  const CudaBlockPass p = Pass(launch, pass);
  RIVULET_RETURN_IF_ERROR(Embed(p));
  float *x = scratch_.x.data, *y = scratch_.y.data;
  for (int i = 0; i < config_.num_layers; ++i) {
    RIVULET_RETURN_IF_ERROR(Layer(p, weights_.layers[size_t(i)], i, &x, &y));
  }
  return Norm(p, weights_.final_norm, x, {scratch_.h.data, nullptr, scratch_.h.ld},
              pass.num_outputs, pass.gather);
}

absl::Status CudaBlockForward::Head(const CudaLaunch& launch, int first, int rows) const {
  const float* const h = scratch_.h.data + size_t(first) * size_t(scratch_.h.ld);
  CudaPass pass;
  pass.rows = rows;
  return Pass(launch, pass)
      .Product(weights_.head, h, scratch_.h.ld, outputs_.outputs, outputs_.ld_outputs);
}

}  // namespace rivulet
