// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_model_args.h"

#include "model/loading/encoder_weights.h"

namespace rivulet {

using kernels::Epilogue;

kernels::CudaEmbedArgs CudaEmbedding(const ModelConfig& config, const CudaWeights& weights) {
  kernels::CudaEmbedArgs args;
  args.table = weights.embedding;
  args.positions = weights.positions;
  args.position_rows = weights.position_rows;
  args.frequencies = weights.frequencies;
  args.columns = config.embedding_columns();
  args.has_positions = config.encoder().has_position_rows();
  args.concat = config.encoder().combine == PositionCombine::kConcat;
  return args;
}

kernels::RotateHeadsArgs CudaRotation(const CudaWeights& weights, const InputColumns& columns,
                                      const CudaScratch::Array& in, const CudaPass& pass) {
  kernels::RotateHeadsArgs args;
  args.q = in.data + columns.q;
  args.k = in.data + columns.k;
  args.positions = pass.positions;
  args.frequencies = weights.frequencies;
  args.rows = pass.rows;
  args.ld = in.ld;
  args.pairs = weights.rope_pairs;
  args.factor = weights.rope_factor;
  args.interleaved = weights.rope_interleaved;
  return args;
}

kernels::CudaAttentionArgs CudaAttention(const ModelConfig& config, const CudaSlots& slots) {
  kernels::CudaAttentionArgs args;
  args.states = slots.states();
  args.layout = config.state_layout();
  args.map = FeatureMapOf(config);
  args.omega_per_head = OmegaFloatsPerHead(config);
  args.gated = config.encoder().gate == Gate::kRfa;
  args.clamp = config.encoder().normalizer == Normalizer::kClampMin;
  args.normalizer = config.encoder().normalizer_value;
  return args;
}

kernels::CudaSampleArgs CudaSampling(const ModelConfig& config, const CudaSlots& slots,
                                     const CudaRecords& records, const CudaOutputs& outputs) {
  kernels::CudaSampleArgs args;
  args.outputs = outputs.outputs;
  args.num_outputs = config.output_size();
  args.ld_outputs = outputs.ld_outputs;
  if (config.output.type == OutputType::kMixtureOfLogistics) {
    args.mixture = {config.output.num_mixtures, config.output.num_levels,
                    config.output.scale == MixtureScale::kElu, config.bos_token_id.value_or(-1)};
  }
  args.samplers = slots.samplers();
  args.scratch = outputs.adjusted;
  args.ld_scratch = outputs.ld_adjusted;
  args.records = records.records();
  args.top = records.top();
  args.top_stride = records.top_stride();
  return args;
}

Epilogue CudaActivation(const ModelConfig& config) {
  return config.encoder().activation == Activation::kGelu ? Epilogue::kGelu : Epilogue::kRelu;
}

}  // namespace rivulet
