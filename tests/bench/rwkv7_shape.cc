// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/rwkv7_shape.h"

#include <cmath>
#include <cstdint>
#include <fstream>
#include <random>
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
  float low, high;  // of its values

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
    list.push_back({name + ".weight", {out, in}, -most, most});
  }
  void Vector(const std::string& name, std::vector<int64_t> shape, float low, float high) {
    list.push_back({name, std::move(shape), low, high});
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

void AddLayer(const Rwkv7Shape& shape, int index, Tensors* tensors) {
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
  tensors->Matrix(prefix + "ffn.value", n, 4 * n);
}

std::vector<Tensor> AllTensors(const Rwkv7Shape& shape) {
  Tensors tensors;
  tensors.Matrix("model.embeddings", shape.vocab, shape.hidden);
  for (int i = 0; i < shape.layers; ++i) AddLayer(shape, i, &tensors);
  tensors.Norm("model.norm", shape.hidden);
  tensors.Matrix("lm_head", shape.vocab, shape.hidden);
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

}  // namespace

absl::Status WriteRwkv7(const std::string& directory, const Rwkv7Shape& shape) {
  const absl::Status written = testing::WriteFile(directory + "/config.json", Settings(shape));
  if (!written.ok()) return written;
  const std::vector<Tensor> tensors = AllTensors(shape);
  const std::string header = Header(tensors);
  std::ofstream file(directory + "/model.safetensors", std::ios::binary);
  const uint64_t length = header.size();
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file.write(header.data(), std::streamsize(header.size()));
  std::minstd_rand random(1);
  std::vector<uint16_t> values;
  for (const Tensor& tensor : tensors) {
    values.resize(tensor.count());
    const float step = (tensor.high - tensor.low) / float(1 << 16);
    for (uint16_t& value : values) {
      value = kernels::F32ToF16(tensor.low + step * float(random() >> 8 & 0xFFFF));
    }
    file.write(reinterpret_cast<const char*>(values.data()),
               std::streamsize(values.size() * sizeof(uint16_t)));
  }
  file.close();
  if (file.good()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write the weights in ", directory));
}

}  // namespace rivulet::bench
