// SPDX-License-Identifier: Apache-2.0
// Options of the command line as parts of a request.
#pragma once

#include "client/cli/options.h"
#include "rivulet/v1/inference.pb.h"

namespace rivulet {

// Sets what was given; the server knows the defaults of the rest.
void SetSampling(const SamplingOptions& options, v1::SamplingParams* sampling);

}  // namespace rivulet
