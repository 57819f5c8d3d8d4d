// SPDX-License-Identifier: Apache-2.0
// What a client keeps of a reply, so that another call continues it where one is lost ("Lost
// replies" of client/README.md). No input or output.
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
  // session, if a balancer gave one. Where the server would draw the seed, it is drawn here, so
  // that every call has the same.
  ReplyResume(v1::GenerateRequest request, bool resume, int max_attempts, absl::Time deadline,
              std::string cookie = "");

  // The request of the next call, and its cookie; "" for none. Both change only in NextCall.
  const v1::GenerateRequest& request() const { return request_; }
  std::string cookie() const { return drops_cookie_ ? "" : cookie_; }

  // A call that has brought something came with this cookie.
  void SetCookie(std::string cookie) {
    if (!cookie.empty()) cookie_ = std::move(cookie);
  }

  // Notes a part, and takes out of it what an earlier call has brought. Returns whether the caller
  // is to see what is left. Part: v1::GenerateReply or v1::MultiplexPart.
  template <typename Part>
  bool Take(Part* part);

  // A call has ended with `*status`. Returns how long to wait before the next one; absent: the
  // reply has ended, with what `*status` then is.
  std::optional<absl::Duration> NextCall(absl::Status* status);

 private:
  int NumSamples() const { return std::max(request_.num_samples(), 1); }
  // Whether a server can continue the reply, whatever happened to the call.
  bool CanBeContinued() const;
  // Whether another call may bring what this one did not.
  bool MayRepeat(const absl::Status& status, const ErrorInfo& info) const;
  void ChooseCookie(const ErrorInfo& info);

  v1::GenerateRequest request_;
  const bool resume_;
  const int max_attempts_;
  const absl::Time deadline_;
  v1::Resume received_;                 // of a sample without tokens the entry may be missing
  absl::flat_hash_set<int32_t> ended_;  // samples
  bool begun_ = false;                  // a part has come
  bool complete_ = false;               // the last part has come
  bool repeated_ = false;               // the next call is not the first
  int losses_ = 0;                      // calls lost since one brought something, that one too
  absl::Status first_loss_;             // of these
  std::string cookie_;
  bool drops_cookie_ = false;  // the next call is made without it ...
  bool keeps_cookie_ = false;  // ... which is not done again: the session is known only there
};

}  // namespace rivulet
