// SPDX-License-Identifier: Apache-2.0
#include "server/tracing/tracer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;
using Value = Span::Value;

const RequestTrace kTrace = {"4bf92f3577b34da6a3ce929d0e0e4736", "b7ad6b7169203331",
                             "00f067aa0ba902b7", true};
const absl::Time kBegin = absl::FromUnixMillis(1763843467000);

RequestLine LineOf(absl::StatusCode code) {
  RequestLine line;
  line.service = "rivulet.v1.InferenceService";
  line.method = "Generate";
  line.request_id = "id";
  line.begin = kBegin;
  line.end = kBegin + absl::Seconds(10);
  line.code = code;
  return line;
}

// Taken by an engine 1 s after its begin; all its times are from then on.
RequestLine LineOfEngine(absl::Duration queue_time, std::optional<absl::Duration> first_token_time,
                         absl::Duration engine_time) {
  RequestLine line = LineOf(absl::StatusCode::kOk);
  line.arrival = kBegin + absl::Seconds(1);
  line.queue_time = queue_time;
  line.first_token_time = first_token_time;
  line.engine_time = engine_time;
  return line;
}

// {name, {start, end}} of the parts, in seconds since the begin.
std::vector<std::pair<std::string, std::pair<double, double>>> PartsOf(const RequestLine& line) {
  std::vector<std::pair<std::string, std::pair<double, double>>> parts;
  const std::vector<Span> spans = SpansOf(kTrace, line);
  for (size_t i = 1; i < spans.size(); ++i) {
    EXPECT_EQ(spans[i].trace_id, kTrace.trace_id);
    EXPECT_EQ(spans[i].parent_id, kTrace.span_id);
    EXPECT_FALSE(spans[i].parent_elsewhere || spans[i].server || spans[i].failed);
    parts.push_back({spans[i].name,
                     {absl::ToDoubleSeconds(spans[i].start - kBegin),
                      absl::ToDoubleSeconds(spans[i].end - kBegin)}});
  }
  return parts;
}

TEST(SpansOfTest, TheWholeSaysWhatIsKnown) {
  RequestLine line = LineOf(absl::StatusCode::kOk);
  line.model = "m";
  line.session = "s";
  line.tenant = "not told";
  line.prompt_tokens = 3;
  line.generated_tokens = 0;
  const std::vector<Span> spans = SpansOf(kTrace, line);
  ASSERT_EQ(spans.size(), 1u);
  const Span& span = spans[0];
  EXPECT_EQ(span.trace_id, kTrace.trace_id);
  EXPECT_EQ(span.id, kTrace.span_id);
  EXPECT_EQ(span.parent_id, kTrace.parent_id);
  EXPECT_TRUE(span.parent_elsewhere && span.server);
  EXPECT_EQ(span.name, "rivulet.v1.InferenceService/Generate");
  EXPECT_EQ(span.start, line.begin);
  EXPECT_EQ(span.end, line.end);
  EXPECT_FALSE(span.failed);
  const std::map<std::string, Value> attributes(span.attributes.begin(), span.attributes.end());
  EXPECT_THAT(
      attributes,
      UnorderedElementsAre(
          Pair("rpc.system", Value(std::string("grpc"))),
          Pair("rpc.service", Value("rivulet.v1.InferenceService")),
          Pair("rpc.method", Value("Generate")), Pair("rpc.grpc.status_code", Value(int64_t{0})),
          Pair("rivulet.request_id", Value("id")), Pair("rivulet.model", Value("m")),
          Pair("rivulet.session", Value("s")), Pair("rivulet.prompt_tokens", Value(int64_t{3})),
          Pair("rivulet.generated_tokens", Value(int64_t{0}))));
}

TEST(SpansOfTest, OnlyFailuresOfTheServerAreErrors) {
  for (const auto& [code, failed] : {std::pair(absl::StatusCode::kOk, false),
                                     std::pair(absl::StatusCode::kInvalidArgument, false),
                                     std::pair(absl::StatusCode::kResourceExhausted, false),
                                     std::pair(absl::StatusCode::kUnavailable, true),
                                     std::pair(absl::StatusCode::kInternal, true)}) {
    RequestLine line = LineOf(code);
    line.reason = "REASON";
    const Span span = SpansOf(kTrace, line)[0];
    EXPECT_EQ(span.failed, failed) << absl::StatusCodeToString(code);
    EXPECT_EQ(span.problem, failed ? "REASON" : "");
  }
  RequestLine without = LineOf(absl::StatusCode::kOk);
  without.code.reset();
  EXPECT_TRUE(SpansOf(kTrace, without)[0].failed) << "nobody knows how it ended";
}

TEST(SpansOfTest, WithoutAServiceTheMethodIsTheName) {
  RequestLine line = LineOf(absl::StatusCode::kOk);
  line.service = "";
  EXPECT_EQ(SpansOf(kTrace, line)[0].name, "Generate");
}

TEST(SpansOfTest, PartsAreThoseThatARequestCameTo) {
  using absl::Seconds;
  EXPECT_THAT(PartsOf(LineOfEngine(Seconds(2), Seconds(3), Seconds(7))),
              ElementsAre(Pair("queue", Pair(1, 3)), Pair("prefill", Pair(3, 4)),
                          Pair("decode", Pair(4, 8))));
  EXPECT_THAT(PartsOf(LineOfEngine(Seconds(2), std::nullopt, Seconds(7))),
              ElementsAre(Pair("queue", Pair(1, 3)), Pair("prefill", Pair(3, 8))));
  EXPECT_THAT(PartsOf(LineOfEngine(Seconds(7), std::nullopt, Seconds(7))),
              ElementsAre(Pair("queue", Pair(1, 8))));
}

TEST(SpansOfTest, PartsStayWithinTheWhole) {
  using absl::Seconds;
  EXPECT_THAT(PartsOf(LineOfEngine(Seconds(2), Seconds(20), Seconds(30))),
              ElementsAre(Pair("queue", Pair(1, 3)), Pair("prefill", Pair(3, 10)),
                          Pair("decode", Pair(10, 10))));
  RequestLine line = LineOfEngine(Seconds(2), Seconds(3), Seconds(4));
  line.end = kBegin - Seconds(1);  // the clock was set back
  EXPECT_EQ(SpansOf(kTrace, line)[0].end, kBegin);
  EXPECT_THAT(PartsOf(line), ElementsAre(Pair("queue", Pair(0, 0)), Pair("prefill", Pair(0, 0)),
                                         Pair("decode", Pair(0, 0))));
}

TEST(TracerTest, TheCallersFlagDecidesAndElseTheRate) {
  OtlpOptions options;
  options.target = "127.0.0.1:1";
  const Tracer never(options, 0), always(options, 1), half(options, 0.5);
  const TraceContext sampled{kTrace.trace_id, kTrace.parent_id, true};
  const TraceContext unsampled{kTrace.trace_id, kTrace.parent_id, false};
  for (const Tracer* tracer : {&never, &always, &half}) {
    const auto trace = tracer->Begin(sampled);
    ASSERT_TRUE(trace.has_value());
    EXPECT_EQ(trace->trace_id, kTrace.trace_id);
    EXPECT_EQ(trace->parent_id, kTrace.parent_id);
    EXPECT_TRUE(trace->parent_elsewhere);
    EXPECT_NE(trace->span_id, tracer->Begin(sampled)->span_id);
    EXPECT_FALSE(tracer->Begin(unsampled).has_value());
  }
  int taken = 0;
  for (int i = 0; i < 10000; ++i) {
    EXPECT_FALSE(never.Begin(std::nullopt).has_value());
    const auto trace = always.Begin(std::nullopt);
    ASSERT_TRUE(trace.has_value());
    EXPECT_EQ(trace->parent_id, "");
    EXPECT_FALSE(trace->parent_elsewhere);
    if (half.Begin(std::nullopt).has_value()) ++taken;
  }
  EXPECT_GT(taken, 4000) << "20 standard deviations from the middle";
  EXPECT_LT(taken, 6000);
  EXPECT_NE(always.Begin(std::nullopt)->trace_id, always.Begin(std::nullopt)->trace_id);
}

TEST(TracerTest, WithinARequestTheTraceIsThatOfTheRequest) {
  const RequestTrace inner = Tracer::BeginWithin(kTrace);
  EXPECT_EQ(inner.trace_id, kTrace.trace_id);
  EXPECT_EQ(inner.parent_id, kTrace.span_id);
  EXPECT_NE(inner.span_id, kTrace.span_id);
  EXPECT_FALSE(inner.parent_elsewhere);
}

}  // namespace
}  // namespace rivulet
