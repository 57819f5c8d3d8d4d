// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/bench_report.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/output/text.h"
#include "nlohmann/json.hpp"

namespace rivulet {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kNanosecondsPerMs = 1e6;
constexpr std::pair<const char*, double> kQuantiles[] = {
    {"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p99.9", 0.999}};

double Ms(double nanoseconds) { return nanoseconds / kNanosecondsPerMs; }
double Ms(int64_t nanoseconds) { return Ms(static_cast<double>(nanoseconds)); }

double Rate(int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

// The histograms by their names in the JSON output and in the table.
struct Row {
  const char* name;
  const char* label;
  const BenchHistogram& histogram;
};
std::vector<Row> Rows(const BenchRun& run) {
  const Measurements& m = run.measured;
  const bool score = run.options.score;
  const bool open = run.options.rate > 0;
  std::vector<Row> rows;
  if (!score) rows.push_back({"first_token", "first token", m.first_token});
  if (!score) rows.push_back({"message_gap", "message gap", m.message_gap});
  rows.push_back({"end_to_end", "end to end", m.end_to_end});
  // In a closed loop these equal the others, and no request waits in this process.
  if (open && !score)
    rows.push_back({"first_token_sent", "first token (sent)", m.first_token_sent});
  if (open) rows.push_back({"end_to_end_sent", "end to end (sent)", m.end_to_end_sent});
  if (open) rows.push_back({"send_delay", "send delay", m.send_delay});
  return rows;
}

Json HistogramJson(const BenchHistogram& histogram) {
  Json json = {{"count", histogram.count()}};
  if (histogram.count() == 0) return json;
  json["min"] = Ms(histogram.min());
  json["mean"] = Ms(histogram.mean());
  for (const auto& [name, q] : kQuantiles) json[name] = Ms(histogram.Quantile(q));
  json["max"] = Ms(histogram.max());
  Json buckets = Json::array();
  for (const BenchHistogram::Bucket& bucket : histogram.NonEmptyBuckets()) {
    buckets.push_back({Ms(bucket.low), Ms(bucket.high), bucket.count});
  }
  json["buckets"] = std::move(buckets);
  return json;
}

template <typename T>
void SetIfGiven(Json* json, const char* name, const std::optional<T>& value) {
  (*json)[name] = value.has_value() ? Json(*value) : Json();
}

Json SettingsJson(const BenchOptions& options) {
  Json json = {{"loop", options.rate > 0 ? "open" : "closed"}};
  if (options.rate > 0) {
    json["rate"] = options.rate;
    json["arrivals"] = options.poisson ? "poisson" : "constant";
    json["max_in_flight"] = options.max_in_flight;
  } else {
    json["concurrency"] = options.concurrency;
    json["think_seconds"] = options.think_ms / 1000;
  }
  SetIfGiven(&json, "requests", options.requests);
  SetIfGiven(&json, "duration_seconds", options.duration_seconds);
  json["warmup_seconds"] = options.warmup_seconds;
  json["warmup_requests"] = options.warmup_requests;
  json["connections"] = options.connections;
  SetIfGiven(&json, "deadline_seconds", options.deadline_seconds);
  json["kind"] = options.score ? "score" : "generate";
  SetIfGiven(&json, "prompt", options.prompt);
  SetIfGiven(&json, "tokens", options.tokens);
  json["prompt_length"] = options.prompt_length;
  SetIfGiven(&json, "max_tokens", options.max_tokens);
  json["ignore_eos"] = options.ignore_eos;
  const SamplingOptions& s = options.sampling;
  SetIfGiven(&json, "temperature", s.temperature);
  SetIfGiven(&json, "top_k", s.top_k);
  SetIfGiven(&json, "top_p", s.top_p);
  SetIfGiven(&json, "min_p", s.min_p);
  SetIfGiven(&json, "repetition_penalty", s.repetition_penalty);
  SetIfGiven(&json, "frequency_penalty", s.frequency_penalty);
  SetIfGiven(&json, "presence_penalty", s.presence_penalty);
  json["logit_bias"] = s.logit_bias;
  SetIfGiven(&json, "seed", s.seed);
  return json;
}

Json ServerJson(const BenchRun& run) {
  const v1::ModelSummary& summary = run.model.summary();
  const TargetOptions& target = run.options.target;
  return {{"target", target.target.empty() ? Json() : Json(target.target)},
          {"model", summary.name()},
          {"backend", summary.backend()},
          {"numerics_id", run.model.numerics_id()},
          {"weights_sha256", summary.weights_sha256()},
          {"num_parameters", summary.num_parameters()},
          {"slots", run.model.limits().slots()}};
}

Json RequestsJson(const Measurements& m) {
  return {{"succeeded", m.succeeded},     {"failed", m.failed},
          {"rejected", m.rejected},       {"late", m.late},
          {"interrupted", m.interrupted}, {"unsent", m.unsent},
          {"warmup", m.warmup},           {"tokens", m.tokens}};
}

Json WindowJson(const Measurements& m) {
  return {{"seconds", m.window_seconds},
          {"requests", m.window_requests},
          {"tokens", m.window_tokens},
          {"messages", m.window_messages},
          {"requests_per_second", Rate(m.window_requests, m.window_seconds)},
          {"tokens_per_second", Rate(m.window_tokens, m.window_seconds)},
          {"messages_per_second", Rate(m.window_messages, m.window_seconds)}};
}

// A line that names the histograms with too few values for a quantile: the quantile is then their
// maximum.
std::string FewValues(const std::vector<Row>& rows) {
  constexpr int64_t kForP99 = 100, kForP999 = 1000;
  std::vector<std::string> few;
  for (const Row& row : rows) {
    const int64_t count = row.histogram.count();
    if (count > 0 && count < kForP999) few.push_back(absl::StrCat(row.label, " has ", count));
  }
  if (few.empty()) return "";
  return absl::StrCat("\nwarning    p99 needs ", kForP99, " values and p99.9 needs ", kForP999,
                      "; with fewer it is the maximum (", absl::StrJoin(few, ", "), ")");
}

// Four significant digits, to fit a column.
std::string Cell(double ms) {
  const int digits = ms < 10 ? 3 : ms < 100 ? 2 : ms < 1000 ? 1 : 0;
  return absl::StrFormat("%.*f", digits, ms);
}

std::string RequestsLine(const Measurements& m) {
  std::string line = absl::StrCat(m.succeeded, " succeeded, ", m.failed, " failed");
  if (m.rejected > 0) absl::StrAppend(&line, " (", m.rejected, " rejected)");
  if (m.late > 0) {
    absl::StrAppend(&line, ", ", m.late, " sent more than ", kLateNanoseconds / 1'000'000,
                    " ms late");
  }
  if (m.interrupted > 0) absl::StrAppend(&line, ", ", m.interrupted, " interrupted");
  if (m.unsent > 0) absl::StrAppend(&line, ", ", m.unsent, " unsent");
  return line;
}

}  // namespace

Machine ThisMachine() {
  Machine machine;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) machine.cores = CPU_COUNT(&set);
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(':');
    if (!absl::StartsWith(line, "model name") || colon == std::string::npos) continue;
    machine.cpu =
        std::string(absl::StripAsciiWhitespace(absl::string_view(line).substr(colon + 1)));
    break;
  }
  return machine;
}

std::string DescribeLoad(const BenchOptions& options) {
  std::string text;
  if (options.rate > 0) {
    absl::StrAppend(&text, "open loop, ", options.rate, " requests/s ",
                    options.poisson ? "(Poisson)" : "(constant)");
  } else {
    absl::StrAppend(&text, "closed loop, ", options.concurrency,
                    options.concurrency == 1 ? " worker" : " workers");
    if (options.think_ms > 0) {
      absl::StrAppend(&text, " thinking ", options.think_ms, " ms");
    }
  }
  if (options.requests.has_value()) absl::StrAppend(&text, ", ", *options.requests, " requests");
  if (options.duration_seconds.has_value()) {
    absl::StrAppend(&text, ", ", *options.duration_seconds, " s");
  }
  if (options.warmup_seconds > 0) {
    absl::StrAppend(&text, " after ", options.warmup_seconds, " s of warm-up");
  }
  if (options.warmup_requests > 0) {
    absl::StrAppend(&text, " after ", options.warmup_requests, " of warm-up");
  }
  return text;
}

std::string DescribeErrors(const Measurements& measured) {
  return absl::StrJoin(measured.errors, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.first.first, entry.first.second.empty() ? "" : " ",
                    entry.first.second, " ", entry.second.count);
  });
}

std::string BenchTable(const BenchRun& run) {
  const Measurements& m = run.measured;
  const v1::ModelSummary& summary = run.model.summary();
  const std::string& target = run.options.target.target;
  std::string text = absl::StrCat(
      run.options.score ? "score " : "generate ", summary.name(), " (", run.model.numerics_id(),
      ") ", target.empty() ? "in this process" : absl::StrCat("at ", target), ": ",
      DescribeLoad(run.options), m.was_interrupted ? ", INTERRUPTED" : "", "\n");
  absl::StrAppend(&text, "requests   ", RequestsLine(m), "\n");
  absl::StrAppendFormat(&text, "rate       %s requests/s, %s tokens/s",
                        Compact(Rate(m.window_requests, m.window_seconds)),
                        Compact(Rate(m.window_tokens, m.window_seconds)));
  if (!run.options.score) {
    absl::StrAppend(&text, ", ", Compact(Rate(m.window_messages, m.window_seconds)), " messages/s");
  }
  absl::StrAppendFormat(&text, " in %.2f s\n%-20s", m.window_seconds, "milliseconds");
  for (const auto& [name, q] : kQuantiles) absl::StrAppendFormat(&text, "%10s", name);
  absl::StrAppendFormat(&text, "%10s%10s%10s", "min", "mean", "max");
  for (const Row& row : Rows(run)) {
    absl::StrAppendFormat(&text, "\n%-20s", row.label);
    const BenchHistogram& h = row.histogram;
    if (h.count() == 0) {
      absl::StrAppend(&text, "         -");
      continue;
    }
    for (const auto& [name, q] : kQuantiles) {
      absl::StrAppendFormat(&text, "%10s", Cell(Ms(h.Quantile(q))));
    }
    absl::StrAppendFormat(&text, "%10s%10s%10s", Cell(Ms(h.min())), Cell(Ms(h.mean())),
                          Cell(Ms(h.max())));
  }
  absl::StrAppend(&text, FewValues(Rows(run)));
  for (const auto& [key, error] : m.errors) {
    absl::StrAppend(&text, "\nerror      ", error.count, " x ", key.first, " ", key.second,
                    key.second.empty() ? "" : " ", "- ", OneLine(error.message));
  }
  absl::StrAppendFormat(&text, "\nthis process used %.2f of %d cores",
                        m.run_seconds > 0 ? m.cpu_seconds / m.run_seconds : 0, run.machine.cores);
  return text;
}

std::string BenchJson(const BenchRun& run) {
  const Measurements& m = run.measured;
  Json errors = Json::array();
  for (const auto& [key, error] : m.errors) {
    errors.push_back({{"code", key.first},
                      {"reason", key.second},
                      {"count", error.count},
                      {"message", error.message}});
  }
  Json latency = Json::object();
  for (const Row& row : Rows(run)) latency[row.name] = HistogramJson(row.histogram);
  const Json json = {
      {"format", 1},
      {"version", RIVULET_VERSION},
      {"started", absl::FormatTime(absl::RFC3339_sec, run.started, absl::UTCTimeZone())},
      {"settings", SettingsJson(run.options)},
      {"server", ServerJson(run)},
      {"client",
       {{"cores", run.machine.cores},
        {"cpu", run.machine.cpu},
        {"run_seconds", m.run_seconds},
        {"cpu_seconds", m.cpu_seconds}}},
      {"interrupted", m.was_interrupted},
      {"requests", RequestsJson(m)},
      {"errors", std::move(errors)},
      {"window", WindowJson(m)},
      {"relative_error", BenchHistogram::kRelativeError},
      {"latency_ms", std::move(latency)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace rivulet
