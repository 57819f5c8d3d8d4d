// SPDX-License-Identifier: Apache-2.0
// The weights of hybrids, as transformers names them.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/loading/block_weights.h"
#include "model/loading/ffn_weights.h"

namespace rivulet {
namespace {

// The names of tensors in each kind, without ".weight".
struct HybridNames {
  const char *mixer, *norm1, *norm2, *final_norm, *attention_out;
  FfnNames ffn;
  ExpertTensorNames experts = {};
  const char *q_norm = "", *k_norm = "", *attention = "self_attn.";
  const char *prefix = "model.", *embedding = "embed_tokens";
};

constexpr FfnNames kProjections = {"gate_proj", "up_proj", "down_proj"};
constexpr FfnNames kGraniteFfn = {"shared_mlp.input_linear", "shared_mlp.input_linear",
                                  "shared_mlp.output_linear"};
constexpr FfnNames kQwenShared = {"mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj",
                                  "mlp.shared_expert.down_proj"};
constexpr FfnNames kNemotronShared = {"", "mixer.shared_experts.up_proj",
                                      "mixer.shared_experts.down_proj"};
constexpr HybridNames kGranite = {
    .mixer = "mamba.",
    .norm1 = "input_layernorm",
    .norm2 = "post_attention_layernorm",
    .final_norm = "norm",
    .attention_out = "o_proj",
    .ffn = kGraniteFfn,
    .experts = {"block_sparse_moe.", "router.layer", "", "", kGraniteFfn, kProjections}};
constexpr HybridNames kQwen = {
    .mixer = "linear_attn.",
    .norm1 = "input_layernorm",
    .norm2 = "post_attention_layernorm",
    .final_norm = "norm",
    .attention_out = "o_proj",
    .ffn = {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"},
    .experts = {"mlp.", "gate", "", "shared_expert_gate", kQwenShared, kProjections},
    .q_norm = "q_norm",
    .k_norm = "k_norm"};
constexpr HybridNames kLfm2 = {
    .mixer = "conv.",
    .norm1 = "operator_norm",
    .norm2 = "ffn_norm",
    .final_norm = "embedding_norm",
    .attention_out = "out_proj",
    .ffn = {"feed_forward.w1", "feed_forward.w3", "feed_forward.w2"},
    .experts = {"feed_forward.", "gate", "expert_bias", "", {}, {"w1", "w3", "w2"}},
    .q_norm = "q_layernorm",
    .k_norm = "k_layernorm"};
constexpr HybridNames kFalcon = {
    .mixer = "mamba.",
    .norm1 = "input_layernorm",
    .norm2 = "pre_ff_layernorm",
    .final_norm = "final_layernorm",
    .attention_out = "o_proj",
    .ffn = {"feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"}};
// A layer has one part, and so one norm.
constexpr HybridNames kNemotron = {.mixer = "mixer.",
                                   .norm1 = "norm",
                                   .norm2 = "norm",
                                   .final_norm = "norm_f",
                                   .attention_out = "o_proj",
                                   .ffn = {"", "mixer.up_proj", "mixer.down_proj"},
                                   .experts = {"mixer.",
                                               "gate",
                                               "gate.e_score_correction_bias",
                                               "",
                                               kNemotronShared,
                                               {"", "up_proj", "down_proj"}},
                                   .attention = "mixer.",
                                   .prefix = "backbone.",
                                   .embedding = "embeddings"};

const HybridNames& NamesOf(const BlockConfig& block) {
  if (block.squared_relu) return kNemotron;
  if (block.kind->mixer == Mixer::kShortConv) return kLfm2;
  if (block.kind->mixer == Mixer::kDelta) return kQwen;
  return block.layers[0].recurrent && block.layers[0].attends ? kFalcon : kGranite;
}

// One hybrid's layers.
class HybridReader {
 public:
  HybridReader(TensorPacker* reader, PackedWeights* weights)
      : reader_(reader),
        weights_(weights),
        config_(reader->config),
        softmax_(*config_.block().softmax),
        names_(NamesOf(config_.block())),
        // A text model's tensors may be part of a model with a vision tower.
        prefix_(reader->Has("model.language_model.embed_tokens.weight") ? "model.language_model."
                                                                        : names_.prefix) {}

  absl::Status ReadEnds();
  absl::Status ReadLayer(int index, LayerWeights* layer) {
    return ReadLayer(absl::StrCat(prefix_, "layers.", index, "."),
                     config_.block().layers[size_t(index)], layer);
  }
  absl::Status ReadPredictor();

 private:
  absl::Status ReadLayer(const std::string& name, const LayerParts& parts, LayerWeights* layer);
  absl::Status ReadNorm(const std::string& name, int size, std::vector<float>* weight);
  absl::Status ReadMixer(const std::string& layer_name, LayerWeights* layer);
  absl::Status ReadDelta(const std::string& mixer, LayerWeights* layer);
  absl::Status ReadMamba(const std::string& mixer, LayerWeights* layer);
  absl::Status ReadShortConv(const std::string& mixer, LayerWeights* layer);
  absl::Status ReadSoftmax(const std::string& attn, LayerWeights* layer);
  absl::Status ReadSoftmaxInputs(const std::string& attn, LayerWeights* layer);

  TensorPacker* const reader_;
  PackedWeights* const weights_;
  const ModelConfig& config_;
  const SoftmaxConfig& softmax_;
  const HybridNames& names_;
  const std::string prefix_;
};

// The weight of a norm, which some models store as its difference from 1, except in GGUF files.
absl::Status HybridReader::ReadNorm(const std::string& name, int size, std::vector<float>* weight) {
  const std::string whole = name + ".one_plus_weight";
  if (reader_->Has(whole)) return reader_->Values(whole, {size}, weight);
  RIVULET_RETURN_IF_ERROR(reader_->Values(name + ".weight", {size}, weight));
  if (!config_.block().norm_around_one) return absl::OkStatus();
  for (float& w : *weight) w += 1;
  return absl::OkStatus();
}

// q_proj, k_proj and v_proj, with biases if there are any. In the file a head's gate is behind its
// q; here all gates are behind all q.
absl::Status HybridReader::ReadSoftmaxInputs(const std::string& attn, LayerWeights* layer) {
  const int dim = softmax_.head_dim, queries = softmax_.queries(), keys = softmax_.keys(),
            parts = softmax_.gate ? 2 : 1;
  InputColumns& columns = weights_->softmax_columns;
  columns.q = 0;
  columns.gate = softmax_.gate ? queries : -1;
  columns.k = kernels::PaddedColumns(parts * queries);
  columns.v = columns.k + kernels::PaddedColumns(keys);
  columns.n = columns.v + keys;
  std::vector<std::pair<TensorRows, int>> rows;
  std::vector<float> file_bias, bias(softmax_.bias ? size_t(columns.n) : 0);
  // `count` rows of a projection, from `first` of `of` on, and their biases.
  const auto add = [&](const char* name, int count, int first, int of, int column) {
    rows.push_back({{attn + name + ".weight", count, first, of}, column});
    if (!softmax_.bias) return;
    std::copy_n(file_bias.begin() + first, count, bias.begin() + column);
  };
  const auto read_bias = [&](const char* name, int size) {
    return softmax_.bias
               ? ReadBias(reader_, attn + name, size, 1 / softmax_.input_scale, &file_bias)
               : absl::OkStatus();
  };
  RIVULET_RETURN_IF_ERROR(read_bias("q_proj", parts * queries));
  for (int part = 0; part < parts; ++part) {
    if (parts == 1) {
      add("q_proj", queries, 0, 0, 0);
      break;
    }
    for (int h = 0; h < softmax_.num_heads; ++h) {
      add("q_proj", dim, (h * parts + part) * dim, parts * queries, part * queries + h * dim);
    }
  }
  RIVULET_RETURN_IF_ERROR(read_bias("k_proj", keys));
  add("k_proj", keys, 0, 0, columns.k);
  RIVULET_RETURN_IF_ERROR(read_bias("v_proj", keys));
  add("v_proj", keys, 0, 0, columns.v);
  return reader_->PlacedMatrix(rows, config_.hidden_size, columns.n, &layer->in, bias);
}

absl::Status HybridReader::ReadSoftmax(const std::string& attn, LayerWeights* layer) {
  layer->attends = true;
  RIVULET_RETURN_IF_ERROR(ReadSoftmaxInputs(attn, layer));
  if (softmax_.head_norm) {
    RIVULET_RETURN_IF_ERROR(ReadNorm(attn + names_.q_norm, softmax_.head_dim, &layer->q_norm));
    RIVULET_RETURN_IF_ERROR(ReadNorm(attn + names_.k_norm, softmax_.head_dim, &layer->k_norm));
  }
  const std::string out = attn + names_.attention_out;
  std::vector<float> bias;
  if (softmax_.bias) {
    RIVULET_RETURN_IF_ERROR(ReadBias(reader_, out, config_.hidden_size,
                                     softmax_.output_scale / softmax_.input_scale, &bias));
  }
  return reader_->Matrix({{out + ".weight", config_.hidden_size}}, softmax_.queries(), &layer->out,
                         bias);
}

// Gated DeltaNet.
absl::Status HybridReader::ReadDelta(const std::string& mixer, LayerWeights* layer) {
  const int channels = config_.block().conv_channels, heads = config_.num_heads;
  InputColumns& columns = weights_->columns;
  InputMatrix in(*reader_);
  in.Add({mixer + "in_proj_qkv.weight", channels}, &columns.q);
  columns.k = columns.q + config_.keys();
  columns.v = columns.k + config_.keys();
  in.Align();
  in.Add({mixer + "in_proj_z.weight", config_.values()}, &columns.gate);
  in.Add({mixer + "in_proj_b.weight", heads}, &columns.beta, MatrixUse::kExact);
  in.Add({mixer + "in_proj_a.weight", heads}, &columns.dt, MatrixUse::kExact);
  RIVULET_RETURN_IF_ERROR(in.Read(reader_, layer, &columns));
  RIVULET_RETURN_IF_ERROR(ReadConv(reader_, mixer + "conv1d.weight", channels, 0, layer));
  RIVULET_RETURN_IF_ERROR(ReadDecayScale(reader_, mixer, layer));
  RIVULET_RETURN_IF_ERROR(reader_->Values(mixer + "dt_bias", {heads}, &layer->decay_bias));
  RIVULET_RETURN_IF_ERROR(
      reader_->Values(mixer + "norm.weight", {config_.value_dim}, &layer->out_norm));
  return reader_->Matrix({{mixer + "out_proj.weight", config_.hidden_size}}, config_.values(),
                         &layer->out);
}

// Mamba-2 with a scaled output.
absl::Status HybridReader::ReadMamba(const std::string& mixer, LayerWeights* layer) {
  RIVULET_RETURN_IF_ERROR(ReadMamba2Mixer(reader_, mixer, layer, &weights_->columns));
  for (float& b : layer->out.bias) b *= config_.block().mixer_multiplier;
  return absl::OkStatus();
}

// The outputs of in_proj are B, C and x, in this order.
absl::Status HybridReader::ReadShortConv(const std::string& mixer, LayerWeights* layer) {
  const int hidden = config_.hidden_size;
  const bool biases = config_.block().conv_bias;
  InputColumns& columns = weights_->columns;
  columns.k = 0;
  columns.q = hidden;
  columns.v = 2 * hidden;
  columns.n = 3 * hidden;
  std::vector<float> bias;
  if (biases) RIVULET_RETURN_IF_ERROR(ReadBias(reader_, mixer + "in_proj", 3 * hidden, 1, &bias));
  RIVULET_RETURN_IF_ERROR(
      reader_->Matrix({{mixer + "in_proj.weight", 3 * hidden}}, hidden, &layer->in, bias));
  RIVULET_RETURN_IF_ERROR(ReadConv(reader_, mixer + "conv.weight", hidden, 0, layer));
  bias.clear();
  if (biases) {
    RIVULET_RETURN_IF_ERROR(ReadBias(reader_, mixer + "conv", hidden, 1, &layer->conv_bias));
    RIVULET_RETURN_IF_ERROR(ReadBias(reader_, mixer + "out_proj", hidden, 1, &bias));
  }
  return reader_->Matrix({{mixer + "out_proj.weight", hidden}}, hidden, &layer->out, bias);
}

absl::Status HybridReader::ReadMixer(const std::string& layer_name, LayerWeights* layer) {
  const std::string mixer = layer_name + names_.mixer;
  switch (reader_->kind().mixer) {
    case Mixer::kDelta:
      return ReadDelta(mixer, layer);
    case Mixer::kMamba2:
      return ReadMamba(mixer, layer);
    default:
      return ReadShortConv(mixer, layer);
  }
}

absl::Status HybridReader::ReadLayer(const std::string& name, const LayerParts& parts,
                                     LayerWeights* layer) {
  const int hidden = config_.hidden_size;
  const bool beside = parts.recurrent && parts.attends;
  if (parts.mixes()) {
    RIVULET_RETURN_IF_ERROR(ReadNorm(name + names_.norm1, hidden, &layer->norm1.weight));
  }
  if (parts.recurrent) RIVULET_RETURN_IF_ERROR(ReadMixer(name, layer));
  if (beside) layer->beside = std::make_unique<LayerWeights>();
  if (parts.attends) {
    RIVULET_RETURN_IF_ERROR(
        ReadSoftmax(name + names_.attention, beside ? layer->beside.get() : layer));
  }
  if (parts.ffn == FeedForward::kNone) return absl::OkStatus();
  RIVULET_RETURN_IF_ERROR(ReadNorm(name + names_.norm2, hidden, &layer->norm2.weight));
  if (parts.ffn == FeedForward::kExperts) return ReadExperts(reader_, name, names_.experts, layer);
  return ReadFfn(reader_, name, names_.ffn, config_.ffn_size, layer);
}

absl::Status HybridReader::ReadPredictor() {
  if (!reader_->Has("mtp.fc.weight")) return absl::OkStatus();
  const int hidden = config_.hidden_size;
  const bool lossless = weights_->facts.lossless;  // what numerics depend on; guesses change none
  auto own = std::make_unique<PredictorWeights>();
  RIVULET_RETURN_IF_ERROR(
      ReadNorm("mtp.pre_fc_norm_embedding", hidden, &own->embedding_norm.weight));
  RIVULET_RETURN_IF_ERROR(ReadNorm("mtp.pre_fc_norm_hidden", hidden, &own->hidden_norm.weight));
  RIVULET_RETURN_IF_ERROR(reader_->Matrix({{"mtp.fc.weight", hidden}}, 2 * hidden, &own->fc));
  const LayerParts parts = {
      .recurrent = false, .attends = true, .ffn = config_.block().layers.back().ffn};
  RIVULET_RETURN_IF_ERROR(ReadLayer("mtp.layers.0.", parts, &own->layer));
  RIVULET_RETURN_IF_ERROR(ReadNorm("mtp.norm", hidden, &own->norm.weight));
  weights_->predictor = std::move(own);
  weights_->facts.lossless = lossless;
  return absl::OkStatus();
}

// Embedding, final norm and head.
absl::Status HybridReader::ReadEnds() {
  const int hidden = config_.hidden_size, vocab = config_.vocab_size;
  RIVULET_RETURN_IF_ERROR(
      reader_->Matrix({{absl::StrCat(prefix_, names_.embedding, ".weight"), vocab}}, hidden,
                      &weights_->embedding, {}, MatrixUse::kEnd));
  std::vector<float>& norm = weights_->final_norm.weight;
  RIVULET_RETURN_IF_ERROR(ReadNorm(prefix_ + names_.final_norm, hidden, &norm));
  for (float& w : norm) w /= config_.block().logits_scaling;
  if (config_.block().tied_head) return absl::OkStatus();
  return reader_->Matrix({{"lm_head.weight", vocab}}, hidden, &weights_->head, {}, MatrixUse::kEnd);
}

}  // namespace

absl::Status ReadHybrid(TensorPacker* reader, bool predict, PackedWeights* weights) {
  HybridReader hybrid(reader, weights);
  RIVULET_RETURN_IF_ERROR(hybrid.ReadEnds());
  weights->layers.resize(size_t(reader->config.num_layers));
  for (int i = 0; i < reader->config.num_layers; ++i) {
    RIVULET_RETURN_IF_ERROR(hybrid.ReadLayer(i, &weights->layers[size_t(i)]));
  }
  return predict ? hybrid.ReadPredictor() : absl::OkStatus();
}

}  // namespace rivulet
