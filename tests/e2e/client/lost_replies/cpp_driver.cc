// SPDX-License-Identifier: Apache-2.0
// cpp_driver wait|async|multiplex: generates for lost_replies_test.py with the C++ client. Each
// line of stdin is a job, each of stdout its outcome; jobs run at the same time. Fields are those
// of python_driver.py; requests come as GenerateRequest.
#include <condition_variable>
#include <functional>
#include <iostream>
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
          {"reason", GetErrorInfo(status).reason}};
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
    return replies.Wait();
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
  std::mutex out;
  std::vector<std::thread> threads;
  for (std::string line; std::getline(std::cin, line);) {
    threads.emplace_back([&out, kind = std::string(argv[1]), job = nlohmann::json::parse(line)] {
      const nlohmann::json replies = rivulet::Run(kind, job);
      const std::lock_guard lock(out);
      std::cout << nlohmann::json({{"id", job["id"]}, {"replies", replies}}).dump() << std::endl;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return 0;
}
