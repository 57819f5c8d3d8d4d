// SPDX-License-Identifier: Apache-2.0
// TLS credentials of a listener whose files may change while it serves.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "absl/status/statusor.h"
#include "server/grpc/connections/tls_files.h"

namespace rivulet {

// Credentials for one listener. They have a thread that checks the files for changes. New
// connections use the latest content; open connections keep theirs. With `files.client_ca` only
// clients that show a certificate of these authorities can connect (mutual TLS). Errors: as
// ReadTlsFiles. `on_end`: of TlsReloader; called until the credentials end.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeTlsCredentials(
    const TlsFiles& files, TlsReloader::OnEnd on_end);

}  // namespace rivulet
