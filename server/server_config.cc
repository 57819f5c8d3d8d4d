// SPDX-License-Identifier: Apache-2.0
#include "server/server_config.h"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "model/base/error.h"
#include "model/file.h"
#include "model/strict_json.h"

namespace rivulet {
namespace {

using nlohmann::ordered_json;
using Member = std::variant<std::vector<std::string> ServerConfig::*, std::string ServerConfig::*,
                            int ServerConfig::*, bool ServerConfig::*>;

// One setting: flag "--name" and JSON key "name".
struct Setting {
  const char* name;
  const char* type;  // shown in --help
  const char* help;
  Member member;
  std::vector<std::string> choices = {};  // for std::string; empty: free
  int min = 0, max = 0;                   // for int
};

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
      Number("max-client-sessions", "Client sessions of a model that may be open at once",
             &C::max_client_sessions, 0, 1 << 24),
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
             "0: three times what all slots take",
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
      Number("max-sessions", "Sessions of a model that hold a state at once", &C::max_sessions, 1,
             1 << 24),
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

absl::Status InvalidSetting(const Setting& setting, const std::string& held,
                            const std::string& allowed) {
  return InvalidField("CONFIG_INVALID", setting.name,
                      absl::StrCat(setting.name, " is ", held, "; ", allowed));
}

absl::Status CheckSetting(const Setting& setting, const ServerConfig& config) {
  if (const auto* number = std::get_if<int ServerConfig::*>(&setting.member)) {
    const int value = config.**number;
    if (value < setting.min || value > setting.max) {
      return InvalidSetting(setting, absl::StrCat(value),
                            absl::StrCat("allowed: ", setting.min, " to ", setting.max));
    }
  }
  if (const auto* text = std::get_if<std::string ServerConfig::*>(&setting.member)) {
    const std::string& value = config.**text;
    if (setting.choices.empty()) return absl::OkStatus();
    for (const std::string& choice : setting.choices) {
      if (value == choice) return absl::OkStatus();
    }
    return InvalidSetting(setting, absl::StrCat("\"", value, "\""),
                          absl::StrCat("allowed: ", absl::StrJoin(setting.choices, ", ")));
  }
  return absl::OkStatus();
}

// Puts a JSON value into the member it belongs to; false where the type is wrong.
struct JsonReader {
  const JsonValue& json;
  ServerConfig* config;

  bool operator()(std::vector<std::string> ServerConfig::*member) const {
    if (json.kind != JsonValue::Kind::kArray) return false;
    std::vector<std::string> values;
    for (const JsonValue& entry : json.items) {
      if (entry.kind != JsonValue::Kind::kString) return false;
      values.push_back(entry.text);
    }
    config->*member = std::move(values);
    return true;
  }
  bool operator()(std::string ServerConfig::*member) const {
    if (json.kind != JsonValue::Kind::kString) return false;
    config->*member = json.text;
    return true;
  }
  bool operator()(int ServerConfig::*member) const {
    if (json.kind != JsonValue::Kind::kInteger) return false;
    if (json.integer < INT32_MIN || json.integer > INT32_MAX) return false;
    config->*member = static_cast<int>(json.integer);
    return true;
  }
  bool operator()(bool ServerConfig::*member) const {
    if (json.kind != JsonValue::Kind::kBool) return false;
    config->*member = json.boolean;
    return true;
  }
};

const char* JsonTypeName(const Member& member) {
  constexpr const char* kNames[] = {"an array of strings", "a string", "an integer",
                                    "true or false"};
  return kNames[member.index()];
}

constexpr size_t kMaxConfigBytes = size_t{1} << 20;

// The parser of the command line; what it is given lands in the arguments.
struct Flags {
  CLI::App app{"Serves trained linear transformers over gRPC.", "rivulet-server"};
  std::string config_file;
  bool print_config = false;

  explicit Flags(ServerConfig* config) {
    for (const Setting& setting : Settings()) {
      const std::string flag = absl::StrCat("--", setting.name);
      std::visit(
          [&](auto member) {
            CLI::Option* option = app.add_option(flag, config->*member, setting.help);
            option->capture_default_str()->type_name(setting.type);
            if constexpr (std::is_same_v<decltype(member), decltype(&ServerConfig::models)>) {
              option->allow_extra_args(false)->default_str("");
            }
            if constexpr (std::is_same_v<decltype(member), bool ServerConfig::*>) {
              option->default_str(config->*member ? "true" : "false");
            }
          },
          setting.member);
    }
    app.add_option("--config", config_file, "JSON file with the same names; flags win over it")
        ->type_name("FILE");
    app.add_flag("--print-config", print_config, "Print the settings in force as JSON and exit");
    app.set_version_flag("--version", std::string("rivulet-server ") + RIVULET_VERSION);
    app.get_formatter()->column_width(34);
  }
};

}  // namespace

absl::StatusOr<HostPort> ParseHostPort(absl::string_view address, absl::string_view setting) {
  const auto invalid = [&](absl::string_view why) {
    return InvalidField("CONFIG_INVALID", setting,
                        absl::StrCat(setting, " is \"", address, "\"; ", why,
                                     ": HOST:PORT, for example 127.0.0.1:50051 or [::1]:50051"));
  };
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return invalid("it needs a host and a port");
  absl::string_view host = address.substr(0, colon);
  const absl::string_view port = address.substr(colon + 1);
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
  } else if (absl::StrContains(host, ":")) {
    return invalid("an IPv6 address needs brackets");
  }
  HostPort result;
  result.host = std::string(host);
  if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != port.npos ||
      !absl::SimpleAtoi(port, &result.port) || result.port > 65535) {
    return invalid("the port must be 0 to 65535");
  }
  return result;
}

absl::Status ValidateServerConfig(const ServerConfig& config) {
  if (config.models.empty() && config.model_repositories.empty()) {
    return InvalidField("CONFIG_INVALID", "model", "no model is given; --model DIR names one");
  }
  if (!config.model_repositories.empty() && config.admin_listen.empty()) {
    return InvalidField("CONFIG_INVALID", "model-repository",
                        "model-repository is given without admin-listen, which loads from it");
  }
  for (const Setting& setting : Settings()) {
    RIVULET_RETURN_IF_ERROR(CheckSetting(setting, config));
  }
  // One message that may come, and as much for other tenants.
  if (config.restore_memory_mib < 2 * config.max_message_mib) {
    return InvalidField("CONFIG_INVALID", "restore-memory-mib",
                        absl::StrCat("restore-memory-mib is ", config.restore_memory_mib,
                                     "; it must be at least twice max-message-mib, which is ",
                                     config.max_message_mib));
  }
  if (!config.listen.empty()) RIVULET_RETURN_IF_ERROR(ParseHostPort(config.listen).status());
  if (!config.admin_listen.empty()) {
    RIVULET_RETURN_IF_ERROR(ParseHostPort(config.admin_listen, "admin-listen").status());
  }
  return absl::OkStatus();
}

absl::Status ApplyServerConfigJson(absl::string_view text, ServerConfig* config) {
  const auto apply = [config](const std::string& key, const JsonValue& value) -> absl::Status {
    const Setting* found = nullptr;
    for (const Setting& setting : Settings()) {
      if (key == setting.name) found = &setting;
    }
    if (found == nullptr) {
      const auto append_name = [](std::string* out, const Setting& s) { out->append(s.name); };
      return InvalidField("CONFIG_INVALID", key,
                          absl::StrCat(Quoted(key), " is not a setting; there are: ",
                                       absl::StrJoin(Settings(), ", ", append_name)));
    }
    if (!std::visit(JsonReader{value, config}, found->member)) {
      return InvalidSetting(*found, Describe(value),
                            absl::StrCat("it must be ", JsonTypeName(found->member)));
    }
    return absl::OkStatus();
  };
  return ParseStrictJsonMembers(text, JsonLimits(), apply);
}

std::string ServerConfigToJson(const ServerConfig& config) {
  ordered_json json;
  for (const Setting& setting : Settings()) {
    std::visit([&](auto member) { json[setting.name] = config.*member; }, setting.member);
  }
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}

absl::StatusOr<ServerCommand> ParseServerCommand(int argc, const char* const* argv) {
  ServerCommand command;
  ServerConfig scratch;
  Flags first(&scratch);  // finds --config, --help, --version and every bad flag
  try {
    first.app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    command.serve = false;
    command.output = first.app.help();
    return command;
  } catch (const CLI::CallForVersion& version) {
    command.serve = false;
    command.output = absl::StrCat(version.what(), "\n");
    return command;
  } catch (const CLI::ParseError& error) {
    return InvalidField("CONFIG_INVALID", "", absl::StrCat(error.what(), " (see --help)"));
  }
  if (!first.config_file.empty()) {
    const auto text = ReadSmallFile(first.config_file, kMaxConfigBytes);
    const absl::Status status =
        text.ok() ? ApplyServerConfigJson(*text, &command.config) : text.status();
    if (!status.ok()) return Annotate(status, first.config_file);
  }
  Flags second(&command.config);  // flags that are not given leave what the file has set
  try {
    second.app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return InvalidField("CONFIG_INVALID", "", absl::StrCat(error.what(), " (see --help)"));
  }
  RIVULET_RETURN_IF_ERROR(ValidateServerConfig(command.config));
  RIVULET_RETURN_IF_ERROR(
      ParseHostPort(command.config.listen).status());  // a process needs a socket
  if (second.print_config) {
    command.serve = false;
    command.output = absl::StrCat(ServerConfigToJson(command.config), "\n");
  }
  return command;
}

}  // namespace rivulet
