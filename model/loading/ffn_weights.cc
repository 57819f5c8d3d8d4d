// SPDX-License-Identifier: Apache-2.0
#include "model/loading/ffn_weights.h"

#include <initializer_list>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/loading/block_weights.h"

namespace rivulet {
namespace {

using kernels::PaddedColumns;

// up's bias, behind the gate's if there is one, and down's.
absl::Status ReadFfnBiases(TensorPacker* reader, const std::string& prefix, const FfnNames& names,
                           int size, SwigluTensors* from) {
  const BlockConfig& block = reader->config.block();
  if (!block.ffn_bias) return absl::OkStatus();
  for (const absl::string_view name : {names.gate, names.up}) {
    if (name.empty()) continue;
    std::vector<float> bias;
    RIVULET_RETURN_IF_ERROR(ReadBias(reader, absl::StrCat(prefix, name), size, 1, &bias));
    from->up_bias.resize(size_t(PaddedColumns(static_cast<int>(from->up_bias.size()))));
    from->up_bias.insert(from->up_bias.end(), bias.begin(), bias.end());
  }
  return ReadBias(reader, absl::StrCat(prefix, names.down), reader->config.hidden_size,
                  block.ffn_multiplier, &from->down_bias);
}

// Where the matrices of expert `e` are.
class ExpertSource {
 public:
  ExpertSource(const TensorPacker& reader, const std::string& prefix, const FfnNames& one)
      : experts_(*reader.config.experts()),
        prefix_(prefix),
        one_(one),
        halves_(First(reader, {"experts.gate_up_proj", "input_linear.weight"})),
        up_(First(reader, {"experts.up_proj"})),
        down_(First(reader, {"experts.down_proj", "output_linear.weight"})) {}

  TensorRows Gate(int e) const {
    if (!halves_.empty()) return Stacked(halves_, e, experts_.size, 2);
    return up_.empty() ? Own(e, one_.gate, experts_.size)
                       : Stacked(prefix_ + "experts.gate_proj", e, experts_.size);
  }
  TensorRows Up(int e) const {
    if (!halves_.empty()) return Stacked(halves_, e, experts_.size, 2, 1);
    return up_.empty() ? Own(e, one_.up, experts_.size) : Stacked(up_, e, experts_.size);
  }
  TensorRows Down(int e, int rows) const {
    return down_.empty() ? Own(e, one_.down, rows) : Stacked(down_, e, rows);
  }

 private:
  std::string First(const TensorPacker& reader,
                    std::initializer_list<absl::string_view> names) const {
    for (const absl::string_view name : names) {
      std::string whole = absl::StrCat(prefix_, name);
      if (reader.Has(whole)) return whole;
    }
    return "";
  }
  TensorRows Own(int e, absl::string_view name, int rows) const {
    return {absl::StrCat(prefix_, "experts.", e, ".", name, ".weight"), rows};
  }
  // Part `part` of `parts` of expert e, of `rows` rows each.
  TensorRows Stacked(const std::string& name, int e, int rows, int parts = 1, int part = 0) const {
    const int count = experts_.router.experts;
    return {name, rows, (e * parts + part) * rows, count * parts * rows, count};
  }

  const ExpertsConfig& experts_;
  const std::string& prefix_;
  const FfnNames& one_;
  const std::string halves_, up_, down_;  // "": the checkpoint lacks it
};

absl::Status ReadRouter(TensorPacker* reader, const std::string& prefix,
                        const ExpertTensorNames& names, ExpertWeights* own) {
  const ExpertsConfig& experts = *reader->config.experts();
  const int count = experts.router.experts;
  std::vector<std::pair<TensorRows, int>> rows;
  std::string router = absl::StrCat(prefix, names.router, ".weight");
  if (!reader->Has(router)) {  // as transformers 5 names Granite's
    const std::string other = absl::StrCat(prefix, "router.weight");
    if (reader->Has(other)) router = other;
  }
  rows.push_back({{router, count}, 0});
  if (experts.shared_gate) {
    rows.push_back({{absl::StrCat(prefix, names.shared_gate, ".weight"), 1}, count});
  }
  RIVULET_RETURN_IF_ERROR(reader->PlacedMatrix(rows, reader->config.hidden_size,
                                               count + int{experts.shared_gate}, &own->router, {},
                                               MatrixUse::kRouter));
  if (!experts.bias) return absl::OkStatus();
  return reader->Values(absl::StrCat(prefix, names.bias), {count}, &own->bias);
}

absl::Status ReadProjection(TensorPacker* reader, const std::string& name, int k, int n,
                            MatrixWeights* m) {
  std::vector<float> bias;
  if (reader->config.block().ffn_bias) {
    RIVULET_RETURN_IF_ERROR(ReadBias(reader, name, n, 1, &bias));
  }
  return reader->Matrix({{name + ".weight", n}}, k, m, bias);
}

}  // namespace

absl::Status ReadBias(TensorPacker* reader, const std::string& name, int size, float scale,
                      std::vector<float>* bias) {
  RIVULET_RETURN_IF_ERROR(reader->Values(name + ".bias", {size}, bias));
  for (float& b : *bias) b *= scale;
  return absl::OkStatus();
}

absl::Status ReadFfn(TensorPacker* reader, const std::string& prefix, const FfnNames& names,
                     int size, LayerWeights* layer) {
  const auto weight = [&](absl::string_view name) { return absl::StrCat(prefix, name, ".weight"); };
  SwigluTensors from = {{weight(names.gate), size}, {weight(names.up), size}, weight(names.down)};
  if (names.gate == names.up) {
    from.gate.of = from.up.of = 2 * size;
    from.up.first = size;
  }
  RIVULET_RETURN_IF_ERROR(ReadFfnBiases(reader, prefix, names, size, &from));
  if (!names.gate.empty()) return ReadSwiglu(reader, from, layer);
  const int hidden = reader->config.hidden_size;
  RIVULET_RETURN_IF_ERROR(reader->Matrix({from.up}, hidden, &layer->up, from.up_bias));
  return reader->Matrix({{from.down, hidden}}, size, &layer->down, from.down_bias);
}

absl::Status ReadExperts(TensorPacker* reader, const std::string& layer_name,
                         const ExpertTensorNames& names, LayerWeights* layer) {
  const ExpertsConfig& experts = *reader->config.experts();
  const std::string prefix = absl::StrCat(layer_name, names.prefix);
  if (experts.shared_size > 0) {
    RIVULET_RETURN_IF_ERROR(ReadFfn(reader, layer_name, names.shared, experts.shared_size, layer));
  }
  layer->experts = std::make_unique<ExpertWeights>();
  ExpertWeights* const own = layer->experts.get();
  RIVULET_RETURN_IF_ERROR(ReadRouter(reader, prefix, names, own));
  const int hidden = reader->config.hidden_size,
            width = experts.latent_size > 0 ? experts.latent_size : hidden,
            padded = PaddedColumns(experts.size), halves = names.one.gate.empty() ? 1 : 2,
            out = PaddedColumns(width);
  std::vector<std::pair<TensorRows, int>> up, down;
  const ExpertSource source(*reader, prefix, names.one);
  for (int e = 0; e < experts.router.experts; ++e) {
    if (halves == 2) up.emplace_back(source.Gate(e), e * 2 * padded);
    up.emplace_back(source.Up(e), (e * halves + halves - 1) * padded);
    down.emplace_back(source.Down(e, width), e * out);
  }
  const int count = experts.router.experts;
  RIVULET_RETURN_IF_ERROR(reader->Experts(up, width, halves * padded, count, &own->up));
  RIVULET_RETURN_IF_ERROR(reader->Experts(down, experts.size, out, count, &own->down));
  if (experts.latent_size == 0) return absl::OkStatus();
  RIVULET_RETURN_IF_ERROR(
      ReadProjection(reader, prefix + "fc1_latent_proj", hidden, width, &own->in));
  return ReadProjection(reader, prefix + "fc2_latent_proj", width, hidden, &own->out);
}

}  // namespace rivulet
