// SPDX-License-Identifier: Apache-2.0
// `rivulet batch`: keeps many lines in flight, sends lines with temporary errors again, and appends
// results to the output.
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/cli/batch/batch_calls.h"
#include "client/cli/batch/batch_input.h"
#include "client/cli/batch/batch_output.h"
#include "client/cli/batch/batch_result.h"
#include "client/cli/batch/chat_prompt.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/interruption.h"
#include "client/cli/input/request_fields.h"
#include "client/cli/output/exit_code.h"
#include "client/cli/output/progress.h"
#include "client/cli/output/text.h"
#include "model/base/error.h"
#include "model/base/random_word.h"
#include "model/base/sha256.h"

namespace rivulet {
namespace {

// Most results that may wait for results of earlier lines; then no more lines are read.
constexpr size_t kMostResults = size_t{1} << 14;
constexpr size_t kLeastAtOnce = 256;
// After this number of losses, while other lines succeed, a line is assumed to crash the server.
constexpr int kMostLosses = 8;

// The results of this run, counted.
struct BatchTotals {
  int64_t results = 0, errors = 0;
  std::map<std::string, int64_t> reasons;  // of the errors
};

class Batch {
 public:
  Batch(const BatchOptions& options, ChatPrompts* chats, const Client& client,
        const std::string& model_name, BatchInput* input, BatchOutput* output)
      : options_(options),
        client_(client),
        input_(*input),
        output_(*output),
        calls_(client),
        chats_(*chats),
        progress_(output->num_left(), "lines",
                  options.progress_seconds > 0 ? absl::Seconds(options.progress_seconds)
                                               : absl::InfiniteDuration()),
        num_before_(output->num_answered()),
        results_(output->TakeLater()),
        at_once_(static_cast<size_t>(options.at_once.value_or(kLeastAtOnce))) {
    stamp_.created = output->record().created;
    stamp_.model = model_name;
  }

  // OK: every line has its result in the output. Otherwise the output has the results so far, and
  // the same command continues. CANCELLED: the run was interrupted.
  absl::Status Run();

  const BatchTotals& totals() const { return totals_; }
  int64_t num_before() const { return num_before_; }
  int64_t tokens() const { return calls_.tokens(); }

 private:
  absl::Status AnswerAll();
  absl::Status SaveAll();
  absl::Status SendMore(absl::Time now);
  bool HasRoom() const { return calls_.open() + waiting_.size() < at_once_; }
  absl::Status Begin(NumberedLine line);
  absl::Status Prepare(NumberedLine* line);
  absl::StatusOr<const v1::GetModelReply*> ModelOf(const std::string& name);
  absl::Status Finish(std::unique_ptr<BatchItem> item);
  bool MayRepeat(BatchItem* item, const ErrorInfo& info) const;
  absl::Status WaitToRepeat(std::unique_ptr<BatchItem> item, const ErrorInfo& info);
  absl::Status CheckPatience(const absl::Status& status, absl::Time now) const;
  void Keep(int64_t number, std::string result);
  absl::Status WriteResults(bool in_order);
  void ShowProgress(absl::Time now);

  const BatchOptions& options_;
  const Client& client_;
  BatchInput& input_;
  BatchOutput& output_;
  BatchCalls calls_;
  ChatPrompts& chats_;
  Progress progress_;
  BatchStamp stamp_;
  BatchTotals totals_;
  const int64_t num_before_;                         // lines that were answered before this run
  int64_t written_ = 0;                              // results written by this run
  std::map<std::string, v1::GetModelReply> models_;  // by the name in a line
  std::multimap<absl::Time, std::unique_ptr<BatchItem>> waiting_;  // by when they are sent again
  std::map<int64_t, std::string> results_;                         // by line; not yet written
  size_t at_once_;                                                 // lines in flight
  int64_t next_line_ = 1;  // of the output, where it has the order of the input
  bool input_ended_ = false;
  const absl::Time start_ = absl::Now();
  absl::Time last_success_ = start_;
};

absl::Status Batch::Run() {
  const Interruption interruption;
  absl::Status status = AnswerAll();
  if (status.ok()) return output_.Sync();
  RIVULET_RETURN_IF_ERROR(SaveAll());
  if (!absl::IsCancelled(status)) return status;
  return absl::CancelledError(absl::StrCat(
      "interrupted; ", output_.lines() - output_.num_left() + written_, " of ", output_.lines(),
      " results are in ", options_.out, "; the same command continues"));
}

absl::Status Batch::SaveAll() {
  absl::Status status;
  for (std::unique_ptr<BatchItem>& item : calls_.Wait(absl::InfinitePast())) {
    if (item->in.status.ok()) status.Update(Finish(std::move(item)));
  }
  RIVULET_RETURN_IF_ERROR(WriteResults(/*in_order=*/false));
  status.Update(output_.Sync());
  return status;
}

absl::Status Batch::AnswerAll() {
  while (true) {
    if (Interruption::came()) return absl::CancelledError();
    RIVULET_RETURN_IF_ERROR(SendMore(absl::Now()));
    RIVULET_RETURN_IF_ERROR(WriteResults(!options_.unordered));
    if (calls_.open() == 0 && waiting_.empty() && input_ended_) return absl::OkStatus();
    if (calls_.open() == 0 && waiting_.empty()) continue;
    absl::Time until = absl::Now() + absl::Milliseconds(100);
    if (!waiting_.empty()) until = std::min(until, waiting_.begin()->first);
    absl::Status finished;
    for (std::unique_ptr<BatchItem>& item : calls_.Wait(until)) {
      finished.Update(Finish(std::move(item)));  // the other items may have results
    }
    RIVULET_RETURN_IF_ERROR(finished);
    ShowProgress(absl::Now());
  }
}

absl::Status Batch::SendMore(absl::Time now) {
  while (!waiting_.empty() && waiting_.begin()->first <= now) {
    std::unique_ptr<BatchItem> item = std::move(waiting_.begin()->second);
    waiting_.erase(waiting_.begin());
    calls_.Start(std::move(item));
  }
  // At least one line is always in flight: the kept results may be waiting for it.
  const auto may_send = [this] {
    return HasRoom() && (results_.size() < kMostResults || calls_.open() + waiting_.size() == 0);
  };
  while (!input_ended_ && may_send()) {
    RIVULET_ASSIGN_OR_RETURN(std::optional<NumberedLine> line, input_.Next());
    if (!line.has_value()) {
      input_ended_ = true;
      break;
    }
    if (!output_.IsAnswered(line->number)) {
      RIVULET_RETURN_IF_ERROR(Begin(*std::move(line)));
      continue;
    }
    RIVULET_RETURN_IF_ERROR(output_.CheckAnswer(*line));
  }
  return absl::OkStatus();
}

// Sends the line, or keeps the error that is its result.
absl::Status Batch::Begin(NumberedLine line) {
  auto item = std::make_unique<BatchItem>();
  item->in = std::move(line);
  if (item->in.status.ok()) item->in.status = Prepare(&item->in);
  if (!item->in.status.ok()) return Finish(std::move(item));
  calls_.Start(std::move(item));
  return absl::OkStatus();
}

// Adds to a request what depends on the model and the batch: prompt and seed.
absl::Status Batch::Prepare(NumberedLine* line) {
  RIVULET_ASSIGN_OR_RETURN(const v1::GetModelReply* model, ModelOf(line->line.model()));
  auto* generate = std::get_if<v1::GenerateRequest>(&line->line.request);
  if (auto* const chat = std::get_if<ChatRequest>(&line->line.request)) {
    RIVULET_RETURN_IF_ERROR(chats_.Set(*model, line->number, chat));
    generate = &chat->generate;
  }
  if (generate != nullptr && !generate->sampling().has_seed()) {
    generate->mutable_sampling()->set_seed(output_.record().seed +
                                           static_cast<uint64_t>(line->number));
  }
  return absl::OkStatus();
}

absl::StatusOr<const v1::GetModelReply*> Batch::ModelOf(const std::string& name) {
  auto found = models_.find(name);
  while (found == models_.end()) {
    absl::StatusOr<v1::GetModelReply> model = client_.GetModel(name);
    if (absl::IsUnavailable(model.status())) {
      RIVULET_RETURN_IF_ERROR(CheckPatience(model.status(), absl::Now()));
      absl::SleepFor(absl::Seconds(1));
      continue;
    }
    if (!model.ok()) return model.status();
    // All that are computed at once, and some that wait for a slot.
    const int slots = model->limits().slots();
    const size_t usual = static_cast<size_t>(slots + std::min(slots, 512));
    if (!options_.at_once.has_value()) at_once_ = std::max(at_once_, usual);
    found = models_.emplace(name, *std::move(model)).first;
  }
  return &found->second;
}

absl::Status Batch::Finish(std::unique_ptr<BatchItem> item) {
  const absl::Status& status = item->in.status;
  const int64_t number = item->in.number;
  if (status.ok()) {
    last_success_ = absl::Now();
    ++totals_.results;
    if (!waiting_.empty()) {
      // If the queue was full, it has room for one request now.
      auto first = waiting_.extract(waiting_.begin());
      first.key() = last_success_;
      waiting_.insert(std::move(first));
    }
    if (std::holds_alternative<v1::ScoreRequest>(item->in.line.request)) {
      Keep(number, ScoreResult(number, item->in.line, item->score));
    } else {
      RIVULET_ASSIGN_OR_RETURN(const v1::GetModelReply* model, ModelOf(item->in.line.model()));
      stamp_.is_text = model->content().has_text();
      if (const auto* const chat = std::get_if<ChatRequest>(&item->in.line.request)) {
        item->reply.Divide(chat->parts);
      }
      Keep(number, GenerateResult(number, item->in.line, stamp_, item->reply));
    }
    return absl::OkStatus();
  }
  if (Interruption::came()) return absl::CancelledError();
  const ErrorInfo info = GetErrorInfo(status);
  // All other lines would fail in the same way until the user acts.
  if (absl::IsUnauthenticated(status)) return status;
  if (GetErrorDetail(status).reason == "NO_CHAT_TEMPLATE_ENGINE") return status;
  if (MayRepeat(item.get(), info)) return WaitToRepeat(std::move(item), info);
  BatchError error = ToBatchError(status);
  ++totals_.errors;
  ++totals_.reasons[error.reason.empty() ? absl::StatusCodeToString(error.code) : error.reason];
  Keep(number, ErrorResult(number, item->in.line, error));
  return absl::OkStatus();
}

// Whether the same request may succeed later.
bool Batch::MayRepeat(BatchItem* item, const ErrorInfo& info) const {
  const absl::Status& status = item->in.status;
  if (absl::IsResourceExhausted(status)) {
    return info.retry_delay > absl::ZeroDuration() || info.reason == "OPEN_REQUEST_LIMIT" ||
           info.reason == "READER_TOO_SLOW";
  }
  if (!absl::IsUnavailable(status)) return false;
  if (totals_.results > item->succeeded) ++item->losses;
  item->succeeded = totals_.results;
  return item->losses < kMostLosses;
}

absl::Status Batch::WaitToRepeat(std::unique_ptr<BatchItem> item, const ErrorInfo& info) {
  const absl::Time now = absl::Now();
  RIVULET_RETURN_IF_ERROR(CheckPatience(item->in.status, now));
  absl::Duration wait = info.retry_delay;
  if (wait <= absl::ZeroDuration()) {
    wait = std::clamp((now - last_success_) / 2, absl::Milliseconds(500), absl::Seconds(30));
  }
  waiting_.emplace(now + wait, std::move(item));
  return absl::OkStatus();
}

// The error of the run if no line has succeeded for too long, or if the user interrupts it.
absl::Status Batch::CheckPatience(const absl::Status& status, absl::Time now) const {
  if (Interruption::came()) return absl::CancelledError();
  if (now - last_success_ < absl::Seconds(options_.give_up_seconds)) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("no line has succeeded for ", options_.give_up_seconds,
                   " s (--give-up-after); the same command continues from here; the last error: ",
                   Description(status)));
}

void Batch::Keep(int64_t number, std::string result) {
  results_.emplace(number, std::move(result));
}

absl::Status Batch::WriteResults(bool in_order) {
  std::string lines;
  for (; !results_.empty(); ++written_) {
    const auto first = results_.begin();
    while (in_order && next_line_ < first->first && output_.IsAnswered(next_line_)) ++next_line_;
    if (in_order && next_line_ < first->first) break;
    next_line_ = first->first + 1;
    lines += first->second;
    results_.erase(first);
  }
  return lines.empty() ? absl::OkStatus() : output_.Append(lines);
}

void Batch::ShowProgress(absl::Time now) {
  const auto in_words = [&] {
    return absl::StrCat(
        totals_.errors, " errors, ", calls_.open(), " in flight, ", waiting_.size(), " to repeat, ",
        results_.size(), " behind an earlier line, ",
        Compact(static_cast<double>(calls_.tokens()) / absl::ToDoubleSeconds(now - start_)),
        " tokens/s");
  };
  if (progress_.due()) progress_.Update(written_, {in_words()});
}

// All settings besides the input that change results, by option.
std::map<std::string, std::string> RecordedOptions(const BatchOptions& options,
                                                   const ChatTemplateFile& chat_template,
                                                   const v1::GetModelReply* model) {
  std::map<std::string, std::string> recorded;
  const auto add = [&](const char* name, const auto& value) {
    if (value.has_value()) recorded[name] = absl::StrCat(*value);
  };
  if (model != nullptr) {
    recorded["model"] = model->summary().name();
    recorded["weights"] = model->summary().weights_sha256();
    recorded["numerics"] = model->numerics_id();
  }
  const SamplingOptions& s = options.sampling;
  add("--temperature", s.temperature);
  add("--top-k", s.top_k);
  add("--top-p", s.top_p);
  add("--min-p", s.min_p);
  add("--repetition-penalty", s.repetition_penalty);
  add("--frequency-penalty", s.frequency_penalty);
  add("--presence-penalty", s.presence_penalty);
  add("--seed", s.seed);
  add("--max-tokens", options.max_tokens);
  if (const std::string& context = options.target.max_context; context != "auto") {
    recorded["--max-context"] = context;
  }
  if (!s.logit_bias.empty()) {
    recorded["--logit-bias"] = absl::StrJoin(s.logit_bias, ",", absl::PairFormatter(":"));
  }
  if (!chat_template.name.empty()) recorded["--chat-template"] = Sha256Hex(chat_template.text);
  if (options.unordered) recorded["--unordered"] = "given";
  return recorded;
}

BatchDefaults DefaultsOf(const BatchOptions& options, const std::string& model_name) {
  BatchDefaults defaults;
  defaults.generate.set_model(model_name);
  defaults.generate.set_priority(ToPriority(options.priority));
  SamplingOptions sampling = options.sampling;
  sampling.seed.reset();  // each line has its own
  SetSampling(sampling, defaults.generate.mutable_sampling());
  if (options.max_tokens.has_value()) defaults.generate.set_max_tokens(*options.max_tokens);
  if (options.cache.enabled) SetCache(options.cache, defaults.generate.mutable_cache());
  defaults.score.set_model(model_name);
  defaults.score.set_priority(ToPriority(options.priority));
  return defaults;
}

std::string Summary(const BatchTotals& totals, int64_t before, int64_t tokens,
                    absl::Duration elapsed) {
  std::string summary = absl::StrCat(totals.results, " results, ", totals.errors, " errors");
  if (totals.errors > 0) {
    absl::StrAppend(&summary, " (", absl::StrJoin(totals.reasons, ", ", absl::PairFormatter(" ")),
                    ")");
  }
  if (before > 0) absl::StrAppend(&summary, ", ", before, " lines were done before");
  const double seconds = absl::ToDoubleSeconds(elapsed);
  absl::StrAppendFormat(&summary, ", %.2f s, %s tokens/s", seconds,
                        Compact(static_cast<double>(tokens) / std::max(seconds, 1e-9)));
  return summary;
}

}  // namespace

absl::StatusOr<std::string> RunCommand(const BatchOptions& options) {
  ChatPrompts chats;
  RIVULET_RETURN_IF_ERROR(chats.ReadFile(options.chat_template));
  TargetUse use;
  use.client.own_connection = true;
  use.over_socket = true;  // as in `bench`: Client::GenerateAsync
  RIVULET_ASSIGN_OR_RETURN(const Target target, OpenTarget(options.target, use));
  const absl::StatusOr<v1::GetModelReply> model = target.client().GetModel(target.model_name());
  // If a server has several models, lines may name their model.
  const bool named_by_lines = GetErrorInfo(model.status()).reason == "MODEL_NAME_MISSING";
  if (!model.ok() && !named_by_lines) return model.status();
  const std::string name = model.ok() ? model->summary().name() : "";
  RIVULET_ASSIGN_OR_RETURN(const std::unique_ptr<BatchInput> input,
                           BatchInput::Open(options.in, DefaultsOf(options, name)));
  const BatchRecord record = {
      input->sha256(), RecordedOptions(options, chats.file(), model.ok() ? &*model : nullptr),
      options.sampling.seed.has_value() ? *options.sampling.seed : RandomWord(),
      absl::ToUnixSeconds(absl::Now())};
  RIVULET_ASSIGN_OR_RETURN(const std::unique_ptr<BatchOutput> output,
                           BatchOutput::Open(options.out, record, input->blank()));
  const absl::Time start = absl::Now();
  Batch batch(options, &chats, target.client(), name, input.get(), output.get());
  RIVULET_RETURN_IF_ERROR(batch.Run());
  std::string summary =
      Summary(batch.totals(), batch.num_before(), batch.tokens(), absl::Now() - start);
  if (options.fail_on_error && batch.totals().errors > 0) {
    return absl::InvalidArgumentError(summary);
  }
  return summary;
}

}  // namespace rivulet
