// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/many_samples.h"
#include "client/cli/input/request_fields.h"
#include "client/cli/output/part_json.h"
#include "client/cli/output/session_json.h"
#include "client/cli/output/text.h"
#include "model/base/error.h"
#include "model/base/strict_json.h"

namespace rivulet {
namespace {

bool HasPrompt(const PromptOptions& options) {
  return options.prompt.has_value() || options.tokens.has_value() || options.values.has_value() ||
         !options.values_file.empty();
}

absl::StatusOr<v1::GenerateRequest> BuildRequest(const GenerateOptions& options,
                                                 const std::string& model_name) {
  v1::GenerateRequest request;
  request.set_model(model_name);
  if (options.session.id.empty() || HasPrompt(options)) {
    RIVULET_RETURN_IF_ERROR(SetPrompt(options, &request));
  }
  SetSpecialTokens(options.special, &request);
  if (!options.session.id.empty()) SetSession(options.session, request.mutable_session());
  if (options.cache.enabled) SetCache(options.cache, request.mutable_cache());
  request.set_priority(ToPriority(options.priority));
  SetSampling(options.sampling, request.mutable_sampling());
  for (const std::string& stop : options.stop) request.mutable_stop()->add_strings(stop);
  for (const int32_t id : options.stop_tokens) request.mutable_stop()->add_token_ids(id);
  request.mutable_stop()->set_ignore_eos(options.ignore_eos);
  if (options.min_tokens.has_value()) request.mutable_stop()->set_min_tokens(*options.min_tokens);
  if (options.max_tokens.has_value()) request.set_max_tokens(*options.max_tokens);
  if (options.num_samples.has_value()) request.set_num_samples(*options.num_samples);
  RIVULET_RETURN_IF_ERROR(SetConstraint(options.constraint, &request));
  if (options.drafts.has_value()) request.mutable_speculation()->set_drafts(*options.drafts);
  if (options.logprobs) {
    request.mutable_logprobs()->set_enabled(true);
    request.mutable_logprobs()->set_top_n(options.top_logprobs);
  }
  return request;
}

// Prints samples in order: parts of sample 0 at once, each later sample when the samples before it
// are complete; with `lines` only whole samples, one a line.
class SamplePrinter {
 public:
  SamplePrinter(bool is_text, int32_t num_samples, bool lines = false)
      : is_text_(is_text), num_samples_(num_samples), lines_(lines) {}

  // `first`: the sample that the reply calls 0.
  absl::Status Add(const v1::GenerateReply& part, int first = 0) {
    const int index = first + part.sample_index();
    if (index < 0 || index >= num_samples_) {
      return absl::InternalError(
          absl::StrCat("the server sent sample ", index, " of ", num_samples_));
    }
    Sample& sample = samples_[index];
    if (is_text_) {
      sample.text += part.text();
    } else {
      for (const int32_t id : part.tokens()) {
        absl::StrAppend(&sample.text, sample.begun ? " " : "", id);
        sample.begun = true;
      }
    }
    sample.finished = sample.finished || part.has_finish();
    return Print();
  }

 private:
  struct Sample {
    std::string text;  // not yet printed
    bool begun = false;
    bool finished = false;
  };

  absl::Status Print() {
    std::string out;
    while (current_ < num_samples_) {
      Sample& sample = samples_[current_];
      if (lines_ && !sample.finished) break;
      if (!lines_ && !header_ && num_samples_ > 1)
        absl::StrAppend(&out, "=== sample ", current_, " ===\n");
      header_ = true;
      if (!sample.text.empty()) ends_line_ = sample.text.back() == '\n';
      out += sample.text;
      sample.text.clear();
      if (!sample.finished) break;
      if (!ends_line_) out += "\n";
      ends_line_ = false;
      header_ = false;
      ++current_;
    }
    return out.empty() ? absl::OkStatus() : WriteOut(out);
  }

  const bool is_text_;
  const int32_t num_samples_;
  const bool lines_;
  std::map<int32_t, Sample> samples_;  // the samples that have begun
  int32_t current_ = 0;
  bool header_ = false;
  bool ends_line_ = false;
};

// `rivulet generate --logprobs` without --json: a table of the tokens.
class LogprobTable {
 public:
  absl::Status Add(const v1::GenerateReply& part) {
    if (part.logprobs_size() != part.tokens_size()) {
      return absl::InternalError("the server sent a token without its log-probability");
    }
    samples_[part.sample_index()].MergeFrom(part);
    return absl::OkStatus();
  }

  absl::Status Print(const Client& client, const v1::GetModelReply& model) const {
    const bool is_text = model.content().has_text();
    std::vector<std::vector<std::string>> rows = {{"SAMPLE", "TOKEN", "LOGPROB"}};
    if (is_text) rows[0].push_back("TEXT");
    for (const auto& [index, sample] : samples_) {
      v1::DetokenizeRequest request;
      request.set_model(model.summary().name());
      *request.mutable_ids() = sample.tokens();
      absl::StatusOr<v1::DetokenizeReply> text = v1::DetokenizeReply();
      if (is_text) text = client.Detokenize(request);
      if (!text.ok()) return text.status();
      int64_t begin = 0;
      for (int j = 0; j < sample.tokens_size(); ++j) {
        rows.push_back({absl::StrCat(index), absl::StrCat(sample.tokens(j)),
                        absl::StrFormat("%.4f", sample.logprobs(j))});
        if (j >= text->ends_size()) continue;  // it has none of very many tokens
        const auto size = static_cast<size_t>(text->ends(j) - begin);
        rows.back().push_back(
            JsonString(text->raw_bytes().substr(static_cast<size_t>(begin), size)));
        begin = text->ends(j);
      }
    }
    return WriteOut(Table(rows));
  }

 private:
  std::map<int32_t, v1::GenerateReply> samples_;
};

// `rivulet generate --count N` without --out.
absl::StatusOr<std::string> RunLines(const GenerateOptions& options, const Target& target,
                                     const v1::GetModelReply& model, v1::GenerateRequest request) {
  SamplePrinter printer(model.content().has_text(), *options.count, /*lines=*/true);
  absl::Mutex mutex;  // of printer and tokens
  int64_t tokens = 0;
  const absl::Time start = absl::Now();
  const auto add = [&](int first, const v1::GenerateReply& part) {
    absl::MutexLock lock(&mutex);
    tokens += part.tokens_size();
    return printer.Add(part, first);
  };
  RIVULET_RETURN_IF_ERROR(
      GenerateMany(target.client(), model, *options.count, GenerateCall(options), &request, add));
  const double seconds = std::max(absl::ToDoubleSeconds(absl::Now() - start), 1e-9);
  return absl::StrFormat("%d samples in %.2f s, %s samples/s, %s tokens/s, seed %u", *options.count,
                         seconds, Compact(*options.count / seconds),
                         Compact(static_cast<double>(tokens) / seconds), request.sampling().seed());
}

absl::StatusOr<std::string> Stream(const GenerateOptions& options, const Target& target,
                                   const v1::GetModelReply& model,
                                   const v1::GenerateRequest& request) {
  SamplePrinter printer(model.content().has_text(), options.num_samples.value_or(1));
  LogprobTable table;
  uint64_t seed = 0;
  std::optional<int64_t> position;
  std::optional<v1::Durability> durability;
  v1::Usage usage;
  absl::Status printed;
  const absl::Time start = absl::Now();
  absl::Time first = absl::InfiniteFuture();
  const absl::Status status = target.client().Generate(
      request,
      [&](const v1::GenerateReply& part) {
        if (part.has_seed()) seed = part.seed();
        if (part.has_usage()) usage = part.usage();
        if (part.has_session()) position = part.session().position();
        if (part.has_durability()) durability = part.durability();
        if (part.tokens_size() > 0) first = std::min(first, absl::Now());
        printed = options.json       ? WriteOut(PartJson(part))
                  : options.logprobs ? table.Add(part)
                                     : printer.Add(part);
        return printed.ok();
      },
      GenerateCall(options));
  if (!printed.ok()) return printed;
  if (!status.ok()) return status;
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  if (options.logprobs && !options.json) {
    RIVULET_RETURN_IF_ERROR(table.Print(target.client(), model));
  }
  std::string summary = absl::StrFormat(
      "%d tokens in %.2f s, %s tokens/s", usage.completion_tokens(), seconds,
      Compact(static_cast<double>(usage.completion_tokens()) / std::max(seconds, 1e-9)));
  if (first < absl::InfiniteFuture()) {
    absl::StrAppendFormat(&summary, ", first after %.1f ms",
                          absl::ToDoubleMilliseconds(first - start));
  }
  if (options.cache.enabled) {
    absl::StrAppend(&summary, ", ", usage.cached_prompt_tokens(), " of ", usage.prompt_tokens(),
                    " prompt tokens cached");
  }
  absl::StrAppend(&summary, DraftsSummary(usage), ", seed ", seed);
  if (position.has_value()) absl::StrAppend(&summary, ", position ", *position);
  if (durability.has_value()) absl::StrAppend(&summary, ", ", DurabilitySummary(*durability));
  return summary;
}

}  // namespace

CallOptions GenerateCall(const GenerateOptions& options) {
  CallOptions call;
  if (options.deadline_seconds.has_value()) {
    call.deadline = absl::Now() + absl::Seconds(*options.deadline_seconds);
  }
  // A server in this process would fail again in the same way.
  call.resume = options.resume && options.target.model_dir.empty();
  return call;
}

absl::StatusOr<std::string> RunCommand(const GenerateOptions& options) {
  RIVULET_ASSIGN_OR_RETURN(const Target target, OpenTarget(options.target));
  RIVULET_RETURN_IF_ERROR(UseCookie(options.session, target.client()));
  RIVULET_ASSIGN_OR_RETURN(const v1::GetModelReply model,
                           target.client().GetModel(target.model_name()));
  RIVULET_ASSIGN_OR_RETURN(v1::GenerateRequest request,
                           BuildRequest(options, model.summary().name()));
  // Some tokenizers add the beginning of a text; then an empty text is a prompt.
  if (model.content().has_text() && options.session.id.empty() && !HasPrompt(options)) {
    request.set_text("");
  }
  if (!options.out.empty()) return RunDraw(options, target, model, std::move(request));
  if (options.count) return RunLines(options, target, model, std::move(request));
  return Stream(options, target, model, request);
}

absl::Status WriteOut(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("stdout: ", std::strerror(errno)));
}

}  // namespace rivulet
