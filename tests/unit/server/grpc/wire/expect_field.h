// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "model/base/error.h"

namespace rivulet::testing {

// The message of the client has a fault in `field`, which the error names.
inline void ExpectField(const absl::Status& status, const char* reason, const char* field) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(GetErrorDetail(status).reason, reason) << status;
  EXPECT_EQ(GetErrorDetail(status).field, field) << status;
}

}  // namespace rivulet::testing
