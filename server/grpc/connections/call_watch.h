// SPDX-License-Identifier: Apache-2.0
// CallWatch: closes connections whose clients reset calls faster than they can be ended.
//
// A call that its client resets leaves its connection's streams at once, so --max-streams does not
// bound how many there are; but it holds its memory (about 20 KB in gRPC 1.51) until it has been
// handled like any other. A client that begins and resets calls without a pause (CVE-2023-44487)
// takes all memory, and all threads of gRPC. What it cannot hide is how many of its calls are
// there: more than its connection may have streams.
#pragma once

#include <grpcpp/server_context.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/string_view.h"

namespace rivulet {

// A connection of this process's gRPC servers.
struct ConnectionCalls {
  std::string peer;   // "ipv4:1.2.3.4:56", as ServerContext::peer() has it
  int64_t calls = 0;  // that have begun and not been destroyed, reset ones included
};

// All of them. What gRPC's channelz counts.
std::vector<ConnectionCalls> CallsByConnection();

// Thread: any, but the destructor once.
class CallWatch {
 public:
  // Closes the connection of a peer; false where it was closed before. Called on the watch's
  // thread.
  using Close = std::function<bool(absl::string_view peer)>;
  using List = std::function<std::vector<ConnectionCalls>()>;

  // While there are more calls than four connections may have streams, closes every connection that
  // has more than twice as many as it may. `max_streams` is of one connection; less than 1000 count
  // as 1000, so that a client that cancels all it has and begins anew is none of them.
  CallWatch(int max_streams, Close close, List list = CallsByConnection);
  ~CallWatch();
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;

  // Tells the watch of a server's calls, which it need not but then is quicker. It may outlive the
  // watch.
  std::unique_ptr<grpc::ContextAllocator> Counter();

 private:
  struct State;

  void Run();
  void Look();

  const int64_t max_streams_;
  const List list_;
  const Close close_;
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace rivulet
