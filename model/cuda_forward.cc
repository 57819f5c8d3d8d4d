// SPDX-License-Identifier: Apache-2.0
#include "model/cuda_forward.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/gemm_cuda.h"
#include "kernels/gemm_wide_cuda.h"
#include "kernels/layer_norm_cuda.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

using kernels::CudaGemmArgs;
using kernels::CudaLaunch;
using kernels::CudaMatrix;
using kernels::CudaWideGemmArgs;
using kernels::Epilogue;

CudaGemmArgs Product(const CudaMatrix& w, const float* a, int lda, float* out, int ld_out,
                     int rows) {
  CudaGemmArgs args;
  args.w = w;
  args.a = a;
  args.lda = lda;
  args.out = out;
  args.ld_out = ld_out;
  args.rows = rows;
  return args;
}

// The rows of a are normalised first, and kept in `norm_out`.
void AddNorm(const CudaNorm& norm, float eps, float* norm_out, int ld_norm_out,
             CudaGemmArgs* args) {
  args->norm_weight = norm.weight;
  args->norm_bias = norm.bias;
  args->norm_eps = eps;
  args->norm_out = norm_out;
  args->ld_norm_out = ld_norm_out;
}

// What only products read, in F16 where float32 would lie.
uint16_t* Halves(float* p) { return reinterpret_cast<uint16_t*>(p); }

// The same where a and, with `half`, out are in F16.
CudaWideGemmArgs WideProduct(const CudaMatrix& w, float* a, int lda, float* out, int ld_out,
                             bool half, int rows) {
  CudaWideGemmArgs args;
  args.w = w;
  args.a = Halves(a);
  args.lda = lda;
  args.out = half ? nullptr : out;
  args.out_half = half ? Halves(out) : nullptr;
  args.ld_out = ld_out;
  args.rows = rows;
  return args;
}

absl::Status WideGemm(const CudaLaunch& launch, const CudaWideGemmArgs& args) {
  return CudaStatus(kernels::WideGemmCuda(launch, args), "launching a product of many rows");
}

absl::Status Gemm(const CudaLaunch& launch, const CudaGemmArgs& args) {
  return CudaStatus(kernels::GemmCuda(launch, args), "launching a matrix product");
}

}  // namespace

absl::Status CudaForward::Check(const ModelConfig& config) {
  const char* const reason =
      kernels::CheckAttentionCuda(config.state_layout(), FeatureMapOf(config));
  if (reason == nullptr) return absl::OkStatus();
  return MakeError(absl::StatusCode::kUnimplemented,
                   absl::StrCat("backend \"cuda\" cannot run this model: ", reason),
                   {"MODEL_UNSUPPORTED", "backend", {}});
}

absl::Status CudaForward::Prepare() {
  RIVULET_CUDA_RETURN_IF_ERROR(kernels::PrepareAttentionCuda());
  RIVULET_CUDA_RETURN_IF_ERROR(kernels::PrepareWideGemmCuda());
  return absl::OkStatus();
}

bool CudaForward::Wide(int rows) const {
  return Many(rows) && weights_.layers[0].qkv.type == kernels::WeightType::kF16;
}

kernels::CudaEmbedArgs CudaEmbedding(const ModelConfig& config, const CudaWeights& weights) {
  kernels::CudaEmbedArgs args;
  args.table = weights.embedding;
  args.positions = weights.positions;
  args.position_rows = weights.position_rows;
  args.frequencies = weights.frequencies;
  args.columns = config.embedding_columns();
  args.has_positions = config.position.type != PositionType::kNone;
  args.concat = config.position.combine == PositionCombine::kConcat;
  return args;
}

kernels::CudaAttentionArgs CudaAttention(const ModelConfig& config, const CudaSlots& slots) {
  kernels::CudaAttentionArgs args;
  args.states = slots.states();
  args.layout = config.state_layout();
  args.map = FeatureMapOf(config);
  args.omega_per_head = args.map.kind == kernels::FeatureMapKind::kRfa
                            ? size_t(config.key_dim) * size_t(args.map.columns)
                            : 0;
  args.gated = config.gate == Gate::kRfa;
  args.clamp = config.normalizer == Normalizer::kClampMin;
  args.normalizer = config.normalizer_value;
  return args;
}

kernels::CudaSampleArgs CudaSampling(const ModelConfig& config, const CudaSlots& slots,
                                     const CudaRecords& records, const CudaScratch& scratch) {
  kernels::CudaSampleArgs args;
  args.outputs = scratch.outputs;
  args.num_outputs = config.output_size();
  args.ld_outputs = scratch.ld_outputs;
  if (config.output.type == OutputType::kMixtureOfLogistics) {
    args.mixture = {config.output.num_mixtures, config.output.num_levels,
                    config.output.scale == MixtureScale::kElu, config.bos_token_id.value_or(-1)};
  }
  args.samplers = slots.samplers();
  args.scratch = scratch.adjusted;
  args.ld_scratch = scratch.ld_adjusted;
  args.records = records.records();
  args.top = records.top();
  args.top_stride = records.top_stride();
  return args;
}

Epilogue CudaActivation(const ModelConfig& config) {
  return config.activation == Activation::kGelu ? Epilogue::kGelu : Epilogue::kRelu;
}

absl::Status CudaForward::Embed(const CudaLaunch& launch, const Pass& pass) const {
  kernels::CudaEmbedArgs args = CudaEmbedding(config_, weights_);
  args.tokens = pass.tokens;
  args.at = pass.positions;
  args.out = scratch_.x;
  args.half = Wide(pass.rows) ? Halves(scratch_.half) : nullptr;
  args.rows = pass.rows;
  args.ld = scratch_.ld_x;
  return CudaStatus(kernels::EmbedCuda(launch, args), "launching the embedding");
}

absl::Status CudaForward::Attention(const CudaLaunch& launch, const Pass& pass, int index) const {
  kernels::CudaAttentionArgs args = CudaAttention(config_, slots_);
  args.segments = pass.segments;
  args.num_segments = pass.num_segments;
  args.num_long = pass.num_long;
  args.features = scratch_.features;
  args.rows = pass.rows;
  args.qkv = scratch_.qkv;
  args.ld_qkv = scratch_.ld_qkv;
  args.out = Wide(pass.rows) ? nullptr : scratch_.attention;
  args.out_half = Wide(pass.rows) ? Halves(scratch_.attention) : nullptr;
  args.ld_out = scratch_.ld_attention;
  args.layer = index;
  args.map.omega = weights_.layers[size_t(index)].omega;
  return CudaStatus(kernels::AttentionCuda(launch, args), "launching the attention");
}

// q, k, v and gates of a layer: of the embedding in x, or of x = norm2(y) of the layer before.
absl::Status CudaForward::Queries(const CudaLaunch& launch, int index, int rows) const {
  const CudaScratch& s = scratch_;
  const CudaMatrix& w = weights_.layers[size_t(index)].qkv;
  const CudaNorm* const norm = index == 0 ? nullptr : &weights_.layers[size_t(index) - 1].norm2;
  if (norm != nullptr && Many(rows)) {
    RIVULET_RETURN_IF_ERROR(Normalize(launch, *norm, s.x, rows));
  }
  if (Wide(rows)) {
    return WideGemm(launch, WideProduct(w, s.half, s.ld_x, s.qkv, s.ld_qkv, false, rows));
  }
  const bool fused = norm != nullptr && !Many(rows);
  CudaGemmArgs qkv = Product(w, fused ? s.y : s.x, s.ld_x, s.qkv, s.ld_qkv, rows);
  if (fused) AddNorm(*norm, config_.layer_norm_eps, s.x, s.ld_x, &qkv);
  return Gemm(launch, qkv);
}

// y = x + out(attention); in the last layer of the rows whose outputs are wanted alone.
absl::Status CudaForward::AttentionOut(const CudaLaunch& launch, const Pass& pass,
                                       int index) const {
  const CudaScratch& s = scratch_;
  const CudaMatrix& w = weights_.layers[size_t(index)].out;
  const bool last = index + 1 == config_.num_layers;
  const int rows = last ? pass.num_outputs : pass.rows;
  const int32_t* const gather = last ? pass.gather : nullptr;
  const auto with_residual = [&](auto args) {
    args.gather = gather;
    args.epilogue = Epilogue::kResidual;
    args.residual = s.x;
    args.ld_residual = s.ld_x;
    return args;
  };
  if (Wide(pass.rows)) {
    return WideGemm(launch, with_residual(WideProduct(w, s.attention, s.ld_attention, s.y, s.ld_x,
                                                      false, rows)));
  }
  return Gemm(launch, with_residual(Product(w, s.attention, s.ld_attention, s.y, s.ld_x, rows)));
}

// y -> y: x = norm1(y); y = x + ffn2(act(ffn1(x))).
absl::Status CudaForward::FeedForward(const CudaLaunch& launch, const CudaLayer& layer,
                                      int rows) const {
  if (Wide(rows)) return WideFeedForward(launch, layer, rows);
  const CudaScratch& s = scratch_;
  const bool fused = !Many(rows);
  if (!fused) RIVULET_RETURN_IF_ERROR(Normalize(launch, layer.norm1, s.x, rows));
  CudaGemmArgs ffn1 = Product(layer.ffn1, fused ? s.y : s.x, s.ld_x, s.ffn, s.ld_ffn, rows);
  if (fused) AddNorm(layer.norm1, config_.layer_norm_eps, s.x, s.ld_x, &ffn1);
  ffn1.epilogue = CudaActivation(config_);
  RIVULET_RETURN_IF_ERROR(Gemm(launch, ffn1));
  CudaGemmArgs ffn2 = Product(layer.ffn2, s.ffn, s.ld_ffn, s.y, s.ld_x, rows);
  ffn2.epilogue = Epilogue::kResidual;
  ffn2.residual = s.x;
  ffn2.ld_residual = s.ld_x;
  return Gemm(launch, ffn2);
}

absl::Status CudaForward::WideFeedForward(const CudaLaunch& launch, const CudaLayer& layer,
                                          int rows) const {
  const CudaScratch& s = scratch_;
  RIVULET_RETURN_IF_ERROR(Normalize(launch, layer.norm1, s.x, rows));
  CudaWideGemmArgs ffn1 = WideProduct(layer.ffn1, s.half, s.ld_x, s.ffn, s.ld_ffn, true, rows);
  ffn1.epilogue = CudaActivation(config_);
  RIVULET_RETURN_IF_ERROR(WideGemm(launch, ffn1));
  CudaWideGemmArgs ffn2 = WideProduct(layer.ffn2, s.ffn, s.ld_ffn, s.y, s.ld_x, false, rows);
  ffn2.epilogue = Epilogue::kResidual;
  ffn2.residual = s.x;
  ffn2.ld_residual = s.ld_x;
  return WideGemm(launch, ffn2);
}

// Post-norm: x = norm1(x + attention(x)); x = norm2(x + ffn(x)). y holds what norm2 has yet to see;
// from the middle of the last layer on only the rows whose outputs are wanted go on.
absl::Status CudaForward::Layers(const CudaLaunch& launch, const Pass& pass) const {
  RIVULET_RETURN_IF_ERROR(Embed(launch, pass));
  for (int i = 0; i < config_.num_layers; ++i) {
    RIVULET_RETURN_IF_ERROR(Queries(launch, i, pass.rows));
    RIVULET_RETURN_IF_ERROR(Attention(launch, pass, i));
    const int rows = i + 1 == config_.num_layers ? pass.num_outputs : pass.rows;
    if (rows == 0) return absl::OkStatus();
    RIVULET_RETURN_IF_ERROR(AttentionOut(launch, pass, i));
    RIVULET_RETURN_IF_ERROR(FeedForward(launch, weights_.layers[size_t(i)], rows));
  }
  // Where two norms follow each other the first is a launch of its own.
  if (!config_.final_norm) return absl::OkStatus();
  return Normalize(launch, weights_.layers.back().norm2, scratch_.y, pass.num_outputs);
}

// `to` = norm(y), and where it is x in F16, too.
absl::Status CudaForward::Normalize(const CudaLaunch& launch, const CudaNorm& norm, float* to,
                                    int rows) const {
  kernels::LayerNormArgs args;
  args.x = scratch_.y;
  args.y = to;
  args.weight = norm.weight;
  args.bias = norm.bias;
  args.rows = rows;
  args.n = config_.hidden_size;
  args.ld = scratch_.ld_x;
  args.eps = config_.layer_norm_eps;
  uint16_t* const half = to == scratch_.x && Wide(rows) ? Halves(scratch_.half) : nullptr;
  return CudaStatus(kernels::LayerNormCuda(launch, args, half), "launching a norm");
}

// Head outputs of output rows first .. first + rows - 1.
absl::Status CudaForward::Head(const CudaLaunch& launch, int first, int rows) const {
  const CudaScratch& s = scratch_;
  const float* const y = s.y + size_t(first) * size_t(s.ld_x);
  CudaGemmArgs head = Product(weights_.head, y, s.ld_x, s.outputs, s.ld_outputs, rows);
  const CudaNorm& norm = config_.final_norm ? weights_.final_norm : weights_.layers.back().norm2;
  AddNorm(norm, config_.layer_norm_eps, nullptr, 0, &head);
  return Gemm(launch, head);
}

absl::Status CudaForward::Sample(const CudaLaunch& launch, const Pass& pass, int first,
                                 int rows) const {
  kernels::CudaSampleArgs args = CudaSampling(config_, slots_, records_, scratch_);
  args.rows = rows;
  args.work = pass.work + first;
  args.fed = pass.fed == nullptr ? nullptr : pass.fed + first;
  args.next = pass.next;
  return CudaStatus(kernels::SampleCuda(launch, args), "launching the sampling");
}

absl::Status CudaForward::Step(const CudaLaunch& launch, const CudaRunBlock& block,
                               int bucket) const {
  const kernels::CudaStepRows& step = block.step;
  const Pass pass = {step.tokens, step.positions, step.segments, bucket,      bucket, 0,
                     nullptr,     bucket,         step.outputs,  step.tokens, step};
  RIVULET_RETURN_IF_ERROR(Layers(launch, pass));
  for (int first = 0; first < bucket; first += scratch_.head_rows) {
    const int rows = std::min(scratch_.head_rows, bucket - first);
    RIVULET_RETURN_IF_ERROR(Head(launch, first, rows));
    RIVULET_RETURN_IF_ERROR(Sample(launch, pass, first, rows));
  }
  return absl::OkStatus();
}

absl::Status CudaForward::Prompt(const CudaLaunch& launch, const CudaRunBlock& block,
                                 int token_rows) const {
  const int num_long = token_rows >= kCudaLongSegment ? 1 : 0;
  const Pass pass = {
      block.tokens,  block.positions, block.segments, token_rows, 1, num_long, block.gather, 1,
      block.outputs, nullptr,         block.step};
  RIVULET_RETURN_IF_ERROR(Layers(launch, pass));
  RIVULET_RETURN_IF_ERROR(Head(launch, 0, 1));
  return Sample(launch, pass, 0, 1);
}

absl::Status CudaForward::Count(const CudaLaunch& launch, const CudaRunBlock& block,
                                int rows) const {
  kernels::CudaCountArgs args;
  args.segments = block.segments;
  args.num_segments = rows;
  args.tokens = block.tokens;
  args.as_output = block.as_output;
  args.samplers = slots_.samplers();
  return CudaStatus(kernels::CountTokensCuda(launch, args), "launching the count of tokens");
}

absl::Status CudaForward::First(CudaQueue& queue, const CudaRunBlock& block,
                                const CudaRunPlan& plan, bool count) const {
  const CudaLaunch& launch = queue.launch();
  const int num_outputs = int(plan.outputs.size());
  const bool all = num_outputs == plan.token_rows();
  const Pass pass = {block.tokens,
                     block.positions,
                     block.segments,
                     plan.token_rows(),
                     plan.rows,
                     plan.num_long,
                     all ? nullptr : block.gather,
                     num_outputs,
                     block.outputs,
                     nullptr,
                     block.step};
  if (count) RIVULET_RETURN_IF_ERROR(Count(launch, block, plan.rows));
  RIVULET_RETURN_IF_ERROR(Layers(launch, pass));
  auto raw = plan.raw.begin();
  std::vector<float*> destinations;
  for (int first = 0; first < num_outputs; first += scratch_.head_rows) {
    const int rows = std::min(scratch_.head_rows, num_outputs - first);
    RIVULET_RETURN_IF_ERROR(Head(launch, first, rows));
    RIVULET_RETURN_IF_ERROR(Sample(launch, pass, first, rows));
    // Neighbouring rows leave in one copy.
    while (raw != plan.raw.end() && raw->output_row < first + rows) {
      const int begin = raw->output_row;
      destinations.clear();
      for (; raw != plan.raw.end() && raw->output_row < first + rows &&
             raw->output_row == begin + int(destinations.size());
           ++raw) {
        destinations.push_back(raw->destination);
      }
      const float* const from =
          scratch_.outputs + size_t(begin - first) * size_t(scratch_.ld_outputs);
      RIVULET_RETURN_IF_ERROR(queue.CopyOut(from, size_t(scratch_.ld_outputs),
                                            size_t(config_.output_size()), destinations));
    }
  }
  return absl::OkStatus();
}

}  // namespace rivulet
