// SPDX-License-Identifier: Apache-2.0
// Acceptor: accepts connections for gRPC. gRPC itself does not limit their number, and once out of
// descriptors it never accepts again.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/base/mutex.h"
#include "server/grpc/connections/connections.h"
#include "server/grpc/connections/listening_sockets.h"
#include "server/process/descriptors.h"

namespace rivulet {

// Descriptors per connection: gRPC's, and another by which the acceptor sees the end.
inline constexpr int kDescriptorsPerConnection = 2;

// One thread accepts connections and watches for their end. A connection beyond the limits of
// `connections`, or for which no descriptor is left, is accepted and closed at once: so its client
// learns of the refusal at once, and does not take a place in the queue of sockets to accept. An
// accepted connection waits for the client's first bytes: an HTTP/1.1 request is answered here, as
// gRPC's own answer is not HTTP/1.1; everything else goes to gRPC, after a second also a silent
// one.
// Thread: any, but Start, Stop and the destructor once each, in this order.
class Acceptor {
 public:
  // Takes over a socket, which is connected and non-blocking. Called on the acceptor's thread.
  using Take = std::function<void(int fd)>;

  // Takes over the sockets of `listening`, even if Create fails. `connections` is borrowed. `tls`:
  // what `take` of Start speaks. Accepts nothing before Start. Errors: RESOURCE_EXHAUSTED
  // (descriptors).
  static absl::StatusOr<std::unique_ptr<Acceptor>> Create(ListeningSockets listening,
                                                          Connections* connections, bool tls);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  int port() const { return listening_.port; }

  // `take_self` gets the connections of ConnectToSelf, `take` all others.
  void Start(Take take, Take take_self);
  // Closes the listening sockets and accepts nothing more. Connections that `take` got go on.
  void Stop();

  // Connects to this acceptor's address, to see whether it answers; with several addresses, to the
  // next one at each call. The connection is not limited or counted, and it may take a descriptor
  // of the reserve. The caller owns the descriptor. Errors: RESOURCE_EXHAUSTED (no descriptor, no
  // free port; says nothing about the listener), UNAVAILABLE. Thread: one at a time.
  absl::StatusOr<int> ConnectToSelf(absl::Duration timeout);

 private:
  // A counted connection that gRPC does not have.
  struct Waiting {
    int fd = -1;  // -1: HTTP/1.1 was answered
    std::string peer;
    absl::Time until;
  };

  Acceptor(ListeningSockets listening, Connections* connections, bool tls, int epoll, int stop);
  void Run();
  // Errors: those of epoll_ctl.
  absl::Status Watch(int fd, uint32_t events);
  void AcceptFrom(int listening);
  void Admit(int fd, const sockaddr_storage& peer);
  // Of waiting connections, by the second descriptor. `ended`: both sides have ended.
  void TakeFirstBytes(int second, bool ended);
  void HandOver(int second);
  void End(int second);
  void Forget(int second);  // of any connection: ends its watch and its place
  // Those whose time is over.
  void EndWaiting(absl::Time now);
  bool IsSelf(const sockaddr_storage& peer);
  void Refuse(int fd, absl::string_view reason);
  void Pause(absl::string_view why);
  void Resume();

  const ListeningSockets listening_;
  Connections* const connections_;
  const bool tls_;
  const int epoll_;
  const int stop_;  // an eventfd: readable once Stop was called
  SpareDescriptors spare_;
  Take take_, take_self_;
  bool stopped_ = false;
  bool paused_ = false;  // of the thread, as the next two
  std::unordered_map<int, Waiting> waiting_;
  absl::Time next_look_;  // at the times of those that wait
  size_t next_self_ = 0;  // of ConnectToSelf
  Mutex mutex_;
  std::string self_ ABSL_GUARDED_BY(mutex_);  // peer name of the expected connection to itself
  std::thread thread_;
};

}  // namespace rivulet
