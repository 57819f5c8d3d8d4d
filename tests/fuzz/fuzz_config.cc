// SPDX-License-Identifier: Apache-2.0
// Any text as config.json: a valid configuration or one typed error.
#include "absl/strings/string_view.h"
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

}  // namespace
}  // namespace rivulet

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = rivulet::ParseModelConfig(text);
  if (config.ok()) {
    rivulet::CheckValid(*config);
  } else {
    rivulet::fuzz::Promise(absl::IsInvalidArgument(config.status()), "errors are INVALID_ARGUMENT");
    rivulet::fuzz::PromiseOneLine(config.status());
  }
  return 0;
}
