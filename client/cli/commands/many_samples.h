// SPDX-License-Identifier: Apache-2.0
// `count` samples as requests of one size, a few at a time: sample i is a function of model,
// prompt, parameters and seed. Request i / size has seed + i / size, and sample i is its sample i %
// size. More samples repeat the first ones.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "rivulet/client.h"
#include "rivulet/v1/inference.pb.h"

namespace rivulet {

// Takes a part of a reply, whose sample 0 is sample `first` of all. Thread: several at once.
using SamplePart = absl::FunctionRef<absl::Status(int first, const v1::GenerateReply& part)>;

// Sends the requests until all samples are there or one request fails; its error cancels the
// others. Draws a seed if `request` has none, and sets it.
absl::Status GenerateMany(const Client& client, const v1::GetModelReply& model, int count,
                          CallOptions options, v1::GenerateRequest* request, SamplePart add);

}  // namespace rivulet
