// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/connections/tls_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "model/base/error.h"
#include "server/base/file_watch.h"

namespace rivulet {
namespace {

// gRPC's C++ interface can watch files, but a file that it cannot use ends all new connections. Its
// C interface asks for new files at every handshake and otherwise keeps the old files.
class TlsCredentials final : public grpc::ServerCredentials {
 public:
  TlsCredentials(std::unique_ptr<TlsReloader> reloader, bool verify_clients)
      : reloader_(std::move(reloader)),
        watch_("tls-files", FileWatch::kPeriod,
               [reloader = reloader_](bool) { reloader->Look(absl::Now()); }),
        credentials_(grpc_ssl_server_credentials_create_with_options(
            grpc_ssl_server_credentials_create_options_using_config_fetcher(
                verify_clients ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                               : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
                &TlsCredentials::Fetch, reloader_.get()))) {}
  ~TlsCredentials() override { grpc_server_credentials_release(credentials_); }

  // Calls are authenticated elsewhere.
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  static grpc_ssl_certificate_config_reload_status Fetch(
      void* reloader, grpc_ssl_server_certificate_config** config) {
    const auto identity = static_cast<TlsReloader*>(reloader)->TakeNew();
    if (!identity.has_value()) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair{identity->key.c_str(), identity->cert.c_str()};
    // gRPC requires authorities even if no client is asked for a certificate.
    const std::string& authorities =
        identity->client_ca.empty() ? identity->cert : identity->client_ca;
    *config = grpc_ssl_server_certificate_config_create(authorities.c_str(), &pair, 1);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  // gRPC uses these until the listener is shut down, and a listener outlives neither.
  const std::shared_ptr<TlsReloader> reloader_;
  const FileWatch watch_;
  grpc_server_credentials* const credentials_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeTlsCredentials(
    const TlsFiles& files, TlsReloader::OnEnd on_end) {
  RIVULET_ASSIGN_OR_RETURN(std::unique_ptr<TlsReloader> reloader,
                           TlsReloader::Create(files, absl::Now(), std::move(on_end)));
  return std::make_shared<TlsCredentials>(std::move(reloader), !files.client_ca.empty());
}

}  // namespace rivulet
