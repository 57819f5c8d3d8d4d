// SPDX-License-Identifier: Apache-2.0
#include "server/config/server_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "server/config/settings.h"
#include "tests/support/random_model.h"

namespace rivulet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

absl::StatusOr<ServerCommand> Parse(std::vector<const char*> flags) {
  flags.insert(flags.begin(), "rivulet-server");
  return ParseServerCommand(static_cast<int>(flags.size()), flags.data());
}

// A file that is removed with this object.
struct TempFile {
  explicit TempFile(const std::string& text) { std::ofstream(path) << text; }
  const testing::TempDir directory;
  const std::string path = directory.File("config.json");
};

TEST(ServerConfigTest, DefaultsListenOnLoopback) {
  const auto command = Parse({"--model", "m"});
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_EQ(command->action, ServerAction::kServe);
  EXPECT_EQ(command->config.listen, "127.0.0.1:50051");
  EXPECT_EQ(command->config.backend, "auto");
  EXPECT_EQ(command->config.drain_delay_seconds, 0);
  EXPECT_EQ(command->config.drain_seconds, 30);
  EXPECT_EQ(command->config.max_connections, 0);
  EXPECT_EQ(command->config.max_connections_per_address, 0);
  EXPECT_EQ(command->config.max_connection_idle_seconds, 0);
  EXPECT_EQ(command->config.max_connection_age_seconds, 0);
  EXPECT_EQ(command->config.listener_timeout_seconds, 60);
}

TEST(ServerConfigTest, ModelMayBeRepeated) {
  const auto command = Parse({"--model", "a", "--model", "b", "--device", "1", "--threads", "3"});
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_THAT(command->config.models, ElementsAre("a", "b"));
  EXPECT_EQ(command->config.device, 1);
  EXPECT_EQ(command->config.threads, 3);
}

TEST(ServerConfigTest, ANameMayStandBeforeTheDirectoryOfAModel) {
  const struct {
    std::string text, name, directory;
  } cases[] = {{"models/gla", "", "models/gla"},
               {"mine=models/gla", "mine", "models/gla"},
               {"a=b=c", "a", "b=c"},
               {"./a=b", "", "./a=b"},
               {"/x/a=b", "", "/x/a=b"},
               {std::string(64, 'a') + "=m", std::string(64, 'a'), "m"}};
  for (const auto& [text, name, directory] : cases) {
    const auto place = ParseModelPlace(text);
    ASSERT_TRUE(place.ok()) << place.status();
    EXPECT_EQ(place->name, name) << text;
    EXPECT_EQ(place->directory, directory) << text;
  }
  for (const std::string& text :
       {std::string("Mine=m"), std::string("=m"), std::string("my model=m"), std::string("..=m"),
        std::string("mine="), std::string(65, 'a') + "=m"}) {
    const absl::Status status = Parse({"--model", text.c_str()}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(GetErrorDetail(status).field, "model") << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("model is \"" + text + "\""));
  }
}

TEST(ServerConfigTest, FlagsWinOverTheFileAndTheFileOverDefaults) {
  const TempFile file(
      R"({"model": ["a", "b"], "threads": 2, "max-queue": 7, "reflection": false})");
  const auto command = Parse({"--config", file.path.c_str(), "--threads", "5"});
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_THAT(command->config.models, ElementsAre("a", "b"));
  EXPECT_EQ(command->config.threads, 5);
  EXPECT_EQ(command->config.max_queue, 7);
  EXPECT_FALSE(command->config.reflection);
  EXPECT_EQ(command->config.slots, std::nullopt);
}

TEST(ServerConfigTest, ACheckGoesOnAfterAFault) {
  const TempFile file(R"({"slots": "many", "model": ["m"], "reflection": 1, "threads": 3})");
  const auto command =
      Parse({"--check-config", "--config", file.path.c_str(), "--max-queue", "-1"});
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_EQ(command->action, ServerAction::kCheck);
  EXPECT_EQ(command->config.threads, 3) << "what follows a fault counts, too";
  ASSERT_EQ(command->faults.size(), 2u);
  for (const absl::Status& fault : command->faults) {
    EXPECT_THAT(std::string(fault.message()), HasSubstr(file.path)) << fault;
  }
  EXPECT_EQ(GetErrorDetail(command->faults[0]).field, "slots");
  EXPECT_EQ(GetErrorDetail(command->faults[1]).field, "reflection");
  ServerConfig config = command->config;
  config.metrics_listen = "nowhere";
  config.tls_cert = "cert.pem";
  std::vector<std::string> fields;
  for (const absl::Status& fault : ServerConfigFaults(config)) {
    fields.push_back(GetErrorDetail(fault).field);
  }
  EXPECT_THAT(fields, ElementsAre("max-queue", "tls-cert", "metrics-listen"));
}

TEST(ServerConfigTest, ACheckSaysOfEachFlagWhatIsWrong) {
  const TempFile file(R"({"device": "x"})");
  const auto command = Parse({"--slots",
                              "x",
                              "--model",
                              "a",
                              "stray",
                              "--max-queue",
                              "-1",
                              "--frob",
                              "value",
                              "--modle=b",
                              "--threads",
                              "many",
                              "--max-sessions",
                              "5",
                              "--check-config",
                              "--config",
                              file.path.c_str(),
                              "--model",
                              "b",
                              "--trace-sample"});
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_EQ(command->action, ServerAction::kCheck);
  EXPECT_THAT(command->config.models, ElementsAre("a", "b"));
  EXPECT_EQ(command->config.max_queue, -1) << "out of range, which is found with the others";
  std::vector<std::string> faults;
  for (const absl::Status& fault : command->faults) faults.emplace_back(fault.message());
  EXPECT_THAT(
      faults,
      ElementsAre(HasSubstr("slots is \"x\""), HasSubstr("stray"), HasSubstr("option --frob"),
                  HasSubstr("option --modle; did you mean --model?"),
                  HasSubstr("threads is \"many\""), HasSubstr("--max-sessions: this setting was"),
                  HasSubstr("--trace-sample"), HasSubstr("device is \"x\"")));
}

TEST(ServerConfigTest, SlotsAreANumberOrAuto) {
  const TempFile file(R"({"slots": 7})");
  EXPECT_EQ(Parse({"--config", file.path.c_str(), "--model", "m"})->config.slots, 7);
  const char* const config = file.path.c_str();
  EXPECT_EQ(Parse({"--config", config, "--model", "m", "--slots", "9"})->config.slots, 9);
  const auto by_flag = Parse({"--config", config, "--model", "m", "--slots", "auto"});
  ASSERT_TRUE(by_flag.ok()) << by_flag.status();
  EXPECT_EQ(by_flag->config.slots, std::nullopt);
  ServerConfig read = by_flag->config;
  read.slots = 3;
  ASSERT_TRUE(ApplyServerConfigJson(R"({"slots": "auto"})", &read).ok());
  EXPECT_EQ(read.slots, std::nullopt);
  EXPECT_THAT(ServerConfigToJson(read), HasSubstr("\"slots\": \"auto\""));
  EXPECT_THAT(Parse({"--help"})->output, HasSubstr("--slots N=auto"));
}

TEST(ServerConfigTest, AContextIsANumberOrAutoOrByNumberOfSlots) {
  const TempFile file(R"({"max-context": 512})");
  const char* const config = file.path.c_str();
  EXPECT_EQ(Parse({"--config", config, "--model", "m"})->config.max_context.tokens, 512);
  const auto by_flag = Parse({"--config", config, "--model", "m", "--max-context", "auto:4"});
  ASSERT_TRUE(by_flag.ok()) << by_flag.status();
  ServerConfig read = by_flag->config;
  EXPECT_EQ(read.max_context.tokens, std::nullopt);
  EXPECT_EQ(read.max_context.slots, 4);
  EXPECT_THAT(ServerConfigToJson(read), HasSubstr("\"max-context\": \"auto:4\""));
  ASSERT_TRUE(ApplyServerConfigJson(R"({"max-context": "auto:9"})", &read).ok());
  EXPECT_EQ(read.max_context.slots, 9);
  ASSERT_TRUE(ApplyServerConfigJson(R"({"max-context": "auto"})", &read).ok());
  EXPECT_EQ(read.max_context.slots, std::nullopt);
  EXPECT_THAT(Parse({"--help"})->output, HasSubstr("--max-context N=auto"));

  const std::pair<const char*, const char*> kBad[] = {
      {"auto:0",
       "max-context is auto:0; allowed: auto, or 1 to 16777216, or auto:SLOTS with 1 to "},
      {"auto:257", "max-context is auto:257; allowed"},
      {"auto:x", "max-context is \"auto:x\"; it must be an integer, \"auto\" or \"auto:SLOTS\""},
      {"auto:", "max-context is \"auto:\"; it must be"},
      {"4294967297", "max-context is 4294967297; allowed: auto, or 1 to 16777216"}};
  for (const auto& [value, message] : kBad) {
    const auto bad = Parse({"--model", "m", "--max-context", value});
    EXPECT_THAT(std::string(bad.status().message()), HasSubstr(message));
  }
  EXPECT_TRUE(Parse({"--model", "m", "--max-context", "auto:4", "--slots", "4"}).ok());
  const auto other = Parse({"--model", "m", "--max-context", "auto:4", "--slots", "8"});
  EXPECT_THAT(std::string(other.status().message()),
              HasSubstr("max-context is auto:4, but slots is 8; leave slots at auto, or set it"));
}

TEST(ServerConfigTest, ModelsOfFlagsReplaceThoseOfTheFile) {
  const TempFile file(R"({"model": ["a", "b"]})");
  const auto command = Parse({"--config", file.path.c_str(), "--model", "c"});
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_THAT(command->config.models, ElementsAre("c"));
}

TEST(ServerConfigTest, PrintedConfigReadsBackAsItself) {
  ServerConfig config;
  config.models = {"one", "two"};
  config.listen = "[::1]:0";
  config.weights = "bf16";
  config.model_weights = {"one=int4,head=f16"};
  config.max_queue = 3;
  config.slots = 8;
  config.max_open_sessions = 5;
  config.max_tenant_sessions = 4;
  config.session_store_tenant_mib = 6;
  config.session_state_mib = 7;
  config.snapshot_key_file = "key";
  config.reflection = false;
  config.request_log_sample = 0.25;
  ServerConfig read;
  ASSERT_TRUE(ApplyServerConfigJson(ServerConfigToJson(config), &read).ok());
  EXPECT_EQ(ServerConfigToJson(read), ServerConfigToJson(config));
  EXPECT_THAT(read.models, ElementsAre("one", "two"));
  EXPECT_EQ(read.weights, "bf16");
  EXPECT_EQ(WeightChoiceName(*WeightsOf(read, "one")), "int4,head=f16");
  EXPECT_EQ(WeightChoiceName(*WeightsOf(read, "two")), "bf16");
  EXPECT_EQ(read.slots, 8);
  EXPECT_EQ(read.max_open_sessions, 5);
  EXPECT_EQ(read.max_tenant_sessions, 4);
  EXPECT_EQ(read.session_store_tenant_mib, 6);
  EXPECT_EQ(read.session_state_mib, 7);
  EXPECT_EQ(read.snapshot_key_file, "key");
  EXPECT_EQ(read.request_log_sample, 0.25);
}

TEST(ServerConfigTest, JsonErrorsNameTheKey) {
  const struct {
    const char* json;
    const char* message;
  } kCases[] = {
      {R"({"modle": []})", "\"modle\" is not a setting; did you mean model?"},
      {R"({"zzz": []})", "\"zzz\" is not a setting; --print-config prints all"},
      {R"({"threads": 1, "threads": 2})", "threads"},
      {R"({"threads": "2"})", "threads is \"2\"; it must be an integer"},
      {R"({"threads": 2.5})", "threads is 2.5; it must be an integer"},
      {R"({"threads": 99999999999999999999})", "threads is"},
      {R"({"threads": 3000000000})", "threads is 3000000000; it must be an integer"},
      {R"({"model": "dir"})", "model is \"dir\"; it must be an array of strings"},
      {R"({"model": [1]})", "it must be an array of strings"},
      {R"({"slots": "many"})", "slots is \"many\"; it must be an integer or \"auto\""},
      {R"({"slots": 2.5})", "slots is 2.5; it must be an integer or \"auto\""},
      {R"({"reflection": 1})", "it must be true or false"},
      {R"({"listen": null})", "it must be a string"},
      {R"({"request-log-sample": "1"})", "request-log-sample is \"1\"; it must be a number"},
      {R"([])", "object"},
      {R"({"threads": 1)", "not valid JSON at byte 14"},
      {"", "not valid JSON at byte 1"},
  };
  for (const auto& test : kCases) {
    ServerConfig config;
    const absl::Status status = ApplyServerConfigJson(test.json, &config);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << test.json;
    EXPECT_THAT(std::string(status.message()), HasSubstr(test.message)) << test.json;
  }
}

TEST(ServerConfigTest, AnUnknownFlagIsNamedWithWhatWasMeant) {
  const auto message = [](const absl::Status& status) {
    EXPECT_EQ(GetErrorDetail(status).reason, "CONFIG_INVALID");
    return std::string(status.message());
  };
  EXPECT_EQ(message(Parse({"--model", "m", "--slot", "3"}).status()),
            "unknown option --slot; did you mean --slots? (see --help)");
  EXPECT_EQ(message(Parse({"--zzz"}).status()), "unknown option --zzz (see --help)");
  EXPECT_EQ(message(Parse({"-m", "d"}).status()),
            "unknown option -m; did you mean --model? (see --help)");
  for (const char* const name : {"--port", "--host"}) {
    EXPECT_EQ(
        message(Parse({"--model", "m", name, "80"}).status()),
        absl::StrCat("unknown option ", name, "; did you mean --listen HOST:PORT? (see --help)"));
  }
  for (const auto& [former, what] : kFormerSettings) {
    const std::string flag = absl::StrCat("--", former, "x");
    EXPECT_THAT(message(Parse({flag.c_str()}).status()), Not(HasSubstr(absl::StrCat(former, "?"))));
  }
}

TEST(ServerConfigTest, AConfigThatIsNoRegularFileIsAnError) {
  const auto status = Parse({"--model", "m", "--config", "/"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/: must be a regular file"));
  EXPECT_EQ(Parse({"--model", "m", "--config", "/no/such/file"}).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(ServerConfigTest, FlagErrorsAreOneLineThatNamesTheFlag) {
  const struct {
    std::vector<const char*> flags;
    const char* message;
  } kCases[] = {
      {{}, "no model is given"},
      {{"--model", "m", "--frob"}, "--frob"},
      {{"--model", "m", "stray"}, "stray"},
      {{"--model", "m", "--threads", "many"},
       "threads is \"many\"; it must be an integer; allowed: 0 to 4096"},
      {{"--model", "m", "--max-queue", "99999999999"},
       "max-queue is \"99999999999\"; it must be an integer; allowed: 0 to"},
      {{"--model", "m", "--reflection", "perhaps"},
       "reflection is \"perhaps\"; it must be true or false"},
      {{"--model", "m", "--threads", "-1"}, "threads is -1; allowed: 0 to 4096"},
      {{"--model", "m", "--slots", "0"}, "slots is 0; allowed: auto, or 1 to"},
      {{"--model", "m", "--slots", "many"},
       "slots is \"many\"; it must be an integer or \"auto\"; allowed: 1 to"},
      {{"--model", "m", "--max-tenant-slots", "-1"}, "max-tenant-slots is -1; allowed: 0 to"},
      {{"--model", "m", "--max-request-tokens", "0"}, "max-request-tokens is 0; allowed: 1 to"},
      {{"--model", "m", "--max-open-sessions", "-1"}, "max-open-sessions is -1; allowed: 0 to"},
      {{"--model", "m", "--session-state-mib", "-1"}, "session-state-mib is -1; allowed: 0 to"},
      {{"--model", "m", "--drain-delay-seconds", "-1"}, "drain-delay-seconds is -1; allowed: 0 to"},
      {{"--model", "m", "--restore-timeout-seconds", "-1"},
       "restore-timeout-seconds is -1; allowed: 0 to 86400"},
      {{"--model", "m", "--max-message-mib", "300"},
       "restore-memory-mib is 512; it must be at least twice max-message-mib, which is 300"},
      {{"--model", "m", "--backend", "tpu"}, "backend is \"tpu\"; allowed: auto, cpu, cuda"},
      {{"--model", "m", "--precision", "float16"}, "allowed: default, float32"},
      {{"--model", "m", "--products", "cublas"}, "products is \"cublas\"; allowed: auto, own"},
      {{"--model", "m", "--request-log", ""},
       "request-log is \"\"; allowed: a path, stderr or none"},
      {{"--model", "m", "--request-log-sample", "-0.1"},
       "request-log-sample is -0.1; allowed: 0 to 1"},
      {{"--model", "m", "--request-log-sample", "nan"},
       "request-log-sample is nan; allowed: 0 to 1"},
      {{"--model", "m", "--weights", "int2"},
       "weights is \"int2\"; allowed: auto, f32, f16, bf16, int8 or int4, and"},
      {{"--model", "m", "--weights", "int4,head=f8"}, "weights is \"int4,head=f8\"; allowed: "},
      {{"--model", "m", "--weights", "int4,"}, "weights is \"int4,\"; allowed: "},
      {{"--model", "m", "--weights", "int8,head=int4", "--backend", "cuda"},
       "weights is \"int8,head=int4\", which the backend cuda does not have; set backend to cpu, "
       "or weights to auto or int8"},
      {{"--model", "m", "--weights", "int8", "--backend", "cuda", "--precision", "float32"},
       "weights is \"int8\", which the backend cuda has with the default precision only; set "
       "precision to default, or weights to auto"},
      {{"--model", "m", "--weights", "m=int8"},
       "weights is \"m=int8\", which names a model; --model-weights m=int8 sets those of one "
       "model"},
      {{"--model", "m", "--model-weights", "int8"},
       "model-weights is \"int8\"; allowed: NAME=TYPE[,head=TYPE] with the name of a model"},
      {{"--model", "m", "--model-weights", "int4,head=f16"}, "allowed: NAME=TYPE[,head=TYPE]"},
      {{"--model", "m", "--model-weights", "m=int2"},
       "model-weights is \"m=int2\"; weights is \"int2\"; allowed: auto, f32, f16, bf16, int8"},
      {{"--model", "m", "--model-weights", "m=int8", "--model-weights", "m=f16"},
       "model-weights names the model \"m\" twice"},
      {{"--model", "m", "--model-weights", "m=int4", "--backend", "cuda"},
       "model-weights m=int4: weights is \"int4\", which the backend cuda does not have"},
      {{"--model", "m", "--listen", "localhost"}, "it needs a host and a port"},
      {{"--model", "m", "--listen", ""}, "it needs a host and a port"},
      {{"--model", "m", "--listen", "::1:80"}, "an IPv6 address needs brackets"},
      {{"--model", "m", "--listen", "localhost:99999"}, "the port must be 0 to 65535"},
      {{"--model", "m", "--listen", "localhost:http"}, "the port must be 0 to 65535"},
      {{"--model"}, "--model"},
  };
  for (const auto& test : kCases) {
    const auto command = Parse(test.flags);
    ASSERT_EQ(command.status().code(), absl::StatusCode::kInvalidArgument) << test.message;
    const std::string message(command.status().message());
    EXPECT_THAT(message, HasSubstr(test.message));
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(ServerConfigTest, SettingsOfAStoreThatIsNotUsedAreRefused) {
  const auto said = [](const char* store, const char* flag) {
    return std::string(
        Parse({"--model", "m", "--session-store", store, flag, "x"}).status().message());
  };
  for (const char* const name : {"password-file", "sentinel-user", "sentinel-password-file", "ca",
                                 "cert", "key", "server-name", "key-prefix"}) {
    const std::string setting = std::string("session-store-") + name, flag = "--" + setting;
    for (const char* const store : {"none", "dir:sessions"}) {
      EXPECT_EQ(said(store, flag.c_str()),
                setting + " is \"x\"; it needs a session-store in Redis");
    }
    EXPECT_EQ(said("redis+sentinel://u@h/m", flag.c_str()), "");
  }
  constexpr char kKeys[] = "--session-store-encryption-keys";
  EXPECT_EQ(said("none", kKeys),
            "session-store-encryption-keys is \"x\"; it needs a session-store");
  EXPECT_EQ(said("dir:sessions", kKeys), "");
  EXPECT_EQ(said("redis://h", kKeys), "");
  const auto limited = Parse({"--model", "m", "--session-store-tenant-mib", "6"});
  EXPECT_THAT(std::string(limited.status().message()),
              HasSubstr("session-store-tenant-mib is 6; it needs a session-store"));
}

TEST(ServerConfigTest, AMissingFileIsNotFound) {
  const auto command = Parse({"--config", "/no/such/file.json"});
  EXPECT_EQ(command.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(command.status().message()), HasSubstr("/no/such/file.json"));
}

TEST(ServerConfigTest, ErrorsInAFileNameIt) {
  const TempFile file(R"({"modle": []})");
  const auto command = Parse({"--config", file.path.c_str()});
  EXPECT_THAT(std::string(command.status().message()), HasSubstr(file.path + ": \"modle\""));
}

TEST(ServerConfigTest, SettingsOfBeforeAreRefusedAndSayWhatBecameOfThem) {
  for (const auto& [name, what] : kFormerSettings) {
    const std::string flag = absl::StrCat("--", name), with_value = absl::StrCat(flag, "=4");
    const TempFile file(absl::StrCat(R"({"model": ["a"], ")", name, R"(": 4})"));
    for (const absl::Status& status : {Parse({"--model", "m", flag.c_str(), "4"}).status(),
                                       Parse({"--model", "m", with_value.c_str()}).status(),
                                       Parse({flag.c_str(), "--model", "m"}).status(),
                                       Parse({"--model", "m", flag.c_str()}).status(),
                                       Parse({"--config", file.path.c_str()}).status()}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
      EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(name, ": ", what)));
      EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
    }
    EXPECT_EQ(Parse({"--help"})->output.find(flag + " "), std::string::npos);
  }
}

TEST(ServerConfigTest, AChoiceThatWasRemovedIsRefusedAndTheOthersAreNamed) {
  const TempFile file(R"({"model": ["m"], "products": "cublaslt"})");
  for (const absl::Status& status : {Parse({"--model", "m", "--products=cublaslt"}).status(),
                                     Parse({"--config", file.path.c_str()}).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(GetErrorDetail(status).field, "products");
    EXPECT_EQ(status.message(),
              "products is \"cublaslt\", which was removed; set it to auto or own");
  }
}

TEST(ServerConfigTest, HelpShowsDefaultsAndNeedsNoModel) {
  const auto command = Parse({"--help"});
  ASSERT_TRUE(command.ok());
  EXPECT_EQ(command->action, ServerAction::kShow);
  EXPECT_THAT(command->output, HasSubstr("127.0.0.1:50051"));
  EXPECT_THAT(command->output, HasSubstr("--drain-seconds"));
}

TEST(ServerConfigTest, VersionAndPrintConfigDoNotServe) {
  const auto version = Parse({"--version"});
  ASSERT_TRUE(version.ok());
  EXPECT_EQ(version->action, ServerAction::kShow);
  EXPECT_THAT(version->output, HasSubstr("rivulet-server "));
  const auto print = Parse({"--model", "m", "--print-config"});
  ASSERT_TRUE(print.ok());
  EXPECT_EQ(print->action, ServerAction::kShow);
  EXPECT_THAT(print->output, HasSubstr("\"model\": ["));
}

TEST(ServerConfigTest, PrintConfigNeedsNoModelButValidSettings) {
  const auto print = Parse({"--print-config", "--threads", "3"});
  ASSERT_TRUE(print.ok()) << print.status();
  EXPECT_EQ(print->action, ServerAction::kShow);
  EXPECT_THAT(print->output, HasSubstr("\"model\": []"));
  EXPECT_THAT(print->output, HasSubstr("\"threads\": 3"));
  EXPECT_FALSE(Parse({"--print-config", "--threads", "-3"}).ok());
}

TEST(HostPortTest, SplitsNamesAndBracketedAddresses) {
  const auto name = ParseHostPort("localhost:80");
  ASSERT_TRUE(name.ok());
  EXPECT_EQ(name->host, "localhost");
  EXPECT_EQ(name->port, 80);
  const auto ipv6 = ParseHostPort("[::1]:0");
  ASSERT_TRUE(ipv6.ok());
  EXPECT_EQ(ipv6->host, "::1");
  EXPECT_EQ(ipv6->port, 0);
}

}  // namespace
}  // namespace rivulet
