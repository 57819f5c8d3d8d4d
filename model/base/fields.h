// SPDX-License-Identifier: Apache-2.0
// Visits all fields of a struct with their names.
#pragma once

#include <type_traits>

#include "absl/strings/string_view.h"

// Behind `struct Struct`, in its namespace: defines VisitFields(visit, object, others...), which
// calls visit("name", object.name, others.name...) for each field, in this order. It compiles only
// if each field of Struct is named here once, and there are at most 64.
#define RIVULET_FIELDS(Struct, ...)                                    \
  template <typename Visit, typename Object, typename... Others>       \
  requires std::is_same_v<std::remove_const_t<Object>, Struct>         \
  void VisitFields(Visit&& visit, Object& object, Others&... others) { \
    [[maybe_unused]] auto& [__VA_ARGS__] = object;                     \
    RIVULET_SCAN_64(RIVULET_VISIT_FIRST(__VA_ARGS__))                  \
  }

// A macro cannot call itself. So RIVULET_VISIT_FIRST leaves a call for the remaining fields, which
// the preprocessor expands when it scans the result again.
#define RIVULET_VISIT_FIRST(name, ...)                          \
  visit(absl::string_view(#name), object.name, others.name...); \
  __VA_OPT__(RIVULET_VISIT_OTHERS RIVULET_NO_ARGUMENTS(__VA_ARGS__))
#define RIVULET_VISIT_OTHERS() RIVULET_VISIT_FIRST
#define RIVULET_NO_ARGUMENTS ()
#define RIVULET_SCAN(...) __VA_ARGS__
#define RIVULET_SCAN_4(...) RIVULET_SCAN(RIVULET_SCAN(RIVULET_SCAN(RIVULET_SCAN(__VA_ARGS__))))
#define RIVULET_SCAN_16(...) \
  RIVULET_SCAN_4(RIVULET_SCAN_4(RIVULET_SCAN_4(RIVULET_SCAN_4(__VA_ARGS__))))
#define RIVULET_SCAN_64(...) \
  RIVULET_SCAN_16(RIVULET_SCAN_16(RIVULET_SCAN_16(RIVULET_SCAN_16(__VA_ARGS__))))
