// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_forward.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/attention/linear_attention_cuda.h"
#include "kernels/cuda/blocks/mixer_rows_cuda.h"
#include "kernels/cuda/gemm/gemm_cuda.h"
#include "kernels/cuda/gemm/gemm_wide_cuda.h"
#include "kernels/cuda/gemm/product_rows_cuda.h"
#include "kernels/cuda/rows/layer_norm_cuda.h"
#include "model/base/error.h"
#include "model/cuda/cuda_limits.h"
#include "model/cuda/cuda_model_args.h"
#include "model/cuda/cuda_product_args.h"
#include "model/cuda/cuda_softmax_attention.h"
#include "model/loading/encoder_weights.h"

namespace rivulet {
namespace {

using kernels::CudaGemmArgs;
using kernels::CudaLaunch;
using kernels::CudaMatrix;
using kernels::CudaWideGemmArgs;
using kernels::Epilogue;

// The rows of a are first normalised, and stored in `norm_out`.
void AddNorm(const CudaNorm& norm, float eps, float* norm_out, int ld_norm_out,
             CudaGemmArgs* args) {
  args->norm_weight = norm.weight;
  args->norm_bias = norm.bias;
  args->norm_eps = eps;
  args->norm_out = norm_out;
  args->ld_norm_out = ld_norm_out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaNetwork>> CudaForward::Create(const Model& model,
                                                                 const CudaBackendOptions& options,
                                                                 const CudaShared& shared) {
  const ModelConfig& config = model.config();
  const bool softmax = config.encoder().softmax;
  RIVULET_RETURN_IF_ERROR(CheckCudaSoftmax(config, options.cache));
  const char* const reason =
      softmax ? nullptr : kernels::CheckAttentionCuda(config.state_layout(), FeatureMapOf(config));
  if (reason != nullptr) {
    return MakeError(absl::StatusCode::kUnimplemented,
                     absl::StrCat("backend \"cuda\" cannot run this model: ", reason),
                     {"MODEL_UNSUPPORTED", "backend", {}});
  }
  RIVULET_ASSIGN_OR_RETURN(std::unique_ptr<PackedWeights> host,
                           PackedWeights::Load(model, CudaWeightChoice(model, options)));
  return std::unique_ptr<CudaNetwork>(new CudaForward(model, std::move(host), options, shared));
}

absl::Status CudaForward::Prepare() const {
  RIVULET_CUDA_RETURN_IF_ERROR(kernels::PrepareAttentionCuda());
  RIVULET_CUDA_RETURN_IF_ERROR(kernels::PrepareSoftmaxAttentionCuda());
  RIVULET_CUDA_RETURN_IF_ERROR(kernels::PrepareWideGemmCuda());
  RIVULET_CUDA_RETURN_IF_ERROR(kernels::PrepareGemmCuda());
  RIVULET_CUDA_RETURN_IF_ERROR(kernels::PrepareLayerNormCuda());
  RIVULET_CUDA_RETURN_IF_ERROR(kernels::PrepareEmbedCuda());
  RIVULET_CUDA_RETURN_IF_ERROR(kernels::PrepareProductRowsCuda());
  RIVULET_CUDA_RETURN_IF_ERROR(kernels::PrepareMixerRowsCuda());
  return absl::OkStatus();
}

CudaProductPlaces CudaForward::Places(int max_tokens) const {
  const CudaScratch& s = scratch_;
  const bool half = CudaLayerType(options_.precision) == kernels::WeightType::kF16;
  const auto read = [&](float* rows, uint16_t* halves, int ld) {
    return kernels::CudaProductRows{half ? static_cast<void*>(halves) : rows, half, ld, max_tokens};
  };
  CudaProductPlaces places;
  places[size_t(CudaProduct::kQkv)] = {read(s.x.data, s.half.x.data, s.x.ld), s.in.data, s.in.ld,
                                       nullptr, false};
  places[size_t(CudaProduct::kOut)] = {read(s.o.data, s.half.o.data, s.o.ld), s.y.data, s.x.ld,
                                       s.x.data, false};
  places[size_t(CudaProduct::kFfn1)] = {read(s.x.data, s.half.x.data, s.x.ld), s.ffn.data, s.ffn.ld,
                                        nullptr, true};
  places[size_t(CudaProduct::kFfn2)] = {read(s.ffn.data, s.half.ffn.data, s.ffn.ld), s.y.data,
                                        s.x.ld, s.x.data, false};
  places[size_t(CudaProduct::kHead)] = {{s.x.data, false, s.x.ld, outputs_.head_rows},
                                        outputs_.outputs,
                                        outputs_.ld_outputs,
                                        nullptr,
                                        false};
  return places;
}

bool CudaForward::Wide(int rows) const {
  return Many(rows) && weights_.layers[0].in.type != kernels::WeightType::kF32;
}

absl::Status CudaForward::Embed(const CudaLaunch& launch, const CudaPass& pass) const {
  kernels::CudaEmbedArgs args = CudaEmbedding(config_, weights_);
  args.tokens = pass.tokens;
  args.at = pass.positions;
  args.out = scratch_.x.data;
  args.half = Wide(pass.rows) ? scratch_.half.x.data : nullptr;
  args.rows = pass.rows;
  args.ld = scratch_.x.ld;
  args.width = scratch_.width_x;
  return CudaStatus(kernels::EmbedCuda(launch, args), "launching the embedding");
}

absl::Status CudaForward::Attention(const CudaLaunch& launch, const CudaPass& pass,
                                    int index) const {
  if (weights_.rope_pairs > 0) {
    kernels::RotateHeadsArgs turn = CudaRotation(weights_, weights_.columns, scratch_.in, pass);
    turn.heads = turn.key_heads = config_.num_heads;
    turn.key_dim = config_.key_dim;
    RIVULET_RETURN_IF_ERROR(
        CudaStatus(kernels::RotateHeadsCuda(launch, turn), "launching a rotation"));
  }
  if (config_.encoder().softmax) return Softmax(launch, pass, index);
  kernels::CudaAttentionArgs args = CudaAttention(config_, slots_);
  args.segments = pass.segments;
  args.num_segments = pass.num_segments;
  args.num_long = pass.num_long;
  args.features = scratch_.attention.features.data;
  args.rows = pass.rows;
  args.qkv = scratch_.in.data;
  args.ld_qkv = scratch_.in.ld;
  args.out = Wide(pass.rows) ? nullptr : scratch_.o.data;
  args.out_half = Wide(pass.rows) ? scratch_.half.o.data : nullptr;
  args.ld_out = scratch_.o.ld;
  args.layer = index;
  args.map.omega = weights_.layers[size_t(index)].omega;
  return CudaStatus(kernels::AttentionCuda(launch, args), "launching the attention");
}

absl::Status CudaForward::Softmax(const CudaLaunch& launch, const CudaPass& pass, int index) const {
  kernels::CudaSoftmaxAttentionArgs args = CudaSoftmaxAttention(
      config_, parts_, slots_.states(), slots_.floats_per_slot(), scratch_, pass, index);
  args.q = weights_.columns.q;
  args.k = weights_.columns.k;
  args.v = weights_.columns.v;
  args.scale = 1 / std::sqrt(float(config_.key_dim));
  args.out = Wide(pass.rows) ? nullptr : scratch_.o.data;
  args.out_half = Wide(pass.rows) ? scratch_.half.o.data : nullptr;
  return CudaStatus(kernels::SoftmaxAttentionCuda(launch, args), "launching the attention");
}

// q, k, v and gates of a layer, from the embedding in x, or from x = norm2(y) of the layer before.
absl::Status CudaForward::Queries(const CudaLaunch& launch, int index, int rows) const {
  const CudaScratch& s = scratch_;
  const CudaMatrix& w = weights_.layers[size_t(index)].in;
  const CudaNorm* const norm = index == 0 ? nullptr : &weights_.layers[size_t(index) - 1].norm2;
  if (norm != nullptr && Many(rows)) {
    RIVULET_RETURN_IF_ERROR(Normalize(launch, *norm, s.y.data, s.x.data, rows));
  }
  if (products_.Takes(CudaProduct::kQkv, rows)) {
    return products_.Run(CudaProduct::kQkv, index, InputX(rows), nullptr, s.in.data, rows,
                         launch.stream);
  }
  if (Wide(rows)) {
    return Launch(launch, Product(w, s.half.x.data, s.x.ld, s.in.data, s.in.ld, rows));
  }
  const bool fused = norm != nullptr && !Many(rows);
  CudaGemmArgs qkv = Product(w, fused ? s.y.data : s.x.data, s.x.ld, s.in.data, s.in.ld, rows);
  if (fused) AddNorm(*norm, config_.norm_eps, s.x.data, s.x.ld, &qkv);
  return Launch(launch, qkv);
}

// The gates of states, if the other matrices are integers; from x, which is already normalised.
absl::Status CudaForward::Gates(const CudaLaunch& launch, int index, int rows) const {
  const CudaScratch& s = scratch_;
  const CudaMatrix& w = weights_.layers[size_t(index)].in_small;
  if (w.packed == nullptr) return absl::OkStatus();
  return Launch(launch,
                Product(w, s.x.data, s.x.ld, s.in.data + weights_.columns.small, s.in.ld, rows));
}

// y = x + out(attention); in the last layer only for the rows whose outputs are wanted.
absl::Status CudaForward::AttentionOut(const CudaLaunch& launch, const CudaPass& pass,
                                       int index) const {
  const CudaScratch& s = scratch_;
  const CudaMatrix& w = weights_.layers[size_t(index)].out;
  const bool last = index + 1 == config_.num_layers;
  const int rows = last ? pass.num_outputs : pass.rows;
  const int32_t* const gather = last ? pass.gather : nullptr;
  // The library cannot gather rows; our own kernels can.
  if (products_.Takes(CudaProduct::kOut, pass.rows) && gather == nullptr) {
    const void* const a = Wide(pass.rows) ? static_cast<const void*>(s.half.o.data) : s.o.data;
    return products_.Run(CudaProduct::kOut, index, a, s.x.data, s.y.data, rows, launch.stream);
  }
  const auto with_residual = [&](auto args) {
    args.gather = gather;
    return WithResidual(args, s.x.data, s.x.ld);
  };
  if (Wide(pass.rows)) {
    return Launch(launch, with_residual(Product(w, s.half.o.data, s.o.ld, s.y.data, s.x.ld, rows)));
  }
  return Launch(launch, with_residual(Product(w, s.o.data, s.o.ld, s.y.data, s.x.ld, rows)));
}

// y -> y: x = norm1(y); y = x + ffn2(act(ffn1(x))).
absl::Status CudaForward::FeedForward(const CudaLaunch& launch, int index, int rows) const {
  const CudaScratch& s = scratch_;
  const CudaLayer& layer = weights_.layers[size_t(index)];
  const bool fused = !Many(rows);
  if (!fused) RIVULET_RETURN_IF_ERROR(Normalize(launch, layer.norm1, s.y.data, s.x.data, rows));
  RIVULET_RETURN_IF_ERROR(Expand(launch, index, rows));
  if (products_.Takes(CudaProduct::kFfn2, rows)) {
    const void* const a = Wide(rows) ? static_cast<const void*>(s.half.ffn.data) : s.ffn.data;
    return products_.Run(CudaProduct::kFfn2, index, a, s.x.data, s.y.data, rows, launch.stream);
  }
  const auto with_residual = [&](auto args) { return WithResidual(args, s.x.data, s.x.ld); };
  if (Wide(rows)) {
    return Launch(launch, with_residual(Product(layer.down, s.half.ffn.data, s.ffn.ld, s.y.data,
                                                s.x.ld, rows)));
  }
  return Launch(launch,
                with_residual(Product(layer.down, s.ffn.data, s.ffn.ld, s.y.data, s.x.ld, rows)));
}

// ffn = act(ffn1(x)), from x or from the norm of y.
absl::Status CudaForward::Expand(const CudaLaunch& launch, int index, int rows) const {
  const CudaScratch& s = scratch_;
  const CudaLayer& layer = weights_.layers[size_t(index)];
  if (Wide(rows)) {
    CudaWideGemmArgs ffn1 = Product(layer.up, s.half.x.data, s.x.ld, nullptr, s.ffn.ld, rows);
    ffn1.out_half = s.half.ffn.data;
    ffn1.epilogue = CudaActivation(config_);
    return Launch(launch, ffn1);
  }
  const bool fused = !Many(rows);
  CudaGemmArgs ffn1 =
      Product(layer.up, fused ? s.y.data : s.x.data, s.x.ld, s.ffn.data, s.ffn.ld, rows);
  if (fused) AddNorm(layer.norm1, config_.norm_eps, s.x.data, s.x.ld, &ffn1);
  ffn1.epilogue = CudaActivation(config_);
  return Launch(launch, ffn1);
}

// Post-norm: x = norm1(x + attention(x)); x = norm2(x + ffn(x)). y holds the input of norm2. From
// the middle of the last layer on, only the rows whose outputs are wanted remain.
absl::Status CudaForward::Layers(const CudaLaunch& launch, const CudaPass& pass) const {
  RIVULET_RETURN_IF_ERROR(Embed(launch, pass));
  for (int i = 0; i < config_.num_layers; ++i) {
    RIVULET_RETURN_IF_ERROR(Queries(launch, i, pass.rows));
    RIVULET_RETURN_IF_ERROR(Gates(launch, i, pass.rows));
    RIVULET_RETURN_IF_ERROR(Attention(launch, pass, i));
    const int rows = i + 1 == config_.num_layers ? pass.num_outputs : pass.rows;
    if (rows == 0) return absl::OkStatus();
    RIVULET_RETURN_IF_ERROR(AttentionOut(launch, pass, i));
    RIVULET_RETURN_IF_ERROR(FeedForward(launch, i, rows));
  }
  // If two norms follow each other, the first is a separate launch.
  if (!config_.encoder().final_norm) return absl::OkStatus();
  float* const y = scratch_.y.data;
  return Normalize(launch, weights_.layers.back().norm2, y, y, pass.num_outputs);
}

// `to` = norm(from); if `to` is x, also in F16.
absl::Status CudaForward::Normalize(const CudaLaunch& launch, const CudaNorm& norm,
                                    const float* from, float* to, int rows) const {
  kernels::LayerNormArgs args;
  args.x = from;
  args.y = to;
  args.weight = norm.weight;
  args.bias = norm.bias;
  args.rows = rows;
  args.n = config_.hidden_size;
  args.ld = scratch_.x.ld;
  args.eps = config_.norm_eps;
  uint16_t* const half = to == scratch_.x.data && Wide(rows) ? scratch_.half.x.data : nullptr;
  return CudaStatus(kernels::LayerNormCuda(launch, args, half, scratch_.width_x),
                    "launching a norm");
}

// Head outputs of output rows first .. first + rows - 1.
absl::Status CudaForward::Head(const CudaLaunch& launch, int first, int rows) const {
  const CudaScratch& s = scratch_;
  const CudaNorm* norm =
      config_.encoder().final_norm ? &weights_.final_norm : &weights_.layers.back().norm2;
  // x is free from here on.
  const float* y = s.y.data + size_t(first) * size_t(s.x.ld);
  if (weights_.transform.packed != nullptr) {
    CudaGemmArgs transform = Product(weights_.transform, y, s.x.ld, s.x.data, s.x.ld, rows);
    AddNorm(*norm, config_.norm_eps, nullptr, 0, &transform);
    transform.epilogue = Epilogue::kGelu;
    RIVULET_RETURN_IF_ERROR(Launch(launch, transform));
    y = s.x.data;
    norm = &weights_.transform_norm;
  }
  if (products_.Takes(CudaProduct::kHead, rows)) {
    RIVULET_RETURN_IF_ERROR(Normalize(launch, *norm, y, s.x.data, rows));
    return products_.Run(CudaProduct::kHead, 0, s.x.data, nullptr, outputs_.outputs, rows,
                         launch.stream);
  }
  CudaGemmArgs head =
      Product(weights_.head, y, s.x.ld, outputs_.outputs, outputs_.ld_outputs, rows);
  AddNorm(*norm, config_.norm_eps, nullptr, 0, &head);
  return Launch(launch, head);
}

}  // namespace rivulet
