// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace rivulet {

// SHA-256 of the bytes: 64 lower-case hexadecimal digits. Thread: any.
std::string Sha256Hex(absl::string_view bytes);

}  // namespace rivulet
