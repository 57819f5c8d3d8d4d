// SPDX-License-Identifier: Apache-2.0
#include "server/base/leave_behind.h"

#include <openssl/crypto.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace rivulet {

void LeaveBehind(std::thread thread) {
  static std::once_flag once;
  // The handler that was registered last runs first: before any global is destroyed.
  std::call_once(once, [] {
    on_exit(
        [](int status, void*) {
          std::fflush(nullptr);
          _exit(status);
        },
        nullptr);
  });
  thread.detach();
}

void LeaveOpenSslBehind() { OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr); }

}  // namespace rivulet
