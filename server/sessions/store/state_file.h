// SPDX-License-Identifier: Apache-2.0
// A state as the bytes of a file, which only the server that wrote it reads:
//
//   "RVLTSTAT"  version u32 = 1  section...          (server/sessions/sections.h)
//   1 meta   texts: SHA-256 of the weights, of config.json, numerics id, owner; u64 number, floats
//   2 state  float32 values, cut into sections of 1 MiB, the last one shorter
//
// Unlike a snapshot (server/sessions/snapshot.h) it says nothing about a session, and other servers
// cannot use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/model.h"

namespace rivulet {

// What all files of one server and model have in common.
struct StateStamp {
  std::string weights_sha256, config_sha256;  // lower-case hex
  std::string numerics_id;
  std::string owner;  // of this process and model alone
};

// With an owner drawn at random.
StateStamp MakeStateStamp(const Model& model, absl::string_view numerics_id);

// Bytes of every file of this stamp with so many values.
size_t StateFileBytes(const StateStamp& stamp, size_t num_values);

std::string EncodeStateFile(const StateStamp& stamp, uint64_t number,
                            std::span<const float> values);

// The values, bit for bit as they were encoded. Errors: DATA_LOSS with what is wrong, unless the
// bytes are whole and exactly those of this stamp, number and count of values.
absl::StatusOr<std::vector<float>> DecodeStateFile(absl::string_view bytes, const StateStamp& stamp,
                                                   uint64_t number, size_t num_values);

}  // namespace rivulet
