// SPDX-License-Identifier: Apache-2.0
#include "model/loading/packed_weights.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/loading/block_weights.h"
#include "model/loading/encoder_weights.h"
#include "model/loading/tensor_packer.h"

namespace rivulet {
// From [channels, 1, width] in checkpoints to [width, channels].
absl::Status ReadConv(TensorPacker* reader, const std::string& name, int channels, int first,
                      LayerWeights* layer) {
  const int width = reader->config.block().conv_width, all = reader->config.block().conv_channels;
  std::vector<float> taps;
  RIVULET_RETURN_IF_ERROR(reader->Values(name, {channels, 1, width}, &taps));
  layer->conv.resize(size_t(width) * size_t(all));
  for (int c = 0; c < channels; ++c) {
    for (int j = 0; j < width; ++j) {
      layer->conv[size_t(j * all + first + c)] = taps[size_t(c * width + j)];
    }
  }
  return absl::OkStatus();
}

// exp(A_log), one per head.
absl::Status ReadScale(TensorPacker* reader, const std::string& name, int repeat,
                       LayerWeights* layer) {
  std::vector<float> a_log;
  RIVULET_RETURN_IF_ERROR(reader->Values(name, {reader->config.num_heads}, &a_log));
  for (const float a : a_log) {
    layer->decay_scale.insert(layer->decay_scale.end(), size_t(repeat), std::exp(a));
  }
  return absl::OkStatus();
}

absl::Status ReadDecayScale(TensorPacker* reader, const std::string& mixer, LayerWeights* layer) {
  // A GGUF file stores -exp(A_log), so exp(A_log) is rounded only once.
  const std::string name = mixer + "minus_exp_A_log";
  if (!reader->Has(name)) return ReadScale(reader, mixer + "A_log", 1, layer);
  RIVULET_RETURN_IF_ERROR(reader->Values(name, {reader->config.num_heads}, &layer->decay_scale));
  for (float& a : layer->decay_scale) {
    if (a > 0) {
      return CorruptWeights(
          absl::StrCat("tensor ", name, " holds ", a, "; allowed: numbers up to 0"));
    }
    a = -a;
  }
  return absl::OkStatus();
}

absl::Status ReadSwiglu(TensorPacker* reader, const SwigluTensors& from, LayerWeights* layer) {
  const int hidden = reader->config.hidden_size, ffn = from.up.rows,
            padded = kernels::PaddedColumns(ffn);
  RIVULET_RETURN_IF_ERROR(reader->PlacedMatrix({{from.gate, 0}, {from.up, padded}}, hidden,
                                               padded + ffn, &layer->up, from.up_bias));
  return reader->Matrix({{from.down, hidden}}, ffn, &layer->down, from.down_bias);
}

// `mixer`: the prefix of its tensors' names.
absl::Status ReadMamba2Mixer(TensorPacker* reader, const std::string& mixer, LayerWeights* layer,
                             InputColumns* columns) {
  const ModelConfig& c = reader->config;
  columns->gate = 0;
  columns->v = c.values();  // x, then B, then C
  columns->k = 2 * c.values();
  columns->q = columns->k + c.block().num_groups * c.key_dim;
  const int others = columns->q + c.block().num_groups * c.key_dim, all = others + c.num_heads;
  std::vector<float> bias;
  if (c.block().projection_bias) {
    RIVULET_RETURN_IF_ERROR(reader->Values(mixer + "in_proj.bias", {all}, &bias));
    for (float& b : bias) b /= c.block().mamba_input_scale;
  }
  InputMatrix in(*reader);
  int first = 0;
  in.Add({mixer + "in_proj.weight", others, 0, all}, &first);
  in.Add({mixer + "in_proj.weight", c.num_heads, others, all}, &columns->dt, MatrixUse::kExact);
  RIVULET_RETURN_IF_ERROR(in.Read(reader, layer, columns, std::move(bias)));
  RIVULET_RETURN_IF_ERROR(
      ReadConv(reader, mixer + "conv1d.weight", c.block().conv_channels, 0, layer));
  if (c.block().conv_bias) {
    RIVULET_RETURN_IF_ERROR(
        reader->Values(mixer + "conv1d.bias", {c.block().conv_channels}, &layer->conv_bias));
  }
  RIVULET_RETURN_IF_ERROR(ReadDecayScale(reader, mixer, layer));
  RIVULET_RETURN_IF_ERROR(reader->Values(mixer + "dt_bias", {c.num_heads}, &layer->decay_bias));
  RIVULET_RETURN_IF_ERROR(reader->Values(mixer + "D", {c.num_heads}, &layer->skip));
  if (c.block().mamba_norm != MambaNorm::kNone) {
    RIVULET_RETURN_IF_ERROR(reader->Values(mixer + "norm.weight", {c.values()}, &layer->out_norm));
  }
  bias.clear();
  if (c.block().out_bias) {
    RIVULET_RETURN_IF_ERROR(reader->Values(mixer + "out_proj.bias", {c.hidden_size}, &bias));
  }
  return reader->Matrix({{mixer + "out_proj.weight", c.hidden_size}}, c.values(), &layer->out,
                        bias);
}

namespace {

using kernels::WeightType;

// The first of `names` that the checkpoint has; names[0] if it has none.
std::string Spelled(const TensorPacker& reader, const std::string& name, const std::string& other) {
  return reader.Has(name) || !reader.Has(other) ? name : other;
}

// The weights of the delta rules beside q, k, v.
absl::Status ReadDelta(TensorPacker* reader, const std::string& attn, LayerWeights* layer) {
  const ModelConfig& c = reader->config;
  RIVULET_RETURN_IF_ERROR(ReadConv(reader, attn + "q_conv1d.weight", c.keys(), 0, layer));
  RIVULET_RETURN_IF_ERROR(ReadConv(reader, attn + "k_conv1d.weight", c.keys(), c.keys(), layer));
  RIVULET_RETURN_IF_ERROR(
      ReadConv(reader, attn + "v_conv1d.weight", c.values(), 2 * c.keys(), layer));
  if (reader->kind().decay == DecayForm::kOfHead) {
    RIVULET_RETURN_IF_ERROR(ReadScale(reader, attn + "A_log", 1, layer));
    return reader->Values(attn + "dt_bias", {c.num_heads}, &layer->decay_bias);
  }
  if (reader->kind().decay != DecayForm::kLowRank) return absl::OkStatus();
  RIVULET_RETURN_IF_ERROR(ReadScale(reader, attn + "A_log", c.key_dim, layer));
  RIVULET_RETURN_IF_ERROR(reader->Values(attn + "dt_bias", {c.keys()}, &layer->decay_bias));
  const int low = reader->RowsOf(attn + "f_proj.0.weight");
  RIVULET_RETURN_IF_ERROR(reader->Matrix({{attn + "f_proj.1.weight", c.keys()}}, std::max(low, 1),
                                         &layer->decay, {}, MatrixUse::kExact));
  std::vector<float> bias;
  RIVULET_RETURN_IF_ERROR(reader->Values(attn + "g_proj.1.bias", {c.values()}, &bias));
  const int low_gate = reader->RowsOf(attn + "g_proj.0.weight");
  return reader->Matrix({{attn + "g_proj.1.weight", c.values()}}, std::max(low_gate, 1),
                        &layer->gate, bias, MatrixUse::kExact);
}

const char* LowRankDecayName(const BlockKind& kind) {
  return kind.mixer == Mixer::kDelta ? "f_proj" : "gk_proj";
}

absl::Status ReadFlaInputs(TensorPacker* reader, const std::string& attn, LayerWeights* layer,
                           InputColumns* columns) {
  const ModelConfig& c = reader->config;
  const BlockKind& kind = reader->kind();
  const bool bound = kind.decay == DecayForm::kLowerBound;
  InputMatrix in(*reader);
  in.Add({attn + "q_proj.weight", c.keys()}, &columns->q);
  if (!bound) in.Add({attn + "k_proj.weight", c.keys()}, &columns->k);
  in.Add({attn + (bound ? "i_proj.weight" : "v_proj.weight"), c.values()}, &columns->v);
  if (!kind.low_rank_gate && c.block().output_gate) {
    in.Add({attn + "g_proj.weight", c.values()}, &columns->gate);
  }
  if (bound) in.Add({attn + "f_proj.weight", c.keys()}, &columns->k, MatrixUse::kExact);
  if (kind.decay == DecayForm::kLowRank) {
    in.AddLow(attn + LowRankDecayName(kind) + ".0.weight", &columns->low);
  }
  if (kind.low_rank_gate) in.AddLow(attn + "g_proj.0.weight", &columns->low_gate);
  if (c.block().conv_width > 0) {
    in.Add({attn + "b_proj.weight", c.num_heads}, &columns->beta, MatrixUse::kExact);
  }
  if (reader->kind().decay == DecayForm::kOfHead) {
    in.Add({attn + "a_proj.weight", c.num_heads}, &columns->dt, MatrixUse::kExact);
  }
  return in.Read(reader, layer, columns);
}

// The weights of a kind beside its inputs and norms.
absl::Status ReadFlaMixer(TensorPacker* reader, const std::string& attn, LayerWeights* layer) {
  const ModelConfig& c = reader->config;
  if (c.block().conv_width > 0) return ReadDelta(reader, attn, layer);
  const BlockKind& kind = reader->kind();
  if (kind.decay == DecayForm::kLowRank) {
    std::vector<float> bias;
    RIVULET_RETURN_IF_ERROR(reader->Values(attn + "gk_proj.1.bias", {c.keys()}, &bias));
    layer->decay_scale.assign(size_t(c.keys()), 1 / c.block().gate_normalizer);
    const int low = reader->RowsOf(attn + "gk_proj.0.weight");
    return reader->Matrix({{attn + "gk_proj.1.weight", c.keys()}}, std::max(low, 1), &layer->decay,
                          bias, MatrixUse::kExact);
  }
  if (kind.decay == DecayForm::kFixed) {
    for (int h = 0; h < c.num_heads; ++h) {
      layer->decay_scale.push_back(float(1 - std::exp2(-5.0 - h)));  // the factor itself
    }
  }
  return absl::OkStatus();
}

absl::Status ReadFlaLayer(TensorPacker* reader, int index, LayerWeights* layer,
                          InputColumns* columns) {
  const ModelConfig& c = reader->config;
  const std::string prefix = absl::StrCat("model.layers.", index, "."), attn = prefix + "attn.";
  RIVULET_RETURN_IF_ERROR(
      reader->Values(prefix + "attn_norm.weight", {c.hidden_size}, &layer->norm1.weight));
  RIVULET_RETURN_IF_ERROR(
      reader->Values(prefix + "mlp_norm.weight", {c.hidden_size}, &layer->norm2.weight));
  RIVULET_RETURN_IF_ERROR(ReadFlaInputs(reader, attn, layer, columns));
  RIVULET_RETURN_IF_ERROR(ReadFlaMixer(reader, attn, layer));
  const std::string norm = Spelled(*reader, attn + reader->kind().output_norm + ".weight",
                                   attn + "g_norm_swish_gate.weight");
  const int norm_size = reader->kind().norm_all_heads ? c.values() : c.value_dim;
  RIVULET_RETURN_IF_ERROR(reader->Values(norm, {norm_size}, &layer->out_norm));
  RIVULET_RETURN_IF_ERROR(
      reader->Matrix({{attn + "o_proj.weight", c.hidden_size}}, c.values(), &layer->out));
  const std::string mlp = prefix + "mlp.";
  return ReadSwiglu(reader,
                    {{mlp + "gate_proj.weight", c.ffn_size},
                     {mlp + "up_proj.weight", c.ffn_size},
                     mlp + "down_proj.weight"},
                    layer);
}

absl::Status ReadMamba2Layer(TensorPacker* reader, int index, LayerWeights* layer,
                             InputColumns* columns) {
  const std::string prefix = absl::StrCat("backbone.layers.", index, ".");
  RIVULET_RETURN_IF_ERROR(
      reader->Values(prefix + "norm.weight", {reader->config.hidden_size}, &layer->norm1.weight));
  return ReadMamba2Mixer(reader, prefix + "mixer.", layer, columns);
}

absl::Status ReadLowRank(TensorPacker* reader, const std::string& name, bool with_bias,
                         LowRank* low) {
  const int hidden = reader->config.hidden_size;
  const std::string first = name + ".lora.0.weight", second = name + ".lora.2.weight";
  const int rank = std::max(reader->RowsOf(first), 1);
  std::vector<float> bias;
  if (with_bias) {
    RIVULET_RETURN_IF_ERROR(reader->Values(name + ".lora.2.bias", {hidden}, &bias));
  }
  RIVULET_RETURN_IF_ERROR(
      reader->Matrix({{first, rank}}, hidden, &low->first, {}, MatrixUse::kExact));
  return reader->Matrix({{second, hidden}}, rank, &low->second, bias, MatrixUse::kExact);
}

// x_r, x_w, x_k, x_v, x_a, x_g, or x_x with all of them in this order.
absl::Status ReadMix(TensorPacker* reader, const std::string& attn, std::vector<float>* mix) {
  const int hidden = reader->config.hidden_size;
  if (reader->Has(attn + "x_x")) return reader->Values(attn + "x_x", {6, 1, 1, hidden}, mix);
  for (const char* name : {"x_r", "x_w", "x_k", "x_v", "x_a", "x_g"}) {
    std::vector<float> one;
    RIVULET_RETURN_IF_ERROR(reader->Values(attn + name, {1, 1, hidden}, &one));
    mix->insert(mix->end(), one.begin(), one.end());
  }
  return absl::OkStatus();
}

absl::Status ReadNorm(TensorPacker* reader, const std::string& name, NormWeights* norm) {
  const int hidden = reader->config.hidden_size;
  RIVULET_RETURN_IF_ERROR(reader->Values(name + ".weight", {hidden}, &norm->weight));
  norm->bias.assign(size_t(hidden), 0);
  if (!reader->config.block().norm_bias) return absl::OkStatus();
  return reader->Values(name + ".bias", {hidden}, &norm->bias);
}

absl::Status ReadRwkv7Mixer(TensorPacker* reader, const std::string& attn, int index,
                            Rwkv7Layer* own) {
  const ModelConfig& c = reader->config;
  const int hidden = c.hidden_size;
  RIVULET_RETURN_IF_ERROR(ReadMix(reader, attn, &own->mix));
  RIVULET_RETURN_IF_ERROR(reader->Matrix({{attn + "r_proj.weight", hidden}}, hidden, &own->r));
  RIVULET_RETURN_IF_ERROR(reader->Matrix({{attn + "k_proj.weight", hidden}}, hidden, &own->k));
  RIVULET_RETURN_IF_ERROR(reader->Matrix({{attn + "v_proj.weight", hidden}}, hidden, &own->v));
  RIVULET_RETURN_IF_ERROR(ReadLowRank(reader, attn + "w_lora", true, &own->w));
  RIVULET_RETURN_IF_ERROR(ReadLowRank(reader, attn + "a_lora", true, &own->a));
  RIVULET_RETURN_IF_ERROR(ReadLowRank(reader, attn + "g_lora", false, &own->g));
  if (index > 0) RIVULET_RETURN_IF_ERROR(ReadLowRank(reader, attn + "v_lora", true, &own->v_mix));
  RIVULET_RETURN_IF_ERROR(reader->Values(attn + "k_k", {hidden}, &own->k_k));
  RIVULET_RETURN_IF_ERROR(reader->Values(attn + "k_a", {hidden}, &own->k_a));
  RIVULET_RETURN_IF_ERROR(reader->Values(attn + "r_k", {c.num_heads, c.key_dim}, &own->r_k));
  RIVULET_RETURN_IF_ERROR(reader->Values(attn + "g_norm.weight", {hidden}, &own->group_norm));
  return reader->Values(attn + "g_norm.bias", {hidden}, &own->group_norm_bias);
}

// S of every layer before the first token, if the model has it.
absl::Status ReadInitialState(TensorPacker* reader, PackedWeights* weights) {
  const auto name = [](int layer) {
    return absl::StrCat("model.layers.", layer, ".attn.initial_state");
  };
  if (!reader->Has(name(0))) return absl::OkStatus();
  const ModelConfig& c = reader->config;
  const BlockState layout(c.state());
  weights->initial_state.assign(layout.floats_per_slot, 0);
  for (int i = 0; i < c.num_layers; ++i) {
    std::vector<float> s;
    RIVULET_RETURN_IF_ERROR(reader->Values(name(i), {c.num_heads, c.key_dim, c.value_dim}, &s));
    std::copy(
        s.begin(), s.end(),
        weights->initial_state.begin() + ptrdiff_t(size_t(i) * layout.floats_per_layer + layout.s));
  }
  return absl::OkStatus();
}

absl::Status ReadRwkv7Layer(TensorPacker* reader, int index, LayerWeights* layer,
                            InputColumns* columns) {
  const ModelConfig& c = reader->config;
  const std::string prefix = absl::StrCat("model.layers.", index, "."), ffn = prefix + "ffn.";
  layer->rwkv7 = std::make_unique<Rwkv7Layer>();
  Rwkv7Layer* own = layer->rwkv7.get();
  layer->decay_scale.assign(size_t(c.hidden_size), 0.6065306597126334f);  // e^(-1/2)
  if (index == 0 && c.block().first_norm) {
    RIVULET_RETURN_IF_ERROR(ReadNorm(reader, prefix + "pre_norm", &own->first_norm));
  }
  RIVULET_RETURN_IF_ERROR(ReadNorm(reader, prefix + "attn_norm", &layer->norm1));
  RIVULET_RETURN_IF_ERROR(ReadNorm(reader, prefix + "ffn_norm", &layer->norm2));
  RIVULET_RETURN_IF_ERROR(ReadRwkv7Mixer(reader, prefix + "attn.", index, own));
  int low_rank = 0;
  for (const LowRank* low : {&own->w, &own->a, &own->g, &own->v_mix}) {
    low_rank += kernels::PaddedColumns(low->first.packed.n);
  }
  columns->low_rank = std::max(columns->low_rank, low_rank);
  RIVULET_RETURN_IF_ERROR(
      reader->Matrix({{prefix + "attn.o_proj.weight", c.hidden_size}}, c.hidden_size, &layer->out));
  RIVULET_RETURN_IF_ERROR(reader->Values(ffn + "x_k", {c.hidden_size}, &own->ffn_mix));
  RIVULET_RETURN_IF_ERROR(
      reader->Matrix({{ffn + "key.weight", c.ffn_size}}, c.hidden_size, &layer->up));
  return reader->Matrix({{ffn + "value.weight", c.hidden_size}}, c.ffn_size, &layer->down);
}

// lb = cumsum(softmax(lower_bounds, over the layers)) - its first row.
absl::Status ReadLowerBounds(TensorPacker* reader, PackedWeights* weights) {
  const ModelConfig& c = reader->config;
  const auto layers = size_t(c.num_layers), keys = size_t(c.keys());
  std::vector<float> raw;
  RIVULET_RETURN_IF_ERROR(reader->Values("model.lower_bounds", {c.num_layers, c.keys()}, &raw));
  for (size_t k = 0; k < keys; ++k) {
    double largest = raw[k], sum = 0, before = 0;
    for (size_t i = 0; i < layers; ++i) largest = std::max(largest, double{raw[i * keys + k]});
    for (size_t i = 0; i < layers; ++i) sum += std::exp(raw[i * keys + k] - largest);
    for (size_t i = 0; i < layers; ++i) {
      weights->layers[i].lower_bound.resize(keys);
      if (i > 0) before += std::exp(raw[i * keys + k] - largest) / sum;
      weights->layers[i].lower_bound[k] = float(before);
    }
  }
  return absl::OkStatus();
}

absl::Status ReadLayers(TensorPacker* reader, PackedWeights* weights) {
  const ModelConfig& c = reader->config;
  weights->layers.resize(size_t(c.num_layers));
  for (int i = 0; i < c.num_layers; ++i) {
    LayerWeights* layer = &weights->layers[size_t(i)];
    switch (reader->kind().mixer) {
      case Mixer::kMamba2:
        RIVULET_RETURN_IF_ERROR(ReadMamba2Layer(reader, i, layer, &weights->columns));
        break;
      case Mixer::kRwkv7:
        RIVULET_RETURN_IF_ERROR(ReadRwkv7Layer(reader, i, layer, &weights->columns));
        break;
      default:
        RIVULET_RETURN_IF_ERROR(ReadFlaLayer(reader, i, layer, &weights->columns));
    }
  }
  if (reader->kind().mixer == Mixer::kRwkv7) return ReadInitialState(reader, weights);
  return reader->kind().decay == DecayForm::kLowerBound ? ReadLowerBounds(reader, weights)
                                                        : absl::OkStatus();
}

void SetConstants(const ModelConfig& config, PackedWeights* weights) {
  const float root = std::sqrt(float(config.key_dim));
  weights->unit_length.assign(size_t(config.key_dim), 1 / root);
  weights->scaled_length.assign(size_t(config.key_dim), 1 / root / root);
  for (int i = 0; config.block().kind->rotary && i < config.key_dim / 2; ++i) {
    weights->rope.frequencies.push_back(std::pow(10000.0, -2.0 * i / config.key_dim));
  }
  if (config.block().softmax) weights->rope = config.block().softmax->rope;
}

// Embedding, final norm and head.
absl::Status ReadEnds(TensorPacker* reader, PackedWeights* weights) {
  const ModelConfig& c = reader->config;
  const bool mamba2 = reader->kind().mixer == Mixer::kMamba2;
  const std::string table =
      mamba2 ? Spelled(*reader, "backbone.embeddings.weight", "backbone.embedding.weight")
             : "model.embeddings.weight";
  RIVULET_RETURN_IF_ERROR(reader->Matrix({{table, c.vocab_size}}, c.hidden_size,
                                         &weights->embedding, {}, MatrixUse::kEnd));
  if (reader->kind().mixer == Mixer::kRwkv7) {
    RIVULET_RETURN_IF_ERROR(ReadNorm(reader, "model.norm", &weights->final_norm));
  } else {
    RIVULET_RETURN_IF_ERROR(reader->Values(mamba2 ? "backbone.norm_f.weight" : "model.norm.weight",
                                           {c.hidden_size}, &weights->final_norm.weight));
  }
  if (c.block().tied_head) return absl::OkStatus();
  return reader->Matrix({{"lm_head.weight", c.vocab_size}}, c.hidden_size, &weights->head, {},
                        MatrixUse::kEnd);
}

absl::Status ReadAll(TensorPacker* reader, bool predict, PackedWeights* weights) {
  if (std::holds_alternative<EncoderConfig>(reader->config.network)) {
    RIVULET_RETURN_IF_ERROR(ReadEncoderWeights(reader, weights));
  } else {
    if (reader->kind().hybrid) {
      RIVULET_RETURN_IF_ERROR(ReadHybrid(reader, predict, weights));
    } else {
      RIVULET_RETURN_IF_ERROR(ReadEnds(reader, weights));
      RIVULET_RETURN_IF_ERROR(ReadLayers(reader, weights));
    }
    SetConstants(reader->config, weights);
  }
  return reader->CheckNoOthers();
}

// Sums the matrices that multiply a token row. Of experts, only the chosen ones count.
class ProductCounter {
 public:
  explicit ProductCounter(WeightFacts* facts) : facts_(*facts) {}

  void Add(std::initializer_list<const MatrixWeights*> matrices, int of = 1, int chosen = 1) {
    for (const MatrixWeights* m : matrices) {
      if (m->packed.n == 0) continue;
      const kernels::PackedMatrix& w = m->packed;
      const int64_t count = int64_t{w.k} * w.n / of * chosen;
      facts_.multiply_adds += count;
      facts_.row_bytes += kernels::PackedSize(w.type, w.k, w.n) / size_t(of) * size_t(chosen);
      if (w.type == WeightType::kF32) wide_ += count;
      for (const MatrixWeights& part : m->more) Add({&part}, of, chosen);
    }
  }
  void Add(const ExpertWeights& experts, const kernels::Router& router) {
    Add({&experts.router, &experts.in, &experts.out});
    Add({&experts.up, &experts.down}, router.experts, router.chosen);
  }
  void Add(const Rwkv7Layer& r) {
    Add({&r.r, &r.k, &r.v});
    for (const LowRank* low : {&r.w, &r.a, &r.v_mix, &r.g}) Add({&low->first, &low->second});
  }
  ~ProductCounter() { facts_.short_weights = 2 * wide_ < facts_.multiply_adds; }

 private:
  WeightFacts& facts_;
  int64_t wide_ = 0;
};

void CountProducts(const ModelConfig& config, PackedWeights* weights) {
  ProductCounter counter(&weights->facts);
  for (const LayerWeights& l : weights->layers) {
    counter.Add({&l.in, &l.in_small, &l.decay, &l.gate, &l.out, &l.up, &l.down});
    if (l.experts != nullptr) counter.Add(*l.experts, config.experts()->router);
    if (l.beside != nullptr) counter.Add({&l.beside->in, &l.beside->out});
    if (l.rwkv7 != nullptr) counter.Add(*l.rwkv7);
  }
  counter.Add({&weights->transform, &weights->Head()});
}

int64_t IdleParameters(const ModelConfig& config) {
  if (config.experts() == nullptr) return 0;
  const BlockConfig& block = config.block();
  const ExpertsConfig& experts = *config.experts();
  const int64_t width = experts.latent_size > 0 ? experts.latent_size : config.hidden_size,
                each = width * experts.size * (block.squared_relu ? 2 : 3),
                layers = std::count_if(
                    block.layers.begin(), block.layers.end(),
                    [](const LayerParts&layer) { return layer.ffn == FeedForward::kExperts; });
  return layers * each * (experts.router.experts - experts.router.chosen);
}

}  // namespace

const std::string& MatrixWeights::TensorOf(int n) const {
  const auto after = std::find_if(tensors.begin(), tensors.end(),
                                  [n](const auto& tensor) { return tensor.second > n; });
  return std::prev(after)->first;
}

absl::StatusOr<std::unique_ptr<PackedWeights>> PackedWeights::Load(const Model& model,
                                                                   const WeightChoice& choice,
                                                                   bool predict) {
  auto weights = std::make_unique<PackedWeights>();
  TensorPacker reader(model.tensors(), model.config(), choice, &weights->facts);
  RIVULET_RETURN_IF_ERROR(ReadAll(&reader, predict, weights.get()));
  CountProducts(model.config(), weights.get());
  return weights;
}

absl::StatusOr<WeightPlan> PackedWeights::Plan(const Model& model, const WeightChoice& choice,
                                               bool predict) {
  PackedWeights weights;
  TensorPacker reader(model.tensors(), model.config(), choice, &weights.facts,
                      TensorPacker::Mode::kMeasure);
  RIVULET_RETURN_IF_ERROR(ReadAll(&reader, predict, &weights));
  CountProducts(model.config(), &weights);
  return WeightPlan{weights.facts, IdleParameters(model.config()), reader.packed()};
}

WeightPrecision NumbersOnly(const Model& model) {
  return HasBlocks(model.tensors()) ? WeightPrecision::kF32 : WeightPrecision::kAuto;
}

}  // namespace rivulet
