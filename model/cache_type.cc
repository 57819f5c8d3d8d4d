// SPDX-License-Identifier: Apache-2.0
#include "model/cache_type.h"

#include "absl/strings/str_cat.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

constexpr absl::string_view kMark = "-kv-";

absl::string_view CacheOf(absl::string_view numerics_id) {
  const size_t at = numerics_id.rfind(kMark);
  return at == absl::string_view::npos ? "" : numerics_id.substr(at + kMark.size());
}

}  // namespace

const char* CacheTypeName(kernels::CacheType type) {
  switch (type) {
    case kernels::CacheType::kF32:
      return "f32";
    case kernels::CacheType::kF16:
      return "f16";
    case kernels::CacheType::kBf16:
      return "bf16";
  }
  return "";
}

absl::StatusOr<kernels::CacheType> ParseCacheType(absl::string_view name) {
  for (const auto type :
       {kernels::CacheType::kF32, kernels::CacheType::kF16, kernels::CacheType::kBf16}) {
    if (name == CacheTypeName(type)) return type;
  }
  return InvalidField("OPTION_OUT_OF_RANGE", "kv-cache",
                      absl::StrCat("kv-cache is \"", name, "\"; allowed: f32, f16, bf16"));
}

std::string CacheNumerics(kernels::CacheType type) {
  return type == kernels::CacheType::kF32 ? "" : absl::StrCat(kMark, CacheTypeName(type));
}

bool SameCache(absl::string_view numerics_id, absl::string_view other) {
  return CacheOf(numerics_id) == CacheOf(other);
}

}  // namespace rivulet
