// SPDX-License-Identifier: Apache-2.0
#include "server/engine/sequences/sequence.h"

#include "model/base/error.h"

namespace rivulet {

absl::Status NonFiniteError(absl::string_view message) {
  ErrorDetail detail;
  detail.reason = "NON_FINITE_OUTPUT";
  return MakeError(absl::StatusCode::kDataLoss, message, detail);
}

}  // namespace rivulet
