// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/client/scripted_server.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace rivulet::testing {
namespace {

constexpr uint64_t kFingerprint = 0xfeed'0000'0000'0001;

int32_t TokenAt(int sample, int position) { return 100 * (sample + 1) + position; }

google::rpc::Status ToWire(const grpc::Status& status) {
  google::rpc::Status wire;
  if (!wire.ParseFromString(status.error_details())) ADD_FAILURE() << status.error_details();
  wire.set_code(status.error_code());
  wire.set_message(status.error_message());
  return wire;
}

}  // namespace

grpc::Status ServerError(grpc::StatusCode code, const std::string& reason,
                         absl::Duration retry_delay) {
  google::rpc::Status details;
  details.set_code(code);
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  EXPECT_TRUE(details.add_details()->PackFrom(info));
  if (retry_delay > absl::ZeroDuration()) {
    google::rpc::RetryInfo retry;
    const int64_t nanoseconds = absl::ToInt64Nanoseconds(retry_delay);
    retry.mutable_retry_delay()->set_seconds(nanoseconds / 1'000'000'000);
    retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(nanoseconds % 1'000'000'000));
    EXPECT_TRUE(details.add_details()->PackFrom(retry));
  }
  return grpc::Status(code, reason, details.SerializeAsString());
}

v1::GenerateRequest ScriptedRequest(int num_samples, int max_tokens) {
  v1::GenerateRequest request;
  request.set_text("a prompt");
  request.mutable_sampling()->set_seed(5);
  request.set_num_samples(num_samples);
  request.set_max_tokens(max_tokens);
  return request;
}

v1::MultiplexPart ToMultiplex(v1::GenerateReply part) {
  // The fields of both have the same numbers except these two.
  v1::MultiplexPart same;
  if (part.has_fingerprint()) same.set_fingerprint(part.fingerprint());
  if (part.has_durability()) *same.mutable_durability() = part.durability();
  part.clear_fingerprint();
  part.clear_durability();
  EXPECT_TRUE(same.MergeFromString(part.SerializeAsString()));
  return same;
}

std::vector<v1::GenerateReply> ScriptedReply(const v1::GenerateRequest& request) {
  const int samples = std::max(request.num_samples(), 1);
  const int tokens = static_cast<int>(request.max_tokens());
  const auto had = [&request](int sample) {
    return sample < request.resume().samples_size() ? request.resume().samples(sample).ids_size()
                                                    : 0;
  };
  std::vector<v1::GenerateReply> reply;
  // An ended sample ends again, with its last token or, where the client has that, alone.
  for (int position = 0; position <= tokens; ++position) {
    for (int sample = 0; sample < samples; ++sample) {
      const bool ends_again = position == tokens && had(sample) == tokens;
      if (position < had(sample) || (position == tokens && !ends_again)) continue;
      v1::GenerateReply& part = reply.emplace_back();
      part.set_sample_index(sample);
      part.set_first_position(position);
      if (position < tokens) part.add_tokens(TokenAt(sample, position));
      if (position >= tokens - 1) part.mutable_finish()->set_reason(v1::FINISH_REASON_LENGTH);
    }
  }
  reply.emplace_back().mutable_usage()->set_completion_tokens(samples * tokens);
  reply.back().mutable_durability()->set_position(tokens);
  reply.front().set_seed(request.sampling().seed());
  reply.front().set_fingerprint(kFingerprint);
  return reply;
}

ScriptedServer::ScriptedServer(std::deque<Act> acts) : acts_(std::move(acts)) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(static_cast<v1::InferenceService::Service*>(this));
  builder.RegisterService(static_cast<v1::MultiplexService::Service*>(this));
  server_ = builder.BuildAndStart();
}

ScriptedServer::~ScriptedServer() { server_->Shutdown(std::chrono::system_clock::now()); }

Client ScriptedServer::Connect(const ClientOptions& options) const {
  return *Client::Connect(absl::StrCat("127.0.0.1:", port_), options);
}

std::vector<v1::GenerateRequest> ScriptedServer::requests() {
  absl::MutexLock lock(&mutex_);
  return requests_;
}

int ScriptedServer::streams() {
  absl::MutexLock lock(&mutex_);
  return streams_;
}

void ScriptedServer::AwaitRequests(size_t count) {
  const auto have = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return answered_ >= count; };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&have));
}

void ScriptedServer::AwaitCancels(int count) {
  const auto have = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return cancels_ >= count; };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&have));
}

Act ScriptedServer::NextAct(const v1::GenerateRequest& request,
                            std::vector<v1::GenerateReply>* reply) {
  Act act;
  {
    absl::MutexLock lock(&mutex_);
    requests_.push_back(request);
    if (!acts_.empty()) {
      act = std::move(acts_.front());
      acts_.pop_front();
    }
  }
  const v1::Resume& resume = request.resume();
  for (int sample = 0; sample < resume.samples_size(); ++sample) {
    const auto& ids = resume.samples(sample).ids();
    for (int i = 0; i < ids.size(); ++i) EXPECT_EQ(ids[i], TokenAt(sample, i));
  }
  *reply = ScriptedReply(request);
  if (act.parts < static_cast<int>(reply->size())) reply->resize(static_cast<size_t>(act.parts));
  return act;
}

grpc::Status ScriptedServer::Generate(grpc::ServerContext* context,
                                      const v1::GenerateRequest* request,
                                      grpc::ServerWriter<v1::GenerateReply>* writer) {
  std::vector<v1::GenerateReply> reply;
  const Act act = NextAct(*request, &reply);
  for (const v1::GenerateReply& part : reply) writer->Write(part);
  {
    absl::MutexLock lock(&mutex_);
    ++answered_;
  }
  while (act.holds && !context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
  return act.end;
}

grpc::Status ScriptedServer::Multiplex(
    grpc::ServerContext*,
    grpc::ServerReaderWriter<v1::MultiplexReply, v1::MultiplexRequest>* stream) {
  {
    absl::MutexLock lock(&mutex_);
    ++streams_;
  }
  v1::MultiplexRequest message;
  while (stream->Read(&message)) {
    if (message.has_cancel()) {
      absl::MutexLock lock(&mutex_);
      ++cancels_;
      continue;
    }
    std::vector<v1::GenerateReply> parts;
    const Act act = NextAct(message.generate(), &parts);
    for (const v1::GenerateReply& part : parts) {
      v1::MultiplexReply reply;
      *reply.add_parts() = ToMultiplex(part);
      reply.mutable_parts(0)->set_key(message.key());
      stream->Write(reply);
    }
    if (!act.end.ok() && !act.ends_stream) {
      v1::MultiplexReply reply;
      v1::MultiplexPart* const part = reply.add_parts();
      part->set_key(message.key());
      *part->mutable_error() = ToWire(act.end);
      stream->Write(reply);
    }
    absl::MutexLock lock(&mutex_);
    ++answered_;
    if (!act.end.ok() && act.ends_stream) return act.end;
  }
  AwaitRequests(kept_until_);
  return grpc::Status::OK;
}

}  // namespace rivulet::testing
