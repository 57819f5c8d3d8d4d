// SPDX-License-Identifier: Apache-2.0
// Calls without generated stubs, for gRPC's own services: health and reflection.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

namespace rivulet::testing {

// Sends one message, half-closes and reads one message; the message read is in *response.
inline grpc::Status RawCall(const std::shared_ptr<grpc::Channel>& channel,
                            const std::string& method, const std::string& request,
                            std::string* response) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  grpc::Status status;
  grpc::ByteBuffer received;
  const grpc::Slice slice(request);
  const grpc::ByteBuffer sent(&slice, 1);
  auto call = stub.PrepareCall(&context, method, &queue);
  const auto wait = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  call->StartCall(nullptr);
  if (wait()) {
    call->Write(sent, nullptr);
    if (wait()) {
      call->WritesDone(nullptr);
      wait();
    }
    call->Read(&received, nullptr);
    if (wait()) {
      std::vector<grpc::Slice> slices;
      if (received.Dump(&slices).ok()) {
        for (const grpc::Slice& part : slices) {
          response->append(reinterpret_cast<const char*>(part.begin()), part.size());
        }
      }
    }
  }
  call->Finish(&status, nullptr);
  wait();
  return status;
}

// A length-delimited field with a number below 16 and fewer than 128 bytes.
inline std::string StringField(int number, const std::string& value) {
  return std::string({static_cast<char>(number << 3 | 2), static_cast<char>(value.size())}) + value;
}

// The answer of grpc.health.v1 about `service`: "SERVING", "NOT_SERVING", or the name of an error's
// code.
inline std::string Health(const std::shared_ptr<grpc::Channel>& channel,
                          const std::string& service) {
  std::string response;
  const grpc::Status status =
      RawCall(channel, "/grpc.health.v1.Health/Check", StringField(1, service), &response);
  if (status.error_code() == grpc::StatusCode::NOT_FOUND) return "NOT_FOUND";
  if (!status.ok()) return status.error_message();
  if (response == "\x08\x01") return "SERVING";
  if (response == "\x08\x02") return "NOT_SERVING";
  return "other";
}

}  // namespace rivulet::testing
