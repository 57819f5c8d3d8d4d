// SPDX-License-Identifier: Apache-2.0
// The content of a StateArchive entry, from given bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "server/sessions/replicated/state_archive.h"

namespace rivulet {

inline std::function<ArchivedState()> Archived(std::string name, std::string bytes) {
  return [name = std::move(name), bytes = std::move(bytes)] {
    return ArchivedState{name, static_cast<int64_t>(bytes.size()), [bytes] { return bytes; }};
  };
}

}  // namespace rivulet
