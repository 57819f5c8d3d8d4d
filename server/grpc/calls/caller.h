// SPDX-License-Identifier: Apache-2.0
// Who makes a call, and the parts of a call beside its request.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/string_ref.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "model/model.h"
#include "rivulet/v1/inference.pb.h"
#include "rivulet/v1/session_service.pb.h"
#include "server/engine/request.h"
#include "server/grpc/calls/text_pool.h"
#include "server/keys/api_key.h"
#include "server/keys/key_ring.h"

namespace rivulet {

// Metadata key of the tenant.
inline constexpr char kTenantKey[] = "rivulet-tenant";
// Metadata key of the API key, whose value is "Bearer KEY".
inline constexpr char kAuthorizationKey[] = "authorization";

// The deadline of the call; InfiniteFuture where the client gave none.
absl::Time DeadlineOf(const grpc::CallbackServerContext& context);

struct Caller {
  std::string tenant;                 // the call uses its sessions and shares
  std::shared_ptr<const ApiKey> key;  // null where the server has no keys

  // Counts for the limits of its key; null where the server has no keys.
  std::shared_ptr<KeyAccount> account() const { return key == nullptr ? nullptr : key->account; }
  // Counts a request for its key. Errors: RESOURCE_EXHAUSTED (API_KEY_REQUEST_RATE).
  absl::Status TakeRequest() const;
  // Counts a text of `bytes` bytes for its key. Errors: RESOURCE_EXHAUSTED (API_KEY_TEXT_RATE).
  absl::Status TakeText(int64_t bytes) const;
  // The models that it can see; null: all.
  const ModelNames* models() const {
    return key != nullptr && key->models ? &*key->models : nullptr;
  }
};

// Who may call a method.
enum class Role : uint8_t { kClient, kAdmin };

// Finds the caller of a call. Every method except the health methods asks it, so no method is open
// by mistake. Thread: any.
class Callers {
 public:
  using Metadata = std::multimap<grpc::string_ref, grpc::string_ref>;

  // `keys` is borrowed; null: clients need no key, and name their tenant themselves.
  explicit Callers(KeyRing* keys) : keys_(keys) {}

  bool need_keys() const { return keys_ != nullptr; }

  // The caller that sends this metadata, who may call methods of `role`. The tenant is the key's
  // tenant; without keys it is the value of kTenantKey, "" where that is absent. Errors:
  // INVALID_ARGUMENT (TENANT_MALFORMED, also where the tenant is given twice: a client's value must
  // not overrule a value that a proxy adds); UNAUTHENTICATED (API_KEY_MISSING, API_KEY_MALFORMED,
  // API_KEY_UNKNOWN, API_KEY_EXPIRED); PERMISSION_DENIED (API_KEY_TENANT: kTenantKey names another
  // tenant than the key's; API_KEY_NOT_ADMIN). No error quotes the key.
  absl::StatusOr<Caller> CallerOf(const Metadata& metadata, Role role) const;

  // For methods without a tenant: the error of CallerOf; always OK where no keys are needed.
  absl::Status Check(const Metadata& metadata, Role role) const;

 private:
  KeyRing* const keys_;
};

// The complete spec of a Generate: with deadline, tenant, and a seed, which is drawn if neither
// request nor session has one. `turn`: of the text. Errors: the errors of ToGenerateSpec and of
// `turn`; ABORTED (PositionNeeded). Thread: any.
absl::StatusOr<GenerateSpec> SpecOf(const grpc::CallbackServerContext& context,
                                    const Caller& caller, const v1::GenerateRequest& request,
                                    const Model& model, const TextTurn& turn);

// The complete spec of a Score. Errors: the errors of ToScoreSpec and of `turn`. Thread: any.
absl::StatusOr<ScoreSpec> SpecOf(const grpc::CallbackServerContext& context, const Caller& caller,
                                 const v1::ScoreRequest& request, const Model& model,
                                 const TextTurn& turn);

// The complete spec of an Append. Errors: the errors of ToAppendSpec and of `turn`; ABORTED
// (PositionNeeded). Thread: any.
absl::StatusOr<AppendSpec> SpecOf(const grpc::CallbackServerContext& context, const Caller& caller,
                                  const v1::AppendRequest& request, const Model& model,
                                  const TextTurn& turn);

}  // namespace rivulet
