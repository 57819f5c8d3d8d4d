// SPDX-License-Identifier: Apache-2.0
#include "client/cli/batch/batch_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "client/cli/batch/batch_result.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

BatchDefaults Defaults() {
  BatchDefaults defaults;
  defaults.generate.set_model("m");
  defaults.generate.mutable_sampling()->set_top_k(3);
  defaults.score.set_model("m");
  return defaults;
}

BatchLine Parsed(absl::string_view text) {
  BatchLine line;
  const absl::Status status = ParseBatchLine(text, Defaults(), &line);
  EXPECT_TRUE(status.ok()) << text << ": " << status;
  return line;
}

TEST(BatchLineTest, ReadsEveryFieldOfAShortLine) {
  const BatchLine line = Parsed(
      R"({"custom_id":"a","prompt":"b","model":"n","temperature":0.5,"top_p":1,"min_p":0.25,)"
      R"("repetition_penalty":1.5,"frequency_penalty":-2,"presence_penalty":2,"logit_bias":{"7":-1},)"
      R"("seed":18446744073709551615,"stop":["x","y"],"stop_token_ids":[9],"ignore_eos":true,)"
      R"("max_tokens":11,"n":2,"logprobs":true,"top_logprobs":4,"add_special_tokens":false,)"
      R"("parse_special_tokens":false,"rivulet_speculation":"off","return_token_ids":true,)"
      R"("stream":false,"user":"u"})");
  EXPECT_FALSE(line.openai);
  EXPECT_EQ(line.custom_id, "a");
  EXPECT_TRUE(line.tokens_wanted);
  const auto& request = std::get<v1::GenerateRequest>(line.request);
  EXPECT_EQ(
      request.ShortDebugString(),
      "model: \"n\" text: \"b\" sampling { temperature: 0.5 top_k: 3 top_p: 1 min_p: 0.25 "
      "repetition_penalty: 1.5 frequency_penalty: -2 presence_penalty: 2 logit_bias { key: 7 "
      "value: -1 } seed: 18446744073709551615 } stop { token_ids: 9 strings: \"x\" strings: \"y\" "
      "ignore_eos: true } max_tokens: 11 num_samples: 2 logprobs { enabled: true top_n: 4 } "
      "add_special_tokens: false parse_special_tokens: false speculation { drafts: 0 }");
}

TEST(BatchLineTest, ReadsOpenAisForm) {
  const BatchLine line =
      Parsed(R"({"custom_id":"a","method":"POST","url":"/v1/completions","body":)"
             R"({"prompt":[3,-1],"stop":"x","n":null}})");
  EXPECT_TRUE(line.openai);
  const auto& request = std::get<v1::GenerateRequest>(line.request);
  EXPECT_EQ(request.ShortDebugString(),
            "model: \"m\" tokens { ids: 3 ids: -1 } sampling { top_k: 3 } stop { strings: \"x\" } "
            "max_tokens: 16 logprobs { }");
  const BatchLine chat = Parsed(
      R"({"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"messages":[)"
      R"({"role":"developer","content":"be brief"},)"
      R"({"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],)"
      R"("max_completion_tokens":5}})");
  const auto& conversation = std::get<ChatRequest>(chat.request);
  EXPECT_EQ(conversation.conversation.dump(),
            R"({"messages":[{"role":"developer","content":"be brief"},{"role":"user","content":[)"
            R"({"type":"text","text":"a"},{"type":"text","text":"b"}]}]})");
  EXPECT_EQ(conversation.generate.max_tokens(), 5);
}

TEST(BatchLineTest, TakesWhatTheGatewayTakesWithoutEffectOrWithOneValue) {
  const std::string completion =
      R"({"custom_id":"a","url":"/v1/completions","body":{"prompt":["A"],"n":2,"best_of":2,)"
      R"("suffix":"","echo":false,"stream_options":null,"foo":null}})";
  EXPECT_EQ(std::get<v1::GenerateRequest>(Parsed(completion).request).text(), "A");
  EXPECT_THAT(std::get<v1::GenerateRequest>(Parsed(R"({"prompt":[[3,4]]})").request).tokens().ids(),
              ElementsAre(3, 4));
  const std::string chat =
      R"({"custom_id":"a","url":"/v1/chat/completions","body":{"messages":[{"role":"user",)"
      R"("content":"a","tool_calls":null}],"tools":[],"functions":[],"tool_choice":"none",)"
      R"("function_call":"none","response_format":{"type":"text"},"modalities":["text"],)"
      R"("store":false,"parallel_tool_calls":true,"prediction":{"type":"content"}}})";
  EXPECT_EQ(std::get<ChatRequest>(Parsed(chat).request).conversation.size(), 9)
      << "the worker of chats checks them";
  const auto speculation = [](const char* given) {
    const BatchLine line =
        Parsed(absl::StrCat(R"({"prompt":"a","rivulet_speculation":)", given, "}"));
    return std::get<v1::GenerateRequest>(line.request).speculation();
  };
  EXPECT_EQ(speculation("16").drafts(), 16);
  EXPECT_FALSE(speculation("\"auto\"").has_drafts());
}

TEST(BatchLineTest, ReadsALongText) {
  const std::string text(size_t{3} << 20, 'a');
  const BatchLine line = Parsed(absl::StrCat(R"({"custom_id":"a","prompt":")", text, "\"}"));
  EXPECT_EQ(std::get<v1::GenerateRequest>(line.request).text().size(), text.size());
}

TEST(BatchLineTest, ReadsScores) {
  const BatchLine line = Parsed(R"({"score":"abc","window":4,"logprobs":true})");
  EXPECT_EQ(std::get<v1::ScoreRequest>(line.request).ShortDebugString(),
            "model: \"m\" text: \"abc\" logprobs: true window: 4");
}

TEST(BatchLineTest, ReadsTheFormOfAText) {
  const std::pair<const char*, const char*> forms[] = {
      {R"("response_format":{"type":"json_object"})", "json_object: true"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,)"
       R"("schema":{"enum":[null,true,-1,1.5,"a\"",{}]}}})",
       R"(json_schema: "{\"enum\":[null,true,-1,1.5,\"a\\\"\",{}]}")"},
      {R"("structured_outputs":{"json":{"type":"null"}})", R"(json_schema: "{\"type\":\"null\"}")"},
      {R"("structured_outputs":{"regex":"a+"})", R"(regex: "a+")"},
      {R"("structured_outputs":{"choice":["a","b"]})", R"(choices { texts: "a" texts: "b" })"},
      {R"("structured_outputs":{"structural_tag":{"format":{}}})",
       R"(structural_tag: "{\"format\":{}}")"},
      {R"("structured_outputs":{"structural_tag":"{}"})", R"(structural_tag: "{}")"},
      {R"("structured_outputs":{"json_object":true})", "json_object: true"}};
  for (const auto& [form, expected] : forms) {
    const BatchLine line = Parsed(absl::StrCat(R"({"prompt":"a",)", form, "}"));
    EXPECT_EQ(std::get<v1::GenerateRequest>(line.request).constraint().ShortDebugString(),
              expected);
  }
}

TEST(BatchLineTest, SaysWhatIsWrongAndWhere) {
  struct Case {
    const char* text;
    const char* reason;
    const char* field;
    const char* mention;
  };
  const std::string envelope =
      R"({"custom_id":"a","method":"POST","url":"/v1/completions","body":)";
  const std::string logprobs = envelope + R"({"prompt":"a","logprobs":3}})";
  const std::string best_of = envelope + R"({"prompt":"a","best_of":3}})";
  const Case cases[] = {
      {"", "INVALID_JSON", "", "empty"},
      {"[1]", "INVALID_JSON", "", "an array of 1 values"},
      {R"({"prompt":"a","prompt":"b"})", "INVALID_JSON", "", "prompt"},
      {R"({"custom_id":1,"prompt":"a"})", "INVALID_PARAMETER", "custom_id", "is 1"},
      {R"({"custom_id":"a"})", "INVALID_PARAMETER", "",
       "exactly one of prompt, messages and score"},
      {R"({"prompt":"a","score":"b"})", "INVALID_PARAMETER", "", "exactly one"},
      {R"({"prompt":["a","b"]})", "UNSUPPORTED_PARAMETER", "prompt", "one prompt a line"},
      {R"({"prompt":[1,2147483648]})", "INVALID_PARAMETER", "prompt[1]", "2147483648"},
      {R"({"prompt":"a","temperature":1e39})", "INVALID_PARAMETER", "temperature", "1e39"},
      {R"({"prompt":"a","seed":-1})", "INVALID_PARAMETER", "seed", "-1"},
      {R"({"prompt":"a","seed":18446744073709551616})", "INVALID_PARAMETER", "seed", "2^64"},
      {R"({"prompt":"a","max_tokens":1.5})", "INVALID_PARAMETER", "max_tokens", "1.5"},
      {R"({"prompt":"a","stop":["x",2]})", "INVALID_PARAMETER", "stop[1]", "is 2"},
      {R"({"prompt":"a","logit_bias":{"x":1}})", "INVALID_PARAMETER", "logit_bias", "\"x\""},
      {R"({"prompt":"a","top_logprobs":2})", "INVALID_PARAMETER", "top_logprobs",
       "logprobs = true"},
      {R"({"prompt":"a","rivulet_speculation":"on"})", "INVALID_PARAMETER", "rivulet_speculation",
       "is \"on\"; allowed: \"auto\", \"off\" or an integer from 0 to 16"},
      {R"({"prompt":"a","rivulet_speculation":17})", "INVALID_PARAMETER", "rivulet_speculation",
       "17"},
      {R"({"prompt":"a","stream":true})", "UNSUPPORTED_PARAMETER", "stream", "true"},
      {R"({"prompt":"a","tempature":1})", "UNSUPPORTED_PARAMETER", "tempature",
       "did you mean temperature?"},
      {R"({"promt":"a"})", "UNSUPPORTED_PARAMETER", "promt", "did you mean prompt?"},
      {R"({"prompt":null,"score":null})", "INVALID_PARAMETER", "", "exactly one"},
      {R"({"url":"/v1/completions","body":{"prompt":"a"}})", "INVALID_PARAMETER", "custom_id",
       "missing"},
      {R"({"custom_id":"a","url":"/v1/embeddings","body":{}})", "UNSUPPORTED_PARAMETER", "url",
       "/v1/embeddings"},
      {R"({"custom_id":"a","url":"/v1/completions","body":{"prompt":"a","score":"b"}})",
       "UNSUPPORTED_PARAMETER", "score", "/v1/completions does not take"},
      {logprobs.c_str(), "UNSUPPORTED_PARAMETER", "logprobs", "short form"},
      {best_of.c_str(), "UNSUPPORTED_PARAMETER", "best_of", "is 3; supported: 1"},
      {R"({"prompt":"a","unknown":false})", "UNSUPPORTED_PARAMETER", "unknown", "unknown field"},
      {R"({"prompt":["a",[1]]})", "UNSUPPORTED_PARAMETER", "prompt", "one prompt a line"},
      {R"({"prompt":[[1,"a"]]})", "INVALID_PARAMETER", "prompt[0][1]", "is \"a\""},
      {R"({"prompt":"a","stream_options":{}})", "UNSUPPORTED_PARAMETER", "stream_options", "null"},
      {R"({"prompt":"a","stop":5})", "INVALID_PARAMETER", "stop",
       "is 5; allowed: a text or an array of texts"},
      {R"({"prompt":"a","max_tokens":1000000000000000000000})", "INVALID_PARAMETER", "max_tokens",
       "allowed: an integer from 1 to 2147483647"},
      {R"({"messages":[{"role":"user","content":"a"}],"response_format":{"type":"xml"}})",
       "UNSUPPORTED_PARAMETER", "response_format.type", "json_schema"},
      {R"({"prompt":"a","response_format":{"type":"json_object","schema":{}}})",
       "UNSUPPORTED_PARAMETER", "response_format.schema", ""},
      {R"({"prompt":"a","structured_outputs":{"json":5}})", "INVALID_PARAMETER",
       "structured_outputs.json", "is 5; allowed: a JSON schema"},
      {R"({"prompt":"a","structured_outputs":{"structural_tag":[]}})", "INVALID_PARAMETER",
       "structured_outputs.structural_tag", "allowed: a structural tag"},
      {R"({"prompt":"a","structured_outputs":{"regex":"a","choice":["a"]}})", "INVALID_PARAMETER",
       "structured_outputs", "has 2 forms"},
      {R"({"prompt":"a","structured_outputs":{}})", "INVALID_PARAMETER", "structured_outputs",
       "has 0 forms"},
      {R"({"prompt":"a","response_format":{"type":"text"},"structured_outputs":{"regex":"a"}})",
       "INVALID_PARAMETER", "structured_outputs", "beside response_format"},
  };
  for (const Case& one : cases) {
    BatchLine line;
    const BatchError error = ToBatchError(ParseBatchLine(one.text, Defaults(), &line));
    EXPECT_EQ(error.reason, one.reason) << one.text << ": " << error.message;
    EXPECT_EQ(error.field, one.field) << one.text << ": " << error.message;
    EXPECT_THAT(error.message, HasSubstr(one.mention)) << one.text;
  }
}

TEST(BatchLineTest, NullIsMissingBesideWhatIsGiven) {
  for (const char* const text :
       {R"({"prompt":null,"messages":[{"role":"user","content":"a"}],"score":null})",
        R"({"prompt":null,"score":"a"})", R"({"prompt":"a","messages":null})",
        R"({"custom_id":"a","url":"/v1/completions","body":{"prompt":"a","messages":null}})"}) {
    BatchLine line;
    EXPECT_TRUE(ParseBatchLine(text, Defaults(), &line).ok()) << text;
  }
}

TEST(BatchLineTest, KeepsTheIdOfAWrongLine) {
  BatchLine line;
  EXPECT_FALSE(ParseBatchLine(R"({"custom_id":"a","prompt":1})", Defaults(), &line).ok());
  EXPECT_EQ(line.custom_id, "a");
}

}  // namespace
}  // namespace rivulet
