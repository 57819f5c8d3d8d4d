// SPDX-License-Identifier: Apache-2.0
// UnknownMethods: answers calls of methods that a listener does not serve with UNIMPLEMENTED. The
// message says which listener serves the method, if any; gRPC's own answer has no message.
#pragma once

#include <grpcpp/generic/async_generic_service.h>

#include <functional>
#include <initializer_list>
#include <set>
#include <string>

#include "server/grpc/calls/caller.h"
#include "server/grpc/calls/server_calls.h"

namespace rivulet {

// Thread: any. Outlives the gRPC server that it is registered with.
class UnknownMethods final : public grpc::CallbackGenericService {
 public:
  // `services`: full names of services that the listener of setting `setting` serves instead.
  // `callers`: who may learn that. `callers` and the sinks outlive this object.
  UnknownMethods(const char* setting, std::initializer_list<const char*> services,
                 const Callers* callers, const RequestSinks& sinks);

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override;

 private:
  const Callers* const callers_;
  const RequestSinks sinks_;
  const std::string setting_;
  const std::set<std::string, std::less<>> services_;
};

}  // namespace rivulet
