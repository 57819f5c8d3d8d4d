// SPDX-License-Identifier: Apache-2.0
// Keys as JSON: the limits that the file of keys can hold, and one key as its members.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/strings/string_view.h"
#include "server/keys/api_key.h"

namespace rivulet {

// A limit of a key, as a member of the file.
struct KeyLimit {
  absl::string_view name;
  absl::string_view meaning;  // human-readable
  int64_t KeyLimits::*value;
};
inline constexpr KeyLimit kKeyLimits[] = {
    {"requests_per_minute", "Calls and requests of Multiplex that it may make in a minute",
     &KeyLimits::requests_per_minute},
    {"tokens_per_minute", "Tokens that its requests may be given and generate in a minute",
     &KeyLimits::tokens_per_minute},
    {"text_bytes_per_minute",
     "Bytes of text that its requests may have converted in a minute; ids to detokenize count four",
     &KeyLimits::text_bytes_per_minute},
    {"slots", "Sequences of a model that its requests may run at once", &KeyLimits::slots},
    {"sessions", "Sessions of a model that it may have open at once", &KeyLimits::sessions},
};
inline constexpr int64_t kMaxKeyLimit = 1'000'000'000;  // the least is 1

// The members that the file has for the key (docs/security.md), in order; empty members are absent.
// Thread: any.
nlohmann::ordered_json KeyToJson(const ApiKey& key);

}  // namespace rivulet
