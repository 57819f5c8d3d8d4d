// SPDX-License-Identifier: Apache-2.0
// GoogleTest's main for tests that need a GPU: without one they say so and count as skipped.
#include <gtest/gtest.h>

#include "tests/support/cuda_on_device.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const int code = rivulet::testing::ExitCodeWithoutDevice();
  return code != 0 ? code : RUN_ALL_TESTS();
}
