// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_model_args.h"

namespace rivulet {

using kernels::Epilogue;

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

}  // namespace rivulet
