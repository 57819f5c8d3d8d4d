// SPDX-License-Identifier: Apache-2.0
// `rivulet bench`: runs the load and writes files, stdout and the summary.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/bench/bench_load.h"
#include "client/cli/bench/bench_picture.h"
#include "client/cli/bench/bench_report.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/interruption.h"
#include "client/cli/output/output_file.h"
#include "client/cli/output/progress.h"
#include "client/cli/output/text.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

// A progress bar over the run's limit (requests or time), and a line of numbers above it.
class Display {
 public:
  explicit Display(const BenchOptions& options)
      : by_requests_(!options.duration_seconds.has_value()),
        progress_(by_requests_ ? *options.requests
                               : static_cast<int64_t>(*options.duration_seconds +
                                                      options.warmup_seconds + 0.999),
                  by_requests_ ? "requests" : "seconds") {}

  void Show(const LoadState& state) {
    if (!progress_.due()) return;
    std::string line = absl::StrCat(
        state.ended, " requests, ",
        Compact(state.window_seconds > 0 ? static_cast<double>(state.tokens) / state.window_seconds
                                         : 0),
        " tokens/s, ", state.in_flight, " in flight, ", state.failed, " failed");
    if (state.waiting) absl::StrAppend(&line, ", waiting for the last replies (Ctrl-C ends)");
    // A line that wraps would not be erased.
    line.resize(std::min(line.size(), static_cast<size_t>(std::max(progress_.columns() - 1, 0))));
    progress_.Update(by_requests_ ? state.ended : static_cast<int64_t>(state.seconds), {line});
  }

 private:
  const bool by_requests_;
  Progress progress_;
};

std::string Picture(const BenchRun& run) {
  const Measurements& m = run.measured;
  const bool open = run.options.rate > 0;
  const char* const since = open ? " since the intended time" : "";
  std::vector<Curve> curves = {
      {absl::StrCat("end to end", since), "#2563eb", false, &m.end_to_end},
      {absl::StrCat("first token", since), "#059669", false, &m.first_token},
      {"gap between messages", "#d97706", false, &m.message_gap}};
  if (open) {
    curves.push_back({"end to end since it was sent", "#93b4f5", true, &m.end_to_end_sent});
    curves.push_back({"first token since it was sent", "#6fcdb0", true, &m.first_token_sent});
  }
  return PercentilePicture(
      absl::StrCat(run.options.score ? "score " : "generate ", run.model.summary().name()),
      absl::StrCat(DescribeLoad(run.options), m.was_interrupted ? ", interrupted" : "", "; ",
                   m.succeeded, " succeeded, ", m.failed, " failed"),
      curves);
}

absl::Status WriteResults(const BenchRun& run) {
  const BenchOptions& options = run.options;
  if (!options.picture.empty()) {
    RIVULET_RETURN_IF_ERROR(WriteTextFile(options.picture, Picture(run)));
  }
  if (options.json.empty()) return absl::OkStatus();
  const std::string json = BenchJson(run);
  return options.json == "-" ? WriteOut(json) : WriteTextFile(options.json, json);
}

// Before a run, which may be long: whether its results can be written.
absl::Status CheckOutputs(const BenchOptions& options) {
  if (!options.json.empty() && options.json != "-") {
    RIVULET_RETURN_IF_ERROR(CheckWritable(options.json));
  }
  return options.picture.empty() ? absl::OkStatus() : CheckWritable(options.picture);
}

absl::StatusOr<std::vector<Target>> OpenTargets(const BenchOptions& options) {
  std::vector<Target> targets;
  TargetUse use;
  use.client.own_connection = true;
  use.client.max_attempts = 1;  // a failure is counted, not hidden by a retry
  use.over_socket = true;  // gRPC's in-process transport would lose messages: Client::GenerateAsync
  for (int i = 0; i < options.connections; ++i) {
    RIVULET_ASSIGN_OR_RETURN(Target target, OpenTarget(options.target, use));
    targets.push_back(std::move(target));
  }
  return targets;
}

// OK, or the error of a run whose requests failed.
absl::Status Verdict(const BenchOptions& options, const Measurements& measured) {
  if (measured.failed == 0 || (measured.succeeded > 0 && !options.fail_on_error)) {
    return absl::OkStatus();
  }
  return absl::Status(measured.first_error.code(),
                      absl::StrCat(measured.failed, " of ", measured.failed + measured.succeeded,
                                   " requests failed: ", DescribeErrors(measured),
                                   "; the first: ", measured.first_error.message()));
}

}  // namespace

absl::StatusOr<std::string> RunCommand(const BenchOptions& options) {
  RIVULET_RETURN_IF_ERROR(CheckOutputs(options));
  RIVULET_ASSIGN_OR_RETURN(const std::vector<Target> targets, OpenTargets(options));
  const Target& first = targets.front();
  RIVULET_ASSIGN_OR_RETURN(const v1::GetModelReply model,
                           first.client().GetModel(first.model_name()));
  std::vector<Client> clients;
  clients.reserve(targets.size());
  for (const Target& target : targets) clients.push_back(target.client());

  Measurements measured;
  const absl::Time started = absl::Now();
  {
    const Interruption interruption;
    Display display(options);
    const LoadCallbacks callbacks = {.on_tick = [&](const LoadState& state) {
      display.Show(state);
      return !Interruption::came();
    }};
    RIVULET_RETURN_IF_ERROR(RunLoad(options, model, std::move(clients), callbacks, &measured));
  }
  const BenchRun run = {options, model, measured, started, ThisMachine()};
  RIVULET_RETURN_IF_ERROR(WriteResults(run));
  RIVULET_RETURN_IF_ERROR(Verdict(options, measured));
  return BenchTable(run);
}

}  // namespace rivulet
