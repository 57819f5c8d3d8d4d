// SPDX-License-Identifier: Apache-2.0
// Any sampling parameters: within the documented ranges, or one typed error that names a field.
#include <cmath>
#include <cstring>

#include "absl/strings/match.h"
#include "model/base/error.h"
#include "model/sampler.h"
#include "tests/fuzz/promise.h"
#include "tests/support/random_model.h"

namespace rivulet {
namespace {

using fuzz::Promise;

// Takes values off the front of the input; zeros once it is used up.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  template <typename T>
  T Take() {
    T value{};
    const size_t bytes = sizeof(T) < size_ ? sizeof(T) : size_;
    if (bytes > 0) std::memcpy(&value, data_, bytes);
    data_ += bytes;
    size_ -= bytes;
    return value;
  }
  bool empty() const { return size_ == 0; }

 private:
  const uint8_t* data_;
  size_t size_;
};

void CheckValid(const SamplingParams& p, const ModelConfig& config) {
  const bool mixture = config.output.type == OutputType::kMixtureOfLogistics;
  Promise(std::isfinite(p.temperature) && p.temperature >= 0, "temperature");
  Promise(p.top_k >= 0, "top_k");
  Promise(p.top_p > 0 && p.top_p <= 1, "top_p");
  Promise(p.min_p >= 0 && p.min_p <= 1, "min_p");
  Promise(std::isfinite(p.repetition_penalty) && p.repetition_penalty > 0, "repetition_penalty");
  Promise(std::abs(p.frequency_penalty) <= 2, "frequency_penalty");
  Promise(std::abs(p.presence_penalty) <= 2, "presence_penalty");
  for (const auto& bias : p.logit_bias) {
    Promise(bias.first >= 0 && bias.first < config.num_output_tokens(), "logit_bias token");
    Promise(std::abs(bias.second) <= 100, "logit_bias value");
  }
  Promise(!mixture || (p.top_k == 0 && p.top_p == 1 && p.min_p == 0 && !p.has_penalties() &&
                       p.logit_bias.empty()),
          "a mixture head has temperature and seed only");
}

}  // namespace
}  // namespace rivulet

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rivulet::Input input(data, size);
  rivulet::ModelConfig config = rivulet::testing::TinyConfig();
  if (input.Take<uint8_t>() % 2 == 1) {
    config.output = {rivulet::OutputType::kMixtureOfLogistics, 3, 10, rivulet::MixtureScale::kExp};
  }
  rivulet::SamplingParams params;
  // A mask chooses which fields are set, so that one bad field can be reached past good ones.
  const auto mask = input.Take<uint8_t>();
  if (mask & 1) params.temperature = input.Take<float>();
  if (mask & 2) params.top_k = input.Take<int32_t>();
  if (mask & 4) params.top_p = input.Take<float>();
  if (mask & 8) params.min_p = input.Take<float>();
  if (mask & 16) params.repetition_penalty = input.Take<float>();
  if (mask & 32) params.frequency_penalty = input.Take<float>();
  if (mask & 64) params.presence_penalty = input.Take<float>();
  while ((mask & 128) && !input.empty()) {
    const auto token = input.Take<int32_t>();
    params.logit_bias.emplace_back(token, input.Take<float>());
  }
  const absl::Status status = rivulet::ValidateSampling(params, config, "sampling.");
  if (status.ok()) {
    rivulet::CheckValid(params, config);
  } else {
    const std::string field = rivulet::GetErrorDetail(status).field;
    rivulet::fuzz::Promise(absl::IsInvalidArgument(status), "errors are INVALID_ARGUMENT");
    rivulet::fuzz::Promise(absl::StartsWith(field, "sampling.") && field.size() > 9,
                           "an error names its field");
    rivulet::fuzz::PromiseOneLine(status);
  }
  return 0;
}
