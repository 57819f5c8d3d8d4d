// SPDX-License-Identifier: Apache-2.0
#include "server/config/server_config.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "model/base/error.h"
#include "model/base/file.h"
#include "model/base/strict_json.h"
#include "model/base/suggestion.h"
#include "model/model_name.h"
#include "model/slot_choice.h"
#include "model/weight_choice.h"
#include "server/config/otlp_endpoint.h"
#include "server/config/settings.h"

namespace rivulet {
namespace {

using nlohmann::ordered_json;
absl::Status InvalidSetting(const Setting& setting, const std::string& held,
                            const std::string& allowed) {
  return InvalidField("CONFIG_INVALID", setting.name,
                      absl::StrCat(setting.name, " is ", held, "; ", allowed));
}

// The refusal of `name`, with or without "--", if it is one of kFormerSettings.
absl::Status CheckFormer(absl::string_view name) {
  for (const auto& [former, what] : kFormerSettings) {
    if (absl::StripPrefix(name, "--") != former) continue;
    return InvalidField("CONFIG_INVALID", name, absl::StrCat(name, ": ", what));
  }
  return absl::OkStatus();
}

absl::Status CheckRange(const Setting& setting, int value, absl::string_view or_what) {
  if (value >= setting.min && value <= setting.max) return absl::OkStatus();
  return InvalidSetting(setting, absl::StrCat(value),
                        absl::StrCat("allowed: ", or_what, setting.min, " to ", setting.max));
}

absl::Status CheckSetting(const Setting& setting, const ServerConfig& config) {
  if (const auto* number = std::get_if<int ServerConfig::*>(&setting.member)) {
    RIVULET_RETURN_IF_ERROR(CheckRange(setting, config.**number, ""));
  }
  if (const auto* number = std::get_if<double ServerConfig::*>(&setting.member)) {
    const double value = config.**number;
    if (value >= setting.min && value <= setting.max) return absl::OkStatus();  // not NaN
    return InvalidSetting(setting, absl::StrCat(value),
                          absl::StrCat("allowed: ", setting.min, " to ", setting.max));
  }
  if (const auto* number = std::get_if<std::optional<int> ServerConfig::*>(&setting.member)) {
    if ((config.**number).has_value()) {
      RIVULET_RETURN_IF_ERROR(CheckRange(setting, *(config.**number), "auto, or "));
    }
  }
  if (const auto* context = std::get_if<ContextChoice ServerConfig::*>(&setting.member)) {
    return CheckContextChoice(config.**context);
  }
  if (const auto* text = std::get_if<std::string ServerConfig::*>(&setting.member)) {
    const std::string& value = config.**text;
    if (setting.choices.empty()) return absl::OkStatus();
    for (const std::string& choice : setting.choices) {
      if (value == choice) return absl::OkStatus();
    }
    for (const auto& [name, removed] : kRemovedChoices) {
      if (setting.name != absl::string_view(name) || value != removed) continue;
      return InvalidSetting(setting, absl::StrCat("\"", value, "\", which was removed"),
                            absl::StrCat("set it to ", absl::StrJoin(setting.choices, " or ")));
    }
    return InvalidSetting(setting, absl::StrCat("\"", value, "\""),
                          absl::StrCat("allowed: ", absl::StrJoin(setting.choices, ", ")));
  }
  return absl::OkStatus();
}

// The value of a std::optional<int> without a value.
constexpr char kAuto[] = "auto";

// Reads the value of a flag that is not only a number. False: another text.
bool FromText(const std::string& text, std::optional<int>* number) {
  int value = 0;
  const bool is_integer = absl::SimpleAtoi(text, &value);
  *number = is_integer ? std::optional<int>(value) : std::nullopt;
  return is_integer || text == kAuto;
}
bool FromText(const std::string& text, ContextChoice* context) {
  const auto choice = ParseContextChoice(text);
  *context = choice.value_or(ContextChoice());
  return choice.has_value();
}
std::string ToText(std::optional<int> number) { return number ? absl::StrCat(*number) : kAuto; }
std::string ToText(const ContextChoice& context) { return ContextChoiceName(context); }

// Puts a JSON value into the member it belongs to; false where the type is wrong.
struct MemberReader {
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
  bool operator()(int ServerConfig::*member) const { return ReadInt(&(config->*member)); }
  bool operator()(std::optional<int> ServerConfig::*member) const {
    if (json.kind == JsonValue::Kind::kString && json.text == kAuto) {
      config->*member = std::nullopt;
      return true;
    }
    int value = 0;
    if (!ReadInt(&value)) return false;
    config->*member = value;
    return true;
  }
  bool operator()(ContextChoice ServerConfig::*member) const {
    const bool is_text = json.kind == JsonValue::Kind::kString;
    if (!is_text && json.kind != JsonValue::Kind::kInteger) return false;
    return FromText(is_text ? json.text : absl::StrCat(json.integer), &(config->*member));
  }
  bool operator()(bool ServerConfig::*member) const {
    if (json.kind != JsonValue::Kind::kBool) return false;
    config->*member = json.boolean;
    return true;
  }
  bool operator()(double ServerConfig::*member) const {
    if (!json.is_number()) return false;
    config->*member = json.number;
    return true;
  }
  bool ReadInt(int* value) const {
    if (json.kind != JsonValue::Kind::kInteger) return false;
    if (json.integer < INT32_MIN || json.integer > INT32_MAX) return false;
    *value = static_cast<int>(json.integer);
    return true;
  }
};

const char* JsonTypeName(const SettingMember& member) {
  constexpr const char* kNames[] = {"an array of strings",
                                    "a string",
                                    "an integer",
                                    "true or false",
                                    "an integer or \"auto\"",
                                    "a number",
                                    "an integer, \"auto\" or \"auto:SLOTS\""};
  return kNames[member.index()];
}

// The error for a value of another type than the setting's.
absl::Status WrongType(const Setting& setting, const std::string& held) {
  std::string allowed = absl::StrCat("it must be ", JsonTypeName(setting.member));
  if (setting.min < setting.max) {
    absl::StrAppend(&allowed, "; allowed: ", setting.min, " to ", setting.max);
  }
  return InvalidSetting(setting, held, allowed);
}

constexpr size_t kMaxConfigBytes = size_t{1} << 20;

// The parser of the command line; it stores values in the constructor's arguments.
struct Flags {
  CLI::App app{
      "Serves trained linear transformers over gRPC.\n"
      "Example: rivulet-server --model DIR --listen 127.0.0.1:50051, where DIR is a model "
      "directory or a GGUF file",
      "rivulet-server"};
  std::string config_file;
  bool print_config = false, check_config = false;
  std::map<std::string, std::string> former;  // values of kFormerSettings

  explicit Flags(ServerConfig* config) {
    for (const Setting& setting : Settings()) {
      const std::string flag = absl::StrCat("--", setting.name);
      std::visit(
          [&](auto member) {
            if constexpr (std::is_same_v<decltype(member), std::optional<int> ServerConfig::*> ||
                          std::is_same_v<decltype(member), ContextChoice ServerConfig::*>) {
              auto* const held = &(config->*member);
              const auto read = [held](const auto& texts) { return FromText(texts[0], held); };
              app.add_option(flag, CLI::callback_t(read), setting.help)
                  ->default_str(ToText(*held))
                  ->type_name(setting.type)
                  ->group(setting.group);
              return;
            } else {
              CLI::Option* option = app.add_option(flag, config->*member, setting.help);
              option->capture_default_str()->type_name(setting.type)->group(setting.group);
              if constexpr (std::is_same_v<decltype(member), decltype(&ServerConfig::models)>) {
                option->allow_extra_args(false)->default_str("");
              }
              if constexpr (std::is_same_v<decltype(member), bool ServerConfig::*>) {
                option->default_str(config->*member ? "true" : "false");
              }
            }
          },
          setting.member);
    }
    for (const auto& [name, what] : kFormerSettings) {
      // In group "", which --help does not show. The value is optional, so that none is demanded.
      app.add_option(absl::StrCat("--", name), former[name])->expected(0, 1)->group("");
    }
    app.add_option("--config", config_file, "JSON file with the same names; flags win over it")
        ->type_name("FILE");
    CLI::Option* const print = app.add_flag("--print-config", print_config,
                                            "Print the settings in force as JSON and exit");
    app.add_flag("--check-config", check_config,
                 "Check settings, files, models and addresses as a start would, without reading "
                 "weights; print all that is wrong and exit")
        ->excludes(print);
    app.set_version_flag("--version", std::string("rivulet-server ") + RIVULET_VERSION);
    app.get_formatter()->column_width(34);
  }
};

// Faults of weights and of each value of model-weights.
void CheckWeights(const ServerConfig& config, std::vector<absl::Status>* faults) {
  const auto fits = [&config](const WeightChoice& choice) {
    if (config.backend != "cuda") return absl::OkStatus();  // with auto it is not known yet
    return CheckCudaWeights(choice, config.precision == "float32");
  };
  const auto all = ParseWeightChoice(config.weights);
  if (!all.ok() && ParseModelWeights(config.weights).ok()) {
    faults->push_back(InvalidField("CONFIG_INVALID", "weights",
                                   absl::StrCat("weights is ", Quoted(config.weights),
                                                ", which names a model; --model-weights ",
                                                config.weights, " sets those of one model")));
  } else {
    faults->push_back(all.ok() ? fits(*all) : all.status());
  }
  std::set<std::string> names;
  for (const std::string& text : config.model_weights) {
    const auto own = ParseModelWeights(text);
    if (!own.ok()) {
      faults->push_back(own.status());
      continue;
    }
    faults->push_back(Annotate(fits(own->choice), absl::StrCat("model-weights ", text)));
    if (names.insert(own->name).second) continue;
    faults->push_back(
        InvalidField("CONFIG_INVALID", "model-weights",
                     absl::StrCat("model-weights names the model ", Quoted(own->name), " twice")));
  }
}

}  // namespace

absl::StatusOr<ModelPlace> ParseModelPlace(absl::string_view text) {
  const size_t equals = text.find('=');
  if (equals == text.npos || absl::StrContains(text.substr(0, equals), "/")) {
    return ModelPlace{"", std::string(text)};
  }
  const absl::string_view name = text.substr(0, equals), directory = text.substr(equals + 1);
  const auto invalid = [text](absl::string_view why) {
    return InvalidField("CONFIG_INVALID", "model",
                        absl::StrCat("model is ", Quoted(text), "; ", why,
                                     "; allowed: DIR or NAME=DIR (a directory with \"=\" in its "
                                     "own name begins with ./ or /)"));
  };
  if (!IsModelName(name)) {
    return invalid(absl::StrCat("the name must match ", kModelNamePattern));
  }
  if (directory.empty()) return invalid("no directory follows the name");
  return ModelPlace{std::string(name), std::string(directory)};
}

absl::StatusOr<ModelWeights> ParseModelWeights(absl::string_view text) {
  const auto invalid = [text](absl::string_view why) {
    return InvalidField("CONFIG_INVALID", "model-weights",
                        absl::StrCat("model-weights is ", Quoted(text), "; ", why));
  };
  const size_t equals = text.find('=');
  const absl::string_view name = text.substr(0, equals);
  if (equals == text.npos || !IsModelName(name)) {
    return invalid("allowed: NAME=TYPE[,head=TYPE] with the name of a model, as in chat=int8");
  }
  const auto choice = ParseWeightChoice(text.substr(equals + 1));
  if (!choice.ok()) return invalid(choice.status().message());
  return ModelWeights{std::string(name), *choice};
}

absl::StatusOr<WeightChoice> WeightsOf(const ServerConfig& config, absl::string_view model) {
  for (const std::string& text : config.model_weights) {
    RIVULET_ASSIGN_OR_RETURN(const ModelWeights own, ParseModelWeights(text));
    if (own.name == model) return own.choice;
  }
  return ParseWeightChoice(config.weights);
}

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

absl::Status CheckOtlp(const ServerConfig& config) {
  if (config.otlp_endpoint.empty()) {
    if (config.otlp_ca.empty()) return absl::OkStatus();
    return InvalidField("CONFIG_INVALID", "otlp-ca", "otlp-ca is given without otlp-endpoint");
  }
  RIVULET_ASSIGN_OR_RETURN(const OtlpEndpoint endpoint, ParseOtlpEndpoint(config.otlp_endpoint));
  if (endpoint.tls || config.otlp_ca.empty()) return absl::OkStatus();
  return InvalidField("CONFIG_INVALID", "otlp-ca",
                      absl::StrCat("otlp-ca is given, but otlp-endpoint is ", config.otlp_endpoint,
                                   ", which is plaintext; https:// is TLS"));
}

// Which of the TLS files are given.
absl::Status CheckTlsFiles(const ServerConfig& config) {
  const auto without = [](const char* setting, const char* other) {
    return InvalidField("CONFIG_INVALID", setting,
                        absl::StrCat(setting, " is given without ", other));
  };
  if (!config.tls_cert.empty() && config.tls_key.empty()) return without("tls-cert", "tls-key");
  if (config.tls_cert.empty() && !config.tls_key.empty()) return without("tls-key", "tls-cert");
  if (config.tls_cert.empty() && !config.tls_client_ca.empty()) {
    return without("tls-client-ca", "tls-cert");
  }
  return absl::OkStatus();
}

// The value as --print-config shows it.
ordered_json ValueOf(const Setting& setting, const ServerConfig& config) {
  return std::visit(
      [&](auto member) -> ordered_json {
        if constexpr (std::is_same_v<decltype(member), std::optional<int> ServerConfig::*>) {
          if (!(config.*member).has_value()) return kAuto;
          return *(config.*member);
        } else if constexpr (std::is_same_v<decltype(member), ContextChoice ServerConfig::*>) {
          const ContextChoice& choice = config.*member;
          if (choice.tokens) return *choice.tokens;
          return ContextChoiceName(choice);
        } else {
          return config.*member;
        }
      },
      setting.member);
}

// Faults: settings for another kind of store than the store in use.
void CheckSessionStore(const ServerConfig& config, std::vector<absl::Status>* faults) {
  const bool redis = absl::StartsWith(config.session_store, "redis");
  const ServerConfig defaults;
  for (const Setting& setting : Settings()) {
    if (!absl::StartsWith(setting.name, "session-store-")) continue;
    const ordered_json value = ValueOf(setting, config);
    if (value == ValueOf(setting, defaults)) continue;
    const bool of_any =
        setting.member == SettingMember(&ServerConfig::session_store_encryption_keys) ||
        setting.member == SettingMember(&ServerConfig::session_store_tenant_mib);
    if (redis || (of_any && config.session_store != "none")) continue;
    faults->push_back(
        InvalidSetting(setting, value.is_string() ? Quoted(value.get<std::string>()) : value.dump(),
                       absl::StrCat("it needs a session-store", of_any ? "" : " in Redis")));
  }
}

// Checks the addresses of the listeners.
void CheckAddresses(const ServerConfig& config, std::vector<absl::Status>* faults) {
  for (const auto& [setting, address] :
       {std::pair("listen", &config.listen), std::pair("admin-listen", &config.admin_listen),
        std::pair("metrics-listen", &config.metrics_listen)}) {
    if (!address->empty()) faults->push_back(ParseHostPort(*address, setting).status());
  }
}

ServerConfig WithinLimits(ServerConfig config) {
  const ServerConfig defaults;
  for (const Setting& setting : Settings()) {
    if (CheckSetting(setting, config).ok()) continue;
    std::visit([&](auto member) { config.*member = defaults.*member; }, setting.member);
  }
  return config;
}

std::vector<absl::Status> ServerConfigFaults(const ServerConfig& config) {
  std::vector<absl::Status> faults;
  const auto invalid = [&faults](absl::string_view setting, absl::string_view message) {
    faults.push_back(InvalidField("CONFIG_INVALID", setting, message));
  };
  if (config.models.empty() && config.model_repositories.empty()) {
    invalid("model", "no model is given; --model DIR names one");
  }
  if (!config.model_repositories.empty() && config.admin_listen.empty()) {
    invalid("model-repository",
            "model-repository is given without admin-listen, which loads from it");
  }
  for (const Setting& setting : Settings()) faults.push_back(CheckSetting(setting, config));
  for (const std::string& model : config.models) {
    faults.push_back(ParseModelPlace(model).status());
  }
  CheckWeights(config, &faults);
  if (const auto& slots = config.max_context.slots;
      slots && config.slots.value_or(*slots) != *slots) {
    invalid("max-context",
            absl::StrCat("max-context is auto:", *slots, ", but slots is ", *config.slots,
                         "; leave slots at auto, or set it to ", *slots));
  }
  // Room for one message, and the same for other tenants.
  const ServerConfig within = WithinLimits(config);
  if (within.restore_memory_mib == config.restore_memory_mib &&
      within.max_message_mib == config.max_message_mib &&
      config.restore_memory_mib < 2 * int64_t{config.max_message_mib}) {
    invalid("restore-memory-mib",
            absl::StrCat("restore-memory-mib is ", config.restore_memory_mib,
                         "; it must be at least twice max-message-mib, which is ",
                         config.max_message_mib));
  }
  if (config.request_log.empty()) {
    invalid("request-log", "request-log is \"\"; allowed: a path, stderr or none");
  }
  faults.push_back(CheckTlsFiles(config));
  faults.push_back(CheckOtlp(config));
  CheckSessionStore(config, &faults);
  CheckAddresses(config, &faults);
  std::erase_if(faults, [](const absl::Status& status) { return status.ok(); });
  return faults;
}

absl::Status ValidateServerConfig(const ServerConfig& config) {
  const std::vector<absl::Status> faults = ServerConfigFaults(config);
  return faults.empty() ? absl::OkStatus() : faults.front();
}

namespace {

// Sets the settings that the JSON object in `text` names, except for the faulty ones.
std::vector<absl::Status> ApplyJson(absl::string_view text, ServerConfig* config) {
  std::vector<absl::Status> faults;
  const auto apply = [config](const std::string& key, const JsonValue& value) -> absl::Status {
    const Setting* found = nullptr;
    RIVULET_RETURN_IF_ERROR(CheckFormer(key));
    std::vector<std::string> names;
    for (const Setting& setting : Settings()) {
      if (key == setting.name) found = &setting;
      names.push_back(setting.name);
    }
    if (found == nullptr) {
      const std::string meant = Suggestion(key, names);
      return InvalidField("CONFIG_INVALID", key,
                          absl::StrCat(Quoted(key), " is not a setting",
                                       meant.empty() ? "; --print-config prints all" : meant));
    }
    if (!std::visit(MemberReader{value, config}, found->member)) {
      return WrongType(*found, Describe(value));
    }
    return absl::OkStatus();
  };
  const absl::Status parsed =
      ParseStrictJsonMembers(text, JsonLimits(), [&](const auto& key, const JsonValue& value) {
        absl::Status status = apply(key, value);
        if (!status.ok()) faults.push_back(std::move(status));
        return absl::OkStatus();
      });
  if (!parsed.ok()) faults.push_back(parsed);
  return faults;
}

}  // namespace

absl::Status ApplyServerConfigJson(absl::string_view text, ServerConfig* config) {
  const std::vector<absl::Status> faults = ApplyJson(text, config);
  return faults.empty() ? absl::OkStatus() : faults.front();
}

std::string ServerConfigToJson(const ServerConfig& config) {
  ordered_json json;
  for (const Setting& setting : Settings()) json[setting.name] = ValueOf(setting, config);
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}

namespace {

absl::Status BadFlags(const CLI::App& app, const std::vector<std::string>& args,
                      const CLI::ParseError& error) {
  const std::vector<std::string> listen = {"--listen HOST:PORT"}, slots = {"--slots"},
                                 context = {"--max-context"}, gpu = {"--backend cuda"};
  static const OtherNames* const others = new OtherNames{{"-m", {"--model"}},
                                                         {"--port", listen},
                                                         {"--host", listen},
                                                         {"-c", context},
                                                         {"--ctx-size", context},
                                                         {"--max-model-len", context},
                                                         {"-np", slots},
                                                         {"--parallel", slots},
                                                         {"--max-num-seqs", slots},
                                                         {"-ngl", gpu},
                                                         {"--n-gpu-layers", gpu},
                                                         {"-t", {"--threads"}},
                                                         {"--dtype", {"--weights"}},
                                                         {"--api-key", {"--keys-file FILE"}}};
  const auto [flag, meant] = FindUnknownOption(app, args, *others);
  const std::string wrong =
      flag.empty() ? std::string(error.what()) : absl::StrCat("unknown option ", flag, meant);
  return InvalidField("CONFIG_INVALID", "", absl::StrCat(wrong, " (see --help)"));
}

// Each flag with its value, and each argument that belongs to no flag.
std::vector<std::vector<std::string>> SplitFlags(const CLI::App& app,
                                                 const std::vector<std::string>& args) {
  std::vector<std::vector<std::string>> pieces;
  for (size_t i = 0; i < args.size(); ++i) {
    std::vector<std::string>& piece = pieces.emplace_back(1, args[i]);
    if (i + 1 == args.size() || !absl::StartsWith(args[i], "-")) continue;
    const CLI::Option* const option = app.get_option_no_throw(args[i]);
    // An unknown flag may have a value, too.
    const bool may_take =
        option != nullptr ? option->get_items_expected_max() > 0 : !absl::StrContains(args[i], "=");
    const bool must_take = option != nullptr && option->get_items_expected_min() > 0;
    if (must_take || (may_take && !absl::StartsWith(args[i + 1], "-"))) piece.push_back(args[++i]);
  }
  return pieces;
}

// Checks one piece of SplitFlags by itself.
absl::Status CheckFlag(const std::vector<std::string>& piece, CLI::App* app) {
  const std::string flag = piece[0].substr(0, piece[0].find('='));
  RIVULET_RETURN_IF_ERROR(CheckFormer(flag));
  try {
    app->parse(std::vector(piece.rbegin(), piece.rend()));
  } catch (const CLI::Success&) {  // --help
  } catch (const CLI::ConversionError& error) {
    for (const Setting& setting : Settings()) {
      if (flag != absl::StrCat("--", setting.name)) continue;
      return WrongType(setting, Quoted(app->get_option(flag)->results().back()));
    }
    return BadFlags(*app, piece, error);
  } catch (const CLI::ParseError& error) {
    return BadFlags(*app, piece, error);
  }
  return absl::OkStatus();
}

// Removes from `args` the pieces that are wrong by themselves.
std::vector<absl::Status> RemoveBadFlags(std::vector<std::string>* args) {
  ServerConfig scratch;
  Flags flags(&scratch);
  std::vector<absl::Status> faults;
  std::vector<std::string> good;
  for (const std::vector<std::string>& piece : SplitFlags(flags.app, *args)) {
    absl::Status status = CheckFlag(piece, &flags.app);
    if (status.ok()) good.insert(good.end(), piece.begin(), piece.end());
    if (!status.ok()) faults.push_back(std::move(status));
  }
  *args = std::move(good);
  return faults;
}

// The faults of the --config file; its values go to *config.
std::vector<absl::Status> ApplyConfigFile(const std::string& path, ServerConfig* config) {
  const auto text = ReadSmallFile(path, kMaxConfigBytes);
  if (!text.ok()) return {Annotate(text.status(), path)};
  std::vector<absl::Status> faults = ApplyJson(*text, config);
  for (absl::Status& fault : faults) fault = Annotate(fault, path);
  return faults;
}

}  // namespace

absl::StatusOr<ServerCommand> ParseServerCommand(int argc, const char* const* argv) {
  ServerCommand command;
  std::vector<std::string> args(argv + 1, argv + argc);
  command.faults = RemoveBadFlags(&args);
  const bool checks = std::find(args.begin(), args.end(), "--check-config") != args.end();
  if (!command.faults.empty() && !checks) return command.faults.front();
  ServerConfig scratch;
  Flags first(&scratch);  // finds --config, --help and --version
  const auto show = [&command](std::string output) {
    command.action = ServerAction::kShow;
    command.output = std::move(output);
    return command;
  };
  try {
    first.app.parse(std::vector(args.rbegin(), args.rend()));
  } catch (const CLI::CallForHelp&) {
    return show(absl::StrReplaceAll(first.app.help(), {{"\n\n\n", "\n\n"}}));
  } catch (const CLI::CallForVersion& version) {
    return show(absl::StrCat(version.what(), "\n"));
  } catch (const CLI::ParseError& error) {
    return BadFlags(first.app, args, error);
  }
  if (!first.config_file.empty()) {
    std::vector<absl::Status> faults = ApplyConfigFile(first.config_file, &command.config);
    if (!faults.empty() && !first.check_config) return faults.front();
    command.faults.insert(command.faults.end(), faults.begin(), faults.end());
  }
  Flags second(&command.config);  // flags that are not given leave the file's values
  try {
    second.app.parse(std::vector(args.rbegin(), args.rend()));
  } catch (const CLI::ParseError& error) {
    return BadFlags(second.app, args, error);
  }
  if (second.check_config) {
    command.action = ServerAction::kCheck;
    return command;
  }
  if (second.print_config) {
    // A template for a configuration file names no model yet.
    ServerConfig checked = command.config;
    if (checked.models.empty()) checked.models.push_back("any");
    RIVULET_RETURN_IF_ERROR(ValidateServerConfig(checked));
    return show(absl::StrCat(ServerConfigToJson(command.config), "\n"));
  }
  RIVULET_RETURN_IF_ERROR(ValidateServerConfig(command.config));
  RIVULET_RETURN_IF_ERROR(
      ParseHostPort(command.config.listen).status());  // a process needs a socket
  return command;
}

}  // namespace rivulet
