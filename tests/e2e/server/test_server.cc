// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/server/test_server.h"

#include <gtest/gtest.h>

#include <utility>

#include "absl/time/clock.h"
#include "tests/support/paths.h"

namespace rivulet::testing {
namespace {

std::string WriteTextModel(const std::string& directory) {
  ModelConfig config = TinyConfig();
  config.name = kText;
  config.vocab_size = 10;
  config.bos_token_id = 9;
  config.content.type = ContentType::kText;
  config.content.alphabet = "abcdefgh ";
  config.encoder().position = PositionType::kSinusoidal;
  config.max_positions = 40;
  const absl::Status status = WriteRandomModel(directory, config, 1);
  EXPECT_TRUE(status.ok()) << status;
  return directory;
}

}  // namespace

TestServer::TestServer(const std::vector<std::string>& models, ServerConfig config) {
  for (const std::string& model : models) {
    config.models.push_back(model == kText ? WriteTextModel(directory_.File(kText))
                                           : SourcePath("tests/conformance/models/") + model);
  }
  config.listen = "127.0.0.1:0";
  config.backend = "cpu";
  if (config.threads == 0) config.threads = 1;  // tiny models: a second thread only waits
  auto server = Server::Create(config);
  EXPECT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  channel_ = grpc::CreateChannel("127.0.0.1:" + std::to_string(server_->port()),
                                 grpc::InsecureChannelCredentials());
  stub_ = v1::InferenceService::NewStub(channel_);
}

v1::ModelLoad TestServer::Load(const std::string& model) {
  grpc::ClientContext context;
  v1::GetLoadRequest request;
  request.set_model(model);
  v1::GetLoadReply reply;
  const grpc::Status status = stub_->GetLoad(&context, request, &reply);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return reply.models_size() == 1 ? reply.models(0) : v1::ModelLoad();
}

int64_t TestServer::Refusals(const std::string& reason) {
  grpc::ClientContext context;
  v1::GetLoadReply reply;
  const grpc::Status status = stub_->GetLoad(&context, v1::GetLoadRequest(), &reply);
  EXPECT_TRUE(status.ok()) << status.error_message();
  const auto found = reply.server().refusals().find(reason);
  return found == reply.server().refusals().end() ? 0 : found->second;
}

void TestServer::AwaitIdle(const std::string& model) {
  while (true) {
    const v1::ModelLoad load = Load(model);
    if (load.slots_used() == 0 && load.queued() == 0) return;
    absl::SleepFor(absl::Milliseconds(1));
  }
}

void Add(const v1::GenerateReply& reply, Collected* collected) {
  std::vector<int>& tokens = collected->tokens[reply.sample_index()];
  if (reply.tokens_size() > 0 && reply.first_position() != static_cast<int64_t>(tokens.size())) {
    collected->in_order = false;
  }
  tokens.insert(tokens.end(), reply.tokens().begin(), reply.tokens().end());
  collected->text[reply.sample_index()] += reply.text();
  if (reply.has_finish()) collected->finish[reply.sample_index()] = reply.finish();
  if (reply.has_usage()) collected->usage = reply.usage();
  if (reply.has_seed()) collected->seed = reply.seed();
  ++collected->messages;
  collected->largest_message = std::max(collected->largest_message, reply.tokens_size());
}

void Collect(grpc::ClientReader<v1::GenerateReply>* reader, Collected* collected) {
  v1::GenerateReply reply;
  while (reader->Read(&reply)) Add(reply, collected);
  collected->status = reader->Finish();
}

Collected Generate(v1::InferenceService::Stub& stub, const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  Collected collected;
  Collect(stub.Generate(&context, request).get(), &collected);
  return collected;
}

v1::GenerateRequest Request(const std::string& model, uint64_t seed, int64_t max_tokens) {
  v1::GenerateRequest request;
  request.set_model(model);
  request.mutable_tokens()->add_ids(static_cast<int>(seed % 37));
  request.mutable_sampling()->set_seed(seed);
  request.set_max_tokens(max_tokens);
  return request;
}

}  // namespace rivulet::testing
