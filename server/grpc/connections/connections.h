// SPDX-License-Identifier: Apache-2.0
// Connections: the open connections of a server's clients, their addresses, and how many more may
// be opened.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/base/mutex.h"

namespace rivulet {

// The other end: "ipv4:1.2.3.4:56" or "ipv6:[::1]:56", as ServerContext::peer() but without
// percent-encoding. An IPv4 address within an IPv6 address is shown as IPv4.
std::string PeerName(const sockaddr_storage& peer);
// The address of a peer: "ipv4:1.2.3.4:56" -> "ipv4:1.2.3.4".
std::string AddressOf(absl::string_view peer);

struct ConnectionLimits {
  int max_open = 0;         // 0: no limit
  int max_per_address = 0;  // of one IP address; 0: no limit
};

struct ConnectionCounts {
  int open = 0;
  int max_open = 0;
  // Since start.
  int64_t accepted = 0;
  int64_t refused = 0;  // closed at once
  int64_t closed = 0;   // by CloseConnection
  // The end of the certificate that new connections get; absent: plaintext.
  std::optional<absl::Time> certificate_end;
};

// Thread: any. Does not include the server's connections to itself.
class Connections {
 public:
  Connections() = default;
  ~Connections();
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  // Sets the limits from now on; connections that exceed them stay open.
  void SetLimits(const ConnectionLimits& limits);

  // "" if `peer` may open one more connection; else the setting that forbids it, and the connection
  // is counted as refused.
  absl::string_view Refusal(const sockaddr_storage& peer);
  // Counts a connection that was closed at once for another reason, for example because no
  // descriptor was left.
  void CountRefused();
  // A connection was opened. `fd` is a second descriptor of its socket, owned from here on. gRPC's
  // own cannot be used: gRPC closes it at any time, then another socket may get its number.
  void Add(int fd, const sockaddr_storage& peer);
  // The connection has ended: forgets it and closes `fd`.
  void Remove(int fd);

  void SetCertificateEnd(absl::Time end);

  // Ends the connections of a peer, given as ServerContext::peer() prints it, with all their calls.
  // False if there is none, or it was closed before.
  bool CloseConnection(absl::string_view peer);
  // The same for a peer that harms others: unread incoming data is dropped, and for a second no
  // connection of its address is accepted.
  bool CutOff(absl::string_view peer);

  // Waits until the other end of every connection has received what was sent to it before this
  // call. A process that ends earlier may lose the end of a reply: where the client has just sent
  // something, for example a window update, the kernel closes the socket with a reset and drops
  // what it still had to send. False if something has not arrived by `deadline`.
  bool AwaitDelivered(absl::Time deadline) const;

  // Ends every connection after the data sent on it. A later call, or a call without an answer yet,
  // fails at its client as UNAVAILABLE. Incoming data is still read, so that no reset overtakes
  // outgoing data.
  void EndAll();

  // After EndAll: waits until every client has ended its side. If a process closes a socket
  // earlier, the kernel answers later data of the client, for example a window update, with a
  // reset. The client's next write then fails, and gRPC's clients drop what they have not read by
  // then. False if some clients have not ended by `deadline`.
  bool AwaitEnded(absl::Time deadline) const;

  // Whether no more connections may be opened.
  bool full() const;
  ConnectionCounts counts() const;

 private:
  struct Connection {
    std::string peer;
    bool closing = false;  // CloseConnection has shut it
  };

  // Waits until `is_done` holds for the descriptor of every connection; false if not by `deadline`.
  bool AwaitAll(absl::Time deadline, bool (*is_done)(int fd)) const;
  bool full_locked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  ConnectionLimits limits_ ABSL_GUARDED_BY(mutex_);
  ConnectionCounts counts_ ABSL_GUARDED_BY(mutex_);  // except `open` and `max_open`
  std::unordered_map<int, Connection> open_ ABSL_GUARDED_BY(mutex_);              // by fd
  std::unordered_map<std::string, int> open_by_address_ ABSL_GUARDED_BY(mutex_);  // each above 0
  // Until when no connection of an address is accepted.
  std::unordered_map<std::string, absl::Time> cut_off_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rivulet
