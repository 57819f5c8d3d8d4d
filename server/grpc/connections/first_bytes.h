// SPDX-License-Identifier: Apache-2.0
// The first bytes that a client sends, and the answer to a client that takes the port of gRPC for
// one of HTTP/1.1.
#pragma once

#include <string>

namespace rivulet {

enum class FirstBytes {
  kNone,   // nothing has arrived yet
  kEnd,    // the client has ended the connection and sent nothing
  kHttp1,  // the beginning of an HTTP/1 request
  kOther,  // HTTP/2, TLS, or neither: for gRPC
};

// Looks at what has arrived on the socket `fd`, and leaves it there. Does not wait.
FirstBytes PeekFirstBytes(int fd);

// Answers the HTTP/1 request that has begun to arrive on `fd` with an error that says what the port
// speaks, and ends this side of the connection. `tls`: the port speaks TLS. Does not wait: the
// answer fits into the buffer of a new socket.
void AnswerHttp1(int fd, bool tls);

// Drops what has arrived on `fd`. Does not wait.
void DiscardReceived(int fd);

}  // namespace rivulet
