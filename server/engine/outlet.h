// SPDX-License-Identifier: Apache-2.0
// Outlet: where the results of a request go.
#pragma once

#include <atomic>

namespace rivulet {

// The emitter's thread makes both calls.
class Outlet {
 public:
  virtual ~Outlet() = default;
  virtual void OnReady() = 0;  // something can be taken
  virtual void OnEnd() = 0;    // the last call

 private:
  friend class Emitter;
  std::atomic<bool> ready_{false};  // a call of OnReady is due, so no other is needed
  bool ended_ = false;              // the loop has put in its end
};

}  // namespace rivulet
