// SPDX-License-Identifier: Apache-2.0
// A server on a free loopback port that loses replies by a test's script. Its model needs no
// weights: token p of sample s is 100 (s + 1) + p.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "rivulet/client.h"
#include "rivulet/v1/inference.grpc.pb.h"
#include "rivulet/v1/multiplex.grpc.pb.h"

namespace rivulet::testing {

// What the server does with one request.
struct Act {
  int parts = std::numeric_limits<int>::max();  // at most this number of parts is sent
  grpc::Status end = grpc::Status::OK;          // after them
  bool ends_stream = true;  // of a Multiplex; false: `end` ends only the request
  bool holds = false;       // after the parts, waits until the client ends the request
};

// An error of a server, with details. `retry_delay` above 0: with a RetryInfo.
grpc::Status ServerError(grpc::StatusCode code, const std::string& reason,
                         absl::Duration retry_delay = absl::ZeroDuration());

// Retry delays: one that is over at once, and one for which a test does not wait.
inline constexpr absl::Duration kSoon = absl::Milliseconds(1);
inline constexpr absl::Duration kNever = absl::Hours(24);

// ServerError of an absent server.
inline grpc::Status Unavailable(const std::string& reason, absl::Duration retry_delay = kSoon) {
  return ServerError(grpc::StatusCode::UNAVAILABLE, reason, retry_delay);
}

// `num_samples` times `max_tokens` tokens.
v1::GenerateRequest ScriptedRequest(int num_samples, int max_tokens);

// The messages of the reply: one token each, and the usage in the last. For a request with
// `resume`, the tokens after those in `resume`.
std::vector<v1::GenerateReply> ScriptedReply(const v1::GenerateRequest& request);

// The same as a part of a Multiplex, without a key.
v1::MultiplexPart ToMultiplex(v1::GenerateReply part);

class ScriptedServer final : public v1::InferenceService::Service,
                             public v1::MultiplexService::Service {
 public:
  // `acts`: for the requests in the order of their arrival; later requests get their whole reply.
  explicit ScriptedServer(std::deque<Act> acts = {});
  ~ScriptedServer() override;

  Client Connect(const ClientOptions& options = {}) const;
  // All requests so far.
  std::vector<v1::GenerateRequest> requests();
  int streams();
  // Waits until this number of requests has come, and their acts have been sent.
  void AwaitRequests(size_t count);
  void AwaitCancels(int count);
  // From now on a stream that its client has closed ends only after this number of answers.
  void KeepStreamsUntil(size_t requests) { kept_until_ = requests; }

  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateReply>* writer) override;
  grpc::Status Multiplex(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::MultiplexReply, v1::MultiplexRequest>* stream) override;

 private:
  // The next act, and the messages that it sends.
  Act NextAct(const v1::GenerateRequest& request, std::vector<v1::GenerateReply>* reply);

  absl::Mutex mutex_;
  std::deque<Act> acts_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::GenerateRequest> requests_ ABSL_GUARDED_BY(mutex_);
  size_t answered_ ABSL_GUARDED_BY(mutex_) = 0;
  int cancels_ ABSL_GUARDED_BY(mutex_) = 0;
  int streams_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<size_t> kept_until_ = 0;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace rivulet::testing
