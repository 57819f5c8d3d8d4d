// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/calls/request_record.h"

#include "absl/strings/str_cat.h"
#include "server/grpc/wire/status_map.h"

namespace rivulet {

RequestRecord::RequestRecord(const RequestRecord& call, uint64_t member)
    : id_(absl::StrCat(call.id_, "/", member)) {}

grpc::Status RequestRecord::End(const absl::Status& status, ErrorCounts* errors) {
  return ToGrpc(status, errors, id_);
}

void RequestRecord::End(const absl::Status& status, ErrorCounts* errors,
                        google::rpc::Status* wire) {
  ToWire(status, errors, id_, wire);
}

}  // namespace rivulet
