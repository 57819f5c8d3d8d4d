// SPDX-License-Identifier: Apache-2.0
// Texts of small configurations, one of each kind, which the tests of ParseModelConfig change.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tests/support/random_model.h"

namespace rivulet {

// `text` with its only `from` replaced.
inline std::string With(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from << " in " << text;
  EXPECT_EQ(text.find(from, at + 1), std::string::npos) << from << " twice in " << text;
  if (at == std::string::npos) return text;
  return text.replace(at, from.size(), to);
}

inline std::string Tiny() { return testing::ConfigJson(testing::TinyConfig()); }

inline std::string TinyWithMap(const FeatureMapConfig& map) {
  ModelConfig config = testing::TinyConfig();
  config.encoder().feature_map = map;
  return testing::ConfigJson(config);
}

inline std::string TinyRotary() {
  return With(Tiny(), R"({"type":"none"})", R"({"type":"rotary","base":500.5,"pairs":"halves"})");
}

inline std::string TinySoftmax(int window) {
  ModelConfig config = testing::TinyConfig();
  config.encoder().softmax = true;
  config.encoder().window = window;
  return testing::ConfigJson(config);
}

inline std::string TinyMixture() {
  ModelConfig config = testing::TinyConfig();
  config.output = {OutputType::kMixtureOfLogistics, 3, 10, MixtureScale::kExp};
  return testing::ConfigJson(config);
}

inline std::string TinyLearned() {
  ModelConfig config = testing::TinyConfig();
  config.encoder().position = PositionType::kLearned;
  config.encoder().combine = PositionCombine::kConcat;
  config.max_positions = 6;
  return testing::ConfigJson(config);
}

// Token 0 is both the bos and a character; token 10 is the eos and not a character.
inline std::string TinyText(const std::string& alphabet = "abcdefghij") {
  ModelConfig config = testing::TinyConfig();
  config.eos_token_id = 10;
  config.content.type = ContentType::kText;
  config.content.alphabet = alphabet;
  return testing::ConfigJson(config);
}

inline std::string TinyImage(int height, int width, int channels) {
  ModelConfig config = testing::TinyConfig();
  config.content = {ContentType::kImage, height, width, channels, ""};
  return testing::ConfigJson(config);
}

}  // namespace rivulet
