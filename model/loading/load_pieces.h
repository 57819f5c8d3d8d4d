// SPDX-License-Identifier: Apache-2.0
// ForEachLoadPiece: reads or packs the pieces of a matrix on all cores.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace rivulet {

// Calls work(i) for each i from 0 to pieces - 1, on one thread per core that the process may use,
// but at most 16 (each may hold a piece's bytes); this thread is one of them. After an error the
// remaining pieces are skipped. Returns one of the errors.
absl::Status ForEachLoadPiece(int pieces, absl::FunctionRef<absl::Status(int i)> work);

}  // namespace rivulet
