// SPDX-License-Identifier: Apache-2.0
// Every bad request gets its code, reason and field, and harms nobody: 50 good replies run beside
// them and hold exactly the tokens of a run alone.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/server/test_server.h"
#include "tests/support/wire_error.h"

namespace rivulet::testing {
namespace {

constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
constexpr auto kOutOfRange = grpc::StatusCode::OUT_OF_RANGE;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Expected {
  grpc::StatusCode code;
  std::string reason, field;
};

void ExpectError(const grpc::Status& status, const Expected& expected, const std::string& what) {
  const WireError error = Unpack(status);
  EXPECT_EQ(error.code, expected.code) << what << ": " << error.message;
  EXPECT_EQ(error.domain, "rivulet") << what;
  EXPECT_EQ(error.reason, expected.reason) << what << ": " << error.message;
  EXPECT_EQ(error.field, expected.field) << what << ": " << error.message;
  EXPECT_TRUE(error.details_agree) << what;
  EXPECT_NE(error.message, "") << what;
  EXPECT_EQ(error.message.find("/"), std::string::npos)
      << "a path of the server? " << error.message;
}

struct BadGenerate {
  const char* model;
  std::function<void(v1::GenerateRequest*)> spoil;  // of a good request
  Expected expected;
};

// A bad value of one number of SamplingParams.
template <typename T>
BadGenerate Sampling(const char* model, void (v1::SamplingParams::*set)(T), T value,
                     const char* field) {
  return {model,
          [set, value](auto* r) { (r->mutable_sampling()->*set)(value); },
          {kInvalid, "INVALID_SAMPLING", std::string("sampling.") + field}};
}

std::vector<BadGenerate> BadSampling() {
  using P = v1::SamplingParams;
  std::vector<BadGenerate> bad;
  for (const float value : {kNan, -1.0f, kInfinity, -kInfinity}) {
    bad.push_back(Sampling(kStream, &P::set_temperature, value, "temperature"));
    bad.push_back(Sampling(kImage, &P::set_temperature, value, "temperature"));
    bad.push_back(Sampling(kStream, &P::set_top_p, value, "top_p"));
    bad.push_back(Sampling(kStream, &P::set_min_p, value, "min_p"));
    bad.push_back(Sampling(kStream, &P::set_repetition_penalty, value, "repetition_penalty"));
  }
  for (const float value : {kNan, -2.5f, 2.5f}) {
    bad.push_back(Sampling(kStream, &P::set_frequency_penalty, value, "frequency_penalty"));
    bad.push_back(Sampling(kStream, &P::set_presence_penalty, value, "presence_penalty"));
  }
  bad.push_back(Sampling(kStream, &P::set_top_p, 0.0f, "top_p"));
  bad.push_back(Sampling(kStream, &P::set_top_p, 1.5f, "top_p"));
  bad.push_back(Sampling(kStream, &P::set_repetition_penalty, 0.0f, "repetition_penalty"));
  bad.push_back(Sampling(kStream, &P::set_top_k, -1, "top_k"));
  // What a mixture head cannot do.
  bad.push_back(Sampling(kImage, &P::set_top_k, 5, "top_k"));
  bad.push_back(Sampling(kImage, &P::set_top_p, 0.5f, "top_p"));
  bad.push_back(Sampling(kImage, &P::set_min_p, 0.5f, "min_p"));
  bad.push_back(Sampling(kImage, &P::set_repetition_penalty, 2.0f, "repetition_penalty"));
  bad.push_back(Sampling(kImage, &P::set_presence_penalty, 1.0f, "presence_penalty"));
  const auto bias = [&bad](const char* model, int token, float value, const char* field) {
    bad.push_back({model,
                   [=](auto* r) { (*r->mutable_sampling()->mutable_logit_bias())[token] = value; },
                   {kInvalid, "INVALID_SAMPLING", field}});
  };
  bias(kImage, 3, 1, "sampling.logit_bias");
  bias(kStream, 37, 1, "sampling.logit_bias");
  bias(kStream, -1, 1, "sampling.logit_bias");
  bias(kStream, 3, kNan, "sampling.logit_bias[3]");
  bias(kStream, 3, 101, "sampling.logit_bias[3]");
  return bad;
}

std::vector<BadGenerate> BadPrompts() {
  using R = v1::GenerateRequest;
  const auto tokens = [](std::vector<int> ids) {
    return [ids](R* r) { r->mutable_tokens()->mutable_ids()->Assign(ids.begin(), ids.end()); };
  };
  return {
      {"", [](R*) {}, {kInvalid, "MODEL_NAME_MISSING", "model"}},
      {"gpt-2", [](R*) {}, {grpc::StatusCode::NOT_FOUND, "MODEL_NOT_FOUND", "model"}},
      {kStream, [](R* r) { r->clear_prompt(); }, {kInvalid, "PROMPT_MISSING", "prompt"}},
      {kStream, tokens({1, 37}), {kInvalid, "TOKEN_OUT_OF_RANGE", "prompt.tokens[1]"}},
      {kStream, tokens({-1}), {kInvalid, "TOKEN_OUT_OF_RANGE", "prompt.tokens[0]"}},
      {kStream,
       tokens({1, 2, std::numeric_limits<int>::max()}),
       {kInvalid, "TOKEN_OUT_OF_RANGE", "prompt.tokens[2]"}},
      {kNoBos, tokens({}), {kInvalid, "PROMPT_EMPTY", "prompt"}},
      {kImage, [](R* r) { r->set_image_values(""); }, {kInvalid, "PROMPT_EMPTY", "prompt"}},
      {kBounded,
       tokens(std::vector<int>(49, 1)),
       {kOutOfRange, "TOO_MANY_TOKENS", "prompt.tokens"}},
      {kNoBos, tokens(std::vector<int>(50, 1)), {kOutOfRange, "TOO_MANY_TOKENS", "prompt.tokens"}},
      {kImage,
       [](R* r) { r->set_image_values(std::string(50, 'x')); },
       {kOutOfRange, "TOO_MANY_TOKENS", "prompt.image_values"}},
      {kText,
       [](R* r) { r->set_text(std::string(41, 'a')); },
       {kOutOfRange, "TOO_MANY_TOKENS", "prompt.text"}},
      {kText, [](R* r) { r->set_text("abz"); }, {kInvalid, "TEXT_NOT_IN_ALPHABET", "prompt.text"}},
      {kStream, [](R* r) { r->set_text("a"); }, {kInvalid, "TEXT_NOT_SUPPORTED", "prompt.text"}},
      {kText,
       [](R* r) { r->set_image_values("a"); },
       {kInvalid, "IMAGE_VALUES_NOT_SUPPORTED", "prompt.image_values"}},
  };
}

std::vector<BadGenerate> BadLimits() {
  using R = v1::GenerateRequest;
  std::vector<BadGenerate> bad;
  for (const int64_t value : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min(),
                              std::numeric_limits<int64_t>::max()}) {
    bad.push_back({kStream,
                   [value](R* r) { r->set_max_tokens(value); },
                   {kInvalid, "MAX_TOKENS_OUT_OF_RANGE", "max_tokens"}});
  }
  for (const int value : {0, -1, 65, std::numeric_limits<int>::max()}) {
    bad.push_back({kStream,
                   [value](R* r) { r->set_num_samples(value); },
                   {kInvalid, "NUM_SAMPLES_OUT_OF_RANGE", "num_samples"}});
  }
  for (const int value : {-1, 21}) {
    bad.push_back({kStream,
                   [value](R* r) {
                     r->mutable_logprobs()->set_enabled(true);
                     r->mutable_logprobs()->set_top_n(value);
                   },
                   {kInvalid, "TOP_LOGPROBS_OUT_OF_RANGE", "logprobs.top_n"}});
  }
  const auto stop = [&bad](const char* model, std::vector<std::string> strings, const char* reason,
                           const char* field) {
    bad.push_back({model,
                   [strings](R* r) {
                     if (r->model() == kText) r->set_text("a");
                     for (const auto& s : strings) r->mutable_stop()->add_strings(s);
                   },
                   {kInvalid, reason, field}});
  };
  stop(kText, {"a", std::string(257, 'a')}, "STOP_STRING_LENGTH", "stop.strings[1]");
  stop(kText, {""}, "STOP_STRING_LENGTH", "stop.strings[0]");
  stop(kText, std::vector<std::string>(17, "a"), "TOO_MANY_STOP_STRINGS", "stop.strings");
  stop(kStream, {"a"}, "NO_TOKENIZER", "stop.strings");
  bad.push_back({kStream,
                 [](R* r) { r->mutable_stop()->add_token_ids(37); },
                 {kInvalid, "TOKEN_OUT_OF_RANGE", "stop.token_ids[0]"}});
  bad.push_back({kStream,
                 [](R* r) {
                   for (int i = 0; i < 65; ++i) r->mutable_stop()->add_token_ids(1);
                 },
                 {kInvalid, "TOO_MANY_STOP_TOKENS", "stop.token_ids"}});
  bad.push_back({kStream,
                 [](R* r) { r->mutable_logprobs()->set_top_n(3); },
                 {kInvalid, "TOP_LOGPROBS_WITHOUT_LOGPROBS", "logprobs.top_n"}});
  return bad;
}

void RunBadGenerates(v1::InferenceService::Stub& stub) {
  for (const auto& group : {BadPrompts(), BadSampling(), BadLimits()}) {
    for (const BadGenerate& bad : group) {
      v1::GenerateRequest request = Request(bad.model, 1, 4);
      if (std::string(bad.model) == kText) request.set_text("a");
      bad.spoil(&request);
      const Collected reply = Generate(stub, request);
      EXPECT_EQ(reply.messages, 0) << request.ShortDebugString();
      ExpectError(reply.status, bad.expected, request.ShortDebugString());
    }
  }
}

struct BadScore {
  const char* model;
  std::function<void(v1::ScoreRequest*)> fill;
  Expected expected;
};

void RunBadScores(v1::InferenceService::Stub& stub) {
  using R = v1::ScoreRequest;
  const auto ids = [](R* r, int count, int id) {
    for (int i = 0; i < count; ++i) r->mutable_tokens()->add_ids(id);
  };
  const std::vector<BadScore> all = {
      {"gpt-2", [](R*) {}, {grpc::StatusCode::NOT_FOUND, "MODEL_NOT_FOUND", "model"}},
      {kStream, [](R*) {}, {kInvalid, "CONTENT_MISSING", "content"}},
      {kStream,
       [&](R* r) { ids(r, 2, 37); },
       {kInvalid, "TOKEN_OUT_OF_RANGE", "content.tokens[0]"}},
      {kStream, [](R* r) { r->set_text("a"); }, {kInvalid, "TEXT_NOT_SUPPORTED", "content.text"}},
      {kText, [](R* r) { r->set_text("z"); }, {kInvalid, "TEXT_NOT_IN_ALPHABET", "content.text"}},
      {kText,
       [](R* r) { r->set_text(std::string(41, 'a')); },
       {kOutOfRange, "TOO_MANY_TOKENS", "content.text"}},
      {kBounded, [&](R* r) { ids(r, 49, 1); }, {kOutOfRange, "TOO_MANY_TOKENS", "content.tokens"}},
      {kBounded,
       [&](R* r) {
         ids(r, 200, 1);
         r->set_window(49);
       },
       {kOutOfRange, "TOO_MANY_TOKENS", "window"}},
      {kStream,
       [&](R* r) {
         ids(r, 2, 1);
         r->set_window(0);
       },
       {kInvalid, "WINDOW_OUT_OF_RANGE", "window"}},
      {kStream,
       [&](R* r) {
         ids(r, 2, 1);
         r->add_output_positions(1);
         r->add_output_positions(2);
       },
       {kInvalid, "OUTPUT_POSITION_OUT_OF_RANGE", "output_positions[1]"}},
      {kStream,
       [&](R* r) {
         ids(r, 2, 1);
         for (int i = 0; i < 16385; ++i) r->add_output_positions(0);
       },
       {kInvalid, "TOO_MANY_OUTPUT_POSITIONS", "output_positions"}},
  };
  for (const BadScore& bad : all) {
    grpc::ClientContext context;
    v1::ScoreRequest request;
    request.set_model(bad.model);
    bad.fill(&request);
    v1::ScoreReply reply;
    const grpc::Status status = stub.Score(&context, request, &reply);
    ExpectError(status, bad.expected, bad.expected.reason + " " + bad.expected.field);
  }
}

TEST(BadRequestTest, EachIsNamedAndFiftyGoodRepliesBesideThemAreUnharmed) {
  constexpr int kGood = 50;
  constexpr int kTokens = 300;
  TestServer server({kStream, kBounded, kNoBos, kImage, kText});
  std::vector<Collected> alone(kGood), beside(kGood);
  for (uint64_t i = 0; i < kGood; ++i) {
    alone[i] = Generate(server.stub(), Request(kStream, i, kTokens));
    ASSERT_TRUE(alone[i].status.ok()) << alone[i].status.error_message();
    ASSERT_EQ(alone[i].tokens[0].size(), size_t{kTokens});
  }
  std::vector<std::thread> good;
  for (uint64_t i = 0; i < kGood; ++i) {
    good.emplace_back([&server, &beside, i] {
      beside[i] = Generate(server.stub(), Request(kStream, i, kTokens));
    });
  }
  RunBadGenerates(server.stub());
  RunBadScores(server.stub());
  for (std::thread& thread : good) thread.join();
  for (size_t i = 0; i < kGood; ++i) {
    EXPECT_TRUE(beside[i].status.ok()) << beside[i].status.error_message();
    EXPECT_TRUE(beside[i].in_order);
    EXPECT_EQ(beside[i].tokens, alone[i].tokens) << i;
    EXPECT_EQ(beside[i].finish[0].reason(), v1::FINISH_REASON_LENGTH);
  }
  for (const char* model : {kStream, kBounded, kNoBos, kImage, kText}) server.AwaitIdle(model);
}

TEST(BadRequestTest, ARequestAboveTheSizeLimitIsRefused) {
  ServerConfig config;
  config.max_message_mib = 1;
  TestServer server({kStream}, config);
  v1::GenerateRequest request = Request(kStream, 1, 4);
  for (int i = 0; i < (2 << 20); ++i) request.mutable_tokens()->add_ids(1);
  EXPECT_EQ(Generate(server.stub(), request).status.error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(Generate(server.stub(), Request(kStream, 1, 4)).status.ok());
}

}  // namespace
}  // namespace rivulet::testing
