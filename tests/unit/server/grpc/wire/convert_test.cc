// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/wire/convert.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "server/grpc/wire/wire_field.h"
#include "tests/support/load_model.h"
#include "tests/support/text_of.h"
#include "tests/unit/server/fake_engine.h"
#include "tests/unit/server/grpc/wire/expect_field.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using testing::ExpectField;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::LoadModel;

class ConvertTest : public ::testing::Test {
 protected:
  const std::shared_ptr<const Model> tokens_ = LoadModel("tests/conformance/models/tiny-elu-relu");
  const std::shared_ptr<const Model> image_ = LoadModel("tests/conformance/models/tiny-image");
  const std::shared_ptr<const Model> text_ = LoadModel("model/zoo/shakespeare-rfa");
};

std::set<std::string> FieldsThatDiffer(const GenerateSpec& a, const GenerateSpec& b) {
  std::set<std::string> names;
  const auto compare = [&](absl::string_view name, const auto& of_a, const auto& of_b) {
    if (!(of_a == of_b)) names.emplace(name);
  };
  VisitFields(compare, a, b);
  return names;
}

TEST_F(ConvertTest, AbsentFieldsLeaveTheDefaults) {
  v1::GenerateRequest request;
  request.mutable_tokens();
  const auto spec = ToGenerateSpec(request, *tokens_);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(FieldsThatDiffer(*spec, GenerateSpec()), IsEmpty());
  EXPECT_FALSE(spec->sampling.has_penalties());
}

// Text formats of a message: each sets one field alone, or one field of a message in it.
std::vector<std::string> EachFieldAlone(const google::protobuf::Descriptor& message) {
  std::vector<std::string> all;
  for (int i = 0; i < message.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *message.field(i);
    if (field.message_type() != nullptr) {
      for (const std::string& inner : EachFieldAlone(*field.message_type())) {
        all.push_back(absl::StrCat(field.name(), " { ", inner, " }"));
      }
    } else {
      const bool is_text = field.cpp_type() == field.CPPTYPE_STRING;
      const bool is_bool = field.cpp_type() == field.CPPTYPE_BOOL;
      all.push_back(absl::StrCat(field.name(), ": ", is_text ? "'3'" : is_bool ? "true" : "3"));
    }
  }
  return all;
}

TEST_F(ConvertTest, NoFieldOfGenerateIsIgnored) {
  v1::GenerateRequest plain;
  plain.mutable_tokens();
  plain.mutable_sampling()->set_seed(9);
  plain.mutable_session()->set_session_id("0123456789abcdef0123456789abcdef");
  const auto unset = ToGenerateSpec(plain, *tokens_);
  for (const std::string& field : EachFieldAlone(*v1::GenerateRequest::descriptor())) {
    v1::GenerateRequest request = plain;
    ASSERT_TRUE(google::protobuf::TextFormat::MergeFromString(field, &request)) << field;
    const auto spec = ToGenerateSpec(request, *tokens_);
    const bool is_ignored = spec.ok() && FieldsThatDiffer(*spec, *unset).empty();
    // The name of the model has chosen the model before.
    EXPECT_EQ(is_ignored, field == "model: '3'") << field;
  }
}

TEST_F(ConvertTest, EveryFieldOfGenerateArrives) {
  v1::GenerateRequest request;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"(tokens { ids: [ 3, 1, 2 ] }
         sampling {
           temperature: 0 top_k: 7 top_p: 0.5 min_p: 0.25 repetition_penalty: 1.5
           frequency_penalty: 0.125 presence_penalty: -1 seed: 18446744073709551615
           logit_bias { key: 9 value: 2 } logit_bias { key: 4 value: -3 }
         }
         stop { token_ids: 5 strings: "end" include_string: true ignore_eos: true min_tokens: 4 }
         max_tokens: 1099511627776 num_samples: 6 logprobs { enabled: true top_n: 2 }
         priority: PRIORITY_HIGH skip_special_tokens: true reasoning { begin: "<" end: ">" }
         speculation { drafts: 0 tokens { ids: [ 6, 7 ] } }
         resume { fingerprint: 18446744073709551615 samples {} samples { ids: 8 } })",
      &request));
  GenerateSpec want;
  want.prompt = {3, 1, 2};
  want.sampling = {0, 7, 0.5f, 0.25f, 1.5f, 0.125f, -1, {{4, -3.0f}, {9, 2.0f}}, ~uint64_t{0}};
  want.stop_ids = {5};
  want.stop_strings = {"end"};
  want.include_stop_string = want.ignore_eos = want.want_logprobs = want.skip_special_tokens = true;
  want.min_tokens = 4;
  want.reasoning = {"<", ">"};
  want.speculation = {0, {6, 7}};
  want.max_tokens = int64_t{1} << 40;
  want.num_samples = 6;
  want.num_top_logprobs = 2;
  want.priority = Priority::kHigh;
  want.resume = {~uint64_t{0}, {{}, {8}}};
  const auto spec = ToGenerateSpec(request, *tokens_);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(FieldsThatDiffer(*spec, want), IsEmpty());
  request.mutable_resume()->clear_fingerprint();
  ExpectField(ToGenerateSpec(request, *tokens_).status(), "RESUME_NEEDS_FINGERPRINT",
              "resume.fingerprint");
  request.mutable_resume()->mutable_samples(1)->clear_ids();
  EXPECT_FALSE(ToGenerateSpec(request, *tokens_)->resume.has_value());
  request.mutable_sampling()->clear_seed();
  ExpectField(ToGenerateSpec(request, *tokens_).status(), "RESUME_NEEDS_SEED", "sampling.seed");
}

TEST_F(ConvertTest, EveryKindOfRequestHasAPriorityAndAnUnknownOneIsNamed) {
  v1::GenerateRequest generate;
  generate.mutable_tokens();
  v1::ScoreRequest score;
  score.mutable_tokens();
  v1::AppendRequest append;
  append.mutable_session()->set_session_id("0123456789abcdef0123456789abcdef");
  generate.set_priority(v1::PRIORITY_LOW);
  score.set_priority(v1::PRIORITY_LOW);
  append.set_priority(v1::PRIORITY_LOW);
  EXPECT_EQ(ToGenerateSpec(generate, *tokens_)->priority, Priority::kLow);
  EXPECT_EQ(ToScoreSpec(score, *tokens_)->priority, Priority::kLow);
  EXPECT_EQ(ToAppendSpec(append, *tokens_)->priority, Priority::kLow);
  generate.set_priority(v1::PRIORITY_NORMAL);
  EXPECT_EQ(ToGenerateSpec(generate, *tokens_)->priority, Priority::kNormal);
  generate.set_priority(static_cast<v1::Priority>(4));
  score.set_priority(static_cast<v1::Priority>(-1));
  append.set_priority(static_cast<v1::Priority>(std::numeric_limits<int32_t>::max()));
  ExpectField(ToGenerateSpec(generate, *tokens_).status(), "PRIORITY_UNKNOWN", "priority");
  ExpectField(ToScoreSpec(score, *tokens_).status(), "PRIORITY_UNKNOWN", "priority");
  ExpectField(ToAppendSpec(append, *tokens_).status(), "PRIORITY_UNKNOWN", "priority");
}

// Each value is the number of its field, so none is left out and none takes another's place.
TEST_F(ConvertTest, EveryFieldOfTheLoadArrives) {
  EngineLoad load;
  load.slots = 2;
  load.slots_used = 3;
  load.queued = 4;
  load.max_queue = 5;
  load.tokens_per_second = 6;
  load.tokens_total = 7;
  load.draining = true;
  load.client_sessions = 9;
  load.states.memory_bytes = 10;
  load.states.in_memory = 11;
  load.states.on_disk = 12;
  load.states.disk_bytes = 13;
  load.states.forgotten = 14;
  load.states.file_errors = 15;
  load.cache_hits = 16;
  load.cache_misses = 17;
  load.cache_bytes = 18;
  load.max_tenant_queue = 20;
  load.queued_by_priority = {21, 22, 23};  // high, normal, low
  load.oldest_wait = absl::Milliseconds(24500);
  load.tenants = 25;
  load.parked = 26;
  load.preempted = 29;
  load.preempted_total = 30;
  load.drafted_total = 31;
  load.accepted_total = 32;
  load.refused = 27;
  load.unread_replies_ended = 28;
  v1::ModelLoad wire;
  ToWire(load, &wire);
  EXPECT_TRUE(wire.draining());
  EXPECT_EQ(wire.oldest_wait().seconds(), 24);
  EXPECT_EQ(wire.oldest_wait().nanos(), 500'000'000);
  EXPECT_EQ(wire.tokens_per_second(), 6);
  using google::protobuf::FieldDescriptor;
  for (int i = 0; i < v1::ModelLoad::descriptor()->field_count(); ++i) {
    const FieldDescriptor* field = v1::ModelLoad::descriptor()->field(i);
    const auto* values = v1::ModelLoad::GetReflection();
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
      EXPECT_EQ(values->GetInt32(wire, field), field->number()) << field->name();
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
      EXPECT_EQ(values->GetInt64(wire, field), field->number()) << field->name();
    }
  }
}

TEST_F(ConvertTest, TextAndImageValuesBecomeTokens) {
  v1::GenerateRequest request;
  request.set_text("ab");
  auto spec = ToGenerateSpec(request, *text_);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(testing::TextOf(*text_->tokenizer(), spec->prompt), "ab");
  request.mutable_speculation()->set_text("ab");
  EXPECT_EQ(ToGenerateSpec(request, *text_)->speculation.prediction, spec->prompt);
  ExpectField(ToGenerateSpec(request, *image_).status(), "TEXT_NOT_SUPPORTED", "prompt.text");
  request.clear_speculation();
  request.set_image_values(std::string("\x00\x7f\xff", 3));
  spec = ToGenerateSpec(request, *image_);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(spec->prompt, ElementsAre(0, 127, 255));
}

TEST_F(ConvertTest, AMissingPromptIsNamed) {
  ExpectField(ToGenerateSpec(v1::GenerateRequest(), *tokens_).status(), "PROMPT_MISSING", "prompt");
}

TEST_F(ConvertTest, APromptOfTheWrongKindIsNamed) {
  v1::GenerateRequest request;
  request.set_text("a");
  ExpectField(ToGenerateSpec(request, *image_).status(), "TEXT_NOT_SUPPORTED", "prompt.text");
  request.set_image_values("a");
  ExpectField(ToGenerateSpec(request, *text_).status(), "IMAGE_VALUES_NOT_SUPPORTED",
              "prompt.image_values");
}

TEST_F(ConvertTest, ACharacterOutsideTheAlphabetIsNamed) {
  v1::GenerateRequest request;
  request.set_text("a\xE2\x82\xAC");
  const absl::Status status = ToGenerateSpec(request, *text_).status();
  ExpectField(status, "TEXT_NOT_IN_ALPHABET", "prompt.text");
  EXPECT_THAT(std::string(status.message()), HasSubstr("U+20AC"));
}

TEST_F(ConvertTest, CountsBelowOneAreNamed) {
  for (const int64_t bad : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    v1::GenerateRequest request;
    request.mutable_tokens();
    request.set_max_tokens(bad);
    ExpectField(ToGenerateSpec(request, *tokens_).status(), "MAX_TOKENS_OUT_OF_RANGE",
                "max_tokens");
    v1::ScoreRequest score;
    score.mutable_tokens();
    score.set_window(bad);
    ExpectField(ToScoreSpec(score, *tokens_).status(), "WINDOW_OUT_OF_RANGE", "window");
  }
  v1::GenerateRequest request;
  request.mutable_tokens();
  request.set_num_samples(0);
  ExpectField(ToGenerateSpec(request, *tokens_).status(), "NUM_SAMPLES_OUT_OF_RANGE",
              "num_samples");
}

TEST_F(ConvertTest, EveryFieldOfScoreArrives) {
  v1::ScoreRequest request;
  for (const int id : {3, 1, 2}) request.mutable_tokens()->add_ids(id);
  request.set_window(2);
  request.add_output_positions(1);
  request.set_logprobs(true);
  const auto spec = ToScoreSpec(request, *tokens_);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(spec->tokens, ElementsAre(3, 1, 2));
  EXPECT_EQ(spec->window, 2);
  EXPECT_THAT(spec->output_positions, ElementsAre(1));
  EXPECT_TRUE(spec->want_logprobs);
}

TEST_F(ConvertTest, MissingOrUnsuitableContentIsNamed) {
  ExpectField(ToScoreSpec(v1::ScoreRequest(), *tokens_).status(), "CONTENT_MISSING", "content");
  v1::ScoreRequest request;
  request.set_text("a");
  ExpectField(ToScoreSpec(request, *tokens_).status(), "TEXT_NOT_SUPPORTED", "content.text");
}

TEST_F(ConvertTest, EngineErrorsNameWhatTheClientSent) {
  const absl::Status prompt =
      InvalidField("TOKEN_OUT_OF_RANGE", "prompt.tokens[3]", "prompt.tokens[3] is 300");
  v1::GenerateRequest request;
  request.mutable_tokens();
  EXPECT_EQ(NameWireField(prompt, request), prompt);
  request.set_image_values("");
  ExpectField(NameWireField(prompt, request), "TOKEN_OUT_OF_RANGE", "prompt.image_values[3]");
  EXPECT_EQ(NameWireField(prompt, request).message(), "prompt.image_values[3] is 300");
  request.set_text("");
  ExpectField(NameWireField(prompt, request), "TOKEN_OUT_OF_RANGE", "prompt.text[3]");
  const absl::Status other = InvalidField("X", "max_tokens", "max_tokens is 0");
  EXPECT_EQ(NameWireField(other, request), other);

  const absl::Status content = InvalidField("Y", "content.tokens", "content.tokens holds 9");
  v1::ScoreRequest score;
  score.mutable_tokens();
  EXPECT_EQ(NameWireField(content, score), content);
  score.set_text("");
  ExpectField(NameWireField(content, score), "Y", "content.text");
}

TEST_F(ConvertTest, ADeltaReplacesAllOfAnEarlierMessage) {
  v1::GenerateReply reply;
  reply.set_seed(1);
  reply.mutable_usage();
  reply.add_tokens(99);
  ReplyDelta delta;
  delta.sample_index = 2;
  delta.first_position = 10;
  delta.tokens = {5, 6};
  delta.text = "xy";
  delta.logprobs = {-1, -2};
  delta.top_logprobs = {{{5, -1}, {7, -3}}, {{6, -2}}};
  delta.finish = Finish{FinishReason::kStopToken, "", 4};
  ToWire(delta, &reply);
  EXPECT_FALSE(reply.has_seed());
  EXPECT_FALSE(reply.has_usage());
  EXPECT_EQ(reply.sample_index(), 2);
  EXPECT_EQ(reply.first_position(), 10);
  EXPECT_THAT(reply.tokens(), ElementsAre(5, 6));
  EXPECT_EQ(reply.text(), "xy");
  EXPECT_THAT(reply.logprobs(), ElementsAre(-1, -2));
  ASSERT_EQ(reply.top_logprobs_size(), 2);
  EXPECT_THAT(reply.top_logprobs(0).token_ids(), ElementsAre(5, 7));
  EXPECT_THAT(reply.top_logprobs(0).logprobs(), ElementsAre(-1, -3));
  EXPECT_EQ(reply.finish().reason(), v1::FINISH_REASON_STOP_TOKEN);
  EXPECT_EQ(reply.finish().stop_token_id(), 4);
}

TEST_F(ConvertTest, FinishSaysWhatMatched) {
  ReplyDelta delta;
  delta.finish = Finish{FinishReason::kStopString, "end", -1};
  v1::GenerateReply reply;
  ToWire(delta, &reply);
  EXPECT_EQ(reply.finish().reason(), v1::FINISH_REASON_STOP_STRING);
  EXPECT_EQ(reply.finish().stop_string(), "end");
  EXPECT_FALSE(reply.finish().has_stop_token_id());
}

TEST_F(ConvertTest, DurationsKeepMicroseconds) {
  Usage usage;
  usage.prompt_tokens = 3;
  usage.reasoning_tokens = 7;
  usage.drafted_tokens = 9;
  usage.accepted_tokens = 8;
  usage.total_time = absl::Microseconds(2500001);
  v1::Usage wire;
  ToWire(usage, &wire);
  EXPECT_EQ(wire.prompt_tokens(), 3);
  EXPECT_EQ(wire.reasoning_tokens(), 7);
  EXPECT_EQ(wire.drafted_tokens(), 9);
  EXPECT_EQ(wire.accepted_tokens(), 8);
  EXPECT_EQ(wire.total_time().seconds(), 2);
  EXPECT_EQ(wire.total_time().nanos(), 500001000);
}

TEST_F(ConvertTest, DescribesModelsOfEveryContent) {
  const testing::FakeEngine text_engine(text_);
  const v1::GetModelReply text = DescribeModel(text_engine, "cpu");
  EXPECT_EQ(text.summary().name(), "shakespeare-rfa");
  EXPECT_EQ(text.summary().backend(), "cpu");
  EXPECT_EQ(text.summary().weights_sha256().size(), 64);
  EXPECT_EQ(text.summary().state_bytes(), 4096);
  EXPECT_EQ(text.summary().num_parameters(), 10861157);  // elements of all its tensors
  EXPECT_EQ(text.content().text().alphabet().size(), 65);
  EXPECT_TRUE(text.architecture().has_categorical());
  EXPECT_EQ(text.architecture().feature_map(), "rfa");
  EXPECT_FALSE(text.architecture().has_max_sequence_tokens());
  EXPECT_EQ(text.limits().max_num_samples(), 8);  // the engine's slots
  EXPECT_EQ(text.numerics_id(), "fake-1");
  EXPECT_EQ(text.plan(), "as it goes");
  EXPECT_EQ(text.products(), "by hand");

  const testing::FakeEngine chat_engine(LoadModel("model/zoo/shakespeare-chat"));
  const v1::GetModelReply chat = DescribeModel(chat_engine, "cpu");
  EXPECT_EQ(chat.response_template_name(), "") << "the model's own";
  EXPECT_THAT(chat.response_template(), HasSubstr("tool_calls"));

  const testing::FakeEngine image_engine(image_);
  const v1::GetModelReply image = DescribeModel(image_engine, "cuda");
  EXPECT_EQ(image.content().image().height(), 4);
  EXPECT_EQ(image.content().image().width(), 11);
  EXPECT_EQ(image.architecture().mixture_of_logistics().num_levels(), 256);
  EXPECT_EQ(image.architecture().max_sequence_tokens(), 49);  // 48 positions, no bos
}

}  // namespace
}  // namespace rivulet
