// SPDX-License-Identifier: Apache-2.0
// What a server knows of its clients: who they are, their connections and calls.
#pragma once

#include <cstdint>

#include "server/base/memory_shares.h"
#include "server/grpc/calls/active_calls.h"
#include "server/grpc/calls/caller.h"
#include "server/grpc/calls/text_pool.h"
#include "server/grpc/connections/connections.h"
#include "server/grpc/wire/error_counts.h"

namespace rivulet {

class RequestLog;
class Tracer;

// Where what is known of a request goes at its end. Borrowed; null: nowhere.
struct RequestSinks {
  RequestLog* log = nullptr;
  Tracer* tracer = nullptr;

  bool any() const { return log != nullptr || tracer != nullptr; }
};

// Of the replies of Tokenize and Detokenize that are on their way out.
inline constexpr int64_t kTextReplyBytes = int64_t{256} << 20;

struct ServerCalls {
  explicit ServerCalls(KeyRing* keys) : callers(keys) {}  // borrowed, or null

  // Generate, Score, Tokenize, Detokenize, Multiplex and the calls of SessionService
  ActiveCalls active;
  ErrorCounts errors;
  Connections connections;
  Callers callers;
  RequestSinks sinks;
  TextPool texts;  // of these calls
  // That clients have not read yet. A tenant that reads none of it keeps nobody else out.
  MemoryShares text_replies{kTextReplyBytes, "TEXT_REPLY_MEMORY",
                            "tokens and texts that have not been read"};
};

}  // namespace rivulet
