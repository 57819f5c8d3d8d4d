// SPDX-License-Identifier: Apache-2.0
// GoogleTest's main for tests that need a GPU: without one they say so and count as skipped.
#include "tests/support/cuda_on_device.h"
#include "tests/support/linked_tests.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const int code = rivulet::testing::ExitCodeWithoutDevice();
  return code != 0 ? code : rivulet::testing::RunLinkedTests(argv[0]);
}
