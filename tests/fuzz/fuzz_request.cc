// SPDX-License-Identifier: Apache-2.0
// Any bytes as a request of each kind: one typed error that names a field of the request, or
// something that the engine carries out and that ends. The first byte chooses the kind and the
// model, the rest is the message.
//
// A session id of 32 times "1" stands for a session that is open.
#include <array>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "model/base/error.h"
#include "model/model.h"
#include "server/engine/engine_parts.h"
#include "server/engine/session_calls.h"
#include "server/grpc/wire/convert.h"
#include "server/grpc/wire/convert_session.h"
#include "server/grpc/wire/wire_field.h"
#include "tests/fuzz/promise.h"
#include "tests/support/fake_backend.h"
#include "tests/support/paths.h"

namespace rivulet {
namespace {

using fuzz::Promise;

// What a request may hold beside fields: the engine's own word for what a snapshot or list is
// about.
constexpr int kTurns = 6;

// The path begins with a field or a oneof of the message.
void PromiseField(const std::string& path, const google::protobuf::Message& request) {
  std::vector<std::string> parts = absl::StrSplit(path, absl::ByAnyChar(".["));
  const google::protobuf::Descriptor* type = request.GetDescriptor();
  for (const std::string& part : parts) {
    if (type == nullptr || absl::EndsWith(part, "]")) return;
    if (type->FindOneofByName(part) != nullptr || part.empty()) continue;
    const auto* field = type->FindFieldByName(part);
    Promise(field != nullptr, absl::StrCat("a field of the request: ", path).c_str());
    type = field->message_type();
  }
}

void PromiseTyped(const absl::Status& status, const google::protobuf::Message& request) {
  const ErrorDetail detail = GetErrorDetail(status);
  Promise(absl::IsInvalidArgument(status) || absl::IsOutOfRange(status) ||
              absl::IsNotFound(status) || absl::IsResourceExhausted(status) ||
              absl::IsFailedPrecondition(status) || absl::IsCancelled(status),
          status.ToString().c_str());
  Promise(!detail.reason.empty(), "an error has a reason");
  fuzz::PromiseOneLine(status);
  if (!detail.field.empty()) PromiseField(detail.field, request);
  Promise(!absl::IsInvalidArgument(status) || !detail.field.empty(), status.ToString().c_str());
}

class Sink final : public ReplyListener {
 public:
  void Start(std::shared_ptr<Reply> reply) { reply_ = std::move(reply); }
  void OnReady() override {
    for (ReplyDelta& delta : reply_->Take()) ToWire(std::move(delta), &wire_);
    if (!reply_->end()) return;
    Promise(!ended, "one end");
    ended = true;
    end = reply_->end()->status;
  }
  bool ended = false;
  absl::Status end;

 private:
  std::shared_ptr<Reply> reply_;
  v1::GenerateReply wire_;
};

// One model and an engine for it.
class Served {
 public:
  explicit Served(const std::string& path) {
    auto model = Model::Load(SourcePath(path));
    Promise(model.ok(), "the model loads");
    model_ = *std::move(model);
    FakeBackendOptions fake;
    fake.limits.max_tokens = 4096;
    fake.limits.bytes_per_slot = model_->config().state_layout().bytes_per_slot();
    EngineOptions options;
    options.sessions.max_open_sessions = 300;
    engine_ = CreateSteppedEngine(model_->config(), model_->tokenizer(),
                                  std::make_unique<FakeBackend>(model_->config(), fake, probe_),
                                  options, [this] { return now_; });
  }

  template <typename Request>
  void Run(const uint8_t* data, size_t size) {
    Request request;
    if (!request.ParseFromArray(data, static_cast<int>(size))) return;
    OpenOne();
    Name(&request);
    Submit(request);
    if (id_ != 0) {
      for (int turn = 0; turn < kTurns; ++turn) Step();
      engine_->Cancel(id_);
    }
    Rest();
    Promise(id_ == 0 || sink_.ended || done_, "every request ends");
    if (sink_.ended && !sink_.end.ok()) PromiseTyped(NameWireField(sink_.end, request), request);
    if (!status_.ok()) PromiseTyped(NameWireField(status_, request), request);
    now_ += absl::Hours(25);  // no session stays
    Rest();
    Promise(probe_->violations().empty(), "what a backend requires");
    Promise(probe_->dirty_slots() == 0 && engine_->GetLoad().client_sessions == 0, "nothing stays");
  }

 private:
  bool Step() {
    const bool more = engine_->Turn();
    engine_->Emit();
    return more;
  }
  void Rest() {
    int turns = 0;
    while (Step()) Promise(++turns < 1000, "the engine comes to rest");
  }
  void OpenOne() {
    id_ = 0;
    done_ = false;
    status_ = absl::OkStatus();
    sink_ = Sink();
    const auto opened = OpenSession(engine_.get(), {"", 1, std::nullopt},
                                    [this](const absl::StatusOr<SessionInfo>& info) {
                                      Promise(info.ok(), "a session opens");
                                      session_ = info->id.ToString();
                                    });
    Promise(opened.ok(), "a session can be opened");
    Rest();
  }
  // Puts the id of the open session where the input asks for it.
  template <typename Request>
  void Name(Request* request) {
    const std::string ones(32, '1');
    if constexpr (requires { request->mutable_session_id(); }) {
      if (request->session_id() == ones) request->set_session_id(session_);
    } else if constexpr (requires { request->mutable_session(); }) {
      if (request->has_session() && request->session().session_id() == ones) {
        request->mutable_session()->set_session_id(session_);
      }
    }
  }
  void Take(const absl::StatusOr<RequestId>& id) {
    status_ = id.status();
    if (id.ok()) id_ = *id;
  }
  template <typename Result>
  auto Done() {
    return [this](const absl::StatusOr<Result>& result) {
      Promise(!done_, "one end");
      done_ = true;
      status_ = result.status();
    };
  }

  void Submit(const v1::GenerateRequest& request) {
    auto spec = ToGenerateSpec(request, *model_);
    if (!spec.ok()) return Take(spec.status());
    const auto submitted = engine_->Generate(*std::move(spec), &sink_);
    Take(submitted.ok() ? absl::StatusOr<RequestId>((*submitted)->id()) : submitted.status());
    if (submitted.ok()) sink_.Start(*submitted);
  }
  void Submit(const v1::ScoreRequest& request) {
    auto spec = ToScoreSpec(request, *model_);
    Take(spec.ok() ? engine_->Score(*std::move(spec), Done<ScoreResult>()) : spec.status());
  }
  void Submit(const v1::AppendRequest& request) {
    auto spec = ToAppendSpec(request, *model_);
    Take(spec.ok() ? engine_->Append(*std::move(spec), Done<ScoreResult>()) : spec.status());
  }
  void Submit(const v1::OpenSessionRequest& request) {
    auto spec = ToOpenSpec(request);
    Take(spec.ok() ? OpenSession(engine_.get(), *spec, Done<SessionInfo>()) : spec.status());
  }
  void Submit(const v1::ForkSessionRequest& request) {
    auto spec = ToForkSpec(request);
    Take(spec.ok() ? ForkSession(engine_.get(), *spec, Done<std::vector<SessionInfo>>())
                   : spec.status());
  }
  void Submit(const v1::RewindSessionRequest& request) {
    auto to = ToSessionRef(request);
    Take(to.ok() ? RewindSession(engine_.get(), *to, absl::InfiniteFuture(), Done<SessionInfo>())
                 : to.status());
  }
  void Submit(const v1::SnapshotSessionRequest& request) {
    auto ref = ToSessionRef(request);
    Take(ref.ok()
             ? SnapshotSession(engine_.get(), *ref, absl::InfiniteFuture(), Done<SessionImage>())
             : ref.status());
  }
  void Submit(const v1::ListSessionsRequest& request) {
    auto spec = ToListSpec(request);
    Take(spec.ok() ? ListSessions(engine_.get(), *spec, Done<SessionPage>()) : spec.status());
  }
  void Submit(const v1::CloseSessionRequest& request) {
    auto ref = ToSessionRef(request.session_id());
    Take(ref.ok() ? CloseSession(engine_.get(), *ref,
                                 [this](const absl::Status& status) {
                                   done_ = true;
                                   status_ = status;
                                 })
                  : ref.status());
  }

  std::shared_ptr<const Model> model_;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  std::shared_ptr<FakeProbe> probe_ = std::make_shared<FakeProbe>();
  std::unique_ptr<SteppedEngine> engine_;
  std::string session_;
  RequestId id_ = 0;
  bool done_ = false;
  absl::Status status_;
  Sink sink_;
};

}  // namespace
}  // namespace rivulet

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using rivulet::Served;
  namespace v1 = rivulet::v1;
  static const auto* const served = new std::array<Served*, 3>{
      new Served("tests/conformance/models/tiny-elu-relu"),
      new Served("tests/conformance/models/tiny-image"), new Served("model/zoo/shakespeare-rfa")};
  using Runner = void (Served::*)(const uint8_t*, size_t);
  static constexpr std::array<Runner, 9> kRunners = {
      &Served::Run<v1::GenerateRequest>,        &Served::Run<v1::ScoreRequest>,
      &Served::Run<v1::AppendRequest>,          &Served::Run<v1::OpenSessionRequest>,
      &Served::Run<v1::ForkSessionRequest>,     &Served::Run<v1::RewindSessionRequest>,
      &Served::Run<v1::SnapshotSessionRequest>, &Served::Run<v1::CloseSessionRequest>,
      &Served::Run<v1::ListSessionsRequest>};
  if (size == 0) return 0;
  Served* const one = (*served)[data[0] / kRunners.size() % served->size()];
  (one->*kRunners[data[0] % kRunners.size()])(data + 1, size - 1);
  return 0;
}
