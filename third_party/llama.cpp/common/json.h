// SPDX-License-Identifier: Apache-2.0
// Not of llama.cpp: what its template engine needs of JSON, without llama.cpp's own wrapper.
#pragma once

#include "nlohmann/json.hpp"

using common_json = nlohmann::ordered_json;
