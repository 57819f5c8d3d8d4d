// SPDX-License-Identifier: Apache-2.0
// The main of linked tests (linked_tests.h).
#include "tests/support/linked_tests.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return rivulet::testing::RunLinkedTests(argv[0]);
}
