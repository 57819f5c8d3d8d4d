// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/calls/unknown_methods.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"
#include "server/grpc/calls/call_context.h"
#include "server/process/call_note.h"

namespace rivulet {
namespace {

class RefusedCall final : public grpc::ServerGenericBidiReactor {
 public:
  RefusedCall(grpc::GenericCallbackServerContext* context, const absl::Status& status,
              const RequestSinks& sinks)
      : record_(sinks) {
    BeginRecord(context, {"", "unknown"}, &record_);  // its name may be any text
    Finish(record_.End(status, nullptr));
  }
  void OnDone() override {
    record_.Write();
    delete this;
  }

 private:
  RequestRecord record_;
};

}  // namespace

UnknownMethods::UnknownMethods(const char* setting, std::initializer_list<const char*> services,
                               const Callers* callers, const RequestSinks& sinks)
    : callers_(callers),
      sinks_(sinks),
      setting_(setting),
      services_(services.begin(), services.end()) {}

grpc::ServerGenericBidiReactor* UnknownMethods::CreateReactor(
    grpc::GenericCallbackServerContext* context) {
  const CallNote note("unknown method");
  if (const absl::Status refused = callers_->Check(context->client_metadata(), Role::kClient);
      !refused.ok()) {
    return new RefusedCall(context, refused, sinks_);
  }
  // "/package.Service/Method"
  const absl::string_view method = absl::StripPrefix(context->method(), "/");
  const absl::string_view service = method.substr(0, method.find('/'));
  const bool is_elsewhere = services_.find(service) != services_.end();
  const std::string message =
      is_elsewhere
          ? absl::StrCat(service, " is not served at this address, but at that of --", setting_)
          : absl::StrCat("this server has no method ", Quoted(method));
  return new RefusedCall(context,
                         MakeError(absl::StatusCode::kUnimplemented, message,
                                   {is_elsewhere ? "SERVICE_ELSEWHERE" : "METHOD_UNKNOWN", "", {}}),
                         sinks_);
}

}  // namespace rivulet
