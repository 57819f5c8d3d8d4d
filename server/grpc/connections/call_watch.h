// SPDX-License-Identifier: Apache-2.0
// CallWatch: checks how the calls of connections end, and closes connections that reset calls too
// fast (reset_rates.h).
#pragma once

#include <grpcpp/server_context.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/grpc/connections/connection_calls.h"
#include "server/grpc/connections/reset_rates.h"

namespace rivulet {

// Thread: any, but the destructor once.
class CallWatch {
 public:
  // Closes the connection of a peer; false if it was closed before. Called on the watch's thread.
  using Close = std::function<bool(absl::string_view peer)>;
  using List = std::function<std::vector<ConnectionCalls>()>;

  // Closes the offenders of ResetRates. `max_streams`: limit of one connection.
  CallWatch(int max_streams, Close close, List list = CallsByConnection);
  ~CallWatch();
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;

  // Optional: a server that uses this allocator reports its calls, so that the watch reacts sooner.
  // The allocator may outlive the watch.
  std::unique_ptr<grpc::ContextAllocator> Counter();

 private:
  struct State;

  void Run();
  void Look();

  ResetRates rates_;  // of the thread
  const List list_;
  const Close close_;
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace rivulet
