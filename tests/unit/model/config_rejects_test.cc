// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/config.h"
#include "tests/support/random_model.h"
#include "tests/unit/model/config_texts.h"

namespace rivulet {
namespace {

using kernels::FeatureMapKind;
using testing::ConfigJson;
using ::testing::HasSubstr;
using testing::MakeFeatureMap;
using testing::TinyConfig;

struct BadCase {
  std::string text;
  std::string field;  // the error's field; stands in the message too
  std::string held;   // what the message must also say
};

std::vector<BadCase> BadTopLevelFields() {
  const std::string huge = "99999999999999999999999999";
  return {
      {With(Tiny(), R"("rivulet-model")", R"("gguf")"), "format", "\"gguf\""},
      {With(Tiny(), R"("rivulet-model")", "1"), "format", "is 1"},
      {With(Tiny(), R"("format":"rivulet-model",)", ""), "format", "missing"},
      {With(Tiny(), R"("format_version":1)", R"("format_version":2)"), "format_version", "is 2"},
      {With(Tiny(), R"("format_version":1)", R"("format_version":1.0)"), "format_version", "1.0"},
      {With(Tiny(), R"("format_version":1,)", ""), "format_version", "missing"},
      {With(Tiny(), R"("name":"tiny")", R"("name":"Tiny")"), "name", "\"Tiny\""},
      {With(Tiny(), R"("name":"tiny")", R"("name":"")"), "name", "\"\""},
      {With(Tiny(), R"("name":"tiny")", R"("name":"-tiny")"), "name", "\"-tiny\""},
      {With(Tiny(), R"("name":"tiny")", R"("name":"a\nb")"), "name", "\"a\\nb\""},
      {With(Tiny(), R"("name":"tiny")", "\"name\":\"" + std::string(65, 'a') + "\""), "name",
       "aaa"},
      {With(Tiny(), R"("name":"tiny")", R"("name":null)"), "name", "null"},
      {With(Tiny(), R"("name":"tiny",)", ""), "name", "missing"},
      {With(Tiny(), R"("vocab_size":11)", R"("vocab_size":0)"), "vocab_size", "is 0"},
      {With(Tiny(), R"("vocab_size":11)", R"("vocab_size":-11)"), "vocab_size", "-11"},
      {With(Tiny(), R"("vocab_size":11)", R"("vocab_size":11.5)"), "vocab_size", "11.5"},
      {With(Tiny(), R"("vocab_size":11)", R"("vocab_size":1.1e1)"), "vocab_size", "1.1e1"},
      {With(Tiny(), R"("vocab_size":11)", R"("vocab_size":"11")"), "vocab_size", "\"11\""},
      {With(Tiny(), R"("vocab_size":11)", R"("vocab_size":true)"), "vocab_size", "true"},
      {With(Tiny(), R"("vocab_size":11)", R"("vocab_size":[11])"), "vocab_size", "array"},
      {With(Tiny(), R"("vocab_size":11)", R"("vocab_size":2147483648)"), "vocab_size",
       "2147483648"},
      {With(Tiny(), R"("vocab_size":11)", R"("vocab_size":4294967307)"), "vocab_size",
       "4294967307"},
      {With(Tiny(), R"("vocab_size":11)", R"("vocab_size":18446744073709551615)"), "vocab_size",
       "18446744073709551615"},
      {With(Tiny(), R"("vocab_size":11)", R"("vocab_size":)" + huge), "vocab_size", huge},
      {With(Tiny(), R"("vocab_size":11)", R"("vocab_size":1)"), "vocab_size", "bos"},
      {With(Tiny(), R"("bos_token_id":0)", R"("bos_token_id":11)"), "bos_token_id", "is 11"},
      {With(Tiny(), R"("bos_token_id":0)", R"("bos_token_id":-1)"), "bos_token_id", "-1"},
      {With(Tiny(), R"("bos_token_id":0)", R"("bos_token_id":0.0)"), "bos_token_id", "0.0"},
      {With(Tiny(), R"("bos_token_id":0)", R"("bos_token_id":false)"), "bos_token_id", "false"},
      {With(Tiny(), R"("bos_token_id":0,)", ""), "bos_token_id", "missing"},
      {With(Tiny(), R"("eos_token_id":null)", R"("eos_token_id":11)"), "eos_token_id", "is 11"},
      {With(Tiny(), R"("eos_token_id":null)", R"("eos_token_id":"null")"), "eos_token_id",
       "\"null\""},
      {With(Tiny(), R"("eos_token_id":null,)", ""), "eos_token_id", "missing"},
      {With(Tiny(), R"("hidden_size":8)", R"("hidden_size":0)"), "hidden_size", "is 0"},
      {With(Tiny(), R"("hidden_size":8)", R"("hidden_size":16777217)"), "hidden_size", "16777217"},
      {With(TinyLearned(), R"("hidden_size":8)", R"("hidden_size":9)"), "hidden_size", "even"},
      {With(Tiny(), R"("num_layers":2)", R"("num_layers":0)"), "num_layers", "is 0"},
      {With(Tiny(), R"("num_layers":2)", R"("num_layers":4097)"), "num_layers", "4097"},
      {With(Tiny(), R"("num_heads":2)", R"("num_heads":-2)"), "num_heads", "-2"},
      {With(Tiny(), R"("key_dim":4)", R"("key_dim":0)"), "key_dim", "is 0"},
      {With(Tiny(), R"("key_dim":4)", R"("key_dim":16777216)"), "key_dim", "num_heads"},
      {With(Tiny(), R"("value_dim":4)", R"("value_dim":null)"), "value_dim", "null"},
      {With(Tiny(), R"("value_dim":4)", R"("value_dim":16777216)"), "value_dim", "num_heads"},
      {With(Tiny(), R"("ffn_size":12)", R"("ffn_size":0)"), "ffn_size", "is 0"},
      {With(Tiny(), R"("ffn_size":12,)", ""), "ffn_size", "missing"},
      {With(Tiny(), R"("gelu")", R"("silu")"), "activation", "\"silu\""},
      {With(Tiny(), R"("gelu")", R"("GELU")"), "activation", "\"GELU\""},
      {With(Tiny(), R"("gelu")", "7"), "activation", "is 7"},
      {With(Tiny(), R"("layer_norm_eps":9.99999975e-06)", R"("layer_norm_eps":0)"),
       "layer_norm_eps", "is 0"},
      {With(Tiny(), R"("layer_norm_eps":9.99999975e-06)", R"("layer_norm_eps":-1e-5)"),
       "layer_norm_eps", "-1e-5"},
      {With(Tiny(), R"("layer_norm_eps":9.99999975e-06)", R"("layer_norm_eps":1e-60)"),
       "layer_norm_eps", "1e-60"},
      {With(Tiny(), R"("layer_norm_eps":9.99999975e-06)", R"("layer_norm_eps":1e60)"),
       "layer_norm_eps", "1e60"},
      {With(Tiny(), R"("layer_norm_eps":9.99999975e-06)", R"("layer_norm_eps":1e999)"),
       "layer_norm_eps", "1e999"},
      {With(Tiny(), R"("layer_norm_eps":9.99999975e-06)", R"("layer_norm_eps":1e-999)"),
       "layer_norm_eps", "1e-999"},
      {With(Tiny(), R"("layer_norm_eps":9.99999975e-06)", R"("layer_norm_eps":NaN)"),
       "layer_norm_eps", "not valid JSON"},
      {With(Tiny(), R"("layer_norm_eps":9.99999975e-06)", R"("layer_norm_eps":-Infinity)"),
       "layer_norm_eps", "not valid JSON"},
      {With(Tiny(), R"("layer_norm_eps":9.99999975e-06)", R"("layer_norm_eps":"1e-5")"),
       "layer_norm_eps", "\"1e-5\""},
      {With(Tiny(), R"("final_norm":true)", R"("final_norm":1)"), "final_norm", "is 1"},
      {With(Tiny(), R"("final_norm":true)", R"("final_norm":"true")"), "final_norm", "\"true\""},
      {With(Tiny(), R"("final_norm":true)", R"("final_norm":true,"final_norm":true)"), "final_norm",
       "twice"},
      {With(Tiny(), R"("final_norm":true)", R"("final_norm":true,"dropout":0)"), "dropout",
       "unknown"},
      {With(Tiny(), R"("final_norm":true)", R"("final_norm":true,"a\nb":0)"), "a\\nb", "unknown"},
  };
}

std::vector<BadCase> BadNestedFields() {
  const std::string map = "attention.feature_map";
  const std::string rff = TinyWithMap(MakeFeatureMap(FeatureMapKind::kRandomFourier, 4, 0.5f));
  const std::string smooth =
      TinyWithMap(MakeFeatureMap(FeatureMapKind::kSmoothedRandomFourier, 7, 0.5f, 2));
  const std::string favor = TinyWithMap(MakeFeatureMap(FeatureMapKind::kFavor, 4, 0.5f));
  const std::string random =
      TinyWithMap(MakeFeatureMap(FeatureMapKind::kGeneralizedRandomRelu, 5, 0.5f));
  const std::string rfa = TinyWithMap(MakeFeatureMap(FeatureMapKind::kRfa, 5));
  return {
      {With(Tiny(), R"({"type":"none"})", R"("none")"), "position", "\"none\""},
      {With(Tiny(), R"({"type":"none"})", "{}"), "position.type", "missing"},
      {With(Tiny(), R"({"type":"none"})", R"({"type":"rope"})"), "position.type", "\"rope\""},
      {With(Tiny(), R"({"type":"none"})", R"({"type":"none","max_length":8})"),
       "position.max_length", "unknown"},
      {With(TinyLearned(), R"("concat")", R"("mul")"), "position.combine", "\"mul\""},
      {With(TinyLearned(), R"("combine":"concat",)", ""), "position.combine", "missing"},
      {With(TinyLearned(), R"("max_length":6)", R"("max_length":0)"), "position.max_length",
       "is 0"},
      {With(TinyLearned(), R"("max_length":6)", R"("max_length":2147483648)"),
       "position.max_length", "2147483648"},
      {With(TinyLearned(), R"(,"max_length":6)", ""), "position.max_length", "missing"},
      {With(TinyLearned(), R"("max_length":6)", R"("max_length":6,"base":10000)"), "position.base",
       "unknown"},
      {With(TinyRotary(), "500.5", "0.5"), "position.base", "is 0.5"},
      {With(TinyRotary(), "halves", "thirds"), "position.pairs", "\"thirds\""},
      {With(TinyRotary(), R"("key_dim":4)", R"("key_dim":3)"), "key_dim", "even"},
      {With(TinyRotary(), R"("pairs":"halves")", R"("pairs":"halves","max_length":9)"),
       "position.max_length", "unknown"},
      {With(TinySoftmax(0), R"({"type":"none"})",
            R"({"type":"rotary","base":500,"pairs":"halves"})"),
       "attention.type", "softmax"},
      {With(Tiny(), R"({"type":"elu"})", "null"), map, "null"},
      {With(Tiny(), R"("elu")", R"("softmax")"), map + ".type", "\"softmax\""},
      {With(Tiny(), R"({"type":"elu"})", R"({"type":"elu","n_dims":4})"), map + ".n_dims",
       "unknown"},
      {With(rff, R"("n_dims":4)", R"("n_dims":5)"), map + ".n_dims", "even"},
      {With(rff, R"("n_dims":4)", R"("n_dims":0)"), map + ".n_dims", "is 0"},
      {With(rff, R"("n_dims":4,)", ""), map + ".n_dims", "missing"},
      {With(rff, R"("softmax_temp":0.5)", R"("softmax_temp":0)"), map + ".softmax_temp", "is 0"},
      {With(rff, R"("softmax_temp":0.5)", R"("softmax_temp":-0.5)"), map + ".softmax_temp", "-0.5"},
      {With(rff, R"("softmax_temp":0.5)", R"("softmax_temp":null)"), map + ".softmax_temp", "null"},
      {With(rff, R"("softmax_temp":0.5)", R"("softmax_temp":1e-50)"), map + ".softmax_temp",
       "1e-50"},
      {With(rff, R"("softmax_temp":0.5)", R"("softmax_temp":0.5,"smoothing":1)"),
       map + ".smoothing", "unknown"},
      {With(smooth, R"("n_dims":7)", R"("n_dims":2)"), map + ".n_dims", "is 2"},
      {With(smooth, R"("smoothing":2)", R"("smoothing":-2)"), map + ".smoothing", "-2"},
      {With(smooth, R"("smoothing":2)", R"("smoothing":1e39)"), map + ".smoothing", "1e39"},
      {With(smooth, R"("smoothing":2)", R"("smoothing":1e-400)"), map + ".smoothing", "1e-400"},
      {With(smooth, R"(,"smoothing":2)", ""), map + ".smoothing", "missing"},
      {With(favor, R"("n_dims":4)", R"("n_dims":3)"), map + ".n_dims", "even"},
      {With(favor, R"("n_dims":4)", R"("n_dims":-4)"), map + ".n_dims", "-4"},
      {With(random, R"("relu"})", R"("exp"})"), map + ".kernel", "\"exp\""},
      {With(random, R"(,"kernel":"relu")", ""), map + ".kernel", "missing"},
      {With(random, R"("n_dims":5)", R"("n_dims":16777216)"), map, "features of a key"},
      {With(rfa, R"("num_features":5)", R"("num_features":0)"), map + ".num_features", "is 0"},
      {With(rfa, R"("num_features":5)", R"("n_dims":5)"), map + ".num_features", "missing"},
      {With(rfa, R"("num_features":5)", R"("num_features":5,"n_dims":5)"), map + ".n_dims",
       "unknown"},
      {With(Tiny(), R"("gate":"none")", R"("gate":"gla")"), "attention.gate", "\"gla\""},
      {With(Tiny(), R"("gate":"none")", R"("gate":null)"), "attention.gate", "null"},
      {With(Tiny(), R"("gate":"none")", R"("gate":"none","bias":true)"), "attention.bias",
       "unknown"},
      {With(Tiny(), R"("add_eps")", R"("clamp_min")"), "attention.normalizer.min", "missing"},
      {With(Tiny(), R"("add_eps")", R"("mean")"), "attention.normalizer.type", "\"mean\""},
      {With(Tiny(), R"("eps":9.99999997e-07)", R"("eps":0)"), "attention.normalizer.eps", "is 0"},
      {With(Tiny(), R"("eps":9.99999997e-07)", R"("eps":1e-6,"min":1)"), "attention.normalizer.min",
       "unknown"},
      {With(Tiny(), R"("eps":9.99999997e-07)", R"("eps":{"e":1,"e":2})"),
       "attention.normalizer.eps.e", "twice"},
      {With(TinySoftmax(0), R"("softmax")", R"("linear")"), "attention.type", "\"linear\""},
      {With(TinySoftmax(0), R"("softmax")", "null"), "attention.type", "null"},
      {With(TinySoftmax(5), R"("window":5)", R"("window":0)"), "attention.window", "is 0"},
      {With(TinySoftmax(5), R"("window":5)", R"("window":null)"), "attention.window", "null"},
      {With(TinySoftmax(5), R"("window":5)", R"("window":16777217)"), "attention.window",
       "16777217"},
      {With(TinySoftmax(0), R"("type":"softmax")", R"("type":"softmax","gate":"none")"),
       "attention.gate", "unknown"},
      {With(With(TinySoftmax(7), R"("window":7)", R"("window":16777216)"), R"("num_layers":2)",
            R"("num_layers":4000)"),
       "num_layers", "keys and values"},
      {With(Tiny(), R"({"type":"categorical"})", R"({"type":"binary"})"), "output.type",
       "\"binary\""},
      {With(Tiny(), R"({"type":"categorical"})", R"({"type":"categorical","num_levels":4})"),
       "output.num_levels", "unknown"},
      {With(Tiny(), R"({"type":"categorical"})", R"({"type":"categorical","transform":"relu"})"),
       "output.transform", "\"relu\""},
      {With(TinyMixture(), R"("num_mixtures":3)", R"("num_mixtures":0)"), "output.num_mixtures",
       "is 0"},
      {With(TinyMixture(), R"("num_levels":10)", R"("num_levels":12)"), "output.num_levels", "11"},
      {With(TinyMixture(), R"("num_levels":10)", R"("num_levels":1)"), "output.num_levels", "is 1"},
      {With(TinyMixture(), R"("scale":"exp")", R"("scale":"softplus")"), "output.scale",
       "\"softplus\""},
      {With(TinyMixture(), R"(,"scale":"exp")", ""), "output.scale", "missing"},
      {With(Tiny(), R"({"type":"tokens"})", R"({"type":"audio"})"), "content.type", "\"audio\""},
      {With(Tiny(), R"({"type":"tokens"})", R"({"type":"tokens","width":3})"), "content.width",
       "unknown"},
      {With(Tiny(), R"(,"content":{"type":"tokens"})", ""), "content", "missing"},
      {With(TinyImage(3, 5, 2), R"("height":3)", R"("height":0)"), "content.height", "is 0"},
      {With(TinyImage(3, 5, 2), R"("width":5)", R"("width":"5")"), "content.width", "\"5\""},
      {With(TinyImage(3, 5, 2), R"(,"channels":2)", ""), "content.channels", "missing"},
      {TinyImage(1 << 24, 1 << 24, 1 << 24), "content.height", "2147483647"},
      {TinyImage(1 << 15, 1 << 15, 2), "content.height", "2147483647"},
      {With(TinyText(), R"("char")", R"("bpe")"), "content.tokenizer.type", "\"bpe\""},
      {With(TinyText(), R"("type":"char",)", R"("type":"tokenizer.json",)"),
       "content.tokenizer.alphabet", "unknown"},
      {With(TinyText(), "abcdefghij", ""), "content.tokenizer.alphabet", "empty"},
      {TinyText("abcdefghia"), "content.tokenizer.alphabet", "U+0061"},
      {TinyText("abcdefghi"), "content.tokenizer.alphabet", "9 code points for a vocab_size of 11"},
      {TinyText("abcdefghijkl"), "content.tokenizer.alphabet",
       "12 code points for a vocab_size of 11"},
      {With(TinyText(), R"("alphabet":"abcdefghij")", R"("alphabet":"ab\ud800")"),
       "content.tokenizer.alphabet", "not valid JSON"},
      {With(TinyText(), R"("alphabet":"abcdefghij")", "\"alphabet\":\"ab\xC3(\""),
       "content.tokenizer.alphabet", "not valid JSON"},
      {With(TinyText(), R"("type":"char",)", R"("type":"char","lower":true,)"),
       "content.tokenizer.lower", "unknown"},
      {With(TinyText(), R"({"type":"text",)", R"({"type":"text","language":"en",)"),
       "content.language", "unknown"},
  };
}

void ExpectAllRejected(const std::vector<BadCase>& cases) {
  for (const BadCase& bad : cases) {
    const auto config = ParseModelConfig(bad.text);
    SCOPED_TRACE(absl::StrCat(bad.text, "\n-> ", config.status().ToString()));
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(GetErrorDetail(config.status()).field, bad.field);
    EXPECT_TRUE(absl::StrContains(config.status().message(), bad.field));
    EXPECT_TRUE(absl::StrContains(config.status().message(), bad.held));
    for (const char c : config.status().message()) EXPECT_GE(c, ' ');
  }
}

TEST(ConfigRejectsTest, NamesEveryBadTopLevelField) { ExpectAllRejected(BadTopLevelFields()); }

TEST(ConfigRejectsTest, NamesEveryBadNestedField) { ExpectAllRejected(BadNestedFields()); }

TEST(ConfigRejectsTest, RejectsEveryCutOfAValidText) {
  const std::string text = TinyText();
  ASSERT_TRUE(ParseModelConfig(text).ok());
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseModelConfig(text.substr(0, size)).status())) << size;
  }
}

TEST(ConfigRejectsTest, NamesEveryMissingAndEveryMistypedField) {
  // Each member of the root, by renaming its key.
  for (const char* key :
       {"format", "format_version", "name", "vocab_size", "bos_token_id", "eos_token_id",
        "hidden_size", "num_layers", "num_heads", "key_dim", "value_dim", "ffn_size", "activation",
        "layer_norm_eps", "final_norm", "position", "attention", "output", "content"}) {
    const std::string quoted = absl::StrCat("\"", key, "\":");
    const auto missing = ParseModelConfig(With(Tiny(), quoted, "\"zzz\":")).status();
    EXPECT_EQ(GetErrorDetail(missing).field, key) << missing;
    const auto mistyped = ParseModelConfig(With(Tiny(), quoted, quoted + "[],\"zzz\":")).status();
    EXPECT_EQ(GetErrorDetail(mistyped).field, key) << mistyped;
  }
}

TEST(ConfigRejectsTest, RejectsAStateThatIsTooLargeAndShowsTheArithmetic) {
  ModelConfig config = TinyConfig();
  config.num_layers = 4096;
  config.num_heads = 1;
  config.key_dim = 4096;
  config.value_dim = 255;
  ASSERT_TRUE(ParseModelConfig(ConfigJson(config)).ok());
  EXPECT_EQ(config.state_layout().bytes_per_slot(), uint64_t{16} << 30);
  config.value_dim = 256;
  const auto status = ParseModelConfig(ConfigJson(config)).status();
  EXPECT_EQ(GetErrorDetail(status).field, "num_layers");
  EXPECT_THAT(std::string(status.message()), HasSubstr("4096 * 1 * 4096 * 257 * 4 = 17246978048"));
}

}  // namespace
}  // namespace rivulet
