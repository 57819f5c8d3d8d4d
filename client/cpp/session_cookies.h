// SPDX-License-Identifier: Apache-2.0
// Cookies that lead a balancer to the replica of a session. It sends them with the replies that
// open sessions.
#pragma once

#include <list>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/client_context.h"

namespace rivulet {

// Thread: any.
class SessionCookies {
 public:
  // Beyond kMost sessions the oldest entry is dropped: a session may end without notice.
  static constexpr size_t kMost = 100'000;

  // The "cookie" to send with a call on the session; "": none.
  std::string Get(absl::string_view session_id) const;
  void Set(absl::string_view session_id, absl::string_view cookie);
  void Forget(absl::string_view session_id);

  // The name=value pairs of "set-cookie" in the initial metadata of a finished call, in the form of
  // a "cookie"; without a "set-cookie", `sent`, the cookie that the call carried.
  static std::string Received(const grpc::ClientContext& context, std::string sent);

 private:
  using Order = std::list<std::pair<std::string, std::string>>;  // session and cookie

  mutable absl::Mutex mutex_;
  Order order_ ABSL_GUARDED_BY(mutex_);  // the session known longest first
  absl::flat_hash_map<std::string, Order::iterator> places_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rivulet
