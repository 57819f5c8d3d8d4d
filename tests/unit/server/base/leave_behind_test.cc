// SPDX-License-Identifier: Apache-2.0
#include "server/base/leave_behind.h"

#include <gtest/gtest.h>
#include <openssl/crypto.h>

#include <cstdlib>

namespace rivulet {
namespace {

TEST(LeaveBehindTest, ExitFreesNothingOfOpenSsl) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process in which nothing has used OpenSSL
  const auto end = [] {
    LeaveOpenSslBehind();
    OPENSSL_init_crypto(OPENSSL_INIT_ADD_ALL_CIPHERS, nullptr);
    OPENSSL_atexit([] { std::_Exit(1); });  // called before OpenSSL frees what it has
    std::exit(0);
  };
  EXPECT_EXIT(end(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace rivulet
