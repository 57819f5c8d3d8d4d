// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/family_shape.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/half.h"
#include "tests/support/random_model.h"

namespace rivulet::bench {
namespace {

struct Tensor {
  std::string name;
  std::vector<int64_t> shape;
  float low, high;       // of its values
  double zero_rows = 0;  // share of rows that are 0

  size_t count() const {
    size_t values = 1;
    for (const int64_t extent : shape) values *= size_t(extent);
    return values;
  }
};

class Tensors {
 public:
  // [out, in] with sums of the size of its inputs.
  void Matrix(const std::string& name, int out, int in) {
    const float most = std::sqrt(3.0f / float(in));
    list.push_back({name + ".weight", {out, in}, -most, most, 0});
  }
  void Vector(const std::string& name, std::vector<int64_t> shape, float low, float high) {
    list.push_back({name, std::move(shape), low, high, 0});
  }
  void Norm(const std::string& name, int n) {
    Vector(name + ".weight", {n}, 0.9f, 1.1f);
    Vector(name + ".bias", {n}, -0.1f, 0.1f);
  }
  void LowRank(const std::string& name, int rank, int n, bool bias) {
    Matrix(name + ".lora.0", rank, n);
    Matrix(name + ".lora.2", n, rank);
    if (bias) Vector(name + ".lora.2.bias", {n}, -1, 1);
  }

  std::vector<Tensor> list;
};

void AddRwkv7Layer(const Rwkv7Shape& shape, int index, Tensors* tensors) {
  const int n = shape.hidden;
  const std::string prefix = absl::StrCat("model.layers.", index, "."), attn = prefix + "attn.";
  if (index == 0) tensors->Norm(prefix + "pre_norm", n);
  tensors->Norm(prefix + "attn_norm", n);
  tensors->Norm(prefix + "ffn_norm", n);
  for (const char* mix : {"x_r", "x_w", "x_k", "x_v", "x_a", "x_g"}) {
    tensors->Vector(attn + mix, {1, 1, n}, 0, 1);
  }
  for (const char* name : {"r_proj", "k_proj", "v_proj", "o_proj"}) {
    tensors->Matrix(attn + name, n, n);
  }
  tensors->LowRank(attn + "w_lora", shape.decay, n, true);
  tensors->LowRank(attn + "a_lora", shape.rate, n, true);
  tensors->LowRank(attn + "g_lora", shape.gate, n, false);
  if (index > 0) tensors->LowRank(attn + "v_lora", shape.value, n, true);
  tensors->Vector(attn + "k_k", {n}, 0.5f, 1);
  tensors->Vector(attn + "k_a", {n}, 0.5f, 1);
  tensors->Vector(attn + "r_k", {n / 64, 64}, -0.1f, 0.1f);
  tensors->Norm(attn + "g_norm", n);
  tensors->Vector(prefix + "ffn.x_k", {n}, 0, 1);
  tensors->Matrix(prefix + "ffn.key", 4 * n, n);
  tensors->list.back().zero_rows = 2 * shape.zeros - 1;
  tensors->Matrix(prefix + "ffn.value", n, 4 * n);
}

std::vector<Tensor> TensorsOf(const Rwkv7Shape& shape) {
  Tensors tensors;
  tensors.Matrix("model.embeddings", shape.vocab, shape.hidden);
  for (int i = 0; i < shape.layers; ++i) AddRwkv7Layer(shape, i, &tensors);
  tensors.Norm("model.norm", shape.hidden);
  tensors.Matrix("lm_head", shape.vocab, shape.hidden);
  return tensors.list;
}

constexpr int kMamba2Head = 64, kGraniteMambaHead = 32, kGraniteHead = 64;  // columns
constexpr int kGraniteState = 128;  // rows of a head's state

void AddMamba2(const std::string& mixer, int hidden, int heads, int state, Tensors* tensors) {
  const int inner = 2 * hidden, channels = inner + 2 * state;
  tensors->Vector(mixer + "A_log", {heads}, -1, 1);
  tensors->Vector(mixer + "D", {heads}, 0.5f, 1.5f);
  tensors->Vector(mixer + "dt_bias", {heads}, -2, 0.5f);
  tensors->Vector(mixer + "conv1d.weight", {channels, 1, 4}, -0.7f, 0.7f);
  tensors->Vector(mixer + "conv1d.bias", {channels}, -0.5f, 0.5f);
  tensors->Matrix(mixer + "in_proj", inner + channels + heads, hidden);
  tensors->Vector(mixer + "norm.weight", {inner}, 0.9f, 1.1f);
  tensors->Matrix(mixer + "out_proj", hidden, inner);
}

bool Attends(const GraniteShape& shape, int layer) {
  return layer % shape.attention_every == shape.attention_every - 1;
}

std::vector<Tensor> TensorsOf(const GraniteShape& shape) {
  Tensors tensors;
  const int hidden = shape.hidden;
  tensors.Matrix("model.embed_tokens", shape.vocab, hidden);
  for (int i = 0; i < shape.layers; ++i) {
    const std::string prefix = absl::StrCat("model.layers.", i, "."), attn = prefix + "self_attn.";
    tensors.Vector(prefix + "input_layernorm.weight", {hidden}, 0.9f, 1.1f);
    tensors.Vector(prefix + "post_attention_layernorm.weight", {hidden}, 0.9f, 1.1f);
    if (Attends(shape, i)) {
      tensors.Matrix(attn + "q_proj", shape.heads * kGraniteHead, hidden);
      tensors.Matrix(attn + "k_proj", shape.kv_heads * kGraniteHead, hidden);
      tensors.Matrix(attn + "v_proj", shape.kv_heads * kGraniteHead, hidden);
      tensors.Matrix(attn + "o_proj", hidden, shape.heads * kGraniteHead);
    } else {
      AddMamba2(prefix + "mamba.", hidden, 2 * hidden / kGraniteMambaHead, kGraniteState, &tensors);
    }
    tensors.Matrix(prefix + "shared_mlp.input_linear", 2 * shape.ffn, hidden);
    tensors.Matrix(prefix + "shared_mlp.output_linear", hidden, shape.ffn);
  }
  tensors.Vector("model.norm.weight", {hidden}, 0.9f, 1.1f);
  return tensors.list;
}

constexpr int kDeltaHead = 128, kQwen35Head = 256;  // columns

void AddDelta(const std::string& mixer, const Qwen35Shape& shape, Tensors* tensors) {
  const int heads = shape.delta_heads, inner = heads * kDeltaHead;
  tensors->Vector(mixer + "A_log", {heads}, -1, 1);
  tensors->Vector(mixer + "dt_bias", {heads}, -2, 0.5f);
  tensors->Vector(mixer + "conv1d.weight", {3 * inner, 1, 4}, -0.7f, 0.7f);
  tensors->Matrix(mixer + "in_proj_qkv", 3 * inner, shape.hidden);
  tensors->Matrix(mixer + "in_proj_z", inner, shape.hidden);
  tensors->Matrix(mixer + "in_proj_a", heads, shape.hidden);
  tensors->Matrix(mixer + "in_proj_b", heads, shape.hidden);
  tensors->Vector(mixer + "norm.weight", {kDeltaHead}, 0.9f, 1.1f);
  tensors->Matrix(mixer + "out_proj", shape.hidden, inner);
}

void AddAttention(const std::string& attn, const Qwen35Shape& shape, Tensors* tensors) {
  // Of each head of queries come a query and a gate.
  tensors->Matrix(attn + "q_proj", 2 * shape.heads * kQwen35Head, shape.hidden);
  tensors->Matrix(attn + "k_proj", shape.kv_heads * kQwen35Head, shape.hidden);
  tensors->Matrix(attn + "v_proj", shape.kv_heads * kQwen35Head, shape.hidden);
  tensors->Matrix(attn + "o_proj", shape.hidden, shape.heads * kQwen35Head);
  for (const char* norm : {"q_norm.weight", "k_norm.weight"}) {
    tensors->Vector(attn + norm, {kQwen35Head}, -0.1f, 0.1f);
  }
}

std::vector<Tensor> TensorsOf(const Qwen35Shape& shape) {
  Tensors tensors;
  // The norms add 1 to their weights.
  const auto add_norm = [&](const std::string& name) {
    tensors.Vector(name + ".weight", {shape.hidden}, -0.1f, 0.1f);
  };
  const auto add_layer = [&](const std::string& prefix, bool attends) {
    add_norm(prefix + "input_layernorm");
    add_norm(prefix + "post_attention_layernorm");
    attends ? AddAttention(prefix + "self_attn.", shape, &tensors)
            : AddDelta(prefix + "linear_attn.", shape, &tensors);
    tensors.Matrix(prefix + "mlp.gate_proj", shape.ffn, shape.hidden);
    tensors.Matrix(prefix + "mlp.up_proj", shape.ffn, shape.hidden);
    tensors.Matrix(prefix + "mlp.down_proj", shape.hidden, shape.ffn);
  };
  tensors.Matrix("model.embed_tokens", shape.vocab, shape.hidden);
  for (int i = 0; i < shape.layers; ++i) {
    add_layer(absl::StrCat("model.layers.", i, "."),
              i % shape.attention_every == shape.attention_every - 1);
  }
  add_norm("model.norm");
  tensors.Matrix("mtp.fc", shape.hidden, 2 * shape.hidden);
  for (const char* name : {"mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm"}) {
    add_norm(name);
  }
  add_layer("mtp.layers.0.", /*attends=*/true);
  return tensors.list;
}

std::vector<Tensor> TensorsOf(const Mamba2Shape& shape) {
  Tensors tensors;
  tensors.Matrix("backbone.embeddings", shape.vocab, shape.hidden);
  for (int i = 0; i < shape.layers; ++i) {
    const std::string prefix = absl::StrCat("backbone.layers.", i, ".");
    tensors.Vector(prefix + "norm.weight", {shape.hidden}, 0.9f, 1.1f);
    AddMamba2(prefix + "mixer.", shape.hidden, 2 * shape.hidden / kMamba2Head, shape.state,
              &tensors);
  }
  tensors.Vector("backbone.norm_f.weight", {shape.hidden}, 0.9f, 1.1f);
  return tensors.list;
}

std::string Header(const std::vector<Tensor>& tensors) {
  std::vector<std::string> entries;
  size_t at = 0;
  for (const Tensor& tensor : tensors) {
    const size_t end = at + tensor.count() * sizeof(uint16_t);
    entries.push_back(absl::StrCat("\"", tensor.name, "\":{\"dtype\":\"F16\",\"shape\":[",
                                   absl::StrJoin(tensor.shape, ","), "],\"data_offsets\":[", at,
                                   ",", end, "]}"));
    at = end;
  }
  std::string header = absl::StrCat("{", absl::StrJoin(entries, ","), "}");
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return header;
}

std::string Settings(const Rwkv7Shape& shape) {
  return absl::StrCat(
      R"({"model_type":"rwkv7","head_dim":64,"hidden_act":"sqrelu","norm_bias":true,)",
      R"("norm_eps":1e-5,"norm_first":true,"eos_token_id":0,"tie_word_embeddings":false,)",
      R"("hidden_size":)", shape.hidden, R"(,"num_hidden_layers":)", shape.layers,
      R"(,"intermediate_size":)", 4 * shape.hidden, R"(,"vocab_size":)", shape.vocab, "}");
}

std::string Settings(const Mamba2Shape& shape) {
  return absl::StrCat(
      R"({"model_type":"mamba2","hidden_act":"silu","conv_kernel":4,"expand":2,"n_groups":1,)",
      R"("layer_norm_epsilon":1e-5,"eos_token_id":0,"use_bias":false,"use_conv_bias":true,)",
      R"("tie_word_embeddings":true,"hidden_size":)", shape.hidden, R"(,"num_hidden_layers":)",
      shape.layers, R"(,"num_heads":)", 2 * shape.hidden / kMamba2Head, R"(,"head_dim":)",
      kMamba2Head, R"(,"state_size":)", shape.state, R"(,"vocab_size":)", shape.vocab, "}");
}

std::string Settings(const GraniteShape& shape) {
  std::vector<std::string> layers;
  for (int i = 0; i < shape.layers; ++i) {
    layers.emplace_back(Attends(shape, i) ? R"("attention")" : R"("mamba")");
  }
  return absl::StrCat(
      R"({"model_type":"granitemoehybrid","hidden_act":"silu","num_local_experts":0,)",
      R"("attention_bias":false,"attention_multiplier":0.015625,"embedding_multiplier":12,)",
      R"("residual_multiplier":0.246,"logits_scaling":3,"mamba_conv_bias":true,"mamba_d_conv":4,)",
      R"("mamba_expand":2,"mamba_n_groups":1,"mamba_proj_bias":false,"rms_norm_eps":1e-5,)",
      R"("position_embedding_type":"nope","eos_token_id":0,"tie_word_embeddings":true,)",
      R"("max_position_embeddings":32768,"layer_types":[)", absl::StrJoin(layers, ","),
      R"(],"hidden_size":)", shape.hidden, R"(,"num_hidden_layers":)", shape.layers,
      R"(,"mamba_d_head":)", kGraniteMambaHead, R"(,"mamba_n_heads":)",
      2 * shape.hidden / kGraniteMambaHead, R"(,"mamba_d_state":)", kGraniteState,
      R"(,"num_attention_heads":)", shape.heads, R"(,"num_key_value_heads":)", shape.kv_heads,
      R"(,"intermediate_size":)", shape.ffn, R"(,"shared_intermediate_size":)", shape.ffn,
      R"(,"vocab_size":)", shape.vocab, "}");
}

std::string Settings(const Qwen35Shape& shape) {
  return absl::StrCat(
      R"({"model_type":"qwen3_5_text","hidden_act":"silu","attention_bias":false,)",
      R"("attn_output_gate":true,"linear_conv_kernel_dim":4,"rms_norm_eps":1e-6,)",
      R"("max_position_embeddings":262144,"eos_token_id":0,"tie_word_embeddings":true,)",
      R"("rope_parameters":{"rope_type":"default","rope_theta":1e7,"partial_rotary_factor":0.25},)",
      R"("full_attention_interval":)", shape.attention_every, R"(,"hidden_size":)", shape.hidden,
      R"(,"num_hidden_layers":)", shape.layers, R"(,"linear_num_key_heads":)", shape.delta_heads,
      R"(,"linear_num_value_heads":)", shape.delta_heads, R"(,"linear_key_head_dim":)", kDeltaHead,
      R"(,"linear_value_head_dim":)", kDeltaHead, R"(,"num_attention_heads":)", shape.heads,
      R"(,"num_key_value_heads":)", shape.kv_heads, R"(,"head_dim":)", kQwen35Head,
      R"(,"intermediate_size":)", shape.ffn, R"(,"vocab_size":)", shape.vocab, "}");
}

// Values between `low` and `high` in F16. Of each the table holds 2^16; as fast as memory, where a
// value computed and rounded takes 7 ns.
class Values {
 public:
  void Fill(const Tensor& tensor, std::vector<uint16_t>* values) {
    const std::vector<uint16_t>& table = TableOf(tensor.low, tensor.high);
    values->resize(tensor.count());
    size_t i = 0;
    while (i < values->size()) {
      // Four values a draw: splitmix64.
      uint64_t bits = state_ += 0x9E3779B97F4A7C15u;
      bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9u;
      bits = (bits ^ bits >> 27) * 0x94D049BB133111EBu;
      bits ^= bits >> 31;
      for (int part = 0; part < 4 && i < values->size(); ++part, bits >>= 16) {
        (*values)[i++] = table[bits & 0xFFFF];
      }
    }
    if (tensor.zero_rows <= 0) return;
    const size_t rows = size_t(tensor.shape[0]), row = values->size() / rows;
    for (size_t r = 0; r < rows; ++r) {
      // Of the golden ratio: spread evenly, without a period.
      if (std::fmod(double(r) * 0.6180339887498949, 1.0) >= tensor.zero_rows) continue;
      std::fill_n(values->begin() + std::ptrdiff_t(r * row), row, uint16_t{0});
    }
  }

 private:
  const std::vector<uint16_t>& TableOf(float low, float high) {
    std::vector<uint16_t>& table = tables_[{low, high}];
    if (!table.empty()) return table;
    for (int i = 0; i < 1 << 16; ++i) {
      table.push_back(kernels::F32ToF16(low + (high - low) / float(1 << 16) * float(i)));
    }
    return table;
  }

  uint64_t state_ = 1;
  std::map<std::pair<float, float>, std::vector<uint16_t>> tables_;  // by low and high
};

absl::Status WriteModel(const std::string& directory, const std::string& settings,
                        const std::vector<Tensor>& tensors) {
  const absl::Status written = testing::WriteFile(directory + "/config.json", settings);
  if (!written.ok()) return written;
  const std::string header = Header(tensors);
  std::ofstream file(directory + "/model.safetensors", std::ios::binary);
  const uint64_t length = header.size();
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file.write(header.data(), std::streamsize(header.size()));
  Values drawn;
  std::vector<uint16_t> values;
  for (const Tensor& tensor : tensors) {
    drawn.Fill(tensor, &values);
    file.write(reinterpret_cast<const char*>(values.data()),
               std::streamsize(values.size() * sizeof(uint16_t)));
  }
  file.close();
  if (file.good()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write the weights in ", directory));
}

}  // namespace

absl::Status WriteRwkv7(const std::string& directory, const Rwkv7Shape& shape) {
  return WriteModel(directory, Settings(shape), TensorsOf(shape));
}

absl::Status WriteMamba2(const std::string& directory, const Mamba2Shape& shape) {
  return WriteModel(directory, Settings(shape), TensorsOf(shape));
}

absl::Status WriteGranite(const std::string& directory, const GraniteShape& shape) {
  return WriteModel(directory, Settings(shape), TensorsOf(shape));
}

absl::Status WriteQwen35(const std::string& directory, const Qwen35Shape& shape) {
  return WriteModel(directory, Settings(shape), TensorsOf(shape));
}

}  // namespace rivulet::bench
