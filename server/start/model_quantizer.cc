// SPDX-License-Identifier: Apache-2.0
#include "server/start/model_quantizer.h"

#include "model/base/error.h"

namespace rivulet {

absl::StatusOr<QuantizedDirectory> QuantizeModel(
    const std::string& from, const std::string& out, absl::string_view weights,
    absl::FunctionRef<void(int64_t done, int64_t all)> progress) {
  RIVULET_ASSIGN_OR_RETURN(const WeightChoice choice, ParseWeightChoice(weights));
  return QuantizeDirectory(from, out, choice, progress);
}

}  // namespace rivulet
