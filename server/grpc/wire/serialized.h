// SPDX-License-Identifier: Apache-2.0
// Serialized: a message to a client that is serialized before gRPC gets it. gRPC would serialize a
// message type itself while a write starts, and after an exception there the call never ends.
// Thread: one at a time.
#pragma once

#include <grpcpp/impl/serialization_traits.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>
// SerializationTraits of protobuf's messages.
#if __has_include(<grpcpp/impl/proto_utils.h>)
#include <grpcpp/impl/proto_utils.h>
#else
#include <grpcpp/impl/codegen/proto_utils.h>
#endif

#include "google/protobuf/descriptor.h"

namespace rivulet {

template <typename Message>
class Serialized {
 public:
  static const google::protobuf::Descriptor* descriptor() { return Message::descriptor(); }

  // Serializes `message`, of less than 2 GiB, over the previous one. Throws std::bad_alloc.
  void Set(const Message& message) {
    bytes_.Clear();
    bool owned = false;
    grpc::SerializationTraits<Message>::Serialize(message, &bytes_, &owned).IgnoreError();
  }
  const grpc::ByteBuffer& bytes() const { return bytes_; }

 private:
  grpc::ByteBuffer bytes_;
};

}  // namespace rivulet

template <typename Message>
class grpc::SerializationTraits<rivulet::Serialized<Message>> {
 public:
  static Status Serialize(const rivulet::Serialized<Message>& message, ByteBuffer* buffer,
                          bool* owned) {
    return SerializationTraits<ByteBuffer>::Serialize(message.bytes(), buffer, owned);
  }
};
