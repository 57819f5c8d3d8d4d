// SPDX-License-Identifier: Apache-2.0
// What good requests receive, over the socket, from a server with several models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/server/test_server.h"
#include "tests/support/paths.h"

namespace rivulet::testing {
namespace {

using ::testing::HasSubstr;

class GenerateTest : public ::testing::Test {
 protected:
  TestServer server_{{kStream, kBounded, kNoBos, kImage, kText}};
};

TEST_F(GenerateTest, TheReturnedSeedRepeatsTheReply) {
  v1::GenerateRequest request = Request(kStream, 1, 50);
  request.mutable_sampling()->clear_seed();
  const Collected drawn = Generate(server_.stub(), request);
  ASSERT_TRUE(drawn.status.ok()) << drawn.status.error_message();
  request.mutable_sampling()->set_seed(drawn.seed);
  EXPECT_EQ(Generate(server_.stub(), request).tokens, drawn.tokens);
  request.mutable_sampling()->set_seed(drawn.seed + 1);
  EXPECT_NE(Generate(server_.stub(), request).tokens, drawn.tokens);
}

TEST_F(GenerateTest, MoreSamplesRepeatTheFirstOnes) {
  v1::GenerateRequest request = Request(kStream, 2, 30);
  const Collected one = Generate(server_.stub(), request);
  request.set_num_samples(5);
  const Collected five = Generate(server_.stub(), request);
  ASSERT_EQ(five.tokens.size(), 5u);
  EXPECT_EQ(five.tokens.at(0), one.tokens.at(0));
  EXPECT_NE(five.tokens.at(1), five.tokens.at(0));
  EXPECT_EQ(five.usage.completion_tokens(), 150);
  EXPECT_EQ(five.usage.prompt_tokens(), 1);
  EXPECT_EQ(five.finish.size(), 5u);
}

TEST_F(GenerateTest, ModelsDoNotDisturbEachOther) {
  const std::vector<std::string> models = {kStream, kBounded, kNoBos};
  std::vector<Collected> alone, together(models.size());
  for (const std::string& model : models) {
    alone.push_back(Generate(server_.stub(), Request(model, 11, 40)));
    ASSERT_TRUE(alone.back().status.ok()) << alone.back().status.error_message();
  }
  EXPECT_NE(alone[0].tokens, alone[1].tokens);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < models.size(); ++i) {
    threads.emplace_back(
        [&, i] { together[i] = Generate(server_.stub(), Request(models[i], 11, 40)); });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < models.size(); ++i) EXPECT_EQ(together[i].tokens, alone[i].tokens);
}

TEST_F(GenerateTest, AnImageEndsWithItsLastValue) {
  v1::GenerateRequest request;
  request.set_model(kImage);
  request.set_image_values(std::string("\x80\xff", 2));
  const Collected reply = Generate(server_.stub(), request);
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_EQ(reply.tokens.at(0).size(), 4u * 11 - 2);
  EXPECT_EQ(reply.finish.at(0).reason(), v1::FINISH_REASON_LENGTH);
  for (const int value : reply.tokens.at(0)) {
    EXPECT_GE(value, 0);
    EXPECT_LT(value, 256);
  }
}

TEST_F(GenerateTest, NothingFollowsThePromptOfTheLargestLength) {
  v1::GenerateRequest request;
  request.set_model(kBounded);
  for (int i = 0; i < 48; ++i) request.mutable_tokens()->add_ids(i % 37);
  const Collected reply = Generate(server_.stub(), request);
  EXPECT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_TRUE(reply.tokens.at(0).empty());
  EXPECT_EQ(reply.finish.at(0).reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(reply.usage.prompt_tokens(), 48);
}

TEST_F(GenerateTest, GenerationEndsAtTheLastPosition) {
  const Collected reply = Generate(server_.stub(), Request(kBounded, 5, 1000));
  EXPECT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_EQ(reply.tokens.at(0).size(), 47u);
  EXPECT_EQ(reply.finish.at(0).reason(), v1::FINISH_REASON_LENGTH);
}

TEST_F(GenerateTest, TextArrivesAndStopsAtAStopString) {
  v1::GenerateRequest request;
  request.set_model(kText);
  request.set_text("abc");
  request.mutable_sampling()->set_seed(1);
  const Collected whole = Generate(server_.stub(), request);
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();
  const std::string& text = whole.text.at(0);
  ASSERT_EQ(text.size(),
            37u);  // 40 positions hold the bos, 3 of the prompt and all generated but the last
  for (size_t i = 0; i < text.size(); ++i) {
    EXPECT_EQ(text[i], "abcdefgh "[whole.tokens.at(0)[i]]);
  }
  const std::string stop = text.substr(10, 3);
  request.mutable_stop()->add_strings(stop);
  const Collected stopped = Generate(server_.stub(), request);
  EXPECT_EQ(stopped.text.at(0), text.substr(0, text.find(stop)));
  EXPECT_EQ(stopped.finish.at(0).reason(), v1::FINISH_REASON_STOP_STRING);
  EXPECT_EQ(stopped.finish.at(0).stop_string(), stop);
  request.mutable_stop()->set_include_string(true);
  EXPECT_EQ(Generate(server_.stub(), request).text.at(0),
            text.substr(0, text.find(stop) + stop.size()));
}

TEST_F(GenerateTest, AStopTokenEndsAndIsNamed) {
  v1::GenerateRequest request = Request(kStream, 6, 200);
  const Collected whole = Generate(server_.stub(), request);
  const int stop = whole.tokens.at(0)[20];
  request.mutable_stop()->add_token_ids(stop);
  const Collected stopped = Generate(server_.stub(), request);
  EXPECT_LE(stopped.tokens.at(0).size(), 20u);
  EXPECT_EQ(stopped.finish.at(0).reason(), v1::FINISH_REASON_STOP_TOKEN);
  EXPECT_EQ(stopped.finish.at(0).stop_token_id(), stop);
}

TEST_F(GenerateTest, ScoreAgreesWithTheLogprobsOfGenerate) {
  v1::GenerateRequest request;
  request.set_model(kStream);
  request.mutable_tokens();
  request.set_max_tokens(100);
  request.mutable_logprobs()->set_enabled(true);
  request.mutable_logprobs()->set_top_n(2);
  grpc::ClientContext generate_context, score_context;
  auto reader = server_.stub().Generate(&generate_context, request);
  v1::ScoreRequest score;
  score.set_model(kStream);
  score.set_logprobs(true);
  std::vector<float> logprobs;
  v1::GenerateReply part;
  while (reader->Read(&part)) {
    ASSERT_EQ(part.logprobs_size(), part.tokens_size());
    ASSERT_EQ(part.top_logprobs_size(), part.tokens_size());
    for (const int token : part.tokens()) score.mutable_tokens()->add_ids(token);
    logprobs.insert(logprobs.end(), part.logprobs().begin(), part.logprobs().end());
  }
  ASSERT_TRUE(reader->Finish().ok());
  v1::ScoreReply reply;
  const grpc::Status status = server_.stub().Score(&score_context, score, &reply);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(reply.num_scored(), 100);
  double sum = 0;
  for (int i = 0; i < 100; ++i) {
    EXPECT_NEAR(reply.logprobs(i), logprobs[static_cast<size_t>(i)], 1e-5);
    sum -= logprobs[static_cast<size_t>(i)];
  }
  EXPECT_NEAR(reply.nll_nats(), sum, 1e-3);
}

TEST_F(GenerateTest, TheSameOverASocketAndInProcess) {
  auto stub = v1::InferenceService::NewStub(server_.server().InProcessChannel());
  const v1::GenerateRequest request = Request(kStream, 12, 100);
  EXPECT_EQ(Generate(*stub, request).tokens, Generate(server_.stub(), request).tokens);
}

TEST(ServerTest, TwoModelsOfOneNameAreRefused) {
  const std::string directory = SourcePath("tests/conformance/models/tiny-elu-relu");
  ServerConfig config;
  config.models = {directory, directory + "/"};
  config.listen = "";
  config.backend = "cpu";
  const auto server = Server::Create(config);
  EXPECT_EQ(server.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(server.status().message()), HasSubstr(directory + " and " + directory));
}

TEST(ServerTest, AServerNeedsNoSocket) {
  ServerConfig config;
  config.models = {SourcePath("tests/conformance/models/tiny-elu-relu")};
  config.listen = "";
  config.backend = "cpu";
  const auto server = Server::Create(config);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ((*server)->port(), 0);
  auto stub = v1::InferenceService::NewStub((*server)->InProcessChannel());
  EXPECT_TRUE(Generate(*stub, Request("", 1, 5)).status.ok());
}

}  // namespace
}  // namespace rivulet::testing
