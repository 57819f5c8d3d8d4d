// SPDX-License-Identifier: Apache-2.0
// Received: a message of a client, either parsed or with the error of parsing it. With the message
// type itself, gRPC would answer a message that does not parse with a bare UNIMPLEMENTED, and end a
// stream as if the stream were complete.
#pragma once

#include <grpcpp/impl/serialization_traits.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <cstddef>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace rivulet {

template <typename Message>
struct Received {
  Message message;  // unspecified if there is an error
  absl::Status error;
};

// INVALID_ARGUMENT (MESSAGE_MALFORMED) for a message of which only `parsed` could be parsed: names
// the field that is not UTF-8, else the type of the message. `bytes`: size of the message; nullopt
// where the call ended without a message. Thread: any.
absl::Status MalformedMessage(const google::protobuf::Message& parsed, std::optional<size_t> bytes);

// The id, unchecked, of the session that `message`, a request or a reply of any method, is about;
// "" where the message has none. Valid until the message changes.
template <typename Message>
absl::string_view SessionIn(const Message& message) {
  if constexpr (requires { message.session_id(); }) {
    return message.session_id();
  } else if constexpr (requires { message.session().session_id(); }) {
    return message.session().session_id();
  } else {
    return "";
  }
}

}  // namespace rivulet

// How gRPC parses a Received: gRPC itself never sees an error.
template <typename Message>
class grpc::SerializationTraits<rivulet::Received<Message>> {
 public:
  static Status Deserialize(ByteBuffer* buffer, rivulet::Received<Message>* received) {
    std::optional<size_t> bytes;
    if (buffer->Valid()) bytes = buffer->Length();
    const bool parsed = SerializationTraits<Message>::Deserialize(buffer, &received->message).ok();
    received->error =
        parsed ? absl::OkStatus() : rivulet::MalformedMessage(received->message, bytes);
    return Status::OK;
  }
};
