// SPDX-License-Identifier: Apache-2.0
// Who makes a call, and what a call says beside its request.
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
// ... and of the API key, as "Bearer KEY".
inline constexpr char kAuthorizationKey[] = "authorization";

// InfiniteFuture where the client gave none.
absl::Time DeadlineOf(const grpc::CallbackServerContext& context);

struct Caller {
  std::string tenant;                 // whose sessions and shares the call has
  std::shared_ptr<const ApiKey> key;  // null where the server has no keys

  // What its key may still take; null where the server has no keys.
  std::shared_ptr<KeyAccount> account() const { return key == nullptr ? nullptr : key->account; }
  // It makes a request, which counts for its key. Errors: RESOURCE_EXHAUSTED
  // (API_KEY_REQUEST_RATE).
  absl::Status TakeRequest() const;
  // Its request has a text of so many bytes, which count for its key. Errors: RESOURCE_EXHAUSTED
  // (API_KEY_TEXT_RATE).
  absl::Status TakeText(int64_t bytes) const;
  // The models that exist for it; null: all.
  const ModelNames* models() const {
    return key != nullptr && key->models ? &*key->models : nullptr;
  }
};

// Whom a method is for.
enum class Role : uint8_t { kClient, kAdmin };

// Finds out who makes a call. Every method but those of health asks it, so what is not asked for
// here is open to nobody. Thread: any.
class Callers {
 public:
  using Metadata = std::multimap<grpc::string_ref, grpc::string_ref>;

  // `keys` is borrowed; null: clients need no key, and name their tenant themselves.
  explicit Callers(KeyRing* keys) : keys_(keys) {}

  bool need_keys() const { return keys_ != nullptr; }

  // Who sends this metadata and may call methods of `role`. The tenant is the key's; without keys
  // it is the value of kTenantKey, "" where that is absent. Errors: INVALID_ARGUMENT
  // (TENANT_MALFORMED, also where the tenant is given twice: a proxy that adds its own value to one
  // of the client's must not be overruled); UNAUTHENTICATED (API_KEY_MISSING, API_KEY_MALFORMED,
  // API_KEY_UNKNOWN, API_KEY_EXPIRED); PERMISSION_DENIED (API_KEY_TENANT: kTenantKey names another
  // tenant than the key's; API_KEY_NOT_ADMIN). None quotes the key.
  absl::StatusOr<Caller> CallerOf(const Metadata& metadata, Role role) const;

  // For methods that have no tenant: the error of CallerOf, but OK for everybody where no keys are
  // needed.
  absl::Status Check(const Metadata& metadata, Role role) const;

 private:
  KeyRing* const keys_;
};

// What a Generate asks the engine for, complete: with deadline, tenant, and a seed that is drawn
// where neither request nor session has one. Errors: those of ToGenerateSpec; that of `turn`, which
// is the text's; ABORTED (POSITION_NEEDED): a repeated call that feeds a session would feed it
// twice, and go on after tokens that the client never saw; at a position it cannot. Thread: any.
absl::StatusOr<GenerateSpec> SpecOf(const grpc::CallbackServerContext& context,
                                    const Caller& caller, const v1::GenerateRequest& request,
                                    const Model& model, const TextTurn& turn);

// What a Score asks for, complete. Errors: those of ToScoreSpec and that of `turn`. Thread: any.
absl::StatusOr<ScoreSpec> SpecOf(const grpc::CallbackServerContext& context, const Caller& caller,
                                 const v1::ScoreRequest& request, const Model& model,
                                 const TextTurn& turn);

// What an Append asks for, complete. Errors: those of ToAppendSpec, that of `turn`, and ABORTED
// (POSITION_NEEDED) as for a Generate. Thread: any.
absl::StatusOr<AppendSpec> SpecOf(const grpc::CallbackServerContext& context, const Caller& caller,
                                  const v1::AppendRequest& request, const Model& model,
                                  const TextTurn& turn);

}  // namespace rivulet
