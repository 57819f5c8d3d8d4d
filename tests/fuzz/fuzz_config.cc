// SPDX-License-Identifier: Apache-2.0
// Any text as config.json, of either layout: a valid configuration or one typed error.
#include "absl/strings/string_view.h"
#include "model/block_settings.h"
#include "model/config.h"
#include "tests/fuzz/promise.h"
#include "tests/support/random_model.h"

namespace rivulet {
namespace {

using fuzz::Promise;

void CheckValid(const ModelConfig& config) {
  Promise(config.state_layout().bytes_per_slot() <= uint64_t{16} << 30,
          "a state is at most 16 GiB");
  Promise(config.output_size() > 0 && config.key_features() > 0 && config.embedding_columns() > 0,
          "derived sizes are positive");
  Promise(config.num_output_tokens() <= config.vocab_size, "output tokens can be fed");
  if (config.num_layers <= 16) {
    for (const TensorSpec& spec : ExpectedTensors(config)) {
      for (const int64_t extent : spec.shape) Promise(extent > 0, "no tensor is empty");
    }
  }
  const std::string text = testing::ConfigJson(config);
  const auto again = ParseModelConfig(text);
  Promise(again.ok() && testing::ConfigJson(*again) == text,
          "what was read can be written and read");
}

void CheckError(const absl::Status& status) {
  Promise(absl::IsInvalidArgument(status), "errors are INVALID_ARGUMENT");
  fuzz::PromiseOneLine(status);
}

void CheckCheckpoint(const ModelConfig& config) {
  const auto* const block = std::get_if<BlockConfig>(&config.network);
  Promise((block == nullptr) == (config.kind() == std::string("linear")), "the kind is known");
  const StateParts state = config.state();
  Promise(state.fixed_floats <= uint64_t{4} << 30, "a state is at most 16 GiB");
  Promise(config.keys() > 0 && config.values() > 0 && config.ffn_size >= 0, "sizes are positive");
  Promise(
      block == nullptr || (block->conv_channels >= 0 && config.num_heads % block->num_groups == 0),
      "heads are shared by the groups");
  if (block != nullptr && block->experts) {
    const kernels::Router& router = block->experts->router;
    Promise(router.experts % router.groups == 0 && router.chosen > 0 &&
                router.chosen <= router.experts / router.groups * router.kept_groups,
            "as many experts are left as are chosen");
    Promise(block->experts->size > 0 && block->experts->shared_size >= 0, "experts have sizes");
  }
  Promise(
      block == nullptr || !block->kind->hybrid || std::ssize(block->layers) == config.num_layers,
      "each layer of a hybrid has parts");
  std::vector<int32_t> ends = config.more_eos_token_ids;
  if (config.eos_token_id) ends.push_back(*config.eos_token_id);
  for (const int32_t id : ends) {
    Promise(id >= 0 && id < config.vocab_size, "generation ends at tokens");
  }
}

}  // namespace
}  // namespace rivulet

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = rivulet::ParseModelConfig(text);
  if (config.ok()) {
    rivulet::CheckValid(*config);
  } else {
    rivulet::CheckError(config.status());
  }
  const auto json = rivulet::ParseSettings(text);
  if (!json.ok()) {
    rivulet::CheckError(json.status());
  } else if (const auto blocks = rivulet::ParseBlockConfig(*json); blocks.ok()) {
    rivulet::CheckCheckpoint(*blocks);
  } else {
    rivulet::CheckError(blocks.status());
  }
  return 0;
}
