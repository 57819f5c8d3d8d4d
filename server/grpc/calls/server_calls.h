// SPDX-License-Identifier: Apache-2.0
// What a server knows about its clients: callers, connections and calls.
#pragma once

#include <cstdint>

#include "server/base/memory_shares.h"
#include "server/grpc/calls/caller.h"
#include "server/grpc/calls/served_models.h"
#include "server/grpc/calls/text_pool.h"
#include "server/grpc/connections/connections.h"
#include "server/grpc/wire/error_counts.h"

namespace rivulet {

class RequestLog;
class Tracer;

// Where the record of a request goes at its end. Borrowed; null: nowhere.
struct RequestSinks {
  RequestLog* log = nullptr;
  Tracer* tracer = nullptr;

  bool any() const { return log != nullptr || tracer != nullptr; }
};

// The memory for replies of Tokenize and Detokenize that are being sent.
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
  // For replies that clients have not read. A tenant that does not read keeps no other tenant out.
  MemoryShares text_replies{kTextReplyBytes, "TEXT_REPLY_MEMORY",
                            "tokens and texts that have not been read"};
};

}  // namespace rivulet
