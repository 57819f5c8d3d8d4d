// SPDX-License-Identifier: Apache-2.0
#include "server/start/model_description.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/base/error.h"
#include "model/base/memory.h"
#include "model/cache_type.h"
#include "model/cpu/memory_plan.h"
#include "model/loading/packed_weights.h"
#include "model/model.h"
#include "model/slot_choice.h"
#include "server/start/start_files.h"

namespace rivulet {
namespace {

std::string ContentName(const ContentConfig& content) {
  switch (content.type) {
    case ContentType::kImage:
      return absl::StrCat("image ", content.height, "x", content.width, "x", content.channels);
    case ContentType::kText:
      return "text";
    case ContentType::kTokens:
      break;
  }
  return "tokens";
}

std::string Whole(const HostMemory& memory) {
  return absl::StrCat(memory.limited_by, "'s ", memory.total, " bytes");
}

// The slots that `--slots auto` would make on the CPU here and now; none if not even one fits.
SlotChoice SlotsThatFit(int64_t weight_bytes, int64_t state_bytes) {
  const HostMemory memory = ReadHostMemory();
  const std::string whole = Whole(memory);
  const int64_t left = memory.available - weight_bytes;
  if (left < state_bytes) {
    return {0, absl::StrCat("the weights and one state exceed the ", memory.available,
                            " bytes that are free of ", whole)};
  }
  return AutoSlots(left, static_cast<size_t>(state_bytes), whole);
}

// The types of the tensors, the type with the most bytes first.
std::string TypesOf(const CheckpointTensors& tensors) {
  std::map<std::string, int64_t> bytes_by_type;
  for (const std::string& name : tensors.names()) {
    const TensorEntry& tensor = *tensors.Find(name);
    bytes_by_type[LayoutOf(tensor.dtype).name] += static_cast<int64_t>(tensor.end - tensor.begin);
  }
  std::vector<std::pair<int64_t, std::string>> types;
  types.reserve(bytes_by_type.size());
  for (const auto& [name, bytes] : bytes_by_type) types.emplace_back(-bytes, name);
  std::sort(types.begin(), types.end());
  const auto append = [](std::string* out, const auto& type) { out->append(type.second); };
  return absl::StrJoin(types, ", ", append);
}

}  // namespace

absl::StatusOr<ModelDescription> DescribeModel(const ServerConfig& server) {
  RIVULET_ASSIGN_OR_RETURN(const ModelPlace at, ParseModelPlace(server.models.front()));
  RIVULET_ASSIGN_OR_RETURN(const auto model, Model::Open(at.directory, at.name));
  RIVULET_ASSIGN_OR_RETURN(const CpuBackendOptions options,
                           CpuOptionsOf(server, model->config().name, 0));
  const ModelConfig config = model->config().WithCache(options.cache);
  ModelDescription description;
  const auto plan = PackedWeights::Plan(*model, options.weights);
  if (!plan.ok()) {
    return Annotate(plan.status(), absl::Utf8SafeCHexEscape(model->directory()));
  }
  description.weight_bytes = static_cast<int64_t>(plan->facts.bytes);
  description.name = config.name;
  description.kind = config.kind();
  description.content = ContentName(config.content);
  if (model->tokenizer() != nullptr) {
    description.tokenizer = model->text().tokenizer_kind;
    description.tokenizer_size = model->tokenizer()->size();
  }
  description.dtypes = TypesOf(model->tensors());
  description.num_parameters = model->tensors().num_parameters();
  description.active_parameters = description.num_parameters - plan->idle_parameters;
  description.token_weight_bytes = static_cast<int64_t>(plan->facts.row_bytes);
  const StateSize size = config.state().size();
  const HostMemory memory = ReadHostMemory();
  const SlotRoom room = {memory.available - description.weight_bytes, size, LongestContext(config),
                         Whole(memory)};
  RIVULET_ASSIGN_OR_RETURN(description.context,
                           ChooseCpuContext(options, config, room.left_bytes, room.memory));
  description.contexts = SlotsByContext(room);
  description.kv_cache = CacheTypeName(options.cache);
  description.fixed_bytes = static_cast<int64_t>(size.fixed);
  description.token_bytes = static_cast<int64_t>(size.per_token());
  description.state_bytes = static_cast<int64_t>(size.At(description.context));
  description.num_layers = config.num_layers;
  description.hidden_size = config.hidden_size;
  description.vocab_size = config.vocab_size;
  description.num_heads = config.num_heads;
  description.key_dim = config.key_dim;
  description.value_dim = config.value_dim;
  for (const WeightPrecision precision : {WeightPrecision::kInt8, WeightPrecision::kInt4}) {
    RIVULET_ASSIGN_OR_RETURN(const WeightPlan other, PackedWeights::Plan(*model, precision));
    const auto kept = static_cast<int64_t>(other.facts.bytes);
    description.choices.push_back(
        {WeightChoiceName(precision), kept, SlotsThatFit(kept, description.state_bytes).num_slots});
  }
  SlotChoice choice = SlotsThatFit(description.weight_bytes, description.state_bytes);
  description.slots = choice.num_slots;
  description.slots_choice = std::move(choice.words);
  return description;
}

}  // namespace rivulet
