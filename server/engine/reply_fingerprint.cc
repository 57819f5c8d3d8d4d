// SPDX-License-Identifier: Apache-2.0
#include "server/engine/reply_fingerprint.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/sessions/sequence_hash.h"

namespace rivulet {
namespace {

// Lists and texts come with their length, so that no two requests give the same bytes.
class Fingerprint {
 public:
  explicit Fingerprint(uint64_t begin) : hash_(begin) {}

  void Add(int32_t value) { hash_ = HashToken(hash_, value); }
  void Add(float value) { Add(std::bit_cast<int32_t>(value)); }
  void AddLong(uint64_t value) {
    Add(static_cast<int32_t>(value & 0xffffffffu));
    Add(static_cast<int32_t>(value >> 32));
  }
  void Add(absl::string_view text) {
    AddLong(text.size());
    for (const char byte : text) Add(int32_t{byte});
  }
  void Add(const std::vector<int32_t>& tokens) {
    AddLong(tokens.size());
    hash_ = HashTokens(hash_, tokens);
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_;
};

void AddSampling(const SamplingParams& params, Fingerprint* of) {
  of->AddLong(params.seed);
  of->Add(params.top_k);
  for (const float value :
       {params.temperature, params.top_p, params.min_p, params.repetition_penalty,
        params.frequency_penalty, params.presence_penalty}) {
    of->Add(value);
  }
  std::vector<std::pair<int32_t, float>> biases = params.logit_bias;
  std::sort(biases.begin(), biases.end());  // a map has no order
  of->AddLong(biases.size());
  for (const auto& [token, bias] : biases) {
    of->Add(token);
    of->Add(bias);
  }
}

}  // namespace

uint64_t ModelFingerprint(const StateStamp& stamp) {
  Fingerprint of(kEmptySequenceHash);
  of.Add(stamp.weights_sha256);
  of.Add(stamp.config_sha256);
  of.Add(stamp.numerics_id);
  return of.value();
}

uint64_t SessionFingerprint(uint64_t model, const SessionId& id, int64_t position, uint64_t hash) {
  Fingerprint of(model);
  of.Add(id.ToString());
  of.AddLong(static_cast<uint64_t>(position));
  of.AddLong(hash);
  return of.value();
}

uint64_t ReplyFingerprint(uint64_t before, const GenerateSpec& spec, int64_t max_new) {
  Fingerprint of(before);
  of.Add(spec.prompt);
  AddSampling(spec.sampling, &of);
  of.Add(spec.num_samples);
  of.AddLong(static_cast<uint64_t>(max_new));
  of.Add(spec.stop_ids);
  of.Add(int32_t{spec.ignore_eos} | int32_t{spec.include_stop_string} << 1);
  of.AddLong(spec.stop_strings.size());
  for (const std::string& stop : spec.stop_strings) of.Add(stop);
  return of.value();
}

}  // namespace rivulet
