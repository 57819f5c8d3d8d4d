// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/calls/caller.h"

#include <grpc/support/time.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "model/base/error.h"
#include "model/base/random_word.h"
#include "model/base/strict_json.h"
#include "server/engine/validate.h"
#include "server/grpc/wire/convert.h"

namespace rivulet {
namespace {

using Metadata = Callers::Metadata;

constexpr absl::string_view kScheme = "Bearer ";
constexpr size_t kMaxKeyBytes = 512;

absl::Status TenantMalformed(absl::string_view what) {
  return InvalidField("TENANT_MALFORMED", kTenantKey,
                      absl::StrCat("the metadata ", kTenantKey, " ", what,
                                   "; allowed: one, of 1 to 64 of A-Z a-z 0-9 . _ -"));
}

// The value of kTenantKey; "" where it is absent.
absl::StatusOr<std::string> NamedTenant(const Metadata& metadata) {
  const auto [begin, end] = metadata.equal_range(kTenantKey);
  if (begin == end) return std::string();
  if (std::next(begin) != end) return TenantMalformed("is given more than once");
  const absl::string_view tenant(begin->second.data(), begin->second.size());
  if (!IsTenantName(tenant)) return TenantMalformed(absl::StrCat("is ", Quoted(tenant)));
  return std::string(tenant);
}

absl::Status Unauthenticated(absl::string_view reason, absl::string_view message) {
  return MakeError(absl::StatusCode::kUnauthenticated, message,
                   {std::string(reason), kAuthorizationKey, {}});
}

absl::Status Denied(absl::string_view reason, absl::string_view field, absl::string_view message) {
  return MakeError(absl::StatusCode::kPermissionDenied, message,
                   {std::string(reason), std::string(field), {}});
}

// The key that a client shows.
absl::StatusOr<absl::string_view> ShownKey(const Metadata& metadata) {
  const auto [begin, end] = metadata.equal_range(kAuthorizationKey);
  if (begin == end) {
    return Unauthenticated("API_KEY_MISSING",
                           "this server needs a key: the metadata authorization, Bearer KEY");
  }
  const absl::string_view value(begin->second.data(), begin->second.size());
  const absl::string_view key = absl::ClippedSubstr(value, kScheme.size());
  const bool is_bearer =
      absl::StartsWithIgnoreCase(value, kScheme) && !key.empty() && key.size() <= kMaxKeyBytes &&
      std::all_of(key.begin(), key.end(),
                  [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); });
  if (!is_bearer || std::next(begin) != end) {
    return Unauthenticated(
        "API_KEY_MALFORMED",
        absl::StrCat("the metadata authorization must be given once, as Bearer KEY with a key of 1 "
                     "to ",
                     kMaxKeyBytes, " visible ASCII characters"));
  }
  return key;
}

// The client's library has sent this call before and does not know whether it had an effect.
bool IsRepeated(const grpc::CallbackServerContext& context) {
  return context.client_metadata().contains("grpc-previous-rpc-attempts");
}

}  // namespace

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  // Not context.deadline(): its nanoseconds since 1970 overflow in the year 2262, and a client may
  // name a later deadline.
  const gpr_timespec deadline = gpr_convert_clock_type(context.raw_deadline(), GPR_CLOCK_REALTIME);
  if (gpr_time_cmp(deadline, gpr_inf_future(GPR_CLOCK_REALTIME)) == 0) {
    return absl::InfiniteFuture();
  }
  return absl::FromUnixSeconds(deadline.tv_sec) + absl::Nanoseconds(deadline.tv_nsec);
}

absl::Status Caller::TakeRequest() const {
  return key == nullptr ? absl::OkStatus() : key->account->TakeRequest(absl::Now());
}

absl::Status Caller::TakeText(int64_t bytes) const {
  return key == nullptr ? absl::OkStatus() : key->account->TakeText(bytes, absl::Now());
}

absl::StatusOr<Caller> Callers::CallerOf(const Metadata& metadata, Role role) const {
  Caller caller;
  if (keys_ != nullptr) {
    const absl::Time now = absl::Now();
    RIVULET_ASSIGN_OR_RETURN(const absl::string_view shown, ShownKey(metadata));
    caller.key = keys_->Find(shown);
    if (caller.key == nullptr) {
      return Unauthenticated("API_KEY_UNKNOWN", "this server does not know the key");
    }
    if (now >= caller.key->expires) {
      return Unauthenticated("API_KEY_EXPIRED",
                             absl::StrCat("the key expired at ", ExpiryText(caller.key->expires)));
    }
  }
  RIVULET_ASSIGN_OR_RETURN(caller.tenant, NamedTenant(metadata));
  if (caller.key == nullptr) return caller;
  if (!caller.tenant.empty() && caller.tenant != caller.key->tenant) {
    return Denied("API_KEY_TENANT", kTenantKey,
                  absl::StrCat("the metadata ", kTenantKey, " is ", Quoted(caller.tenant),
                               ", which is not the tenant of the key; leave it out"));
  }
  if (role == Role::kAdmin && !caller.key->admin) {
    return Denied("API_KEY_NOT_ADMIN", kAuthorizationKey, "this method needs the key of an admin");
  }
  caller.tenant = caller.key->tenant;
  return caller;
}

absl::Status Callers::Check(const Metadata& metadata, Role role) const {
  return need_keys() ? CallerOf(metadata, role).status() : absl::OkStatus();
}

absl::StatusOr<GenerateSpec> SpecOf(const grpc::CallbackServerContext& context,
                                    const Caller& caller, const v1::GenerateRequest& request,
                                    const Model& model, const TextTurn& turn) {
  RIVULET_ASSIGN_OR_RETURN(GenerateSpec spec, ToGenerateSpec(request, model, turn.Stopped()));
  spec.deadline = DeadlineOf(context);
  spec.tenant = caller.tenant;
  spec.key = caller.account();
  if (spec.session) {
    spec.session->tenant = spec.tenant;
    spec.session->repeated = IsRepeated(context) || request.has_resume();
    if (spec.session->repeated && !spec.session->position) return PositionNeeded();
  }
  if (!request.sampling().has_seed() && !spec.session_seed) spec.sampling.seed = RandomWord();
  return spec;
}

absl::StatusOr<ScoreSpec> SpecOf(const grpc::CallbackServerContext& context, const Caller& caller,
                                 const v1::ScoreRequest& request, const Model& model,
                                 const TextTurn& turn) {
  RIVULET_ASSIGN_OR_RETURN(ScoreSpec spec, ToScoreSpec(request, model, turn.Stopped()));
  spec.tenant = caller.tenant;
  spec.key = caller.account();
  spec.deadline = DeadlineOf(context);
  return spec;
}

absl::StatusOr<AppendSpec> SpecOf(const grpc::CallbackServerContext& context, const Caller& caller,
                                  const v1::AppendRequest& request, const Model& model,
                                  const TextTurn& turn) {
  RIVULET_ASSIGN_OR_RETURN(AppendSpec spec, ToAppendSpec(request, model, turn.Stopped()));
  if (IsRepeated(context) && !spec.session.position) return PositionNeeded();
  spec.session.tenant = caller.tenant;
  spec.key = caller.account();
  spec.deadline = DeadlineOf(context);
  return spec;
}

}  // namespace rivulet
