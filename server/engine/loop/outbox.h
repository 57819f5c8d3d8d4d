// SPDX-License-Identifier: Apache-2.0
// Outbox: what the loop has for the emitter: replies that got something, and requests that ended.
//
// Tokens are handed over while a run is being polled; ends between runs only, so no request dies
// while a run borrows its memory.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "server/engine/loop/emitter.h"
#include "server/engine/sequences/request.h"

namespace rivulet {

// Thread: the loop. Requests are borrowed until their ends are put in.
class Outbox {
 public:
  // `emitter` is borrowed and outlives it.
  explicit Outbox(Emitter* emitter) : emitter_(emitter) {}

  // The reply of `request` got something. To be told once, however often it gets more before that.
  void PutReady(Request* request);
  // `request` has ended; lives until HandAll at least.
  void PutEnd(std::unique_ptr<Request> request) { ended_.push_back(std::move(request)); }
  bool has_ends() const { return !ended_.empty(); }

  // Hands over what got something.
  void HandReady() { emitter_->Hand(&batch_); }
  // Hands over all. True: there were ends.
  bool HandAll();

 private:
  Emitter* const emitter_;
  Emitter::Batch batch_;                        // of ended requests none, but in HandAll
  std::vector<std::unique_ptr<Outlet>> ended_;  // to be handed over between runs
};

}  // namespace rivulet
