// SPDX-License-Identifier: Apache-2.0
#include "server/server.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "model/base/error.h"
#include "model/cache_type.h"
#include "model/cpu/cpu_backend.h"
#include "model/cuda/cuda_backend.h"
#include "model/model.h"
#include "server/base/file_watch.h"
#include "server/constraints/grammars.h"
#include "server/grpc/admin/admin_service.h"
#include "server/grpc/grpc_server.h"
#include "server/health/health_watch.h"
#include "server/health/listener_watch.h"
#include "server/keys/key_ring.h"
#include "server/log.h"
#include "server/metrics/metrics_server.h"
#include "server/model_loader.h"
#include "server/request_log/request_log.h"
#include "server/start/seal_key_file.h"
#include "server/start/start_files.h"
#include "server/start/state_setup.h"
#include "server/tracing/tracer.h"

namespace rivulet {
namespace {

constexpr absl::Duration kHealthPeriod = absl::Milliseconds(500);
// How long the last messages of a drained server may take to reach its clients. After that, clients
// have kCloseTime to read them and to end their connections, and a collector has kCloseTime to take
// the last spans; then the rest is dropped.
constexpr absl::Duration kFlushTime = absl::Seconds(1);
constexpr absl::Duration kCloseTime = absl::Milliseconds(1700);

absl::Duration SecondsOrNever(int seconds) {
  return seconds == 0 ? absl::InfiniteDuration() : absl::Seconds(seconds);
}

absl::StatusOr<std::unique_ptr<Backend>> CreateCuda(std::shared_ptr<const Model> model,
                                                    const ServerConfig& config) {
  CudaBackendOptions options;
  options.num_slots = config.slots;
  options.precision =
      config.precision == "float32" ? CudaPrecision::kFloat32 : CudaPrecision::kDefault;
  options.products = config.products == "own" ? CudaProductChoice::kOwn : CudaProductChoice::kAuto;
  options.device = config.device;
  options.max_context = config.max_context;
  RIVULET_ASSIGN_OR_RETURN(options.weights, WeightsOf(config, model->config().name));
  RIVULET_ASSIGN_OR_RETURN(options.cache, ParseCacheType(config.kv_cache));
  return CreateCudaBackend(std::move(model), options);
}

// The host memory that the backends of `models` have reserved.
int64_t ReservedBytes(const ServedModels& models) {
  int64_t bytes = 0;
  for (const ModelHold& model : models.all()) {
    if (model.description().summary().backend() != "cpu") continue;
    const BackendLimits& limits = model.engine()->limits();
    bytes += static_cast<int64_t>(limits.weight_bytes + limits.drafts.bytes) +
             static_cast<int64_t>(limits.bytes_per_slot) * limits.num_slots;
  }
  return bytes;
}

struct ChosenBackend {
  std::string name;
  std::unique_ptr<Backend> backend;
};

absl::StatusOr<ChosenBackend> ChooseBackend(const std::shared_ptr<const Model>& model,
                                            const ServerConfig& config,
                                            const ServedModels& others) {
  ChosenBackend chosen;
  if (config.backend != "cpu") {
    auto cuda = CreateCuda(model, config);
    if (cuda.ok()) return ChosenBackend{"cuda", *std::move(cuda)};
    RIVULET_RETURN_IF_ERROR(CudaFault(config, cuda.status()));
    // A machine without a GPU is a normal case; a machine whose GPU fails is not.
    const bool expected = GetErrorDetail(cuda.status()).reason == "BACKEND_ABSENT";
    Log(expected ? LogLevel::kInfo : LogLevel::kWarning, "backend_chosen",
        {{"model", model->config().name},
         {"backend", "cpu"},
         {"reason", std::string(cuda.status().message())}});
  }
  RIVULET_ASSIGN_OR_RETURN(const CpuBackendOptions options,
                           CpuOptionsOf(config, model->config().name, ReservedBytes(others)));
  RIVULET_ASSIGN_OR_RETURN(auto cpu, CreateCpuBackend(model, options));
  return ChosenBackend{"cpu", std::move(cpu)};
}

// Files and names are checked for all models before any backend takes memory.
absl::StatusOr<std::vector<std::shared_ptr<const Model>>> LoadModels(const ServerConfig& config) {
  std::vector<std::shared_ptr<const Model>> models;
  std::map<std::string, std::string> directories;
  for (const std::string& text : config.models) {
    RIVULET_ASSIGN_OR_RETURN(const ModelPlace place, ParseModelPlace(text));
    RIVULET_ASSIGN_OR_RETURN(std::shared_ptr<const Model> model,
                             Model::StartLoad(place.directory, place.name));
    // Snapshots name the hash.
    if (!config.warm_states.empty()) RIVULET_RETURN_IF_ERROR(model->CheckWeights());
    const std::string& name = model->config().name;
    RIVULET_RETURN_IF_ERROR(CheckNewModel(directories, name, place.directory));
    directories[name] = model->directory();
    models.push_back(std::move(model));
  }
  RIVULET_RETURN_IF_ERROR(CheckWeightNames(config, directories));
  return models;
}

// The stores that the engines share with other replicas; null: none.
struct SharedStores {
  std::shared_ptr<SessionStore> sessions;
  std::shared_ptr<StateArchive> states;
};

absl::StatusOr<ServedModel> StartEngine(std::shared_ptr<const Model> model,
                                        const ServerConfig& config, const WarmFiles& warm,
                                        const SharedStores& stores, const ServedModels& others) {
  absl::StatusOr<ChosenBackend> chosen_backend = ChooseBackend(model, config, others);
  RIVULET_RETURN_IF_ERROR(model->CheckWeights());  // the backend packed them meanwhile
  RIVULET_ASSIGN_OR_RETURN(ChosenBackend chosen, std::move(chosen_backend));
  EngineOptions options;
  options.session_store = stores.sessions;
  options.state_archive = stores.states;
  options.max_queue = config.max_queue;
  options.max_tenant_queue = config.max_tenant_queue;
  options.reader_timeout = SecondsOrNever(config.reader_timeout_seconds);
  options.max_request_tokens = config.max_request_tokens;
  options.max_tenant_slots = config.max_tenant_slots;
  options.max_host_bytes = int64_t{config.parked_state_mib} << 20;
  RIVULET_RETURN_IF_ERROR(CheckHostMemory(config, chosen.backend->limits()));
  RIVULET_RETURN_IF_ERROR(CheckKeptMemory(config, chosen.backend->limits()));
  SetStateOptions(config, &options);
  if (model->tokenizer() != nullptr) {
    options.constraints =
        CreateGrammars(*model->tokenizer(), model->config().vocab_size, GrammarsOptions());
  }
  RIVULET_ASSIGN_OR_RETURN(DiskTier disk, OpenDiskTier(config, model->config().name));
  RIVULET_ASSIGN_OR_RETURN(std::vector<WarmState> states, warm.Of(*model, chosen.backend->limits(),
                                                                  options.states.max_memory_bytes));
  return ServedModel{Engine::Create(std::move(model), std::move(chosen.backend), options,
                                    std::move(disk), std::move(states)),
                     std::move(chosen.name)};
}

// HOST:PORT with the bound port: "HOST:0" asks for any port.
std::string BoundAddress(const std::string& listen, int port) {
  return absl::StrCat(listen.substr(0, listen.rfind(':')), ":", port);
}

// The options that follow from the settings alone.
GrpcServerOptions GrpcOptionsOf(const ServerConfig& config) {
  GrpcServerOptions options;
  options.listen = config.listen;
  options.tls = TlsFilesOf(config);
  options.reflection = config.reflection;
  options.max_message_bytes = config.max_message_mib << 20;
  options.max_streams = config.max_streams;
  options.max_multiplexed = config.max_multiplexed;
  options.max_restore_bytes = int64_t{config.restore_memory_mib} << 20;
  options.restore_timeout = config.restore_timeout_seconds == 0
                                ? absl::InfiniteDuration()
                                : absl::Seconds(config.restore_timeout_seconds);
  options.max_connections = config.max_connections;
  options.max_connections_per_address = config.max_connections_per_address;
  options.max_connection_idle = SecondsOrNever(config.max_connection_idle_seconds);
  options.max_connection_age = SecondsOrNever(config.max_connection_age_seconds);
  return options;
}

void LogWarnings(const ServerConfig& config) {
  for (const AddressWarning& warning : AddressWarnings(config)) {
    const LogFields fields = {{"setting", std::string(warning.setting)},
                              {"address", warning.address},
                              {"reason", warning.reason}};
    if (warning.has_keys) {
      Log(LogLevel::kWarning, "keys_without_tls", fields);
    } else {
      Log(LogLevel::kWarning, "open_without_keys", fields);
    }
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Create(const ServerConfig& config) {
  RIVULET_RETURN_IF_ERROR(ValidateServerConfig(config));
  RIVULET_ASSIGN_OR_RETURN(std::string snapshot_key, ReadSnapshotKey(config));
  for (const std::string& directory : config.model_repositories) {
    RIVULET_RETURN_IF_ERROR(CheckRepository(directory));
  }
  std::unique_ptr<Server> server(new Server);
  RIVULET_RETURN_IF_ERROR(server->OpenRequestLog(config));
  RIVULET_RETURN_IF_ERROR(server->StartTracing(config));
  if (!config.keys_file.empty()) {
    RIVULET_ASSIGN_OR_RETURN(server->keys_, KeyRing::Create(config.keys_file, absl::Now()));
    server->key_watch_ = std::make_unique<FileWatch>(
        "keys-file", FileWatch::kPeriod,
        [keys = server->keys_](bool asked) { keys->Look(absl::Now(), asked); });
  }
  RIVULET_ASSIGN_OR_RETURN(const auto models, LoadModels(config));
  RIVULET_ASSIGN_OR_RETURN(WarmFiles warm_files, WarmFiles::Read(config, snapshot_key));
  const auto warm = std::make_shared<const WarmFiles>(std::move(warm_files));
  // With a repository the files may be of a model that is loaded later.
  if (config.model_repositories.empty()) RIVULET_RETURN_IF_ERROR(warm->CheckModels(models));
  RIVULET_ASSIGN_OR_RETURN(const std::shared_ptr<Sealer> sealer, server->WatchSealKeys(config));
  SharedStores stores;
  RIVULET_ASSIGN_OR_RETURN(stores.sessions, OpenSessionStore(config, sealer));
  RIVULET_ASSIGN_OR_RETURN(stores.states, OpenStateArchive(config, sealer));
  ModelLoaderOptions loader;
  loader.repositories = config.model_repositories;
  loader.drain_timeout = absl::Seconds(config.drain_seconds);
  for (const auto& model : models) {
    absl::StatusOr<ServedModel> started =
        StartEngine(model, config, *warm, stores, server->models_);
    if (!started.ok()) return Annotate(started.status(), model->directory());
    server->models_.Add(*std::move(started));
    loader.directories[model->config().name] = model->directory();
  }
  GrpcServerOptions options = GrpcOptionsOf(config);
  options.keys = server->keys_.get();
  options.sinks = {server->request_log_.get(), server->tracer_.get()};
  options.snapshot_key = std::move(snapshot_key);
  RIVULET_ASSIGN_OR_RETURN(server->grpc_, GrpcServer::Create(&server->models_, options));
  server->health_watch_ =
      std::make_unique<HealthWatch>(&server->models_, server->grpc_.get(), kHealthPeriod);
  server->WatchListener(config);
  if (!config.admin_listen.empty()) {
    server->loader_ = std::make_unique<ModelLoader>(
        std::move(loader),
        [config, warm, stores, others = &server->models_](std::shared_ptr<const Model> model) {
          return StartEngine(std::move(model), config, *warm, stores, *others);
        },
        &server->models_, server->health_watch_.get());
    RIVULET_ASSIGN_OR_RETURN(
        server->admin_,
        AdminServer::Create(server->loader_.get(), config.admin_listen, TlsFilesOf(config),
                            config.reflection, server->keys_.get(), options.sinks));
  }
  RIVULET_RETURN_IF_ERROR(server->ServeMetrics(config));
  server->LogServing(config);
  LogWarnings(config);
  return server;
}

Server::~Server() {
  if (grpc_ == nullptr) return;
  // The engines end their replies first, so that clients read UNAVAILABLE and not a bare
  // cancellation.
  Drain(absl::InfinitePast());
}

int Server::port() const { return grpc_->port(); }

int Server::admin_port() const { return admin_ == nullptr ? 0 : admin_->port(); }

int Server::metrics_port() const { return metrics_ == nullptr ? 0 : metrics_->port(); }

std::shared_ptr<grpc::Channel> Server::InProcessChannel() { return grpc_->InProcessChannel(); }

bool Server::failed() const {
  return (health_watch_ != nullptr && health_watch_->failed()) ||
         (listener_watch_ != nullptr && listener_watch_->failed());
}

void Server::WatchListener(const ServerConfig& config) {
  if (config.listen.empty() || config.listener_timeout_seconds == 0) return;
  GrpcServer* const grpc = grpc_.get();
  listener_watch_ = std::make_unique<ListenerWatch>(
      ListenerWatchFor(absl::Seconds(config.listener_timeout_seconds)),
      [grpc](absl::Duration timeout) { return grpc->CallSelf(timeout); },
      [grpc] { return grpc->connections().full(); },
      [grpc](const absl::Status& status) {
        grpc->StopServing();
        Log(LogLevel::kError, "health",
            {{"model", ""},
             {"serving", false},
             {"reason", absl::StrCat("the listener answers nobody: ", status.message())}});
      });
}

absl::StatusOr<std::shared_ptr<Sealer>> Server::WatchSealKeys(const ServerConfig& config) {
  if (config.session_store_encryption_keys.empty()) return nullptr;
  RIVULET_ASSIGN_OR_RETURN(std::shared_ptr<SealKeyFile> file,
                           SealKeyFile::Create(config.session_store_encryption_keys));
  seal_key_watch_ = std::make_unique<FileWatch>("store-keys", FileWatch::kPeriod,
                                                [file](bool asked) { file->Look(asked); });
  return file->sealer();
}

absl::Status Server::OpenRequestLog(const ServerConfig& config) {
  if (config.request_log == "none") return absl::OkStatus();
  RequestLogOptions options;
  options.target = config.request_log;
  options.sample = config.request_log_sample;
  RIVULET_ASSIGN_OR_RETURN(request_log_, RequestLog::Open(options));
  return absl::OkStatus();
}

absl::Status Server::StartTracing(const ServerConfig& config) {
  if (config.otlp_endpoint.empty()) return absl::OkStatus();
  RIVULET_ASSIGN_OR_RETURN(OtlpOptions options, OtlpOptionsOf(config));
  Log(LogLevel::kInfo, "tracing",
      {{"target", options.target},
       {"tls", options.tls},
       {"sample", config.trace_sample},
       {"service", options.resource.front().second}});
  tracer_ = std::make_unique<Tracer>(std::move(options), config.trace_sample);
  return absl::OkStatus();
}

bool Server::ReopenRequestLog() { return request_log_ != nullptr && request_log_->Reopen(); }

absl::Status Server::ServeMetrics(const ServerConfig& config) {
  if (config.metrics_listen.empty()) return absl::OkStatus();
  RIVULET_ASSIGN_OR_RETURN(metrics_,
                           MetricsServer::Create(config.metrics_listen, &models_, &grpc_->calls()));
  return absl::OkStatus();
}

bool Server::ReloadKeys() {
  if (key_watch_ != nullptr) key_watch_->Ask();
  if (seal_key_watch_ != nullptr) seal_key_watch_->Ask();
  return key_watch_ != nullptr || seal_key_watch_ != nullptr;
}

void Server::AnnounceDrain() { grpc_->StopServing(); }

bool Server::Drain(absl::Time deadline) {
  const bool all_ended = EndReplies(deadline);
  Close();
  return all_ended;
}

bool Server::EndReplies(absl::Time deadline) {
  grpc_->StopServing();
  if (loader_ != nullptr) loader_->Close();
  std::atomic<bool> all_ended = true;
  std::vector<std::thread> drains;  // side by side: every engine refuses new requests from now on
  for (ModelHold& model : models_.all()) {
    drains.emplace_back([&all_ended, model = std::move(model), deadline] {
      if (!model.engine()->Drain(deadline)) all_ended = false;
    });
  }
  for (std::thread& drain : drains) drain.join();
  const absl::Time flushed = std::max(deadline, absl::Now() + kFlushTime);
  if (!grpc_->WaitUntilIdle(flushed)) all_ended = false;
  return all_ended;
}

void Server::Close() {
  admin_.reset();  // its running calls use the health watch
  health_watch_.reset();
  listener_watch_.reset();
  const absl::Time end = absl::Now() + kCloseTime;
  std::thread spans([this, end] {
    if (tracer_ != nullptr) tracer_->Stop(end);
  });
  grpc_->Shutdown(end);
  spans.join();
}

void Server::LogServing(const ServerConfig& config) const {
  const std::vector<ModelHold> models = models_.served();
  for (const ModelHold& model : models) LogModel(model);
  if (admin_ != nullptr) {
    Log(LogLevel::kInfo, "admin_listening",
        {{"address", BoundAddress(config.admin_listen, admin_port())},
         {"port", int64_t{admin_port()}}});
  }
  if (metrics_ != nullptr) {
    Log(LogLevel::kInfo, "metrics_listening",
        {{"address", BoundAddress(config.metrics_listen, metrics_port())},
         {"port", int64_t{metrics_port()}}});
  }
  if (config.listen.empty()) return;
  const auto append_name = [](std::string* out, const ModelHold& model) {
    out->append(model.name());
  };
  Log(LogLevel::kInfo, "listening",
      {{"address", BoundAddress(config.listen, port())},
       {"port", int64_t{port()}},
       {"tls", std::string(config.tls_cert.empty()        ? "off"
                           : config.tls_client_ca.empty() ? "server"
                                                          : "mutual")},
       {"models", absl::StrJoin(models, ",", append_name)},
       {"max_connections", int64_t{grpc_->connections().counts().max_open}}});
}

}  // namespace rivulet
