// SPDX-License-Identifier: Apache-2.0
// The mixers whose keys and values come from one product: gated linear attention, the delta rules,
// Mamba-2; and the mixers of hybrids: short convolutions and softmax attention. Equations:
// kernels/recurrence.h, kernels/mixer_rows.h, kernels/softmax_attention.h; model/cpu/cpu_mixers.cc
// and model/cpu/cpu_softmax_attention.cc describe the operations around them.
#include <cmath>

#include "kernels/cuda/blocks/causal_conv_cuda.h"
#include "kernels/cuda/blocks/element_rows_cuda.h"
#include "kernels/cuda/blocks/group_rows_cuda.h"
#include "kernels/cuda/blocks/mixer_rows_cuda.h"
#include "model/cuda/cuda_block_pass.h"
#include "model/cuda/cuda_model_args.h"
#include "model/cuda/cuda_softmax_attention.h"

namespace rivulet {
namespace {

// The input product; `in` gets InputColumns.
absl::Status Project(const CudaBlockPass& p, const CudaLayer& layer) {
  const CudaBlockRows in = {p.a.in.data, nullptr, p.a.in.ld};
  if (layer.in_small.packed == nullptr) return p.Product(layer.in, p.normed(), in.data, in.ld);
  const CudaBlockRows small = in.From(p.weights.columns.small);
  // In a hybrid each product of many rows rounds its own input, so these two are separate.
  if (!p.kind().hybrid || !p.Wide(layer.in)) {
    const CudaBlockProduct both[] = {{&layer.in, p.normed(), in},
                                     {&layer.in_small, p.normed(), small}};
    return p.Products(both);
  }
  RIVULET_RETURN_IF_ERROR(p.Product(layer.in, p.normed(), in.data, in.ld));
  return p.Product(layer.in_small, p.normed(), small.data, small.ld);
}

absl::Status Convolve(const CudaBlockPass& p, const CudaLayer& layer, int index, int first,
                      const kernels::StepSizesArgs& steps = {}, bool silu = true) {
  kernels::CudaCausalConvArgs args;
  args.steps = steps;
  args.segments = p.pass.segments;
  args.num_segments = p.pass.num_segments;
  args.rows = p.pass.rows;
  args.x = p.a.in.data + first;
  args.weight = layer.conv;
  args.bias = layer.conv_bias;
  args.y = p.a.conv.data;
  args.ld_x = p.a.in.ld;
  args.ld_y = p.a.conv.ld;
  args.channels = p.config.block().conv_channels;
  args.width = p.config.block().conv_width;
  args.silu = silu;
  args.states = p.states;
  args.floats_per_slot = p.state.floats_per_slot;
  args.offset = p.Offset(index, p.state.conv);
  return CudaStatus(kernels::CausalConvCuda(p.launch, args), "launching a convolution");
}

// `decay` = w of `n` values a row, from `x`.
absl::Status Decay(const CudaBlockPass& p, const CudaLayer& layer, const float* x, int ldx, int n,
                   bool negate) {
  kernels::DecayArgs args;
  args.negate = negate;
  args.rows = p.pass.rows;
  args.n = n;
  args.x = x;
  args.bias = layer.decay_bias;
  args.scale = layer.decay_scale;
  args.y = p.a.decay.data;
  args.x_stride = size_t(ldx);
  args.y_stride = size_t(p.a.decay.ld);
  if (p.config.block().gate_floor) args.floor = *p.config.block().gate_floor;
  return CudaStatus(kernels::DecayCuda(p.launch, args), "launching a decay");
}

// mixed = norm(o) of `groups` groups of a row, with a gate before or behind it.
absl::Status NormOutputs(const CudaBlockPass& p, const CudaLayer& layer, int groups,
                         bool own_weights, float eps, const kernels::CudaGate& gate) {
  kernels::RmsNormArgs args;
  args.x = args.y = p.a.o.data;
  args.x_stride = args.y_stride = size_t(p.a.o.ld);
  args.rows = p.pass.rows;
  args.groups = groups;
  args.size = p.config.values() / groups;
  args.weight = layer.out_norm;
  args.weight_stride = own_weights ? size_t(args.size) : 0;
  args.eps = eps;
  return CudaStatus(kernels::RmsNormCuda(p.launch, args, gate, nullptr, p.mixed().halves()),
                    "launching a norm");
}

kernels::CudaGate GateFrom(kernels::Activation kind, const float* data, int ld) {
  kernels::CudaGate gate;
  gate.kind = kind;
  gate.data = data;
  gate.stride = size_t(ld);
  return gate;
}

// Turns q and k of these heads of `dim` by the row's angles.
absl::Status Rotate(const CudaBlockPass& p, const InputColumns& columns, int heads, int key_heads,
                    int dim) {
  kernels::RotateHeadsArgs args = CudaRotation(p.weights, columns, p.a.in, p.pass);
  args.heads = heads;
  args.key_heads = key_heads;
  args.key_dim = dim;
  return CudaStatus(kernels::RotateHeadsCuda(p.launch, args), "launching a rotation");
}

// y = x times `by` of `n` columns; a stride of 0: one row of `by` for all rows.
absl::Status Multiply(const CudaBlockPass& p, const float* x, int ldx, const float* by, int ld_by,
                      float* y, int ldy, int n) {
  kernels::ActivationArgs args;
  args.rows = p.pass.rows;
  args.n = n;
  args.x = x;
  args.times = by;
  args.y = y;
  args.x_stride = size_t(ldx);
  args.times_stride = size_t(ld_by);
  args.y_stride = size_t(ldy);
  return CudaStatus(kernels::ActivationCuda(p.launch, args), "launching a product of rows");
}

// o = f(gate) o `scale` of `n` columns.
absl::Status GateOutputs(const CudaBlockPass& p, const kernels::CudaGate& gate, int n,
                         float scale) {
  kernels::ActivationArgs args;
  args.kind = gate.kind;
  args.rows = p.pass.rows;
  args.n = n;
  args.x = gate.data;
  args.times = args.y = p.a.o.data;
  args.x_stride = gate.stride;
  args.times_stride = args.y_stride = size_t(p.a.o.ld);
  return CudaStatus(kernels::ActivationCuda(p.launch, args, {}, {1, scale}), "launching a gate");
}

// Each head of the queries, or of the keys, of a layer with softmax attention.
absl::Status NormHeads(const CudaBlockPass& p, const float* weight, int first, int heads) {
  kernels::RmsNormArgs args;
  args.x = args.y = p.a.in.data + first;
  args.x_stride = args.y_stride = size_t(p.a.in.ld);
  args.rows = p.pass.rows;
  args.groups = heads;
  args.size = p.config.block().softmax->head_dim;
  args.weight = weight;
  args.eps = p.config.norm_eps;
  return CudaStatus(kernels::RmsNormCuda(p.launch, args), "launching a norm");
}

absl::Status BoundKeys(const CudaBlockPass& p, const CudaLayer& layer) {
  kernels::LowerBoundKeysArgs args;
  args.q = p.a.in.data + p.weights.columns.q;
  args.k = p.a.in.data + p.weights.columns.k;
  args.w = p.a.decay.data;
  args.bound = layer.lower_bound;
  args.rows = p.pass.rows;
  args.ld = p.a.in.ld;
  args.ld_w = p.a.decay.ld;
  args.n = p.config.keys();
  return CudaStatus(kernels::LowerBoundKeysCuda(p.launch, args), "launching lower bounds");
}

// w of a kind of gated linear attention, and its changes of q and k.
absl::Status PrepareGated(const CudaBlockPass& p, const CudaLayer& layer,
                          kernels::CudaRecurrenceArgs* args) {
  const int keys = p.config.key_dim;
  const DecayForm decay = p.kind().decay;
  if (p.kind().rotary) {
    const int heads = p.config.num_heads;
    RIVULET_RETURN_IF_ERROR(Rotate(p, p.weights.columns, heads, heads, keys));
  }
  if (decay == DecayForm::kNone) return absl::OkStatus();
  if (decay == DecayForm::kFixed) {
    args->w_dim = 1;
    args->w = {layer.decay_scale, 0, 1};  // the factor itself, one per head
    return absl::OkStatus();
  }
  args->w_dim = keys;
  args->w = {p.a.decay.data, p.a.decay.ld, keys};
  if (decay == DecayForm::kLowerBound) return BoundKeys(p, layer);
  RIVULET_RETURN_IF_ERROR(p.Product(layer.decay, p.a.in.data + p.weights.columns.low, p.a.in.ld,
                                    p.a.decay.data, p.a.decay.ld));
  return Decay(p, layer, p.a.decay.data, p.a.decay.ld, p.config.keys(), /*negate=*/true);
}

// Gives q and k of all heads the lengths key_dim^-1/2 and 1; beta is a sigmoid.
absl::Status PrepareDelta(const CudaBlockPass& p) {
  const ModelConfig& c = p.config;
  kernels::RmsNormArgs norm;
  norm.x = norm.y = p.a.conv.data;
  norm.x_stride = norm.y_stride = size_t(p.a.conv.ld);
  norm.rows = p.pass.rows;
  norm.groups = 2 * c.key_heads();
  norm.size = c.key_dim;
  norm.weight = p.weights.lengths;
  norm.weight_stride = size_t(c.key_dim);
  norm.eps = 1e-6f / float(c.key_dim);
  RIVULET_RETURN_IF_ERROR(CudaStatus(kernels::RmsNormCuda(p.launch, norm), "launching a norm"));
  const CudaBlockPass::Array beta = {p.a.in.data + p.weights.columns.beta, p.a.in.ld};
  return p.Activate(kernels::Activation::kSigmoid, beta, c.num_heads, nullptr,
                    {beta.data, nullptr, beta.ld});
}

// w of a delta rule: none, one per head, or one per key.
absl::Status PrepareDeltaDecay(const CudaBlockPass& p, const CudaLayer& layer,
                               kernels::CudaRecurrenceArgs* args) {
  const ModelConfig& c = p.config;
  if (p.kind().decay == DecayForm::kNone) return absl::OkStatus();
  const bool low_rank = p.kind().decay == DecayForm::kLowRank;
  args->w_dim = low_rank ? c.key_dim : 1;
  args->w = {p.a.decay.data, p.a.decay.ld, args->w_dim};
  if (!low_rank) {
    return Decay(p, layer, p.a.in.data + p.weights.columns.dt, p.a.in.ld, c.num_heads, false);
  }
  RIVULET_RETURN_IF_ERROR(p.Product(layer.decay, p.a.in.data + p.weights.columns.low, p.a.in.ld,
                                    p.a.decay.data, p.a.decay.ld));
  return Decay(p, layer, p.a.decay.data, p.a.decay.ld, c.keys(), false);
}

}  // namespace

absl::Status CudaMixGated(const CudaBlockPass& p, const CudaLayer& layer, int index) {
  const ModelConfig& c = p.config;
  const InputColumns& columns = p.weights.columns;
  const int ld = p.a.in.ld;
  RIVULET_RETURN_IF_ERROR(Project(p, layer));
  kernels::CudaRecurrenceArgs args = p.Recurrence(index);
  RIVULET_RETURN_IF_ERROR(PrepareGated(p, layer, &args));
  args.q = {p.a.in.data + columns.q, ld, c.key_dim};
  args.k = {p.a.in.data + columns.k, ld, c.key_dim};
  args.v = {p.a.in.data + columns.v, ld, c.value_dim};
  args.q_scale = 1 / std::sqrt(float(c.key_dim));
  RIVULET_RETURN_IF_ERROR(p.Recur(args));
  if (p.kind().norm_all_heads) return NormOutputs(p, layer, 1, false, 1e-5f, {});
  kernels::CudaGate gate;
  if (c.block().output_gate) {
    gate = GateFrom(kernels::Activation::kSilu, p.a.in.data + columns.gate, ld);
  }
  return NormOutputs(p, layer, c.num_heads, false, c.norm_eps, gate);
}

absl::Status CudaMixDelta(const CudaBlockPass& p, const CudaLayer& layer, int index) {
  const ModelConfig& c = p.config;
  const InputColumns& columns = p.weights.columns;
  const int ld = p.a.conv.ld;
  RIVULET_RETURN_IF_ERROR(Project(p, layer));
  RIVULET_RETURN_IF_ERROR(Convolve(p, layer, index, columns.q));
  RIVULET_RETURN_IF_ERROR(PrepareDelta(p));
  kernels::CudaRecurrenceArgs args = p.Recurrence(index);
  RIVULET_RETURN_IF_ERROR(PrepareDeltaDecay(p, layer, &args));
  args.rule = kernels::UpdateRule::kDelta;
  args.q = {p.a.conv.data, ld, c.key_dim};
  args.k = {p.a.conv.data + c.keys(), ld, c.key_dim};
  args.heads_per_key = c.num_heads / c.key_heads();
  args.tiled_keys = c.block().tiled_heads;
  args.v = {p.a.conv.data + 2 * c.keys(), ld, c.value_dim};
  args.beta = {p.a.in.data + columns.beta, p.a.in.ld, 1};
  args.beta_scale = c.block().negative_eigenvalues ? 2.0f : 1.0f;
  RIVULET_RETURN_IF_ERROR(p.Recur(args));
  kernels::CudaGate gate;
  if (p.kind().low_rank_gate) {
    RIVULET_RETURN_IF_ERROR(p.Product(layer.gate, p.a.in.data + columns.low_gate, p.a.in.ld,
                                      p.a.gate.data, p.a.gate.ld));
    gate = GateFrom(kernels::Activation::kSigmoid, p.a.gate.data, p.a.gate.ld);
  } else if (c.block().output_gate) {
    gate = GateFrom(kernels::Activation::kSilu, p.a.in.data + columns.gate, p.a.in.ld);
  }
  return NormOutputs(p, layer, c.num_heads, false, c.norm_eps, gate);
}

absl::Status CudaMixMamba2(const CudaBlockPass& p, const CudaLayer& layer, int index) {
  const ModelConfig& c = p.config;
  const InputColumns& columns = p.weights.columns;
  const int ld = p.a.conv.ld;
  RIVULET_RETURN_IF_ERROR(Project(p, layer));
  if (p.weights.input_scales != nullptr) {
    RIVULET_RETURN_IF_ERROR(Multiply(p, p.a.in.data, p.a.in.ld, p.weights.input_scales, 0,
                                     p.a.in.data, p.a.in.ld, columns.n));
  }
  kernels::StepSizesArgs steps;
  steps.dt = p.a.in.data + columns.dt;
  steps.w = p.a.decay.data;
  steps.bias = layer.decay_bias;
  steps.scale = layer.decay_scale;
  steps.least = c.block().dt_min;
  steps.most = c.block().dt_max;
  steps.ld = p.a.in.ld;
  steps.ld_w = p.a.decay.ld;
  steps.heads = c.num_heads;
  RIVULET_RETURN_IF_ERROR(Convolve(p, layer, index, columns.v, steps));
  kernels::CudaRecurrenceArgs args = p.Recurrence(index);
  args.k = {p.a.conv.data + c.values(), ld, c.key_dim};
  args.q = {p.a.conv.data + c.values() + c.block().num_groups * c.key_dim, ld, c.key_dim};
  args.heads_per_key = c.num_heads / c.block().num_groups;
  args.v = {p.a.conv.data, ld, c.value_dim};
  args.w_dim = 1;
  args.w = {p.a.decay.data, p.a.decay.ld, 1};
  args.beta = {steps.dt, p.a.in.ld, 1};
  args.skip = layer.skip;
  RIVULET_RETURN_IF_ERROR(p.Recur(args));
  kernels::CudaGate gate =
      GateFrom(kernels::Activation::kSilu, p.a.in.data + columns.gate, p.a.in.ld);
  gate.first = c.block().mamba_norm == MambaNorm::kGateFirst;
  if (c.block().mamba_norm != MambaNorm::kNone) {  // the norm's weights include the scale
    return NormOutputs(p, layer, c.block().num_groups, true, c.norm_eps, gate);
  }
  return GateOutputs(p, gate, c.values(), c.block().mixer_multiplier);
}

// o = C conv(B x), from B, C and x side by side.
absl::Status CudaMixShortConv(const CudaBlockPass& p, const CudaLayer& layer, int index) {
  const InputColumns& columns = p.weights.columns;
  const CudaScratch::Array &in = p.a.in, &conv = p.a.conv;
  const int hidden = p.config.hidden_size;
  RIVULET_RETURN_IF_ERROR(Project(p, layer));
  RIVULET_RETURN_IF_ERROR(Multiply(p, in.data + columns.v, in.ld, in.data + columns.k, in.ld,
                                   in.data + columns.v, in.ld, hidden));
  RIVULET_RETURN_IF_ERROR(Convolve(p, layer, index, columns.v, {}, /*silu=*/false));
  return Multiply(p, conv.data, conv.ld, in.data + columns.q, in.ld, p.a.o.data, p.a.o.ld, hidden);
}

absl::Status CudaMixSoftmax(const CudaBlockPass& p, const CudaSoftmaxLayer& layer, int index) {
  const SoftmaxConfig& softmax = *p.config.block().softmax;
  const InputColumns& columns = p.weights.softmax_columns;
  const CudaScratch::Array& in = p.a.in;
  RIVULET_RETURN_IF_ERROR(p.Product(layer.in, p.normed(), in.data, in.ld));
  if (softmax.head_norm) {
    RIVULET_RETURN_IF_ERROR(NormHeads(p, layer.q_norm, columns.q, softmax.num_heads));
    RIVULET_RETURN_IF_ERROR(NormHeads(p, layer.k_norm, columns.k, softmax.num_kv_heads));
  }
  if (p.weights.rope_pairs > 0) {
    RIVULET_RETURN_IF_ERROR(
        Rotate(p, columns, softmax.num_heads, softmax.num_kv_heads, softmax.head_dim));
  }
  kernels::CudaSoftmaxAttentionArgs args = CudaSoftmaxAttention(
      p.config, p.parts, p.states, p.state.floats_per_slot, p.a, p.pass, index);
  args.q = columns.q;
  args.k = columns.k;
  args.v = columns.v;
  args.scale = softmax.scale;
  if (!softmax.gate) args.output_scale = softmax.output_scale;
  args.out = p.a.o.data;
  RIVULET_RETURN_IF_ERROR(
      CudaStatus(kernels::SoftmaxAttentionCuda(p.launch, args), "launching the attention"));
  if (!softmax.gate) return absl::OkStatus();
  return GateOutputs(p, GateFrom(kernels::Activation::kSigmoid, in.data + columns.gate, in.ld),
                     softmax.queries(), softmax.output_scale);
}

}  // namespace rivulet
