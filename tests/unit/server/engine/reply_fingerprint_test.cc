// SPDX-License-Identifier: Apache-2.0
#include "server/engine/reply_fingerprint.h"

#include <gtest/gtest.h>

#include <functional>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace rivulet {
namespace {

const StateStamp kModel{"weights", "config", "numerics", "owner"};

uint64_t Of(const GenerateSpec& spec) {
  return ReplyFingerprint(ModelFingerprint(kModel), spec, spec.max_tokens);
}

// Changes a field of a kind that a fingerprint can cover.
template <typename T>
void Change(T* field) {
  if constexpr (std::is_arithmetic_v<T>) {
    *field = static_cast<T>(*field == T{} ? 1 : 0);
  } else if constexpr (requires { field->resize(1); }) {
    field->resize(1);
  } else if constexpr (std::is_same_v<T, std::optional<Constraint>>) {
    field->emplace();
  }
}

TEST(ReplyFingerprintTest, EveryFieldCountsThatIsNotSaidToBeLeftOut) {
  GenerateSpec spec;
  std::set<std::string> left_out;
  std::set<uint64_t> seen = {Of(spec)};
  const auto change = [&](absl::string_view name, auto& field) {
    const auto unset = field;
    Change(&field);
    if (Of(spec) == Of(GenerateSpec())) {
      left_out.emplace(name);
    } else {
      EXPECT_TRUE(seen.insert(Of(spec)).second) << name << " counts as another field";
    }
    field = unset;
  };
  VisitFields(change, spec);
  VisitFields(change, spec.sampling);
  left_out.erase("sampling");  // its fields are changed
  const std::set<std::string> said(std::begin(kNotInFingerprint), std::end(kNotInFingerprint));
  EXPECT_EQ(left_out, said);
  const std::vector<std::function<void(Constraint*)>> parts = {
      [](Constraint* c) { c->kind = Constraint::Kind::kRegex; },
      [](Constraint* c) { c->text = "a"; },
      [](Constraint* c) { c->choices = {"a"}; },
      [](Constraint* c) { c->begin_position = 0; },
      [](Constraint* c) { c->after = {"a"}; },
  };
  for (const auto& part : parts) {
    part(&spec.constraint.emplace());
    EXPECT_TRUE(seen.insert(Of(spec)).second);
  }
}

// Clients keep fingerprints while servers are replaced. A new field must not change these values.
TEST(ReplyFingerprintTest, TheValuesAreThoseOfEarlierServers) {
  const uint64_t model = ModelFingerprint(kModel);
  const SessionId id{0x0123456789abcdef, 0x0123456789abcdef};
  GenerateSpec spec;
  EXPECT_EQ(Of(spec), 0x67e67d7ba7208a51);
  EXPECT_EQ(ReplyFingerprint(SessionFingerprint(model, id, 12, 34), spec, 0), 0xa8bd07e259507bbb);
  spec.prompt = {1};
  EXPECT_EQ(ReplyFingerprint(model, spec, -1), 0xff690ac52243b819);
  spec.prompt = {3, -1, 4};
  spec.sampling = {
      0.75f, 7, 0.5f, 0.25f, 1.5f, -0.125f, 2, {{9, 2.0f}, {4, -3.0f}}, 0xfedcba9876543210};
  spec.num_samples = 3;
  spec.max_tokens = int64_t{5} << 33;
  spec.stop_ids = {8, 2};
  spec.ignore_eos = spec.include_stop_string = true;
  spec.stop_strings = {"end", "", "\xC3\xA9"};
  EXPECT_EQ(Of(spec), 0xe9f01543960ff5a9);
  std::swap(spec.sampling.logit_bias[0], spec.sampling.logit_bias[1]);  // a map has no order
  EXPECT_EQ(Of(spec), 0xe9f01543960ff5a9);
  spec.max_tokens = 5;
  spec.ignore_eos = false;
  EXPECT_EQ(Of(spec), 0xb700cd8765c326f7);
  spec.ignore_eos = true;
  spec.include_stop_string = false;
  EXPECT_EQ(Of(spec), 0x135e893137940514);
}

TEST(ReplyFingerprintTest, ItNamesModelAndNumerics) {
  for (std::string StateStamp::*field :
       {&StateStamp::weights_sha256, &StateStamp::config_sha256, &StateStamp::numerics_id}) {
    StateStamp other = kModel;
    (other.*field) += "x";
    EXPECT_NE(ModelFingerprint(other), ModelFingerprint(kModel));
  }
  StateStamp other = kModel;
  other.owner = "another process";
  EXPECT_EQ(ModelFingerprint(other), ModelFingerprint(kModel));
}

}  // namespace
}  // namespace rivulet
