// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/connections/connections.h"

#include <arpa/inet.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"

namespace rivulet {
namespace {

constexpr absl::Duration kCutOffFor = absl::Seconds(1);
constexpr size_t kDiscardBytes = 1 << 30;  // at a time; nothing is copied

// "ipv6:%5B::1%5D:56" -> "ipv6:[::1]:56".
std::string Decoded(absl::string_view peer) {
  return absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
}

// Whether the other end has acknowledged everything sent on `fd`, or the connection has ended.
bool IsDelivered(int fd) {
  int bytes = 0;
  return ioctl(fd, SIOCOUTQ, &bytes) != 0 || bytes == 0;
}

// Whether the other end has ended its side. gRPC may have shut down both sides of the socket, so
// poll does not tell.
bool HasEnded(int fd) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return true;
  return info.tcpi_state != TCP_ESTABLISHED && info.tcpi_state != TCP_FIN_WAIT1 &&
         info.tcpi_state != TCP_FIN_WAIT2;
}

}  // namespace

std::string PeerName(const sockaddr_storage& peer) {
  char text[INET6_ADDRSTRLEN] = "";
  if (peer.ss_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &peer, sizeof(v4));
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    return absl::StrCat("ipv4:", text, ":", ntohs(v4.sin_port));
  }
  if (peer.ss_family != AF_INET6) return "";
  sockaddr_in6 v6{};
  std::memcpy(&v6, &peer, sizeof(v6));
  const int port = ntohs(v6.sin6_port);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text, sizeof(text));
    return absl::StrCat("ipv4:", text, ":", port);
  }
  inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  const std::string scope = v6.sin6_scope_id == 0 ? "" : absl::StrCat("%", v6.sin6_scope_id);
  return absl::StrCat("ipv6:[", text, scope, "]:", port);
}

std::string AddressOf(absl::string_view peer) {
  return std::string(peer.substr(0, peer.rfind(':')));
}

Connections::~Connections() {
  MutexLock lock(&mutex_);
  for (const auto& [fd, connection] : open_) close(fd);
}

void Connections::SetLimits(const ConnectionLimits& limits) {
  MutexLock lock(&mutex_);
  limits_ = limits;
}

absl::string_view Connections::Refusal(const sockaddr_storage& peer) {
  const std::string address = AddressOf(PeerName(peer));
  MutexLock lock(&mutex_);
  if (full_locked()) {
    ++counts_.refused;
    return "max-connections";
  }
  const auto cut_off = cut_off_.find(address);
  if (cut_off != cut_off_.end()) {
    if (absl::Now() < cut_off->second) {
      ++counts_.refused;
      return "calls reset";
    }
    cut_off_.erase(cut_off);
  }
  if (limits_.max_per_address == 0) return "";
  const auto found = open_by_address_.find(address);
  if (found == open_by_address_.end() || found->second < limits_.max_per_address) return "";
  ++counts_.refused;
  return "max-connections-per-address";
}

void Connections::CountRefused() {
  MutexLock lock(&mutex_);
  ++counts_.refused;
}

void Connections::Add(int fd, const sockaddr_storage& peer) {
  std::string name = PeerName(peer);
  MutexLock lock(&mutex_);
  ++counts_.accepted;
  ++open_by_address_[AddressOf(name)];
  open_.emplace(fd, Connection{std::move(name)});
}

void Connections::Remove(int fd) {
  MutexLock lock(&mutex_);
  const auto found = open_.find(fd);
  if (found == open_.end()) return;
  const auto address = open_by_address_.find(AddressOf(found->second.peer));
  if (--address->second == 0) open_by_address_.erase(address);
  open_.erase(found);
  close(fd);
}

bool Connections::CloseConnection(absl::string_view peer) {
  const std::string wanted = Decoded(peer);
  MutexLock lock(&mutex_);
  bool found = false;
  for (auto& [fd, connection] : open_) {  // rare: an index would cost every connection
    if (connection.peer != wanted) continue;
    if (std::exchange(connection.closing, true)) continue;
    found = true;
    shutdown(fd, SHUT_RDWR);  // gRPC sees the end, and the acceptor after it
    ++counts_.closed;
  }
  return found;
}

bool Connections::AwaitAll(absl::Time deadline, bool (*is_done)(int fd)) const {
  constexpr absl::Duration kBetweenLooks = absl::Milliseconds(1);
  std::vector<int> waiting;
  {
    MutexLock lock(&mutex_);
    for (const auto& [fd, connection] : open_) waiting.push_back(fd);
  }
  while (true) {
    {
      MutexLock lock(&mutex_);  // for as long as a descriptor is in open_, it is not reused
      std::erase_if(waiting, [this, is_done](int fd) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return !open_.contains(fd) || is_done(fd);
      });
    }
    if (waiting.empty()) return true;
    if (absl::Now() >= deadline) return false;
    absl::SleepFor(kBetweenLooks);
  }
}

bool Connections::AwaitDelivered(absl::Time deadline) const {
  return AwaitAll(deadline, &IsDelivered);
}

bool Connections::AwaitEnded(absl::Time deadline) const { return AwaitAll(deadline, &HasEnded); }

void Connections::EndAll() {
  MutexLock lock(&mutex_);
  for (const auto& [fd, connection] : open_) shutdown(fd, SHUT_WR);
}

bool Connections::CutOff(absl::string_view peer) {
  const bool closed = CloseConnection(peer);
  const std::string wanted = Decoded(peer);
  MutexLock lock(&mutex_);
  for (const auto& [fd, connection] : open_) {
    if (connection.peer != wanted) continue;
    while (recv(fd, nullptr, kDiscardBytes, MSG_DONTWAIT | MSG_TRUNC) > 0) {
    }
  }
  const absl::Time now = absl::Now();
  std::erase_if(cut_off_, [now](const auto& entry) { return entry.second < now; });
  cut_off_[AddressOf(wanted)] = now + kCutOffFor;
  return closed;
}

bool Connections::full() const {
  MutexLock lock(&mutex_);
  return full_locked();
}

bool Connections::full_locked() const {
  return limits_.max_open > 0 && open_.size() >= static_cast<size_t>(limits_.max_open);
}

void Connections::SetCertificateEnd(absl::Time end) {
  MutexLock lock(&mutex_);
  counts_.certificate_end = end;
}

ConnectionCounts Connections::counts() const {
  MutexLock lock(&mutex_);
  ConnectionCounts counts = counts_;
  counts.open = static_cast<int>(open_.size());
  counts.max_open = limits_.max_open;
  return counts;
}

}  // namespace rivulet
