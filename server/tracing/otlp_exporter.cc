// SPDX-License-Identifier: Apache-2.0
#include "server/tracing/otlp_exporter.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "model/base/random_word.h"
#include "model/base/thread.h"
#include "opentelemetry/proto/collector/trace/v1/trace_service.grpc.pb.h"
#include "server/log.h"
#include "server/tracing/otlp_message.h"

namespace rivulet {
namespace {

namespace collector = opentelemetry::proto::collector::trace::v1;

// The longest wait that a collector can ask for.
constexpr absl::Duration kMostWait = absl::Seconds(30);

std::shared_ptr<grpc::Channel> ChannelOf(const OtlpOptions& options) {
  grpc::ChannelArguments arguments;
  // The exporter repeats a batch itself, because it counts batches, and so finds a collector that
  // returns without gRPC's delay.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS,
                   static_cast<int>(absl::ToInt64Milliseconds(options.first_retry)));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS,
                   static_cast<int>(absl::ToInt64Milliseconds(options.last_retry)));
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (options.tls) {
    grpc::SslCredentialsOptions tls;
    tls.pem_root_certs = options.authorities;
    credentials = grpc::SslCredentials(tls);
  }
  return grpc::CreateCustomChannel(absl::StrCat("dns:///", options.target), credentials, arguments);
}

// How long the collector asks to wait; absent if it does not ask.
std::optional<absl::Duration> AskedToWait(const grpc::Status& status) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return std::nullopt;
  for (const auto& detail : details.details()) {
    google::rpc::RetryInfo info;
    if (!detail.Is<google::rpc::RetryInfo>() || !detail.UnpackTo(&info)) continue;
    return absl::Seconds(info.retry_delay().seconds()) +
           absl::Nanoseconds(info.retry_delay().nanos());
  }
  return std::nullopt;
}

// Whether OTLP asks clients to send again after this code.
bool MayBeRepeated(grpc::StatusCode code, bool asked_to_wait) {
  switch (code) {
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::ABORTED:
    case grpc::StatusCode::OUT_OF_RANGE:
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DATA_LOSS:
      return true;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return asked_to_wait;
    default:
      return false;
  }
}

}  // namespace

OtlpExporter::OtlpExporter(OtlpOptions options)
    : options_(std::move(options)), channel_(ChannelOf(options_)), retry_(options_.first_retry) {
  thread_ = std::thread([this] { Run(); });
}

OtlpExporter::~OtlpExporter() { Stop(absl::Now()); }

void OtlpExporter::Add(std::vector<Span> spans) {
  bool wake = false;
  {
    MutexLock lock(&mutex_);
    if (stop_by_ || waiting_.size() + spans.size() > options_.max_waiting) {
      dropped_ += static_cast<int64_t>(spans.size());
      return;
    }
    const size_t before = waiting_.size();
    if (before == 0) oldest_ = absl::Now();
    for (Span& span : spans) waiting_.push_back(std::move(span));
    wake = before == 0 || (before < options_.max_batch && waiting_.size() >= options_.max_batch);
  }
  if (wake) wake_.NotifyOne();
}

void OtlpExporter::Stop(absl::Time deadline) {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(&mutex_);
    stop_by_ = deadline;
    wake_.NotifyOne();
    while (!ended_ && absl::Now() < deadline) idle_.WaitFor(&mutex_, deadline - absl::Now());
    if (call_ != nullptr) call_->TryCancel();
  }
  thread_.join();
}

OtlpExporter::Counts OtlpExporter::counts() const {
  return {sent_.load(), dropped_.load(), failed_.load()};
}

void OtlpExporter::Run() {
  NameThread("otlp-exporter");
  int64_t left = 0;
  for (;;) {
    const std::vector<Span> batch = NextBatch();
    if (batch.empty()) break;
    if (!Deliver(batch)) left += static_cast<int64_t>(batch.size());
  }
  if (left > 0) {
    dropped_ += left;
    Log(LogLevel::kWarning, "spans_dropped",
        {{"spans", left}, {"reason", "the server stopped before a collector took them"}});
  }
  MutexLock lock(&mutex_);
  ended_ = true;
  idle_.NotifyOne();
}

std::vector<Span> OtlpExporter::NextBatch() {
  MutexLock lock(&mutex_);
  while (!stop_by_ && waiting_.size() < options_.max_batch) {
    if (waiting_.empty()) {
      wake_.Wait(&mutex_);
      continue;
    }
    const absl::Duration left = oldest_ + options_.batch_delay - absl::Now();
    // A clock that is set back must not make the wait longer.
    if (left <= absl::ZeroDuration()) break;
    wake_.WaitFor(&mutex_, std::min(left, options_.batch_delay));
  }
  const size_t count = std::min(waiting_.size(), options_.max_batch);
  const auto end = waiting_.begin() + static_cast<ptrdiff_t>(count);
  std::vector<Span> batch(std::make_move_iterator(waiting_.begin()), std::make_move_iterator(end));
  waiting_.erase(waiting_.begin(), end);
  return batch;
}

bool OtlpExporter::Deliver(const std::vector<Span>& batch) {
  for (;;) {
    const std::optional<absl::Duration> wait = Try(batch);
    if (!wait) return true;
    if (!WaitToRetry(*wait)) return false;
  }
}

std::optional<absl::Duration> OtlpExporter::Try(const std::vector<Span>& batch) {
  collector::ExportTraceServiceResponse reply;
  const std::optional<grpc::Status> status = Call(ToOtlp(options_.resource, batch), &reply);
  if (!status) return absl::ZeroDuration();
  const std::optional<absl::Duration> asked = AskedToWait(*status);
  if (!status->ok() && MayBeRepeated(status->error_code(), asked.has_value())) {
    NoteAway(*status);
    // Up to a fifth more, so that replicas that lost a collector together do not return together.
    const absl::Duration jitter = retry_ / 5 * RandomFraction();
    const absl::Duration wait =
        std::max(retry_ + jitter, std::min(asked.value_or(retry_), kMostWait));
    retry_ = std::min(2 * retry_, options_.last_retry);
    return wait;
  }
  NoteBack();
  const auto count = static_cast<int64_t>(batch.size());
  const int64_t refused =
      status->ok() ? std::clamp<int64_t>(reply.partial_success().rejected_spans(), 0, count)
                   : count;
  sent_ += count - refused;
  failed_ += refused;
  if (refused > 0) {
    LogLimited(LogLevel::kError, "spans_refused",
               {{"spans", refused},
                {"code", int64_t{status->error_code()}},
                {"reason", status->ok() ? reply.partial_success().error_message()
                                        : status->error_message()}});
  }
  return std::nullopt;
}

template <typename Request, typename Reply>
std::optional<grpc::Status> OtlpExporter::Call(const Request& request, Reply* reply) {
  const auto stub = collector::TraceService::NewStub(channel_);
  grpc::ClientContext context;
  {
    MutexLock lock(&mutex_);
    const absl::Time now = absl::Now();
    const absl::Time deadline =
        std::min(now + options_.call_timeout, stop_by_.value_or(absl::InfiniteFuture()));
    if (deadline <= now) return std::nullopt;
    context.set_deadline(absl::ToChronoTime(deadline));
    call_ = &context;
  }
  const grpc::Status status = stub->Export(&context, request, reply);
  MutexLock lock(&mutex_);
  call_ = nullptr;
  return status;
}

bool OtlpExporter::WaitToRetry(absl::Duration wait) {
  const absl::Time end = absl::Now() + wait;
  MutexLock lock(&mutex_);
  while (!stop_by_) {
    const absl::Duration left = end - absl::Now();
    if (left <= absl::ZeroDuration()) return true;
    wake_.WaitFor(&mutex_, std::min(left, wait));
  }
  return false;
}

void OtlpExporter::NoteAway(const grpc::Status& status) {
  if (std::exchange(away_, true)) return;
  dropped_before_ = dropped_.load();
  Log(LogLevel::kWarning, "collector_away",
      {{"target", options_.target},
       {"code", int64_t{status.error_code()}},
       {"reason", status.error_message()}});
}

void OtlpExporter::NoteBack() {
  retry_ = options_.first_retry;
  if (!std::exchange(away_, false)) return;
  Log(LogLevel::kInfo, "collector_back",
      {{"target", options_.target}, {"dropped_spans", dropped_.load() - dropped_before_}});
}

}  // namespace rivulet
