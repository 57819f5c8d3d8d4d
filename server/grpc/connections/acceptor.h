// SPDX-License-Identifier: Apache-2.0
// Acceptor: accepts connections for gRPC, which of itself has no limit on them, and which never
// accepts again once it has run out of descriptors.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/grpc/connections/connections.h"
#include "server/grpc/connections/listening_sockets.h"
#include "server/process/descriptors.h"

namespace rivulet {

// Descriptors that a connection takes: gRPC's, and the one by which its end is seen.
inline constexpr int kDescriptorsPerConnection = 2;

// One thread accepts, and watches for the end of what it has accepted. A connection beyond the
// limits of `connections`, or for which no descriptor is left, is accepted and closed at once: its
// client learns that at once, and the sockets that wait to be accepted are those of clients that
// may be served. Thread: any, but Start, Stop and the destructor once each, in this order.
class Acceptor {
 public:
  // Who takes over a socket that is connected and non-blocking. Called on the acceptor's thread.
  using Take = std::function<void(int fd)>;

  // Takes the sockets over, also where it fails. `connections` is borrowed. Nothing is accepted
  // before Start. Errors: RESOURCE_EXHAUSTED (descriptors).
  static absl::StatusOr<std::unique_ptr<Acceptor>> Create(ListeningSockets listening,
                                                          Connections* connections);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  int port() const { return listening_.port; }

  // `take_self` gets the connections of ConnectToSelf, `take` all others.
  void Start(Take take, Take take_self);
  // Accepts nothing more: the sockets that listened are closed. Connections go on.
  void Stop();

  // Connects to what this acceptor listens on, to see whether it answers; where it listens on
  // several addresses, to the next one at each call. The connection has a place of its own: no
  // limit holds for it, it is not counted, and it gets a descriptor that was kept back. The caller
  // owns the descriptor. Errors: RESOURCE_EXHAUSTED (no descriptor, no free port; says nothing
  // about the listener), UNAVAILABLE. Thread: one at a time.
  absl::StatusOr<int> ConnectToSelf(absl::Duration timeout);

 private:
  Acceptor(ListeningSockets listening, Connections* connections, int epoll, int stop);
  void Run();
  // Errors: those of epoll_ctl.
  absl::Status Watch(int fd, uint32_t events);
  void AcceptFrom(int listening);
  void Admit(int fd, const sockaddr_storage& peer);
  bool IsSelf(const sockaddr_storage& peer);
  void Refuse(int fd, absl::string_view reason);
  void Pause(absl::string_view why);
  void Resume();

  const ListeningSockets listening_;
  Connections* const connections_;
  const int epoll_;
  const int stop_;  // an eventfd: readable once Stop was called
  SpareDescriptors spare_;
  Take take_, take_self_;
  bool stopped_ = false;
  bool paused_ = false;   // of the thread
  size_t next_self_ = 0;  // of ConnectToSelf
  absl::Mutex mutex_;
  std::string self_ ABSL_GUARDED_BY(mutex_);  // peer name of the connection to itself that is due
  std::thread thread_;
};

}  // namespace rivulet
