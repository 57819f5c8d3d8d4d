// SPDX-License-Identifier: Apache-2.0
// What a client keeps of a reply, so that another call continues the reply if a call is lost ("Lost
// replies" in client/README.md). No input or output.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "rivulet/client.h"
#include "rivulet/v1/inference.pb.h"
#include "rivulet/v1/multiplex.pb.h"

namespace rivulet {

// Thread: one at a time.
class ReplyResume {
 public:
  // `resume`: CallOptions::resume; `max_attempts`: calls before the first part; `cookie`: of the
  // session, if a balancer gave one. If the server would draw the seed, it is drawn here, so that
  // every call has the same seed.
  ReplyResume(v1::GenerateRequest request, bool resume, int max_attempts, absl::Time deadline,
              std::string cookie = "");

  // The request of the next call, and its cookie; "" for none. Both change only in NextCall.
  const v1::GenerateRequest& request() const { return request_; }
  std::string cookie() const { return drops_cookie_ ? "" : cookie_; }

  // Sets the cookie of a call that has brought something.
  void SetCookie(std::string cookie) {
    if (!cookie.empty()) cookie_ = std::move(cookie);
  }

  // Records a part, and removes from it what an earlier call has brought. Returns whether the
  // caller is to see the rest. Part: v1::GenerateReply or v1::MultiplexPart.
  template <typename Part>
  bool Take(Part* part);

  // Called when a call has ended with `*status`. Returns the time to wait before the next call;
  // absent: the reply has ended with `*status`, which this may change.
  std::optional<absl::Duration> NextCall(absl::Status* status);

 private:
  int NumSamples() const { return std::max(request_.num_samples(), 1); }
  // Whether a server can continue the reply, however the call ended.
  bool CanBeContinued() const;
  // Whether another call may succeed after this error.
  bool MayRepeat(const absl::Status& status, const ErrorInfo& info) const;
  void ChooseCookie(const ErrorInfo& info);

  v1::GenerateRequest request_;
  const bool resume_;
  const int max_attempts_;
  const absl::Time deadline_;
  v1::Resume received_;                 // a sample without tokens may have no entry
  absl::flat_hash_set<int32_t> ended_;  // samples
  bool begun_ = false;                  // a part has come
  bool complete_ = false;               // the last part has come
  bool repeated_ = false;               // the next call is not the first
  int losses_ = 0;                      // lost calls, from the last one that brought something
  absl::Status first_loss_;             // error of the first of them
  std::string cookie_;
  bool drops_cookie_ = false;  // the next call is made without the cookie ...
  bool keeps_cookie_ = false;  // ... no more: only the cookie's replica knows the session
};

}  // namespace rivulet
