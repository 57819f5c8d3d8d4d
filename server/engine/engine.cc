// SPDX-License-Identifier: Apache-2.0
#include "server/engine/engine.h"

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "model/base/error.h"
#include "model/base/thread.h"
#include "server/engine/engine_parts.h"
#include "server/engine/loop/activity.h"
#include "server/engine/loop/emitter.h"
#include "server/engine/loop/loop.h"
#include "server/engine/loop/request_queue.h"
#include "server/engine/replicas/replicated_sessions.h"
#include "server/engine/reply_fingerprint.h"
#include "server/engine/sequences/live_session_command.h"
#include "server/engine/sequences/sample_sequence.h"
#include "server/engine/sequences/score_sequence.h"
#include "server/engine/validate.h"

namespace rivulet {
namespace {

// Without a model (in tests) the stamp does not tell whose the files are.
StateStamp StampOf(const Model* model, const BackendLimits& limits) {
  if (model != nullptr) return MakeStateStamp(*model, limits.numerics_id);
  return {"", "", limits.numerics_id, "config"};
}

ReplicaIdentity IdentityOf(const ModelConfig& config, const StateStamp& stamp) {
  return {config.name, stamp.weights_sha256, stamp.config_sha256, stamp.numerics_id,
          config.vocab_size};
}

QueueLimits QueueLimitsOf(const EngineOptions& options, int slots) {
  QueueLimits limits;
  limits.slots = slots;
  limits.max_queue = options.max_queue;
  limits.max_tenant_queue = options.max_tenant_queue;
  limits.max_tokens = options.max_queue_tokens;
  limits.saves = options.session_store != nullptr;
  return limits;
}

EngineOptions WithContext(EngineOptions options, const ModelConfig& config) {
  if (config.context > 0) options.sessions.context_tokens = *config.max_tokens();
  return options;
}

class EngineImpl final : public SteppedEngine {
 public:
  EngineImpl(std::shared_ptr<const Model> model, const ModelConfig& config,
             const TextTokenizer* tokenizer, std::unique_ptr<Backend> backend,
             const EngineOptions& options, const Clock& clock, Emitter::Threads threads,
             DiskTier disk, std::vector<WarmState> warm)
      : model_(std::move(model)),
        config_(config.WithContext(backend->limits().context)),
        options_(WithContext(options, config_)),
        clock_(clock),
        backend_(std::move(backend)),
        limits_(backend_->limits()),
        view_{&config_, tokenizer, ModelFingerprint(StampOf(model_.get(), limits_)),
              limits_.late_masks, limits_.drafts.most},
        queue_(QueueLimitsOf(options, limits_.num_slots), clock),
        emitter_(threads),
        loop_(backend_.get(), options_, config_.has_bos(), clock, &queue_, &emitter_, &meters_,
              IdentityOf(config_, StampOf(model_.get(), limits_)), StampOf(model_.get(), limits_),
              std::move(disk), std::move(warm)) {
    if (options_.constraints != nullptr) options_.constraints->SetWake([this] { queue_.Wake(); });
    if (threads == Emitter::Threads::kOwn) thread_ = std::thread([this] { RunLoop(); });
  }

  ~EngineImpl() override {
    if (options_.constraints != nullptr) options_.constraints->SetWake(nullptr);
    queue_.Stop();
    if (thread_.joinable()) {
      thread_.join();
    } else {
      loop_.Run();
    }
  }

  const Model& model() const override {
    if (model_ == nullptr) {
      std::fputs("Engine::model: this engine was made for a configuration alone\n", stderr);
      std::abort();
    }
    return *model_;
  }
  const BackendLimits& limits() const override { return limits_; }
  const EngineOptions& options() const override { return options_; }

  absl::StatusOr<std::shared_ptr<Reply>> Generate(GenerateSpec spec,
                                                  ReplyListener* listener) override;
  absl::StatusOr<RequestId> Score(ScoreSpec spec, ScoreDone done) override;
  absl::StatusOr<RequestId> Append(AppendSpec spec, ScoreDone done) override;
  absl::StatusOr<RequestId> Call(SessionCommand call) override {
    return queue_.Submit(std::make_unique<LiveSessionCommand>(std::move(call)));
  }
  void Cancel(RequestId id) override { queue_.Cancel(id); }
  EngineLoad GetLoad() const override { return queue_.load(); }
  const EngineMeters& meters() const override { return meters_; }
  bool Drain(absl::Time deadline) override {
    if (!thread_.joinable()) return queue_.StartDrain(deadline <= clock_());
    const bool all_ended = queue_.Drain(deadline);
    emitter_.Flush();
    return all_ended;
  }
  bool Turn() override { return loop_.Turn() == Loop::Outcome::kBusy; }
  void Emit() override { emitter_.Deliver(); }

 private:
  // Submits a request that takes tokens.
  absl::StatusOr<RequestId> Submit(std::unique_ptr<LiveRequest> request) {
    LiveRequest::Account& account = request->account;
    account.usage =
        meters_.usage()->Of(account.tenant, account.key == nullptr ? "" : account.key->name());
    return queue_.Submit(std::move(request));
  }
  absl::StatusOr<RequestId> EndAtOnce(std::unique_ptr<LiveRequest> request);
  void RunLoop() {
    NameThread("loop");
    const LoopActivity activity(config_.name);
    loop_.Run();
  }

  const std::shared_ptr<const Model> model_;  // null: see CreateEngineForConfig
  const ModelConfig config_;
  const EngineOptions options_;
  const Clock clock_;
  const std::unique_ptr<Backend> backend_;  // used by the loop, once it runs
  const BackendLimits limits_;
  const ModelView view_;
  RequestQueue queue_;
  EngineMeters meters_;
  Emitter emitter_;  // destroyed before the queue, which replies wake
  Loop loop_;
  std::thread thread_;  // none: a SteppedEngine
};

absl::StatusOr<std::shared_ptr<Reply>> EngineImpl::Generate(GenerateSpec spec,
                                                            ReplyListener* listener) {
  RIVULET_RETURN_IF_ERROR(ValidateGenerate(spec, view_, limits_, options_));
  Grammar grammar;
  if (spec.constraint) {
    RIVULET_ASSIGN_OR_RETURN(grammar, GrammarOf(*spec.constraint));
  }
  const bool in_session = spec.session.has_value();
  const NewTokens max_new = MostNewTokens(spec, view_, options_);
  // With a session the fingerprint is known only in Generation::Begin.
  const uint64_t fingerprint =
      in_session ? 0 : ReplyFingerprint(view_.fingerprint, spec, max_new.asked);
  if (spec.resume && !in_session) {
    RIVULET_RETURN_IF_ERROR(CheckResume(spec, config_, max_new.most, fingerprint));
  }
  std::optional<uint64_t> identity;
  if (in_session && spec.session->position && options_.session_store != nullptr) {
    const SessionRef& ref = *spec.session;
    identity =
        ReplyFingerprint(SessionFingerprint(view_.fingerprint, ref.id, *ref.position, /*hash=*/0),
                         spec, max_new.asked);
  }
  auto request = std::make_unique<Generation>(std::move(spec), std::move(grammar), max_new.most,
                                              view_, options_, listener);
  request->claim.identity = identity;
  if (!in_session) request->reply->SetFingerprint(fingerprint);
  const std::shared_ptr<Reply> reply = request->reply;
  if (max_new.most > 0 || in_session) {
    RIVULET_ASSIGN_OR_RETURN(const RequestId id, Submit(std::move(request)));
    reply->SetId(id);
    return reply;
  }
  for (int i = 0; i < request->num_slots; ++i) {
    ReplyDelta delta;
    delta.sample_index = i;
    delta.finish.emplace();
    reply->Append(std::move(delta));
  }
  RIVULET_ASSIGN_OR_RETURN(const RequestId id, EndAtOnce(std::move(request)));
  reply->SetId(id);
  return reply;
}

absl::StatusOr<RequestId> EngineImpl::Score(ScoreSpec spec, ScoreDone done) {
  RIVULET_RETURN_IF_ERROR(ValidateScore(spec, view_, options_));
  auto request = std::make_unique<Scoring>(std::move(spec), view_, std::move(done));
  if (request->feed.empty()) return EndAtOnce(std::move(request));
  return Submit(std::move(request));
}

absl::StatusOr<RequestId> EngineImpl::Append(AppendSpec spec, ScoreDone done) {
  RIVULET_RETURN_IF_ERROR(ValidateAppend(spec, view_, options_));
  return Submit(std::make_unique<Appending>(std::move(spec), view_, options_, std::move(done)));
}

// Ends a request with nothing to feed, without a slot and without the loop.
absl::StatusOr<RequestId> EngineImpl::EndAtOnce(std::unique_ptr<LiveRequest> request) {
  RIVULET_ASSIGN_OR_RETURN(const RequestId id, queue_.NewId());
  request->usage.arrival = clock_();  // it takes no time
  meters_.CountStart(request->kind);
  meters_.CountEnd(request->kind, absl::OkStatus());
  meters_.NoteDuration(request->usage.total_time);
  emitter_.End(std::move(request));
  return id;
}

}  // namespace

std::unique_ptr<Engine> Engine::Create(std::shared_ptr<const Model> model,
                                       std::unique_ptr<Backend> backend,
                                       const EngineOptions& options, DiskTier disk,
                                       std::vector<WarmState> warm) {
  const ModelConfig& config = model->config();
  const TextTokenizer* tokenizer = model->tokenizer();
  return std::make_unique<EngineImpl>(std::move(model), config, tokenizer, std::move(backend),
                                      options, Clock(), Emitter::Threads::kOwn, std::move(disk),
                                      std::move(warm));
}

std::unique_ptr<Engine> CreateEngineForConfig(const ModelConfig& config,
                                              const TextTokenizer* tokenizer,
                                              std::unique_ptr<Backend> backend,
                                              const EngineOptions& options, const Clock& clock,
                                              DiskTier disk, std::vector<WarmState> warm) {
  return std::make_unique<EngineImpl>(nullptr, config, tokenizer, std::move(backend), options,
                                      clock, Emitter::Threads::kOwn, std::move(disk),
                                      std::move(warm));
}

std::unique_ptr<SteppedEngine> CreateSteppedEngine(const ModelConfig& config,
                                                   const TextTokenizer* tokenizer,
                                                   std::unique_ptr<Backend> backend,
                                                   const EngineOptions& options, const Clock& clock,
                                                   DiskTier disk, std::vector<WarmState> warm) {
  return std::make_unique<EngineImpl>(nullptr, config, tokenizer, std::move(backend), options,
                                      clock, Emitter::Threads::kNone, std::move(disk),
                                      std::move(warm));
}

}  // namespace rivulet
