// SPDX-License-Identifier: Apache-2.0
// ServerConfig: all settings of a server. Flags and keys of the JSON file have the same names and
// come from one table, settings.cc; flags win over the file, the file over the defaults.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/backend_options.h"
#include "model/weight_choice.h"

namespace rivulet {

struct ServerConfig {
  // Behaviour.
  std::vector<std::string> models;  // DIR or NAME=DIR; at least one, unless there is a repository
  std::vector<std::string> model_repositories;  // directories of model directories, to load from
  std::string admin_listen;                     // HOST:PORT for operators; "" = nowhere
  std::string metrics_listen;                   // HOST:PORT of /metrics; "" = nowhere
  bool expert_metrics = false;                  // rivulet_expert_rows_total on that page
  std::string listen = "127.0.0.1:50051";  // HOST:PORT, port 0 = any free port; "" = in-process
  std::string tls_cert;                    // PEM: of the server, both listeners; "" = plaintext
  std::string tls_key;                     // ... its private key
  std::string tls_client_ca;     // CA certificates of the clients that may connect; "" = any
  std::string keys_file;         // JSON: the keys that clients may use; "" = clients need no key
  std::string backend = "auto";  // auto (cuda if there is a GPU, else cpu), cpu, cuda
  std::string precision = "default";  // of matrix products on CUDA: default, float32
  std::string products = "auto";      // matrix products on CUDA: auto, own
  std::string weights = "auto";       // how the CPU backend keeps matrices: ParseWeightChoice
  // ... of single models: NAME=TYPE[,head=TYPE].
  std::vector<std::string> model_weights;
  std::optional<int> slots;          // per model: sequences that hold a state; nullopt: auto
  ContextChoice max_context;         // tokens of a sequence with softmax attention
  std::string kv_cache = "f32";      // f32, f16, bf16 (CPU)
  std::string speculation = "auto";  // drafts of the next tokens (CPU): auto, off
  int max_drafts = 8;                // of a sample in one step
  int speculating_rows = 4;          // per model: samples with drafts in one step
  int max_queue = 1024;              // per model: samples and scores that may wait for a slot
  int max_tenant_queue = 0;          // of one tenant, beside the part kept for others; 0 = no cap
  int max_request_tokens = 1 << 26;  // tokens of one request, over all its samples
  int max_tenant_slots = 0;          // slots of one tenant at once; 0 = all
  int reader_timeout_seconds = 30;  // a reply that is full and unread this long is ended; 0 = never
  // Per model: host memory for states of replies that gave their slots to others; 0 = the need of
  // preemption, and 256 MiB.
  int parked_state_mib = 0;
  int max_open_sessions = 10000;  // per model
  int max_tenant_sessions = 0;    // of one tenant; 0 = at most 7 times the free places
  // Where replicas share their sessions: none, dir:PATH, or the URL of a Redis (redis_url.h).
  std::string session_store = "none";
  std::string session_store_password_file;            // of the URL's user; "" = no password
  std::string session_store_sentinel_user;            // "" = the Sentinels' user "default"
  std::string session_store_sentinel_password_file;   // "" = no password
  std::string session_store_ca;                       // PEM: CA certificates; "" = the system's
  std::string session_store_cert;                     // PEM: the server's own; "" = none
  std::string session_store_key;                      // ... its private key
  std::string session_store_server_name;              // name in Redis' certificate; "" = its host
  std::string session_store_key_prefix = "rivulet:";  // of all keys in Redis
  int session_store_tenant_mib = 0;           // of one tenant's sessions there; 0 = no limit
  std::string session_store_encryption_keys;  // of a Sealer; "" = the store is not encrypted
  // Where replicas publish states of these sessions: store (the same place), none or dir:PATH.
  std::string session_states = "store";
  int session_states_mib = 1024;         // most for these states, of all replicas
  int session_state_mib = 1024;          // per model: memory for kept states
  std::string state_dir;                 // files for states beyond that; "" = none
  int state_disk_mib = 4096;             // per model: most for these files
  int prefix_cache_mib = 256;            // per model: part of both for cached prompts
  std::vector<std::string> warm_states;  // snapshots that every tenant's prompts may begin with
  std::string snapshot_key_file;         // signs snapshots; "" = unsigned
  int drain_delay_seconds = 0;           // before the drain: NOT_SERVING, still taking requests
  int drain_seconds = 30;                // how long running replies may go on in the drain
  bool reflection = true;                // gRPC server reflection
  std::string log_level = "info";        // least level of the log's lines
  std::string request_log = "none";      // path, "stderr" or "none"
  std::string otlp_endpoint;             // of a collector of traces; "" = no spans are sent
  std::string otlp_ca;                   // PEM: CA certificates; "" = the system's
  double trace_sample = 1;               // traced fraction of the requests without traceparent
  double request_log_sample = 1;         // logged fraction of the successful requests
  int max_message_mib = 4;               // largest request
  int max_streams = 1000;                // requests at once on one connection
  int max_multiplexed = 4096;            // requests at once on one Multiplex stream
  int max_connections = 0;               // at once; 0 = what the descriptors allow, at most 65,536
  int max_connections_per_address = 0;   // of one IP address; 0 = no limit
  int max_connection_idle_seconds = 0;   // without a request, then GOAWAY; 0 = never
  int max_connection_age_seconds = 0;    // then GOAWAY, running replies go on; 0 = never
  int listener_timeout_seconds = 60;     // a silent listener ends the process; 0 = never
  int restore_memory_mib = 512;          // of all snapshots that arrive; the same for leaving
  int restore_timeout_seconds = 30;      // for each 64 KiB of a snapshot to come in; 0 = for ever
  // Performance.
  int checkpoint_tokens = 512;  // tokens between two states that a session keeps
  int device = 0;               // of the CUDA backend, as CUDA numbers them
  int threads = 0;              // of the CPU backend; 0 = the cores this process may use
};

// All faults of the settings themselves, each INVALID_ARGUMENT naming the setting, its value and
// what is allowed. No file is read.
std::vector<absl::Status> ServerConfigFaults(const ServerConfig& config);
// `config` with the default in place of each value that is out of range or not among the choices,
// so that a further check does not find the same fault again.
ServerConfig WithinLimits(ServerConfig config);
// OK, or the first of ServerConfigFaults.
absl::Status ValidateServerConfig(const ServerConfig& config);

// Sets the settings that the JSON object in `text` names. Errors: INVALID_ARGUMENT naming the
// unknown, repeated or mistyped key.
absl::Status ApplyServerConfigJson(absl::string_view text, ServerConfig* config);

// All settings as a JSON object that ApplyServerConfigJson reads back.
std::string ServerConfigToJson(const ServerConfig& config);

// What the command line of rivulet-server asks for.
enum class ServerAction : uint8_t {
  kServe,
  kCheck,  // --check-config: report what is wrong and exit
  kShow,   // --help, --version, --print-config: print `output` on stdout and exit
};
struct ServerCommand {
  ServerConfig config;
  ServerAction action = ServerAction::kServe;
  std::string output;
  std::vector<absl::Status> faults;  // with kCheck: of the flags and the --config file
};

// Errors: INVALID_ARGUMENT (flags, file content), NOT_FOUND (no such --config file). The
// configuration is valid, except with kCheck, which leaves it unchecked.
absl::StatusOr<ServerCommand> ParseServerCommand(int argc, const char* const* argv);

// A value of --model.
struct ModelPlace {
  std::string name;  // "": the model has the name that its directory gives it
  std::string directory;
};

// Splits "DIR" or "NAME=DIR". Text with a "/" before its first "=" is a DIR. Errors:
// INVALID_ARGUMENT (the name, or no directory).
absl::StatusOr<ModelPlace> ParseModelPlace(absl::string_view text);

// A value of --model-weights.
struct ModelWeights {
  std::string name;
  WeightChoice choice;
};

// Splits "NAME=TYPE[,head=TYPE]". Errors: INVALID_ARGUMENT (the form, the name or the type).
absl::StatusOr<ModelWeights> ParseModelWeights(absl::string_view text);

// The weights of `model`: its own of model-weights, else those of all models. Errors:
// INVALID_ARGUMENT (a value of weights or model-weights).
absl::StatusOr<WeightChoice> WeightsOf(const ServerConfig& config, absl::string_view model);

// Splits "HOST:PORT" or "[IPV6]:PORT", the value of `setting`. Errors: INVALID_ARGUMENT.
struct HostPort {
  std::string host;
  int port = 0;
};
absl::StatusOr<HostPort> ParseHostPort(absl::string_view address,
                                       absl::string_view setting = "listen");

}  // namespace rivulet
