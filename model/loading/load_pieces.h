// SPDX-License-Identifier: Apache-2.0
// ForEachLoadPiece: the pieces of a matrix that is read or packed, on all cores.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace rivulet {

// Calls work(i) for each i from 0 to pieces - 1, on as many threads as the process may use cores,
// but at most 16 (each may hold a piece's bytes); this thread is one of them. After an error the
// remaining pieces are left out. Returns one of the errors.
absl::Status ForEachLoadPiece(int pieces, absl::FunctionRef<absl::Status(int i)> work);

}  // namespace rivulet
