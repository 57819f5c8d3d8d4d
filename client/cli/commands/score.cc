// SPDX-License-Identifier: Apache-2.0
// `rivulet score`: reads item by item, keeps a few calls in flight and prints in the order of the
// input.
#include <cmath>
#include <deque>
#include <future>
#include <memory>
#include <numbers>
#include <stop_token>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/cli/commands/commands.h"
#include "client/cli/input/request_fields.h"
#include "client/cli/input/score_input.h"
#include "client/cli/output/exit_code.h"
#include "client/cli/output/json_parts.h"
#include "client/cli/output/progress.h"
#include "client/cli/output/text.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"

namespace rivulet {
namespace {

constexpr size_t kMostInFlight = 32;
constexpr absl::Duration kProgressPeriod = absl::Seconds(60);  // of lines, as in `rivulet batch`

struct Totals {
  double nll_nats = 0;
  int64_t num_scored = 0;
  int64_t results = 0;
  int64_t errors = 0;
  absl::Status first_error;
};

// `{"id":...,` of the line that is answered, or `{`.
std::string LineStart(const std::string& id) {
  return id.empty() ? "{" : absl::StrCat("{\"id\":", id, ",");
}

// {"nll_nats":x,"num_scored":n,"perplexity":y,"logprobs":[...],"outputs":[[...],...]} and a
// newline. The perplexity is left out if it is infinite or if there are no tokens, the lists if
// they are empty.
absl::StatusOr<std::string> ResultLine(const std::string& id, const v1::ScoreReply& reply) {
  bool finite = std::isfinite(reply.nll_nats());
  std::string line = absl::StrCat(LineStart(id), "\"nll_nats\":");
  AppendNumber(reply.nll_nats(), &line);
  absl::StrAppend(&line, ",\"num_scored\":", reply.num_scored());
  const double perplexity = Perplexity(reply.nll_nats(), reply.num_scored());
  if (std::isfinite(perplexity)) {
    line += ",\"perplexity\":";
    AppendNumber(perplexity, &line);
  }
  if (reply.logprobs_size() > 0) {
    line.push_back(',');
    AppendJsonList("logprobs", reply.logprobs(), &line);
  }
  if (reply.outputs_size() > 0) line += ",\"outputs\":[";
  for (int i = 0; i < reply.outputs_size(); ++i) {
    line.append(i == 0 ? "[" : ",[");
    const auto& values = reply.outputs(i).values();
    for (int j = 0; j < values.size(); ++j) {
      if (j > 0) line.push_back(',');
      finite = finite && std::isfinite(values.Get(j));
      AppendNumber(values.Get(j), &line);
    }
    line.push_back(']');
  }
  line.append(reply.outputs_size() > 0 ? "]}\n" : "}\n");
  if (!finite) return absl::InternalError("the server sent a number that is not finite");
  return line;
}

class Scoring {
 public:
  Scoring(const ScoreOptions& options, const Target& target, const std::string& model_name,
          ScoreInput* input)
      : client_(target.client()),
        model_name_(model_name),
        options_(options),
        input_(*input),
        progress_(input->total().value_or(0), input->is_text() ? "tokens" : "items",
                  kProgressPeriod) {}
  // Waits, because no call may outlive the client.
  ~Scoring() {
    stop_.request_stop();
    for (Pending& pending : pending_) pending.reply.wait();
  }

  // When this returns, all results before the first failed item have been printed.
  absl::Status Run() {
    while (true) {
      // The writer of the next line may be waiting for these results.
      while (!pending_.empty() && !input_.ready()) {
        RIVULET_RETURN_IF_ERROR(PrintOldest());
      }
      absl::StatusOr<std::optional<ScoreItem>> item = input_.Next();
      if (!item.ok() || !item->has_value()) {
        while (!pending_.empty()) {
          RIVULET_RETURN_IF_ERROR(PrintOldest());
        }
        return item.status();
      }
      if ((*item)->status.ok()) {
        Send(**std::move(item));
      } else {
        SendNothing(**std::move(item));
      }
      if (pending_.size() < kMostInFlight) continue;
      RIVULET_RETURN_IF_ERROR(PrintOldest());
    }
  }

  const Totals& totals() const { return totals_; }

 private:
  struct Pending {
    std::string where;
    bool continues = false;
    std::string id;
    std::future<absl::StatusOr<v1::ScoreReply>> reply;
  };

  // The error of an invalid line takes the place of a call.
  void SendNothing(ScoreItem item) {
    std::promise<absl::StatusOr<v1::ScoreReply>> promise;
    promise.set_value(item.status);
    pending_.push_back(
        {std::move(item.where), item.continues, std::move(item.id), promise.get_future()});
  }

  void Send(ScoreItem item) {
    v1::ScoreRequest request;
    request.set_priority(ToPriority(options_.priority));
    request.set_model(model_name_);
    if (auto* const text = std::get_if<std::string>(&item.content)) {
      request.set_text(std::move(*text));
    } else {
      const auto& ids = std::get<std::vector<int32_t>>(item.content);
      request.mutable_tokens()->mutable_ids()->Add(ids.begin(), ids.end());
    }
    for (const int64_t position : options_.outputs) request.add_output_positions(position);
    if (options_.window.has_value()) request.set_window(*options_.window);
    request.set_logprobs(options_.logprobs);
    // std::function requires copyable captures.
    auto promise = std::make_shared<std::promise<absl::StatusOr<v1::ScoreReply>>>();
    pending_.push_back(
        {std::move(item.where), item.continues, std::move(item.id), promise->get_future()});
    client_.ScoreAsync(
        std::move(request),
        [promise](absl::StatusOr<v1::ScoreReply> reply) { promise->set_value(std::move(reply)); },
        {.stop = stop_.get_token()});
  }

  absl::Status PrintOldest() {
    Pending pending = std::move(pending_.front());
    pending_.pop_front();
    absl::StatusOr<v1::ScoreReply> reply = pending.reply.get();
    if (!reply.ok()) return PrintError(reply.status(), pending);
    ++items_done_;
    nll_nats_ += reply->nll_nats();
    num_scored_ += reply->num_scored();
    logprobs_.MergeFrom(reply->logprobs());
    const int64_t done = input_.is_text() ? num_scored_ : items_done_;
    if (!pending.continues) {
      RIVULET_RETURN_IF_ERROR(PrintResult(*std::move(reply), pending));
    }
    progress_.Update(done);
    return absl::OkStatus();
  }

  // Prints the sums and log-probabilities so far, with the outputs of `last`.
  absl::Status PrintResult(v1::ScoreReply last, const Pending& pending) {
    last.set_nll_nats(std::exchange(nll_nats_, 0));
    last.set_num_scored(std::exchange(num_scored_, 0));
    last.mutable_logprobs()->Swap(&logprobs_);
    logprobs_.Clear();
    absl::StatusOr<std::string> line = ResultLine(pending.id, last);
    if (!line.ok()) return Explain(line.status(), pending);
    totals_.nll_nats += last.nll_nats();
    totals_.num_scored += last.num_scored();
    ++totals_.results;
    progress_.Erase();  // stdout may be the same terminal
    return options_.summary_only ? absl::OkStatus() : WriteOut(*line);
  }

  // With --keep-going, the error of a line is printed as its result.
  absl::Status PrintError(const absl::Status& status, const Pending& pending) {
    const absl::Status error = Explain(status, pending);
    const bool of_line = ExitCodeOf(status) == kExitBadInput && !absl::IsUnauthenticated(status);
    if (!options_.keep_going || !of_line) return error;
    if (totals_.errors++ == 0) totals_.first_error = error;
    const ErrorInfo info = GetErrorInfo(status);
    std::string line = absl::StrCat(LineStart(pending.id), "\"error\":{\"code\":\"",
                                    absl::StatusCodeToString(status.code()), "\"");
    if (!info.reason.empty()) absl::StrAppend(&line, ",\"reason\":\"", info.reason, "\"");
    absl::StrAppend(&line, ",\"message\":", JsonString(OneLine(error.message())), "}}\n");
    progress_.Erase();
    return WriteOut(line);
  }

  // `status` with the place in the input.
  absl::Status Explain(const absl::Status& status, const Pending& pending) const {
    const bool is_long = GetErrorInfo(status).reason == "TOO_MANY_TOKENS";
    return absl::Status(status.code(),
                        absl::StrCat(pending.where, ": ", Description(status),
                                     is_long && !options_.window.has_value()
                                         ? " --window N scores it in windows of N tokens."
                                         : ""));
  }

  const Client& client_;
  const std::string model_name_;
  const ScoreOptions& options_;
  ScoreInput& input_;
  Progress progress_;
  Totals totals_;
  int64_t items_done_ = 0;
  double nll_nats_ = 0;  // sum over earlier items of the same result
  int64_t num_scored_ = 0;
  google::protobuf::RepeatedField<float> logprobs_;
  std::stop_source stop_;
  std::deque<Pending> pending_;
};

// `text_bytes`: bytes of the text that the scored tokens stand for; 0 if the input is not a text
// file.
std::string Summary(const Totals& totals, const v1::ModelContent& content, int64_t text_bytes,
                    absl::Duration elapsed) {
  const double scored = static_cast<double>(totals.num_scored);
  std::string summary = absl::StrFormat("%d items, %d tokens", totals.results, totals.num_scored);
  if (totals.num_scored > 0) {
    const double nats = totals.nll_nats / scored;
    if (content.has_image()) {
      absl::StrAppendFormat(&summary, ", %.6f bits/dim", nats / std::numbers::ln2);
    } else {
      absl::StrAppendFormat(&summary, ", %.6f nats/token, perplexity %.6g", nats, std::exp(nats));
    }
    if (text_bytes > 0) {
      const double bits = totals.nll_nats / std::numbers::ln2;
      absl::StrAppendFormat(&summary, ", %.6f bits/byte", bits / static_cast<double>(text_bytes));
    }
  }
  const double seconds = absl::ToDoubleSeconds(elapsed);
  absl::StrAppendFormat(&summary, ", %.2f s, %s tokens/s", seconds, Compact(scored / seconds));
  return summary;
}

}  // namespace

absl::StatusOr<std::string> RunCommand(const ScoreOptions& options) {
  RIVULET_ASSIGN_OR_RETURN(const Target target, OpenTarget(options.target));
  RIVULET_ASSIGN_OR_RETURN(const v1::GetModelReply model,
                           target.client().GetModel(target.model_name()));
  const auto tokenize = [&](std::string text) {
    v1::TokenizeRequest request;
    request.set_model(model.summary().name());
    request.set_text(std::move(text));
    return target.client().Tokenize(request);
  };
  RIVULET_ASSIGN_OR_RETURN(const std::unique_ptr<ScoreInput> input,
                           OpenScoreInput(options, model, tokenize));
  const absl::Time start = absl::Now();
  Scoring scoring(options, target, model.summary().name(), input.get());
  RIVULET_RETURN_IF_ERROR(scoring.Run());
  const Totals& totals = scoring.totals();
  std::string summary = Summary(totals, model.content(), input->text_bytes(), absl::Now() - start);
  if (totals.errors == 0) return summary;
  return absl::Status(totals.first_error.code(),
                      absl::StrCat(summary, "; ", totals.errors,
                                   " lines failed, the first: ", totals.first_error.message()));
}

}  // namespace rivulet
