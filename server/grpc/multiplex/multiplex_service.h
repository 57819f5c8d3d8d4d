// SPDX-License-Identifier: Apache-2.0
// MultiplexService: the RPC of the service, for the models of one server.
#pragma once

#include "rivulet/v1/multiplex.grpc.pb.h"
#include "server/grpc/calls/rpc_service.h"
#include "server/grpc/calls/served_models.h"
#include "server/grpc/calls/server_calls.h"
#include "server/grpc/multiplex/multiplex_reactor.h"

namespace rivulet {

// Thread: any; gRPC calls it from its own threads.
class MultiplexService final : public RpcService {
 public:
  // `max_open`: the most requests open at once on a stream. Borrowed arguments must outlive the
  // gRPC server that this service is registered with.
  MultiplexService(const ServedModels* models, int max_open, ServerCalls* calls)
      : RpcService(v1::MultiplexService::service_full_name(), &calls->callers, Role::kClient,
                   &calls->errors),
        models_(models),
        max_open_(max_open),
        calls_(calls) {
    Handle(this, &MultiplexService::Multiplex);
  }

  MultiplexStream* Multiplex(grpc::CallbackServerContext* context) {
    return new MultiplexReactor(context, models_, max_open_, &streams_, calls_);
  }

  // Ends every stream as soon as it has no open request.
  void Drain() { streams_.Drain(); }

 private:
  const ServedModels* const models_;
  const int max_open_;
  ServerCalls* const calls_;
  MultiplexStreams streams_;
};

}  // namespace rivulet
