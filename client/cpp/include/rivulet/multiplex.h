// SPDX-License-Identifier: Apache-2.0
// Many Generate requests over one stream (rivulet/v1/multiplex.proto), for programs that have
// hundreds at once: one message a step for all of them instead of one each. Behind a balancer a
// stream reaches one replica, and the sessions of that one. The stream is opened by the first
// request. If it is lost, another one takes its place, and the requests go on as in
// CallOptions::resume.
//
//   auto stream = client->Multiplex();
//   for (const v1::GenerateRequest& request : requests) {
//     stream->Generate(request, [](const v1::MultiplexPart& part) { ...; return true; },
//                      [](const absl::Status& status) { ... });
//   }
//   absl::Status status = stream->Finish();  // once all have ended
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "rivulet/client.h"
#include "rivulet/v1/multiplex.pb.h"

namespace rivulet {

// Made by Client::Multiplex. Thread: any, also at the same time; the destructor once, and neither
// it nor Finish in a callback.
class Multiplex {
 public:
  // Cancels what is open, and waits until the last callback has returned.
  ~Multiplex();
  Multiplex(const Multiplex&) = delete;
  Multiplex& operator=(const Multiplex&) = delete;

  // A part of the reply, with the fields of v1::GenerateReply; false ends the request with
  // CANCELLED, and the parts that are on their way are dropped.
  using OnPart = std::function<bool(const v1::MultiplexPart& part)>;
  // The request has ended. Errors: as Client::Generate; of the stream, where that has ended first.
  using Done = std::function<void(const absl::Status& status)>;

  // Begins a request, which ends with DEADLINE_EXCEEDED after `timeout`, however many streams it
  // takes, and returns at once. A thread of the library calls `on_part` for every part, in order,
  // then `done` exactly once; all these callbacks come one at a time and must not block. Before it
  // returns they may have begun. The key names the request for Cancel.
  uint64_t Generate(v1::GenerateRequest request, OnPart on_part, Done done,
                    absl::Duration timeout = absl::InfiniteDuration());

  // Ends a request with CANCELLED, unless it ends by itself first. Unknown or ended: no effect.
  void Cancel(uint64_t key);

  // Waits until every request has ended, cancelled ones too, and every callback has returned. OK,
  // or why requests ended with a stream. Later requests end with FAILED_PRECONDITION.
  absl::Status Finish();

 private:
  friend class Client;
  class Requests;
  class Stream;
  explicit Multiplex(std::unique_ptr<Requests> requests);

  const std::unique_ptr<Requests> requests_;
};

}  // namespace rivulet
