// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/calls/caller.h"

#include <grpc/support/time.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"

namespace rivulet {
namespace {

constexpr size_t kMaxTenantBytes = 64;

absl::Status TenantMalformed(absl::string_view what) {
  return InvalidField(
      "TENANT_MALFORMED", kTenantKey,
      absl::StrCat("the metadata ", kTenantKey, " ", what, "; allowed: one, of 1 to ",
                   kMaxTenantBytes, " of A-Z a-z 0-9 . _ -"));
}

bool IsTenantByte(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
}

}  // namespace

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  // Not context.deadline(): its nanoseconds since 1970 overflow in the year 2262, and a client may
  // name a later one.
  const gpr_timespec deadline = gpr_convert_clock_type(context.raw_deadline(), GPR_CLOCK_REALTIME);
  if (gpr_time_cmp(deadline, gpr_inf_future(GPR_CLOCK_REALTIME)) == 0) {
    return absl::InfiniteFuture();
  }
  return absl::FromUnixSeconds(deadline.tv_sec) + absl::Nanoseconds(deadline.tv_nsec);
}

absl::StatusOr<std::string> TenantOf(const grpc::CallbackServerContext& context) {
  const auto [begin, end] = context.client_metadata().equal_range(kTenantKey);
  if (begin == end) return std::string();
  if (std::next(begin) != end) return TenantMalformed("is given more than once");
  const absl::string_view tenant(begin->second.data(), begin->second.size());
  if (tenant.empty() || tenant.size() > kMaxTenantBytes ||
      !std::all_of(tenant.begin(), tenant.end(), IsTenantByte)) {
    return TenantMalformed(absl::StrCat("is ", Quoted(tenant)));
  }
  return std::string(tenant);
}

bool IsRepeated(const grpc::CallbackServerContext& context) {
  return context.client_metadata().contains("grpc-previous-rpc-attempts");
}

}  // namespace rivulet
