// SPDX-License-Identifier: Apache-2.0
#include "server/config/settings.h"

#include <limits>
#include <utility>

namespace rivulet {
namespace {

Setting Choice(const char* name, const char* help, std::string ServerConfig::*member,
               std::vector<std::string> choices) {
  return {name, "NAME", help, member, std::move(choices)};
}

Setting Number(const char* name, const char* help, int ServerConfig::*member, int min, int max) {
  return {name, "N", help, member, {}, min, max};
}

// Settings of the store that replicas share.
std::vector<Setting> SessionStoreSettings() {
  using C = ServerConfig;
  return {
      {"session-store", "WHERE",
       "Where replicas share their sessions, so that each of them serves every session: none, "
       "dir:PATH (processes of one machine), redis://[USER@]HOST[:PORT][/DATABASE] or "
       "redis+sentinel://[USER@]HOST[:PORT],.../MASTER[/DATABASE]; with rediss instead of redis "
       "for TLS. With a store, the limits on open sessions count those of all replicas",
       &C::session_store},
      {"session-store-password-file", "FILE",
       "File with the password of that user of Redis in its first line",
       &C::session_store_password_file},
      {"session-store-sentinel-user", "NAME", "User of the Sentinels",
       &C::session_store_sentinel_user},
      {"session-store-sentinel-password-file", "FILE",
       "File with the password of the Sentinels in its first line",
       &C::session_store_sentinel_password_file},
      {"session-store-ca", "FILE",
       "CA certificates (PEM) that signed Redis's certificate. Default: the system's",
       &C::session_store_ca},
      {"session-store-cert", "FILE", "Client certificate (PEM) for Redis. Default: none",
       &C::session_store_cert},
      {"session-store-key", "FILE", "PEM file with the private key of --session-store-cert",
       &C::session_store_key},
      {"session-store-server-name", "NAME",
       "Name that the certificate of Redis must have. Default: the host that is connected to",
       &C::session_store_server_name},
      {"session-store-key-prefix", "PREFIX",
       "Prefix of all keys in Redis: replicas with another prefix share nothing with these",
       &C::session_store_key_prefix},
      {"session-store-encryption-keys", "FILE",
       "Encrypt what the store holds with the keys in this file (docs/security.md). A changed file "
       "is used within a second. Default: it holds sessions in plain text",
       &C::session_store_encryption_keys},
      Number(
          "session-store-tenant-mib",
          "Maximum size of one tenant's sessions of all models in the store: tokens and records, "
          "256 bytes added for each piece, also of closed sessions until they expire. Beyond "
          "it, opening, forking, restoring and extending sessions is refused; 0: no limit",
          &C::session_store_tenant_mib, 0, 1 << 24),
      {"session-states", "WHERE",
       "Where replicas publish states of shared sessions, so that a replica that takes over a "
       "session does not process all of its tokens again: store (where the sessions are), none, or "
       "dir:PATH (a directory that all replicas see)",
       &C::session_states},
      Number("session-states-mib",
             "Space for published states, of all replicas together; those that expire first make "
             "room",
             &C::session_states_mib, 1, 1 << 24),
  };
}

// Settings of the states that a model keeps between requests.
std::vector<Setting> StateSettings() {
  using C = ServerConfig;
  return {
      Number("max-open-sessions", "Sessions of a model that may be open at once",
             &C::max_open_sessions, 0, 1 << 24),
      Number("max-tenant-sessions",
             "Sessions of a model that one tenant may have open at once; 0: at most 7 times the "
             "number that is still free",
             &C::max_tenant_sessions, 0, 1 << 24),
      {"snapshot-key-file", "FILE",
       "File with the key that signs snapshots of sessions, at least 16 bytes; only snapshots "
       "signed with it are restored. Default: snapshots are unsigned",
       &C::snapshot_key_file},
      Number(
          "restore-memory-mib",
          "Memory for snapshots that clients are sending to RestoreSession, and as much for those "
          "that they are reading from SnapshotSession; one tenant may use at most 7 times what is "
          "still free",
          &C::restore_memory_mib, 2, 1 << 24),
      Number("restore-timeout-seconds",
             "End a RestoreSession whose client needs longer than this for 64 KiB of the "
             "snapshot; 0: never",
             &C::restore_timeout_seconds, 0, 86400),
      Number("session-state-mib",
             "Memory of a model for the states of sessions and cached prompts between requests; "
             "the least recently used ones beyond it move to files, or are dropped and computed "
             "again when needed",
             &C::session_state_mib, 0, 1 << 24),
      Number("parked-state-mib",
             "Host memory for states of parked and of preempted replies of a model; at least twice "
             "the states of all slots. 0: that, and 256 MiB",
             &C::parked_state_mib, 0, 1 << 24),
      {"state-dir", "DIR",
       "Directory for states that do not fit into memory. It is created if missing, emptied at "
       "start and end, and used by one server at a time. Default: states are not written to files",
       &C::state_dir},
      Number("state-disk-mib", "Maximum disk space for the states of a model", &C::state_disk_mib,
             0, 1 << 30),
      Number("prefix-cache-mib",
             "Maximum memory and disk space for the cached prompts of a model; 0: no prompt cache",
             &C::prefix_cache_mib, 0, 1 << 24),
      {"warm-states", "PATH",
       "Snapshot of a session, or a directory of snapshots, from which the cached prompts of every "
       "tenant may start; repeatable",
       &C::warm_states},
      Number("checkpoint-tokens",
             "Keep a state after every N tokens of a long request on a session, so that a rewind "
             "recomputes few tokens",
             &C::checkpoint_tokens, 1, 1 << 30),
  };
}

// The models, the addresses and the hardware.
std::vector<Setting> ServingSettings() {
  using C = ServerConfig;
  return {
      {"model", "[NAME=]DIR",
       "Model directory or GGUF file. NAME= overrides the model's name. Repeat the flag for "
       "several "
       "models",
       &C::models},
      {"listen", "HOST:PORT", "Address to listen on; port 0 takes a free one", &C::listen},
      {"admin-listen", "HOST:PORT",
       "Address of AdminService, which loads and unloads models and sets the log level at run "
       "time. Without --keys-file it is unauthenticated: keep it on loopback. Default: not served",
       &C::admin_listen},
      {"metrics-listen", "HOST:PORT",
       "Address that answers GET /metrics over HTTP for Prometheus. It is unauthenticated: let "
       "only Prometheus reach it. Default: not served",
       &C::metrics_listen},
      {"expert-metrics", "BOOL",
       "On the page of --metrics-listen, count the token rows of each expert of models with a "
       "mixture of experts (CPU): a series for each layer and expert",
       &C::expert_metrics},
      {"model-repository", "DIR",
       "Directory of model directories and GGUF files: DIR/NAME or DIR/NAME.gguf may be loaded by "
       "its NAME; repeatable",
       &C::model_repositories},
      Choice("backend", "auto (cuda where there is one, else cpu), cpu or cuda", &C::backend,
             {"auto", "cpu", "cuda"}),
      Choice("precision", "Matrix products on CUDA: default or float32", &C::precision,
             {"default", "float32"}),
      Choice(
          "products",
          "Matrix products on CUDA: auto (cuBLASLt for large batches if it reproduces our kernels "
          "bit for bit, otherwise our kernels) or own (our kernels). The tokens are the same",
          &C::products, {"auto", "own"}),
      {"weights", "TYPE[,head=TYPE]",
       "Matrix weights in memory: auto, f32, f16, bf16, int8 or int4. On a GPU int8 alone is used; "
       "otherwise precision sets the type. head= sets embedding and head; without it they have the "
       "same type, or int8 where TYPE is int4",
       &C::weights},
      {"model-weights", "NAME=TYPE[,head=TYPE]",
       "Weights of the model NAME, in place of --weights; repeatable", &C::model_weights},
      {"max-context",
       "N",
       "Maximum context length of models with softmax attention, such as hybrids: each slot "
       "reserves memory for a KV cache of this length. A bos counts; the last token does not. "
       "auto: at most 8,192, and no more than lets 16 slots and their parked and preempted "
       "replies fit into memory, but at least 2,048. auto:SLOTS: the largest at which --slots auto "
       "gives at least SLOTS slots (1 to 256), but no more than the model was trained for; an "
       "error if they do not fit even with 2,048",
       &C::max_context,
       {},
       1,
       1 << 24},
      Choice("kv-cache",
             "Type of the KV cache of models with softmax attention, on the CPU: f32, f16 or bf16. "
             "f16 and bf16 take half the memory and round, so the numerics id is another one",
             &C::kv_cache, {"f32", "f16", "bf16"}),
  };
}

static_assert(kMostDrafts == 16);  // which the list in docs/settings.md takes from here

// Settings of drafts.
std::vector<Setting> DraftSettings() {
  using C = ServerConfig;
  return {
      Choice("speculation",
             "Drafts of the next tokens, on the CPU: auto (as many as pay, unless a request says "
             "how many) or off. The tokens are the same",
             &C::speculation, {"auto", "off"}),
      Number("max-drafts", "Maximum number of drafts of a sample in one step", &C::max_drafts, 1,
             16),
      Number(
          "speculating-rows",
          "Per model: maximum number of samples with drafts in one step. Each reserves memory: "
          "the fixed part of a slot and some more for each draft, and with multi-token prediction "
          "one row keys of 8,192 tokens",
          &C::speculating_rows, 1, 1024),
  };
}

// Settings of tracing.
std::vector<Setting> TracingSettings() {
  using C = ServerConfig;
  return {
      {"otlp-endpoint", "URL",
       "Collector of traces to which spans of requests are sent by OTLP over gRPC: "
       "http://HOST:PORT, or https://HOST:PORT for TLS. Default: no spans are sent",
       &C::otlp_endpoint},
      {"otlp-ca", "FILE",
       "CA certificates (PEM) that signed the collector's certificate. Default: the system's",
       &C::otlp_ca},
      {"trace-sample",
       "RATE",
       "Fraction of the requests without the metadata traceparent to trace. A request with a "
       "traceparent is traced if that is sampled",
       &C::trace_sample,
       {},
       0,
       1},
  };
}

// Settings of connections.
std::vector<Setting> ConnectionSettings() {
  using C = ServerConfig;
  return {
      Number("max-connections",
             "Maximum number of connections; further ones are closed. 0: as many as the limit of "
             "file descriptors (ulimit -n) allows, at most 65536",
             &C::max_connections, 0, 1 << 24),
      Number("max-connections-per-address",
             "Maximum number of connections of one IP address; 0: no limit. A load balancer counts "
             "as one address",
             &C::max_connections_per_address, 0, 1 << 24),
      Number("max-streams", "Maximum number of concurrent requests on one connection",
             &C::max_streams, 1, 1 << 24),
      Number("max-connection-idle-seconds",
             "Send GOAWAY to a connection that had no request for about this long; 0: never",
             &C::max_connection_idle_seconds, 0, 86400),
      Number("max-connection-age-seconds",
             "Send GOAWAY to a connection after about this long, so that its client finds new "
             "replicas; running replies continue; 0: never",
             &C::max_connection_age_seconds, 0, 86400),
      Number("listener-timeout-seconds",
             "The server connects to itself every few seconds. If no attempt succeeds for this "
             "long, health turns NOT_SERVING and the process exits with code 3; 0: never",
             &C::listener_timeout_seconds, 0, 86400),
  };
}

// Who may connect.
std::vector<Setting> SecuritySettings() {
  using C = ServerConfig;
  return {
      {"tls-cert", "FILE",
       "Serve TLS with the certificate in this PEM file, followed by the intermediate "
       "certificates; "
       "for --listen and --admin-listen. Changed files are used for new connections. Default: no "
       "TLS",
       &C::tls_cert},
      {"tls-key", "FILE", "PEM file with the private key of --tls-cert, without a passphrase",
       &C::tls_key},
      {"tls-client-ca", "FILE",
       "CA certificates (PEM): only clients that show a certificate signed by one of them connect. "
       "Default: any client connects",
       &C::tls_client_ca},
      {"keys-file", "FILE",
       "JSON file with the keys that clients may use (docs/security.md); every method but "
       "health then needs one, AdminService one of an admin. A changed file is used within a "
       "second of the next call. Default: no client needs a key",
       &C::keys_file},
  };
}

// Limits, and the end of the server.
std::vector<Setting> OperatingSettings() {
  using C = ServerConfig;
  return {
      {"slots",
       "N",
       "Slots of a model: samples and scores that run at once, each with a state in the backend's "
       "memory; auto: as many as take half of the memory that the weights leave, at most 256",
       &C::slots,
       {},
       1,
       1 << 24},
      Number("max-queue", "Samples and scores of a model that may wait for a slot", &C::max_queue,
             0, 1 << 24),
      Number("max-tenant-queue",
             "Samples and scores of one tenant that may wait for a slot; 0: no further limit. One "
             "tenant never fills the whole queue: an eighth stays free even if it is alone",
             &C::max_tenant_queue, 0, 1 << 24),
      Number("max-tenant-slots",
             "Maximum number of slots of one tenant, and so of samples of a request; 0: all",
             &C::max_tenant_slots, 0, 1 << 24),
      Number("max-request-tokens", "Tokens that one request may generate, over all its samples",
             &C::max_request_tokens, 1, std::numeric_limits<int>::max()),
      Number("reader-timeout-seconds",
             "End a reply whose client has not read for this long while more than 16 KiB wait for "
             "it; 0: never",
             &C::reader_timeout_seconds, 0, 86400),
      Number("drain-delay-seconds",
             "After SIGTERM: how long requests are still accepted while health is NOT_SERVING, so "
             "that load balancers choose other replicas",
             &C::drain_delay_seconds, 0, 86400),
      Number("drain-seconds",
             "After SIGTERM and that delay: how long running replies may continue; new requests "
             "are refused",
             &C::drain_seconds, 0, 86400),
      {"reflection", "BOOL", "Serve gRPC reflection", &C::reflection},
      Choice("log-level", "Minimum level of log lines: debug, info, warning or error",
             &C::log_level, {"debug", "info", "warning", "error"}),
      {"request-log", "FILE",
       "Write one line of JSON for each request at its end: to this file, \"stderr\" or \"none\"; "
       "on SIGHUP the file is opened again",
       &C::request_log},
      {"request-log-sample",
       "RATE",
       "Fraction of successful requests to log; errors are always logged",
       &C::request_log_sample,
       {},
       0,
       1},
      Number("max-message-mib", "Largest request in MiB", &C::max_message_mib, 1, 1024),
      Number("max-multiplexed", "Maximum number of concurrent requests on one Multiplex stream",
             &C::max_multiplexed, 1, 1 << 24),
      Number("device", "CUDA: number of the GPU", &C::device, 0, 1023),
      Number("threads", "Threads of the CPU backend; 0: the cores this process may use",
             &C::threads, 0, 4096),
  };
}

}  // namespace

const std::vector<Setting>& Settings() {
  static const auto* settings = [] {
    const std::pair<const char*, std::vector<Setting>> groups[] = {
        {"Serving", ServingSettings()},     {"Drafts", DraftSettings()},
        {"Operating", OperatingSettings()}, {"Connection", ConnectionSettings()},
        {"Tracing", TracingSettings()},     {"Security", SecuritySettings()},
        {"State", StateSettings()},         {"Session store", SessionStoreSettings()},
    };
    auto* all = new std::vector<Setting>();
    for (const auto& [title, members] : groups) {
      for (Setting setting : members) {
        setting.group = title;
        all->push_back(std::move(setting));
      }
    }
    return all;
  }();
  return *settings;
}

}  // namespace rivulet
