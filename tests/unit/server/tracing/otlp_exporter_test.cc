// SPDX-License-Identifier: Apache-2.0
#include "server/tracing/otlp_exporter.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "opentelemetry/proto/collector/trace/v1/trace_service.grpc.pb.h"
#include "server/base/mutex.h"
#include "server/log.h"

namespace rivulet {
namespace {

namespace otlp = opentelemetry::proto::collector::trace::v1;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kPatience = absl::Seconds(60);

// Answers Export with `answer`, and keeps what it takes.
class Collector final : public otlp::TraceService::Service {
 public:
  using Answer =
      std::function<grpc::Status(grpc::ServerContext*, otlp::ExportTraceServiceResponse*)>;

  // On any port, or on `port`, which may be a ReservedPort's.
  explicit Collector(int port = 0) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Collector() override { server_->Shutdown(absl::ToChronoTime(absl::Now())); }

  int port() const { return port_; }
  std::string target() const { return absl::StrCat("127.0.0.1:", port_); }
  void SetAnswer(Answer answer) {
    MutexLock lock(&mutex_);
    answer_ = std::move(answer);
  }
  // Names of the spans of each message that was taken well.
  std::vector<std::vector<std::string>> batches() {
    MutexLock lock(&mutex_);
    return batches_;
  }
  size_t num_spans() {
    size_t count = 0;
    for (const auto& batch : batches()) count += batch.size();
    return count;
  }
  int calls() {
    MutexLock lock(&mutex_);
    return calls_;
  }
  otlp::ExportTraceServiceRequest last() {
    MutexLock lock(&mutex_);
    return last_;
  }

 private:
  grpc::Status Export(grpc::ServerContext* context, const otlp::ExportTraceServiceRequest* request,
                      otlp::ExportTraceServiceResponse* reply) override {
    Answer answer;
    {
      MutexLock lock(&mutex_);
      ++calls_;
      answer = answer_;
    }
    const grpc::Status status = answer ? answer(context, reply) : grpc::Status::OK;
    if (!status.ok()) return status;
    MutexLock lock(&mutex_);
    last_ = *request;
    auto& names = batches_.emplace_back();
    for (const auto& span : request->resource_spans(0).scope_spans(0).spans()) {
      names.push_back(span.name());
    }
    return status;
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  Mutex mutex_;
  Answer answer_ ABSL_GUARDED_BY(mutex_);
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::vector<std::string>> batches_ ABSL_GUARDED_BY(mutex_);
  otlp::ExportTraceServiceRequest last_ ABSL_GUARDED_BY(mutex_);
};

// A port of loopback where nobody listens, but a Collector may.
class ReservedPort {
 public:
  ReservedPort() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    // gRPC sets this option, too.
    EXPECT_EQ(setsockopt(socket_, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on), 0);
    EXPECT_EQ(bind(socket_, generic, size), 0);
    EXPECT_EQ(getsockname(socket_, generic, &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~ReservedPort() { close(socket_); }
  int port() const { return port_; }

 private:
  const int socket_;
  int port_ = 0;
};

OtlpOptions OptionsFor(const std::string& target) {
  OtlpOptions options;
  options.target = target;
  options.resource = {{"service.name", "test"}};
  options.batch_delay = absl::Milliseconds(1);
  options.call_timeout = kPatience;
  options.first_retry = absl::Milliseconds(1);
  options.last_retry = absl::Milliseconds(20);
  return options;
}

Span NamedSpan(const std::string& name) {
  Span span;
  span.trace_id = NewTraceId();
  span.id = NewSpanId();
  span.name = name;
  return span;
}

std::vector<Span> Spans(int count) {
  std::vector<Span> spans;
  for (int i = 0; i < count; ++i) spans.push_back(NamedSpan(absl::StrCat(i)));
  return spans;
}

template <typename Holds>
void Await(const char* what, const Holds& holds) {
  const absl::Time end = absl::Now() + kPatience;
  while (!holds()) {
    ASSERT_LT(absl::Now(), end) << what;
    absl::SleepFor(absl::Milliseconds(1));
  }
}

// The log of a test, read at its end.
class CapturedLog {
 public:
  CapturedLog() : file_(std::tmpfile()), stderr_(dup(STDERR_FILENO)) {
    dup2(fileno(file_), STDERR_FILENO);
    SetLogMode(LogMode::kOn);
  }
  ~CapturedLog() {
    if (stderr_ >= 0) Take();
    std::fclose(file_);
  }
  // What was written until now.
  std::string Text() const {
    std::fflush(stderr);
    std::string text;
    char part[4096];
    ssize_t size = 0;
    while ((size = pread(fileno(file_), part, sizeof(part), static_cast<off_t>(text.size()))) > 0) {
      text.append(part, static_cast<size_t>(size));
    }
    return text;
  }
  std::string Take() {
    SetLogMode(LogMode::kOff);
    std::string text = Text();
    dup2(stderr_, STDERR_FILENO);
    close(std::exchange(stderr_, -1));
    return text;
  }

 private:
  std::FILE* const file_;
  int stderr_;  // the process's own; -1 behind Take
};

size_t CountOf(const std::string& part, const std::string& text) {
  size_t count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(SpanIdsTest, AreHexadecimalAndDiffer) {
  EXPECT_THAT(NewTraceId(), ::testing::MatchesRegex("[0-9a-f]{32}"));
  EXPECT_THAT(NewSpanId(), ::testing::MatchesRegex("[0-9a-f]{16}"));
  EXPECT_NE(NewTraceId(), NewTraceId());
  EXPECT_NE(NewSpanId(), NewSpanId());
}

TEST(OtlpExporterTest, SendsWhatASpanSays) {
  Collector collector;
  OtlpExporter exporter(OptionsFor(collector.target()));
  Span call = NamedSpan("call");
  call.server = true;
  call.parent_id = "00f067aa0ba902b7";
  call.parent_elsewhere = true;
  call.start = absl::FromUnixNanos(1763843467000000123);
  call.end = absl::FromUnixNanos(1763843468000000456);
  call.attributes = {{"text", "value"}, {"number", int64_t{-7}}};
  call.failed = true;
  call.problem = "DRAINING";
  Span part = NamedSpan("part");
  part.trace_id = call.trace_id;
  part.parent_id = call.id;
  exporter.Add({call, part});
  Await("both are sent", [&] { return exporter.counts().sent == 2; });

  const auto request = collector.last();
  ASSERT_EQ(request.resource_spans_size(), 1);
  const auto& resource = request.resource_spans(0).resource();
  ASSERT_EQ(resource.attributes_size(), 1);
  EXPECT_EQ(resource.attributes(0).key(), "service.name");
  EXPECT_EQ(resource.attributes(0).value().string_value(), "test");
  const auto& scope = request.resource_spans(0).scope_spans(0);
  EXPECT_EQ(scope.scope().name(), "rivulet");
  ASSERT_EQ(scope.spans_size(), 2);
  const auto& first = scope.spans(0);
  EXPECT_EQ(absl::BytesToHexString(first.trace_id()), call.trace_id);
  EXPECT_EQ(absl::BytesToHexString(first.span_id()), call.id);
  EXPECT_EQ(absl::BytesToHexString(first.parent_span_id()), call.parent_id);
  EXPECT_EQ(first.flags(), 0x301u);
  EXPECT_EQ(first.kind(), opentelemetry::proto::trace::v1::Span::SPAN_KIND_SERVER);
  EXPECT_EQ(first.start_time_unix_nano(), 1763843467000000123u);
  EXPECT_EQ(first.end_time_unix_nano(), 1763843468000000456u);
  ASSERT_EQ(first.attributes_size(), 2);
  EXPECT_EQ(first.attributes(0).value().string_value(), "value");
  EXPECT_EQ(first.attributes(1).value().int_value(), -7);
  EXPECT_EQ(first.status().code(), opentelemetry::proto::trace::v1::Status::STATUS_CODE_ERROR);
  EXPECT_EQ(first.status().message(), "DRAINING");
  const auto& second = scope.spans(1);
  EXPECT_EQ(second.parent_span_id(), first.span_id());
  EXPECT_EQ(second.flags(), 0x101u);
  EXPECT_EQ(second.kind(), opentelemetry::proto::trace::v1::Span::SPAN_KIND_INTERNAL);
  EXPECT_FALSE(second.has_status());
}

TEST(OtlpExporterTest, BatchesAreSmallAndInOrder) {
  Collector collector;
  OtlpOptions options = OptionsFor(collector.target());
  options.max_batch = 10;
  OtlpExporter exporter(options);
  exporter.Add(Spans(35));
  Await("all are sent", [&] { return exporter.counts().sent == 35; });
  std::vector<std::string> names;
  for (const auto& batch : collector.batches()) {
    EXPECT_LE(batch.size(), 10u);
    names.insert(names.end(), batch.begin(), batch.end());
  }
  ASSERT_EQ(names.size(), 35u);
  for (size_t i = 0; i < names.size(); ++i) EXPECT_EQ(names[i], absl::StrCat(i));
}

TEST(OtlpExporterTest, AFullBatchDoesNotWaitForMore) {
  Collector collector;
  OtlpOptions options = OptionsFor(collector.target());
  options.batch_delay = absl::Hours(1);
  options.max_batch = 3;
  OtlpExporter exporter(options);
  exporter.Add(Spans(2));
  exporter.Add(Spans(2));
  Await("three are sent", [&] { return exporter.counts().sent == 3; });
  exporter.Stop(absl::Now() + kPatience);
  EXPECT_EQ(exporter.counts().sent, 4) << "the rest is sent at the end";
}

TEST(OtlpExporterTest, ACollectorThatIsAwayCostsSpansButNoTime) {
  CapturedLog log;
  const ReservedPort reserved;
  OtlpOptions options = OptionsFor(absl::StrCat("127.0.0.1:", reserved.port()));
  options.max_waiting = 20;
  options.max_batch = 5;
  OtlpExporter exporter(options);
  int64_t added = 0;
  Await("spans are dropped", [&] {
    exporter.Add(Spans(4));
    added += 4;
    return exporter.counts().dropped > 0;
  });
  EXPECT_EQ(exporter.counts().dropped % 4, 0) << "spans that belong together are dropped together";
  // The first export may fail long after the queue is full.
  Await("the collector is away",
        [&] { return CountOf("\"event\":\"collector_away\"", log.Text()) == 1; });
  EXPECT_EQ(exporter.counts().sent, 0);
  {
    Collector back(reserved.port());
    Await("what waited is sent", [&] {
      const auto counts = exporter.counts();
      return counts.sent + counts.dropped == added;
    });
    EXPECT_EQ(static_cast<int64_t>(back.num_spans()), exporter.counts().sent);
    EXPECT_GE(exporter.counts().sent, 20);
    const int64_t sent = exporter.counts().sent;
    exporter.Add(Spans(1));
    Await("spans flow again", [&] { return exporter.counts().sent == sent + 1; });
  }
  exporter.Stop(absl::Now() + kPatience);
  const std::string text = log.Take();
  EXPECT_EQ(CountOf("\"event\":\"collector_away\"", text), 1u) << text;
  EXPECT_EQ(CountOf("\"event\":\"collector_back\"", text), 1u) << text;
  EXPECT_EQ(exporter.counts().failed, 0);
}

TEST(OtlpExporterTest, WhatTheCollectorRefusesIsNotSentAgain) {
  CapturedLog log;
  Collector collector;
  collector.SetAnswer([](auto*, auto*) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "these are no spans");
  });
  OtlpExporter exporter(OptionsFor(collector.target()));
  exporter.Add(Spans(3));
  Await("they have failed", [&] { return exporter.counts().failed == 3; });
  collector.SetAnswer([](auto*, otlp::ExportTraceServiceResponse* reply) {
    reply->mutable_partial_success()->set_rejected_spans(1);
    reply->mutable_partial_success()->set_error_message("one is too old");
    return grpc::Status::OK;
  });
  exporter.Add(Spans(3));
  Await("one has failed", [&] { return exporter.counts().failed == 4; });
  EXPECT_EQ(exporter.counts().sent, 2);
  EXPECT_EQ(exporter.counts().dropped, 0);
  EXPECT_EQ(collector.calls(), 2);
  const std::string text = log.Take();
  EXPECT_THAT(text, HasSubstr("these are no spans"));
  EXPECT_THAT(text, HasSubstr("one is too old"));
  EXPECT_THAT(text, Not(HasSubstr("collector_away")));
}

TEST(OtlpExporterTest, ResourceExhaustedIsRepeatedOnlyWhereTheCollectorSaysSo) {
  const auto exhausted = [](bool with_delay) {
    return [with_delay](auto*, auto*) {
      google::rpc::Status details;
      google::rpc::RetryInfo info;
      info.mutable_retry_delay()->set_nanos(1000000);
      if (with_delay) details.add_details()->PackFrom(info);
      return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "busy",
                          details.SerializeAsString());
    };
  };
  Collector collector;
  collector.SetAnswer(exhausted(false));
  OtlpExporter exporter(OptionsFor(collector.target()));
  exporter.Add(Spans(1));
  Await("it has failed", [&] { return exporter.counts().failed == 1; });
  EXPECT_EQ(collector.calls(), 1);
  collector.SetAnswer(exhausted(true));
  exporter.Add(Spans(1));
  Await("it is sent again and again", [&] { return collector.calls() > 4; });
  collector.SetAnswer(nullptr);
  Await("it is sent", [&] { return exporter.counts().sent == 1; });
  EXPECT_EQ(exporter.counts().failed, 1);
}

TEST(OtlpExporterTest, ACollectorThatDoesNotAnswerDelaysTheEndByNoMoreThanIsAllowed) {
  CapturedLog log;
  Collector collector;
  Mutex mutex;
  CondVar wake;
  bool over = false;
  collector.SetAnswer([&](grpc::ServerContext*, auto*) {
    MutexLock lock(&mutex);
    while (!over) wake.Wait(&mutex);
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "too late");
  });
  OtlpOptions options = OptionsFor(collector.target());
  options.call_timeout = absl::Hours(1);
  OtlpExporter exporter(options);
  exporter.Add(Spans(3));
  Await("it is asked", [&] { return collector.calls() == 1; });
  exporter.Add(Spans(2));
  exporter.Stop(absl::Now() + absl::Milliseconds(50));  // without the limit: hours
  EXPECT_EQ(exporter.counts().dropped, 5);
  exporter.Add(Spans(1));
  EXPECT_EQ(exporter.counts().dropped, 6) << "nothing is taken after the end";
  {
    MutexLock lock(&mutex);
    over = true;
    wake.NotifyAll();
  }
  EXPECT_THAT(log.Take(), HasSubstr("\"event\":\"spans_dropped\",\"spans\":5"));
}

}  // namespace
}  // namespace rivulet
