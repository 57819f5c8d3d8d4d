// SPDX-License-Identifier: Apache-2.0
// A whole server with tiny models on a free loopback port, and helpers to call it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "rivulet/v1/inference.grpc.pb.h"
#include "server/server.h"
#include "tests/support/random_model.h"

namespace rivulet::testing {

// The models that TestServer can serve; each is a directory of the repository except for kText.
inline constexpr char kStream[] = "tiny-elu-relu";           // 37 tokens, bos 0, no last position
inline constexpr char kBounded[] = "tiny-elu-sinusoidal";    // 37 tokens, bos 0, 48 positions
inline constexpr char kNoBos[] = "tiny-elu-learned-concat";  // 37 tokens, no bos, 48 positions
inline constexpr char kImage[] = "tiny-image";               // 4 x 11 values, no bos, mixture head
inline constexpr char kText[] = "tiny-text";  // "abcdefgh ", bos, 40 positions, random weights

inline constexpr int64_t kEndless = 1 << 20;  // tokens; more than any test waits for

class TestServer {
 public:
  // `config` without models and address. Fails the running test if the server cannot be created.
  explicit TestServer(const std::vector<std::string>& models, ServerConfig config = ServerConfig());

  Server& server() { return *server_; }
  v1::InferenceService::Stub& stub() { return *stub_; }
  // A connection over the socket.
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  v1::ModelLoad Load(const std::string& model);
  // Number of requests refused with `reason`.
  int64_t Refusals(const std::string& reason);
  // Returns once `model` has given back every slot.
  void AwaitIdle(const std::string& model);

 private:
  TempDir directory_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::InferenceService::Stub> stub_;
};

// A whole reply.
struct Collected {
  std::map<int, std::vector<int>> tokens;  // by sample
  std::map<int, std::string> text;
  std::map<int, v1::Finish> finish;
  v1::Usage usage;
  uint64_t seed = 0;
  int messages = 0;
  int largest_message = 0;  // tokens
  bool in_order = true;     // every message began at the end of its sample's last one
  grpc::Status status;
};

// Reads `reader` to its end, after what `collected` already holds.
void Collect(grpc::ClientReader<v1::GenerateReply>* reader, Collected* collected);
// Adds one message to `collected`.
void Add(const v1::GenerateReply& reply, Collected* collected);
Collected Generate(v1::InferenceService::Stub& stub, const v1::GenerateRequest& request);

// `max_tokens` tokens of `model` after one token; `seed` determines the token and the seed.
v1::GenerateRequest Request(const std::string& model, uint64_t seed, int64_t max_tokens);

}  // namespace rivulet::testing
