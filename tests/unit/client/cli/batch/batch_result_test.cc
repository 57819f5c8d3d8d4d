// SPDX-License-Identifier: Apache-2.0
#include "client/cli/batch/batch_result.h"

#include <gtest/gtest.h>

#include <limits>

#include "nlohmann/json.hpp"

namespace rivulet {
namespace {

TEST(BatchResultTest, PutsPartsTogether) {
  v1::MultiplexPart part;
  part.set_seed(7);
  part.set_sample_index(1);
  part.add_tokens(5);
  part.add_logprobs(-0.5f);
  part.set_text("a");
  BatchReply reply;
  reply.Take(part);
  part.clear_seed();
  part.set_text("b");
  part.mutable_finish()->set_reason(v1::FINISH_REASON_STOP_STRING);
  part.mutable_finish()->set_stop_string("\"");
  reply.Take(part);
  part.set_sample_index(0);
  reply.Take(part);
  v1::MultiplexPart last;  // holds the usage alone
  last.set_sample_index(9);
  last.mutable_usage()->set_prompt_tokens(3);
  last.mutable_usage()->set_completion_tokens(4);
  reply.Take(last);
  BatchLine line;
  line.custom_id = "a\n";
  line.request = v1::GenerateRequest();
  EXPECT_EQ(GenerateResult(2, line, {.created = 0, .model = "", .is_text = true}, reply),
            R"({"line":2,"custom_id":"a\n","samples":[)"
            R"({"text":"b","logprobs":[-0.5],"finish":"stop_string","stop_string":"\""},)"
            R"({"text":"ab","logprobs":[-0.5,-0.5],"finish":"stop_string","stop_string":"\""}],)"
            R"("seed":7,"usage":{"prompt_tokens":3,"completion_tokens":4}})"
            "\n");
}

TEST(BatchResultTest, AnswersAChatAsOpenAiDoes) {
  BatchReply reply;
  reply.samples.emplace_back().text = "Hi";
  reply.samples[0].finish.set_reason(v1::FINISH_REASON_STOP_TOKEN);
  BatchLine line;
  line.openai = true;
  line.custom_id = "a";
  line.request = ChatRequest();
  reply.usage.set_reasoning_tokens(2);
  reply.usage.set_drafted_tokens(8);  // differs from run to run
  reply.Divide(ReplyParts());
  EXPECT_EQ(GenerateResult(1, line, {.created = 5, .model = "m", .is_text = true}, reply),
            R"({"line":1,"id":"batch_req_1","custom_id":"a","response":{"status_code":200,)"
            R"("request_id":"batch_req_1","body":{"id":"chatcmpl-1","object":"chat.completion",)"
            R"("created":5,"model":"m","choices":[{"index":0,"message":{"role":"assistant",)"
            R"("content":"Hi","refusal":null},"logprobs":null,"finish_reason":"stop"}],"usage":)"
            R"({"prompt_tokens":0,"completion_tokens":0,"total_tokens":0,)"
            R"("completion_tokens_details":{"reasoning_tokens":2}},"seed":0}},"error":null})"
            "\n");
}

TEST(BatchResultTest, NamesFieldsAsInALine) {
  BatchLine line;
  line.request = v1::ScoreRequest();
  EXPECT_EQ(ErrorResult(3, line, {absl::StatusCode::kNotFound, "R", "content.tokens[4]", "m", "i"}),
            R"({"line":3,"error":{"code":"NOT_FOUND","reason":"R","field":"score[4]",)"
            R"("message":"m","request_id":"i"}})"
            "\n");
}

TEST(BatchResultTest, AMessageNamesTheFieldOfTheLine) {
  const BatchLine line;
  const auto message = [&](const char* field, const char* said) {
    const std::string result =
        ErrorResult(1, line, {absl::StatusCode::kInvalidArgument, "R", field, said, ""});
    return nlohmann::json::parse(result)["error"]["message"].get<std::string>();
  };
  EXPECT_EQ(message("sampling.temperature", "sampling.temperature is -1"), "temperature is -1");
  EXPECT_EQ(message("speculation.text", "speculation.text: at byte 3"), "prediction: at byte 3");
  EXPECT_EQ(message("num_samples", "num_samples is 0; num_samples"), "n is 0; num_samples");
  EXPECT_EQ(message("prompt.text", "prompt.text: at byte 3"), "prompt: at byte 3");
  EXPECT_EQ(message("num_samples", "num_samples_x is 0"), "num_samples_x is 0");
  EXPECT_EQ(message("", "the text is too long"), "the text is too long");
}

TEST(BatchResultTest, StatusesAndTypesAreThoseOfTheGateway) {
  BatchLine line;
  line.openai = true;
  const auto said = [&](absl::StatusCode code, const char* reason) {
    const nlohmann::json result =
        nlohmann::json::parse(ErrorResult(1, line, {code, reason, "", "m", ""}));
    const nlohmann::json& response = result["response"];
    return std::pair(response["status_code"].get<int>(),
                     response["body"]["error"]["type"].get<std::string>());
  };
  using Code = absl::StatusCode;
  const std::string invalid = "invalid_request_error", server = "server_error";
  EXPECT_EQ(said(Code::kInvalidArgument, "R"), std::pair(400, invalid));
  EXPECT_EQ(said(Code::kUnauthenticated, "R"), std::pair(401, std::string("authentication_error")));
  EXPECT_EQ(said(Code::kPermissionDenied, "R"), std::pair(403, std::string("permission_error")));
  EXPECT_EQ(said(Code::kAborted, "R"), std::pair(409, std::string("conflict_error")));
  EXPECT_EQ(said(Code::kResourceExhausted, "R"), std::pair(429, std::string("rate_limit_error")));
  EXPECT_EQ(said(Code::kResourceExhausted, "MESSAGE_TOO_LARGE"), std::pair(413, invalid));
  EXPECT_EQ(said(Code::kCancelled, "R"), std::pair(499, invalid));
  EXPECT_EQ(said(Code::kDeadlineExceeded, "R"), std::pair(504, server));
  EXPECT_EQ(said(Code::kInternal, ""), std::pair(500, server));
}

TEST(BatchResultTest, ShowsAPerplexityOnlyWhereThereIsOne) {
  BatchLine line;
  v1::ScoreReply reply;
  EXPECT_EQ(ScoreResult(1, line, reply), "{\"line\":1,\"nll_nats\":0,\"num_scored\":0}\n");
  reply.set_nll_nats(1e6);
  reply.set_num_scored(1);
  EXPECT_EQ(ScoreResult(1, line, reply), "{\"line\":1,\"nll_nats\":1e+06,\"num_scored\":1}\n");
}

TEST(BatchResultTest, FindsTheLineThatAResultAnswers) {
  EXPECT_EQ(ReadResult(R"({"line":12,"text":""})")->number, 12);
  EXPECT_EQ(ReadResult(R"({"line":12,"text":""})")->custom_id, std::nullopt);
  EXPECT_EQ(ReadResult(R"({"line":12,"custom_id":"a\n","text":""})")->custom_id, "a\n");
  for (const char* const other :
       {"", "{\"line\":", "{\"line\":x", "{\"line\":12", "{\"line\":1.5}", "{\"id\":12}",
        "{\"line\":12,\"texGARBAGE", "{\"line\":12,\"custom_id\":3}", "{\"line\":12} x",
        "{\"line\":12}", "{\"line\":12,\"custom_id\":\"a\"}"}) {
    EXPECT_FALSE(ReadResult(other).has_value()) << other;
  }
}

}  // namespace
}  // namespace rivulet
