// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "model/base/error.h"

namespace rivulet::testing {

// Expects an error that names `field`, in which the client's message has a fault.
inline void ExpectField(const absl::Status& status, const char* reason, const char* field) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(GetErrorDetail(status).reason, reason) << status;
  EXPECT_EQ(GetErrorDetail(status).field, field) << status;
}

}  // namespace rivulet::testing
