// SPDX-License-Identifier: Apache-2.0
#include "server/settings.h"

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

// Of what a model keeps between requests.
std::vector<Setting> StateSettings() {
  using C = ServerConfig;
  return {
      Number("max-open-sessions", "Sessions of a model that may be open at once",
             &C::max_open_sessions, 0, 1 << 24),
      Number(
          "max-tenant-sessions",
          "... of one tenant, so that it cannot keep others out; 0: at most 7 times what is left",
          &C::max_tenant_sessions, 0, 1 << 24),
      {"snapshot-key-file", "FILE",
       "Key that signs snapshots of sessions, at least 16 bytes; without its signature none is "
       "restored",
       &C::snapshot_key_file},
      Number(
          "restore-memory-mib",
          "Memory for snapshots that clients send to RestoreSession, from their start until they "
          "are restored; a tenant may hold at most 7 times what is left of it",
          &C::restore_memory_mib, 2, 1 << 24),
      Number("restore-timeout-seconds",
             "End a RestoreSession whose client sends less than 64 KiB of the snapshot in so long; "
             "0: never",
             &C::restore_timeout_seconds, 0, 86400),
      Number("session-state-mib",
             "Memory for the states that a model keeps between requests, of sessions and of cached "
             "prompts; beyond it those used longest ago go to files or are forgotten and computed "
             "again when they are needed",
             &C::session_state_mib, 0, 1 << 24),
      Number("parked-state-mib",
             "Memory for the states of a model's replies that gave their slots to others: of a "
             "tenant above its share, for which it must hold all slots' states twice, or not read; "
             "0: as much as is needed, and 256 MiB",
             &C::parked_state_mib, 0, 1 << 24),
      {"state-dir", "DIR",
       "Directory for the files of states that memory has no room for; made where it is missing, "
       "emptied at start and end, for one server at a time; without it there are no such files",
       &C::state_dir},
      Number("state-disk-mib", "Most that a model's files of states take", &C::state_disk_mib, 0,
             1 << 30),
      Number("prefix-cache-mib",
             "Most that a model's cached prompts take of memory and files; 0: none are kept",
             &C::prefix_cache_mib, 0, 1 << 24),
      {"warm-states", "PATH",
       "Snapshot of a session, or directory of such files, that cached prompts of every tenant may "
       "begin with, whoever's session it was; repeat the flag for several",
       &C::warm_states},
      Number("checkpoint-tokens",
             "A long request on a session keeps a state every so many tokens, so that going back "
             "feeds few of them again",
             &C::checkpoint_tokens, 1, 1 << 30),
  };
}

// What is served, where, and on what.
std::vector<Setting> ServingSettings() {
  using C = ServerConfig;
  return {
      {"model", "DIR", "Model directory; repeat the flag for several models", &C::models},
      {"listen", "HOST:PORT", "Address to listen on; port 0 takes a free one", &C::listen},
      {"admin-listen", "HOST:PORT",
       "Address of AdminService, which loads and unloads models at run time and asks nobody who "
       "they are: keep it on loopback; default: none",
       &C::admin_listen},
      {"model-repository", "DIR",
       "Directory of model directories: DIR/NAME may be loaded by its NAME; repeatable",
       &C::model_repositories},
      Choice("backend", "auto (cuda where there is one, else cpu), cpu or cuda", &C::backend,
             {"auto", "cpu", "cuda"}),
      Choice("precision", "Matrix products on CUDA: default or float32", &C::precision,
             {"default", "float32"}),
      Choice(
          "plan",
          "Steps on CUDA: latency (one kernel launch for many steps; for few sessions), throughput "
          "(one CUDA graph a step), or auto (latency where the weights fit into the GPU's shared "
          "memory, else throughput); the tokens are the same",
          &C::plan, {"auto", "latency", "throughput"}),
      Choice("products",
             "Matrix products on CUDA: auto (NVIDIA's cuBLASLt from many rows on where it is "
             "installed and a check at start finds the bits of our own kernels, else these; the "
             "tokens are the same), cublaslt (it runs all of them: other bits, another numerics "
             "id) or own",
             &C::products, {"auto", "cublaslt", "own"}),
      Choice("weights", "Matrix weights in memory on the CPU: auto, f32, f16 or bf16", &C::weights,
             {"auto", "f32", "f16", "bf16"}),
  };
}

// Of connections.
std::vector<Setting> ConnectionSettings() {
  using C = ServerConfig;
  return {
      Number("max-connections",
             "Connections at once; one more is closed at once; 0: as many as the limit of "
             "descriptors (ulimit -n) allows, at most 65536",
             &C::max_connections, 0, 1 << 24),
      Number("max-connections-per-address",
             "... of one IP address; 0: no limit. Behind a balancer all come from its address",
             &C::max_connections_per_address, 0, 1 << 24),
      Number("max-streams", "Requests at once on one connection", &C::max_streams, 1, 1 << 24),
      Number("max-connection-idle-seconds",
             "Send a connection GOAWAY when it had no request for about this long; 0: never",
             &C::max_connection_idle_seconds, 0, 86400),
      Number("max-connection-age-seconds",
             "Send a connection GOAWAY after about this long, so that its client looks for new "
             "replicas; running replies go on; 0: never",
             &C::max_connection_age_seconds, 0, 86400),
      Number("listener-timeout-seconds",
             "The server connects to itself every few seconds; when nobody has answered for so "
             "long, health turns NOT_SERVING and the process ends with exit code 3; 0: never",
             &C::listener_timeout_seconds, 0, 86400),
  };
}

// Limits, and how it ends.
std::vector<Setting> OperatingSettings() {
  using C = ServerConfig;
  return {
      Number("slots",
             "Slots of a model: samples and scores that run at once, each with a state in the "
             "backend's memory",
             &C::slots, 1, 1 << 24),
      Number("max-queue", "Samples and scores of a model that may wait for a slot", &C::max_queue,
             0, 1 << 24),
      Number("max-tenant-queue",
             "... of one tenant, which in any case leaves room for others (an eighth where it is "
             "alone); 0: no other limit",
             &C::max_tenant_queue, 0, 1 << 24),
      Number("max-tenant-slots",
             "Slots that one tenant may hold at once, so the most samples of a request; 0: all",
             &C::max_tenant_slots, 0, 1 << 24),
      Number("max-request-tokens", "Tokens that one request may generate, over all its samples",
             &C::max_request_tokens, 1, std::numeric_limits<int>::max()),
      Number(
          "reader-timeout-seconds",
          "End a reply whose client has not read for so long while more is waiting for it than is "
          "kept (16 KiB); 0: never",
          &C::reader_timeout_seconds, 0, 86400),
      Number("drain-delay-seconds",
             "After SIGTERM: how long health is NOT_SERVING but requests are still taken, so that "
             "balancers look elsewhere",
             &C::drain_delay_seconds, 0, 86400),
      Number("drain-seconds",
             "After SIGTERM and that delay: how long running replies may go on; new requests are "
             "refused",
             &C::drain_seconds, 0, 86400),
      {"reflection", "BOOL", "Serve gRPC reflection", &C::reflection},
      Number("max-message-mib", "Largest request in MiB", &C::max_message_mib, 1, 1024),
      Number("max-multiplexed", "Requests at once on one Multiplex stream", &C::max_multiplexed, 1,
             1 << 24),
      Number("device", "GPU of the CUDA backend, as CUDA counts them", &C::device, 0, 1023),
      Number("threads", "Threads of the CPU backend; 0: the cores this process may use",
             &C::threads, 0, 4096),
  };
}

}  // namespace

const std::vector<Setting>& Settings() {
  static const auto* settings = [] {
    auto* all = new std::vector<Setting>(ServingSettings());
    for (const Setting& setting : OperatingSettings()) all->push_back(setting);
    for (const Setting& setting : ConnectionSettings()) all->push_back(setting);
    for (const Setting& setting : StateSettings()) all->push_back(setting);
    return all;
  }();
  return *settings;
}

}  // namespace rivulet
