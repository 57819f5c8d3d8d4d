// SPDX-License-Identifier: Apache-2.0
// RequestRecord: what is known of one request, for whoever reports errors and for the request log.
#pragma once

#include <grpcpp/support/status.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "google/rpc/status.pb.h"
#include "server/grpc/calls/server_calls.h"

namespace rivulet {

// Thread: any, but Begin, which comes first.
class RequestRecord {
 public:
  RequestRecord() = default;
  // Of a request within the call `call`, which has begun: its id is "<id of the call>/<member>".
  RequestRecord(const RequestRecord& call, uint64_t member);

  // It has begun, under `id`.
  void Begin(std::string id) { id_ = std::move(id); }
  // "" before Begin.
  const std::string& id() const { return id_; }

  // It ended so. What its client is told, as ToGrpc and ToWire (status_map.h) with its id.
  grpc::Status End(const absl::Status& status, ErrorCounts* errors);
  void End(const absl::Status& status, ErrorCounts* errors, google::rpc::Status* wire);

 private:
  std::string id_;
};

}  // namespace rivulet
