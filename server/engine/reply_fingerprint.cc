// SPDX-License-Identifier: Apache-2.0
#include "server/engine/reply_fingerprint.h"

#include <algorithm>
#include <bit>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_split.h"
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
  void Add(uint64_t value) {
    Add(static_cast<int32_t>(value & 0xffffffffu));
    Add(static_cast<int32_t>(value >> 32));
  }
  void Add(int64_t value) { Add(static_cast<uint64_t>(value)); }
  void Add(absl::string_view text) {
    Add(uint64_t{text.size()});
    for (const char byte : text) Add(int32_t{byte});
  }
  void Add(const std::optional<Constraint>& constraint) {
    Add(static_cast<int32_t>(constraint->kind));
    Add(absl::string_view(constraint->text));
    Add(constraint->choices);
    Add(constraint->begin_position.value_or(-1));
    Add(constraint->after);
  }
  template <typename Item>
  void Add(const std::vector<Item>& list) {
    Add(uint64_t{list.size()});
    for (const Item& item : list) Add(item);
  }
  void Add(std::vector<std::pair<int32_t, float>> map) {
    std::sort(map.begin(), map.end());  // it has no order
    Add(uint64_t{map.size()});
    for (const auto& [token, bias] : map) {
      Add(token);
      Add(bias);
    }
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_;
};

// Fields of the first version are hashed with any value.
bool IsOfFirstVersion(absl::string_view field) {
  constexpr absl::string_view kNames =
      "prompt num_samples stop_ids stop_strings seed temperature top_k top_p min_p "
      "repetition_penalty frequency_penalty presence_penalty logit_bias";
  return absl::c_linear_search(absl::StrSplit(kNames, ' '), field);
}

// Adds a field unless kNotInFingerprint names it. A later field is hashed with its name, and only
// if it is set, so that replies of servers without the field can be resumed.
template <typename T>
void AddField(absl::string_view name, const T& value, const T& unset, Fingerprint* of) {
  if constexpr (std::is_same_v<T, SamplingParams>) {
    const auto add = [of](absl::string_view inner, const auto& field, const auto& unset_field) {
      AddField(inner, field, unset_field, of);
    };
    VisitFields(add, value, unset);
  } else if constexpr (requires { of->Add(value); }) {
    if (absl::c_linear_search(kNotInFingerprint, name)) return;
    if (!IsOfFirstVersion(name)) {
      if (value == unset) return;
      of->Add(name);
    }
    of->Add(value);
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
  of.Add(position);
  of.Add(hash);
  return of.value();
}

uint64_t ReplyFingerprint(uint64_t before, const GenerateSpec& spec, int64_t max_new) {
  Fingerprint of(before);
  const auto add = [&](absl::string_view name, const auto& value, const auto& unset) {
    if (name == "max_tokens") {
      of.Add(max_new);
    } else if (name == "ignore_eos") {  // in one word with the other flag
      of.Add(int32_t{spec.ignore_eos} | int32_t{spec.include_stop_string} << 1);
    } else if (name != "include_stop_string") {
      AddField(name, value, unset, &of);
    }
  };
  const GenerateSpec unset;
  VisitFields(add, spec, unset);
  return of.value();
}

}  // namespace rivulet
