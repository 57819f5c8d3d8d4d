// SPDX-License-Identifier: Apache-2.0
#include "model/cuda_forward.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/embed_cuda.h"
#include "kernels/gemm_cuda.h"
#include "kernels/layer_norm_cuda.h"
#include "kernels/linear_attention_cuda.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

using kernels::CudaGemmArgs;
using kernels::CudaLaunch;
using kernels::CudaMatrix;
using kernels::Epilogue;

// Head outputs of one piece: about 32 MiB, but enough rows to fill a GPU.
constexpr size_t kHeadFloats = size_t{8} << 20;
constexpr size_t kLeastHeadRows = 128;

// Rows begin on cache lines.
int Padded(int n) { return (n + 31) / 32 * 32; }

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

absl::Status Gemm(const CudaLaunch& launch, const CudaGemmArgs& args) {
  return CudaStatus(kernels::GemmCuda(launch, args), "launching a matrix product");
}

}  // namespace

struct CudaScratch::Array {
  float** place;
  size_t rows;
  int ld;
};

std::vector<CudaScratch::Array> CudaScratch::Arrays(const ModelConfig& config,
                                                    const BackendLimits& limits, int head,
                                                    CudaScratch* s) {
  s->ld_x = Padded(config.hidden_size);
  s->ld_qkv = Padded(config.num_heads * (2 * config.key_dim + config.value_dim + 1));
  s->ld_attention = Padded(config.num_heads * config.value_dim);
  s->ld_ffn = Padded(config.ffn_size);
  s->ld_outputs = Padded(config.output_size());
  s->ld_adjusted = Padded(config.num_output_tokens());
  const auto tokens = size_t(limits.max_tokens);
  const auto widest = size_t(std::max(s->ld_outputs, s->ld_adjusted));
  s->head_rows = int(
      std::min(tokens, head > 0 ? size_t(head) : std::max(kLeastHeadRows, kHeadFloats / widest)));
  const auto head_rows = size_t(s->head_rows);
  return {{&s->x, tokens, s->ld_x},
          {&s->y, tokens, s->ld_x},
          {&s->qkv, tokens, s->ld_qkv},
          {&s->attention, tokens, s->ld_attention},
          {&s->ffn, tokens, s->ld_ffn},
          {&s->outputs, head_rows, s->ld_outputs},
          {&s->adjusted, head_rows, s->ld_adjusted}};
}

size_t CudaScratch::Bytes(const ModelConfig& config, const BackendLimits& limits, int head) {
  CudaScratch scratch;
  size_t bytes = 0;
  for (const Array& a : Arrays(config, limits, head, &scratch)) {
    bytes += a.rows * size_t(a.ld) * sizeof(float);
  }
  return bytes;
}

absl::StatusOr<CudaScratch> CudaScratch::Create(const ModelConfig& config,
                                                const BackendLimits& limits, int head,
                                                cudaStream_t stream) {
  CudaScratch scratch;
  for (const Array& a : Arrays(config, limits, head, &scratch)) {
    RIVULET_ASSIGN_OR_RETURN(CudaMemory memory,
                             CudaMemory::OnDevice(a.rows * size_t(a.ld) * sizeof(float)));
    *a.place = static_cast<float*>(memory.data());
    // Rows of nobody are multiplied, too: with numbers, not with what was there before.
    RIVULET_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(memory.data(), 0, memory.bytes(), stream));
    scratch.memory_.push_back(std::move(memory));
  }
  return scratch;
}

absl::Status CudaForward::Check(const ModelConfig& config) {
  const char* const reason =
      kernels::CheckAttentionCuda(config.state_layout(), FeatureMapOf(config));
  if (reason == nullptr) return absl::OkStatus();
  return MakeError(absl::StatusCode::kUnimplemented,
                   absl::StrCat("backend \"cuda\" cannot run this model: ", reason),
                   {"MODEL_UNSUPPORTED", "backend", {}});
}

absl::Status CudaForward::Embed(const CudaLaunch& launch, const Pass& pass) const {
  kernels::CudaEmbedArgs args;
  args.table = weights_.embedding;
  args.positions = weights_.positions;
  args.position_rows = weights_.position_rows;
  args.frequencies = weights_.frequencies;
  args.columns = config_.embedding_columns();
  args.has_positions = config_.position.type != PositionType::kNone;
  args.concat = config_.position.combine == PositionCombine::kConcat;
  args.tokens = pass.tokens;
  args.at = pass.positions;
  args.out = scratch_.x;
  args.rows = pass.rows;
  args.ld = scratch_.ld_x;
  return CudaStatus(kernels::EmbedCuda(launch, args), "launching the embedding");
}

absl::Status CudaForward::Attention(const CudaLaunch& launch, const Pass& pass, int index) const {
  kernels::CudaAttentionArgs args;
  args.segments = pass.segments;
  args.num_segments = pass.num_segments;
  args.qkv = scratch_.qkv;
  args.ld_qkv = scratch_.ld_qkv;
  args.out = scratch_.attention;
  args.ld_out = scratch_.ld_attention;
  args.states = slots_.states();
  args.layout = config_.state_layout();
  args.layer = index;
  args.map = FeatureMapOf(config_);
  args.map.omega = weights_.layers[size_t(index)].omega;
  args.omega_per_head = args.map.kind == kernels::FeatureMapKind::kRfa
                            ? size_t(config_.key_dim) * size_t(args.map.columns)
                            : 0;
  args.gated = config_.gate == Gate::kRfa;
  args.clamp = config_.normalizer == Normalizer::kClampMin;
  args.normalizer = config_.normalizer_value;
  return CudaStatus(kernels::AttentionCuda(launch, args), "launching the attention");
}

// y -> y: x = norm1(y); y = x + ffn2(act(ffn1(x))).
absl::Status CudaForward::FeedForward(const CudaLaunch& launch, const CudaLayer& layer,
                                      int rows) const {
  const CudaScratch& s = scratch_;
  CudaGemmArgs ffn1 = Product(layer.ffn1, s.y, s.ld_x, s.ffn, s.ld_ffn, rows);
  AddNorm(layer.norm1, config_.layer_norm_eps, s.x, s.ld_x, &ffn1);
  ffn1.epilogue = config_.activation == Activation::kGelu ? Epilogue::kGelu : Epilogue::kRelu;
  RIVULET_RETURN_IF_ERROR(Gemm(launch, ffn1));
  CudaGemmArgs ffn2 = Product(layer.ffn2, s.ffn, s.ld_ffn, s.y, s.ld_x, rows);
  ffn2.epilogue = Epilogue::kResidual;
  ffn2.residual = s.x;
  ffn2.ld_residual = s.ld_x;
  return Gemm(launch, ffn2);
}

// Post-norm: x = norm1(x + attention(x)); x = norm2(x + ffn(x)). y holds what norm2 has yet to see;
// from the middle of the last layer on only the rows whose outputs are wanted go on.
absl::Status CudaForward::Layers(const CudaLaunch& launch, const Pass& pass) const {
  const CudaScratch& s = scratch_;
  RIVULET_RETURN_IF_ERROR(Embed(launch, pass));
  for (int i = 0; i < config_.num_layers; ++i) {
    const CudaLayer& layer = weights_.layers[size_t(i)];
    CudaGemmArgs qkv = Product(layer.qkv, i == 0 ? s.x : s.y, s.ld_x, s.qkv, s.ld_qkv, pass.rows);
    if (i > 0) {
      AddNorm(weights_.layers[size_t(i) - 1].norm2, config_.layer_norm_eps, s.x, s.ld_x, &qkv);
    }
    RIVULET_RETURN_IF_ERROR(Gemm(launch, qkv));
    RIVULET_RETURN_IF_ERROR(Attention(launch, pass, i));
    const bool last = i + 1 == config_.num_layers;
    const int rows = last ? pass.num_outputs : pass.rows;
    if (rows == 0) return absl::OkStatus();
    CudaGemmArgs out = Product(layer.out, s.attention, s.ld_attention, s.y, s.ld_x, rows);
    out.gather = last ? pass.gather : nullptr;
    out.epilogue = Epilogue::kResidual;
    out.residual = s.x;
    out.ld_residual = s.ld_x;
    RIVULET_RETURN_IF_ERROR(Gemm(launch, out));
    RIVULET_RETURN_IF_ERROR(FeedForward(launch, layer, rows));
  }
  return FinalNorm(launch, pass.num_outputs);
}

// Where two norms follow each other the first is a launch of its own.
absl::Status CudaForward::FinalNorm(const CudaLaunch& launch, int rows) const {
  if (!config_.final_norm) return absl::OkStatus();
  const CudaNorm& norm = weights_.layers.back().norm2;
  kernels::LayerNormArgs args;
  args.x = scratch_.y;
  args.y = scratch_.y;
  args.weight = norm.weight;
  args.bias = norm.bias;
  args.rows = rows;
  args.n = config_.hidden_size;
  args.ld = scratch_.ld_x;
  args.eps = config_.layer_norm_eps;
  return CudaStatus(kernels::LayerNormCuda(launch, args), "launching a norm");
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
  kernels::CudaSampleArgs args;
  args.outputs = scratch_.outputs;
  args.rows = rows;
  args.num_outputs = config_.output_size();
  args.ld_outputs = scratch_.ld_outputs;
  if (config_.output.type == OutputType::kMixtureOfLogistics) {
    args.mixture = {config_.output.num_mixtures, config_.output.num_levels,
                    config_.output.scale == MixtureScale::kElu, config_.bos_token_id.value_or(-1)};
  }
  args.work = pass.work + first;
  args.fed = pass.fed == nullptr ? nullptr : pass.fed + first;
  args.samplers = slots_.samplers();
  args.scratch = scratch_.adjusted;
  args.ld_scratch = scratch_.ld_adjusted;
  args.records = records_.records();
  args.top = records_.top();
  args.top_stride = records_.top_stride();
  args.next = pass.next;
  return CudaStatus(kernels::SampleCuda(launch, args), "launching the sampling");
}

absl::Status CudaForward::Step(const CudaLaunch& launch, const CudaRunBlock& block,
                               int bucket) const {
  const kernels::CudaStepRows& step = block.step;
  const Pass pass = {step.tokens, step.positions, step.segments, bucket,      bucket,
                     nullptr,     bucket,         step.outputs,  step.tokens, step};
  RIVULET_RETURN_IF_ERROR(Layers(launch, pass));
  for (int first = 0; first < bucket; first += scratch_.head_rows) {
    const int rows = std::min(scratch_.head_rows, bucket - first);
    RIVULET_RETURN_IF_ERROR(Head(launch, first, rows));
    RIVULET_RETURN_IF_ERROR(Sample(launch, pass, first, rows));
  }
  return absl::OkStatus();
}

absl::Status CudaForward::First(CudaQueue& queue, const CudaRunBlock& block,
                                const CudaRunPlan& plan, bool count) const {
  const CudaLaunch& launch = queue.launch();
  const int num_outputs = int(plan.outputs.size());
  const bool all = num_outputs == plan.token_rows();
  const Pass pass = {block.tokens,      block.positions, block.segments,
                     plan.token_rows(), plan.rows,       all ? nullptr : block.gather,
                     num_outputs,       block.outputs,   nullptr,
                     block.step};
  if (count) {
    kernels::CudaCountArgs args;
    args.segments = block.segments;
    args.num_segments = plan.rows;
    args.tokens = block.tokens;
    args.as_output = block.as_output;
    args.samplers = slots_.samplers();
    RIVULET_RETURN_IF_ERROR(
        CudaStatus(kernels::CountTokensCuda(launch, args), "launching the count of tokens"));
  }
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
