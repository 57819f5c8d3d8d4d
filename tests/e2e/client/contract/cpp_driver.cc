// SPDX-License-Identifier: Apache-2.0
// cpp_driver wait|async|multiplex: makes calls for the tests of this folder with the C++ client.
// Each line of stdin is a job, each of stdout its outcome; jobs run at the same time. Fields are
// those of python_driver.py; requests come as GenerateRequest.
#include <algorithm>
#include <condition_variable>
#include <functional>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"
#include "rivulet/client.h"
#include "rivulet/multiplex.h"

namespace rivulet {
namespace {

using nlohmann::json;

// GenerateReply and MultiplexPart have the same fields.
template <typename Part>
json Line(const Part& part) {
  json line = {{"sample_index", part.sample_index()},
               {"first_position", part.first_position()},
               {"tokens", std::vector<int>(part.tokens().begin(), part.tokens().end())},
               {"logprobs", std::vector<float>(part.logprobs().begin(), part.logprobs().end())}};
  if (!part.text().empty()) line["text"] = part.text();
  if (part.has_seed()) line["seed"] = part.seed();
  if (part.has_fingerprint()) line["fingerprint"] = part.fingerprint();
  if (part.has_finish()) {
    const std::string name = absl::AsciiStrToLower(v1::FinishReason_Name(part.finish().reason()));
    line["finish"] = std::string(absl::StripPrefix(name, "finish_reason_"));
  }
  if (part.has_usage()) {
    line["usage"] = {{"prompt_tokens", part.usage().prompt_tokens()},
                     {"completion_tokens", part.usage().completion_tokens()}};
  }
  return line;
}

json ErrorLine(const absl::Status& status) {
  if (status.ok()) return nullptr;
  return {{"code", absl::StatusCodeToString(status.code())},
          {"reason", GetErrorInfo(status).reason},
          {"message", std::string(status.message())}};
}

// The replies of a job, and how many are still open.
class Replies {
 public:
  explicit Replies(size_t count)
      : replies_(count, {{"parts", json::array()}, {"error", nullptr}}), open_(count) {}

  template <typename Part>
  bool Add(size_t index, const Part& part) {
    const std::lock_guard lock(mutex_);
    replies_[index]["parts"].push_back(Line(part));
    return true;
  }
  void End(size_t index, const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    replies_[index]["error"] = ErrorLine(status);
    if (--open_ == 0) all_ended_.notify_all();
  }
  json Wait() {
    std::unique_lock lock(mutex_);
    all_ended_.wait(lock, [this] { return open_ == 0; });
    return replies_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_ended_;
  std::vector<json> replies_;
  size_t open_;
};

// What the steps of a test share.
struct Peer {
  std::unique_ptr<Client> client;
  std::map<std::string, std::string> sessions;  // ids
};

std::mutex peers_mutex;
std::map<std::string, Peer> peers;
std::mutex out_mutex;

void Print(const json& value) {
  const std::lock_guard lock(out_mutex);
  std::cout << value.dump() << std::endl;
}

// The parts of a reply go into `outcome`.
absl::Status Generate(const std::string& kind, const Client& client, const std::string& id,
                      const json& job, json* outcome) {
  v1::GenerateRequest request;
  if (!id.empty()) {
    request.mutable_session()->set_session_id(id);
    request.mutable_session()->set_position(0);
  }
  const json& options = job["options"];
  if (options.contains("seed")) request.mutable_sampling()->set_seed(options["seed"]);
  if (options.contains("num_samples")) request.set_num_samples(options["num_samples"]);
  CallOptions call;
  call.resume = options.value("resume", true);
  if (options.contains("timeout")) {
    call.deadline = absl::Now() + absl::Seconds(options["timeout"].get<double>());
  }
  const auto add = [&](const v1::GenerateReply& part) {
    (*outcome)["parts"].push_back(Line(part));
    if (part.tokens_size() > 0) Print({{"saw", job["client"]}});
    return true;
  };
  if (kind == "wait") return client.Generate(request, add, call);
  std::promise<absl::Status> ended;
  client.GenerateAsync(
      request, add, [&](absl::Status status) { ended.set_value(std::move(status)); }, call);
  return ended.get_future().get();
}

// One call on a session, or one that opens it.
absl::Status CallSession(const Client& client, const json& job, std::string* id) {
  const std::string step = job["step"];
  const auto opened = [id](const auto& reply) {
    if (reply.ok()) *id = reply->session().session_id();
    return reply.status();
  };
  if (step == "open_session") return opened(client.OpenSession({}));
  if (step == "restore") return opened(client.RestoreSession({}, "bytes"));
  if (step == "session") {
    *id = job["of"];
    return client.SetSessionCookie(*id, job["options"].value("cookie", ""));
  }
  if (step == "append") {
    v1::AppendRequest request;
    request.mutable_session()->set_session_id(*id);
    if (!job.value("no_position", false)) request.mutable_session()->set_position(0);
    return client.Append(request).status();
  }
  if (step == "rewind") {
    v1::RewindSessionRequest request;
    request.set_session_id(*id);
    return client.RewindSession(request).status();
  }
  if (step == "snapshot") {
    v1::SnapshotSessionRequest request;
    request.set_session_id(*id);
    return client.SnapshotSession(request).status();
  }
  if (step == "close") {
    v1::CloseSessionRequest request;
    request.set_session_id(*id);
    return client.CloseSession(request);
  }
  return absl::UnimplementedError(step);
}

absl::Status ForkSession(const Client& client, const std::string& id, json* outcome) {
  v1::ForkSessionRequest request;
  request.mutable_session()->set_session_id(id);
  const auto reply = client.ForkSession(request);
  if (!reply.ok()) return reply.status();
  for (const v1::Session& fork : reply->sessions()) {
    (*outcome)["forks"].push_back({{"cookie", client.SessionCookie(fork.session_id())}});
  }
  return absl::OkStatus();
}

json Step(const std::string& kind, const json& job) {
  Peer* peer = nullptr;
  {
    const std::lock_guard lock(peers_mutex);
    peer = &peers[job["client"].get<std::string>()];
  }
  json outcome = {{"parts", json::array()}};
  absl::Status status;
  std::string* const id =
      job["session"].is_null() ? nullptr : &peer->sessions[job["session"].get<std::string>()];
  if (job["step"] == "connect") {
    ClientOptions connection;
    connection.max_attempts = job["options"].value("max_attempts", connection.max_attempts);
    peer->client =
        std::make_unique<Client>(*Client::Connect(job["target"].get<std::string>(), connection));
  } else if (job["step"] == "generate") {
    status = Generate(kind, *peer->client, id == nullptr ? "" : *id, job, &outcome);
  } else if (job["step"] == "score") {
    const auto reply = peer->client->Score({});
    status = reply.status();
    if (reply.ok()) outcome["num_scored"] = reply->num_scored();
  } else if (job["step"] == "fork") {
    status = ForkSession(*peer->client, *id, &outcome);
  } else {
    status = CallSession(*peer->client, job, id);
  }
  outcome["error"] = ErrorLine(status);
  if (id != nullptr) outcome["session"] = {{"cookie", peer->client->SessionCookie(*id)}};
  return outcome;
}

json Run(const std::string& kind, const json& job) {
  ClientOptions connection;
  connection.max_attempts = job["max_attempts"];
  const Client client = *Client::Connect(job["target"].get<std::string>(), connection);
  if (!job["session"].is_null()) {
    const std::string session = job["session"];
    if (!client.SetSessionCookie(session, job["cookie"].get<std::string>()).ok()) std::abort();
  }
  const absl::Duration timeout = absl::Seconds(job["timeout"].get<double>());
  CallOptions call;
  call.deadline = absl::Now() + timeout;
  call.resume = job["resume"];
  std::vector<v1::GenerateRequest> requests(job["messages"].size());
  Replies replies(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::string text = job["messages"][i].dump();
    if (!google::protobuf::util::JsonStringToMessage(text, &requests[i]).ok()) std::abort();
  }
  if (kind == "multiplex") {
    CallOptions stream_call;
    stream_call.resume = call.resume;
    const auto stream = client.Multiplex(stream_call);
    for (size_t i = 0; i < requests.size(); ++i) {
      stream->Generate(
          requests[i], [&, i](const v1::MultiplexPart& part) { return replies.Add(i, part); },
          [&, i](const absl::Status& status) { replies.End(i, status); }, timeout);
    }
    json outcome = replies.Wait();
    const absl::Status finished = stream->Finish();
    const auto ended_well = [](const json& reply) { return reply["error"].is_null(); };
    if (std::all_of(outcome.begin(), outcome.end(), ended_well)) {
      outcome[0]["error"] = ErrorLine(finished);
    }
    return outcome;
  }
  std::vector<std::thread> threads;
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto add = [&, i](const v1::GenerateReply& part) { return replies.Add(i, part); };
    const auto end = [&, i](const absl::Status& status) { replies.End(i, status); };
    if (kind == "async") {
      client.GenerateAsync(requests[i], add, end, call);
    } else {
      threads.emplace_back([&, i, add, end] { end(client.Generate(requests[i], add, call)); });
    }
  }
  for (std::thread& thread : threads) thread.join();
  return replies.Wait();
}

}  // namespace
}  // namespace rivulet

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::vector<std::thread> threads;
  for (std::string line; std::getline(std::cin, line);) {
    threads.emplace_back([kind = std::string(argv[1]), job = nlohmann::json::parse(line)] {
      const bool is_step = job.contains("step");
      const nlohmann::json outcome = is_step ? rivulet::Step(kind, job) : rivulet::Run(kind, job);
      rivulet::Print({{"id", job["id"]}, {"outcome", outcome}});
    });
  }
  for (std::thread& thread : threads) thread.join();
  return 0;
}
