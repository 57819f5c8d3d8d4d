// SPDX-License-Identifier: Apache-2.0
// Many Generate requests over one stream (rivulet/v1/multiplex.proto), for programs that have
// hundreds at once: one message per step for all requests, instead of one per request. Behind a
// balancer a stream reaches one replica, and only the sessions of this replica. The first request
// opens the stream. If the stream is lost, another one replaces it, and the requests continue as in
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

// Made by Client::Multiplex. Thread: any, also at the same time. Neither the destructor nor Finish
// may be called in a callback.
class Multiplex {
 public:
  // Cancels the open requests, and waits until the last callback has returned.
  ~Multiplex();
  Multiplex(const Multiplex&) = delete;
  Multiplex& operator=(const Multiplex&) = delete;

  // A part of the reply, with the fields of v1::GenerateReply; false ends the request with
  // CANCELLED, and the parts that are on their way are dropped.
  using OnPart = std::function<bool(const v1::MultiplexPart& part)>;
  // The request has ended. Errors: as Client::Generate; the error of the stream if the stream ended
  // first.
  using Done = std::function<void(const absl::Status& status)>;

  // Begins a request and returns at once. The request ends with DEADLINE_EXCEEDED after `timeout`,
  // which covers all streams that it uses. A thread of the library calls `on_part` for every part,
  // in order, then `done` exactly once; all these callbacks come one at a time and must not block.
  // They may begin before Generate returns. The returned key names the request for Cancel.
  uint64_t Generate(v1::GenerateRequest request, OnPart on_part, Done done,
                    absl::Duration timeout = absl::InfiniteDuration());

  // Ends a request with CANCELLED, unless it ends by itself first. Unknown or ended: no effect.
  void Cancel(uint64_t key);

  // Waits until every request has ended, cancelled ones too, and every callback has returned.
  // Returns OK, or the error of a stream that ended requests. Later requests end with
  // FAILED_PRECONDITION.
  absl::Status Finish();

 private:
  friend class Client;
  class Requests;
  class Stream;
  explicit Multiplex(std::unique_ptr<Requests> requests);

  const std::unique_ptr<Requests> requests_;
};

}  // namespace rivulet
