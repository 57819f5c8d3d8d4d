// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/collector.h"

#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "server/base/error_reasons.h"
#include "server/engine/meters.h"
#include "server/log.h"
#include "server/metrics/metric_table.h"
#include "server/process/descriptors.h"
#include "server/process/process_usage.h"
#include "server/request_log/request_log.h"
#include "server/sessions/replicated/session_store.h"
#include "server/tracing/tracer.h"

namespace rivulet {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using LabelValues = std::initializer_list<absl::string_view>;

MetricType TypeOf(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter:
      return MetricType::Counter;
    case MetricKind::kGauge:
      return MetricType::Gauge;
    case MetricKind::kHistogram:
      return MetricType::Histogram;
  }
  return MetricType::Untyped;
}

// The families of the table while they are filled. A name, a type or a number of labels that the
// table does not have ends the process: a unit test fills all of them.
class Page {
 public:
  Page() : families_(Metrics().size()) {
    for (size_t i = 0; i < families_.size(); ++i) {
      const MetricInfo& info = Metrics()[i];
      families_[i].name = std::string(info.name);
      families_[i].help = std::string(info.sentence);
      families_[i].type = TypeOf(info.kind);
    }
  }

  void Count(absl::string_view name, LabelValues labels, int64_t value) {
    Add(name, MetricKind::kCounter, labels)->counter.value = static_cast<double>(value);
  }
  void CountSeconds(absl::string_view name, LabelValues labels, double value) {
    Add(name, MetricKind::kCounter, labels)->counter.value = value;
  }
  void Set(absl::string_view name, LabelValues labels, double value) {
    Add(name, MetricKind::kGauge, labels)->gauge.value = value;
  }
  void Set(absl::string_view name, LabelValues labels, int64_t value) {
    Set(name, labels, static_cast<double>(value));
  }
  void Set(absl::string_view name, LabelValues labels, int value) {
    Set(name, labels, static_cast<double>(value));
  }
  void Show(absl::string_view name, LabelValues labels, const Histogram& source) {
    const Histogram::Reading reading = source.Read();
    ClientMetric::Histogram& wire = Add(name, MetricKind::kHistogram, labels)->histogram;
    uint64_t below = 0;
    for (size_t i = 0; i < reading.counts.size(); ++i) {
      below += static_cast<uint64_t>(reading.counts[i]);
      const double bound =
          i < reading.bounds.size() ? reading.bounds[i] : std::numeric_limits<double>::infinity();
      wire.bucket.push_back({below, bound});
    }
    wire.sample_count = below;
    wire.sample_sum = reading.sum;
  }

  std::vector<MetricFamily> Take() {
    std::erase_if(families_, [](const MetricFamily& family) { return family.metric.empty(); });
    return std::move(families_);
  }

 private:
  ClientMetric* Add(absl::string_view name, MetricKind kind, LabelValues values) {
    for (size_t i = 0; i < families_.size(); ++i) {
      const MetricInfo& info = Metrics()[i];
      if (info.name != name) continue;
      const std::vector<std::string> names = absl::StrSplit(info.labels, ',', absl::SkipEmpty());
      if (info.kind != kind || names.size() != values.size()) break;
      ClientMetric& metric = families_[i].metric.emplace_back();
      const absl::string_view* value = values.begin();
      for (const std::string& label : names) {
        metric.label.push_back({label, std::string(*value++)});
      }
      return &metric;
    }
    std::fprintf(stderr, "metrics: %s is not in the table with this type and these labels\n",
                 std::string(name).c_str());
    std::abort();
  }

  std::vector<MetricFamily> families_;  // [Metrics()]
};

void AddRequests(const EngineMeters& meters, absl::string_view model, Page* page) {
  for (size_t i = 0; i < kNumRequestKinds; ++i) {
    const auto kind = static_cast<RequestKind>(i);
    const absl::string_view method = MethodOf(kind);
    // Reads the ended requests first, so that never more have ended than started.
    const int64_t ended_well = meters.ended_well(kind);
    const auto errors = meters.errors(kind);
    page->Count("rivulet_requests_started_total", {model, method}, meters.started(kind));
    page->Count("rivulet_requests_finished_total", {model, method, "OK", ""}, ended_well);
    for (const EngineMeters::Errors& error : errors) {
      page->Count("rivulet_requests_finished_total",
                  {model, method, absl::StatusCodeToString(error.code), error.reason}, error.count);
    }
  }
}

void AddUsage(const TokenUsage& usage, absl::string_view model, Page* page) {
  for (const TokenUsage::Caller& caller : usage.all()) {
    const LabelValues labels = {model, caller.tenant, caller.key};
    page->Count("rivulet_usage_given_tokens_total", labels, caller.given);
    page->Count("rivulet_usage_generated_tokens_total", labels, caller.generated);
  }
}

void AddTimes(const EngineMeters& meters, absl::string_view model, Page* page) {
  page->Count("rivulet_prompt_cached_tokens_total", {model}, meters.cached_tokens());
  page->Show("rivulet_queue_time_seconds", {model}, meters.queue_time());
  page->Show("rivulet_time_to_first_token_seconds", {model}, meters.first_token());
  page->Show("rivulet_reply_gap_seconds", {model}, meters.reply_gap());
  page->Show("rivulet_request_duration_seconds", {model}, meters.duration());
  page->Show("rivulet_session_claim_seconds", {model}, meters.session_claim());
  page->Show("rivulet_session_save_seconds", {model}, meters.session_save());
  page->Show("rivulet_run_duration_seconds", {model}, meters.run_duration());
  page->Show("rivulet_run_rows", {model}, meters.run_rows());
  page->Set("rivulet_run_age_seconds", {model}, absl::ToDoubleSeconds(meters.run_age(absl::Now())));
}

void AddStates(const StateStore::Totals& states, absl::string_view model, Page* page) {
  page->Set("rivulet_states", {model, "memory"}, states.in_memory);
  page->Set("rivulet_states", {model, "disk"}, states.on_disk);
  page->Set("rivulet_state_bytes", {model, "memory"}, states.memory_bytes);
  page->Set("rivulet_state_bytes", {model, "writing"}, states.writing_bytes);
  page->Set("rivulet_state_bytes", {model, "disk"}, states.disk_bytes);
  page->Count("rivulet_states_forgotten_total", {model}, states.forgotten);
  page->Count("rivulet_state_file_errors_total", {model}, states.file_errors);
}

void AddReplication(const ReplicaTotals& shared, absl::string_view model, Page* page) {
  page->Count("rivulet_session_store_takeovers_total", {model}, shared.takeovers);
  page->Count("rivulet_session_store_lost_total", {model}, shared.lost);
  page->Count("rivulet_session_store_writes_total", {model}, shared.writes);
  page->Count("rivulet_session_store_rewritten_total", {model}, shared.rewritten);
  page->Count("rivulet_session_store_not_durable_total", {model}, shared.not_durable);
  constexpr absl::string_view kErrors = "rivulet_session_store_errors_total";
  page->Count(kErrors, {model, "UNAVAILABLE"}, shared.unavailable);
  page->Count(kErrors, {model, "RESOURCE_EXHAUSTED"}, shared.full);
  page->Count(kErrors, {model, "DATA_LOSS"}, shared.damaged);
  page->Count(kErrors, {model, "FAILED_PRECONDITION"}, shared.unreadable);
  constexpr absl::string_view kStates = "rivulet_session_states_total";
  page->Count(kStates, {model, "published"}, shared.states_published);
  page->Count(kStates, {model, "skipped"}, shared.states_skipped);
  page->Count(kStates, {model, "failed"}, shared.states_failed);
  page->Count(kStates, {model, "read"}, shared.states_read);
  page->Count(kStates, {model, "missing"}, shared.states_missing);
  page->Count("rivulet_session_states_published_bytes_total", {model},
              shared.states_published_bytes);
}

// All models share one store.
void AddSessionStore(const ModelHold& model, Page* page) {
  const SessionStore* const store = model.engine()->options().session_store.get();
  const std::optional<bool> connected = store == nullptr ? std::nullopt : store->connected();
  if (connected) page->Set("rivulet_session_store_connected", {}, *connected ? 1 : 0);
}

void AddLoad(const EngineLoad& load, absl::string_view model, Page* page) {
  page->Set("rivulet_backend_healthy", {model}, load.health.ok() ? 1 : 0);
  page->Set("rivulet_model_draining", {model}, load.draining ? 1 : 0);
  page->Count("rivulet_queue_refusals_total", {model}, load.refused);
  page->Count("rivulet_prompt_tokens_total", {model}, load.fed_total);
  page->Count("rivulet_generated_tokens_total", {model}, load.tokens_total);
  page->Count("rivulet_forced_tokens_total", {model}, load.forced_total);
  page->Set("rivulet_slots", {model}, load.slots);
  page->Set("rivulet_slots_used", {model}, load.slots_used);
  page->Set("rivulet_slots_used_ratio", {model},
            load.slots > 0 ? double(load.slots_used) / load.slots : 0.0);
  page->Set("rivulet_slot_bytes", {model, "reserved"}, load.slot_bytes);
  page->Set("rivulet_slot_bytes", {model, "used"}, load.slot_bytes_used);
  page->Count("rivulet_sequences_at_limit_total", {model}, load.ended_at_limit);
  page->Set("rivulet_requests_running", {model}, load.running);
  page->Set("rivulet_queue_depth", {model}, load.queued);
  page->Set("rivulet_queue_limit", {model}, load.max_queue);
  page->Set("rivulet_queue_oldest_wait_seconds", {model}, absl::ToDoubleSeconds(load.oldest_wait));
  page->Set("rivulet_tenants", {model}, load.tenants);
  page->Set("rivulet_sessions", {model}, load.client_sessions);
  page->Count("rivulet_prompt_cache_lookups_total", {model, "hit"}, load.cache_hits);
  page->Count("rivulet_prompt_cache_lookups_total", {model, "miss"}, load.cache_misses);
  page->Set("rivulet_prompt_cache_bytes", {model}, load.cache_bytes);
  page->Set("rivulet_samples_parked", {model}, load.parked);
  page->Set("rivulet_samples_preempted", {model}, load.preempted);
  page->Count("rivulet_preemptions_total", {model}, load.preempted_total);
  page->Count("rivulet_drafts_total", {model, "accepted"}, load.accepted_total);
  page->Count("rivulet_drafts_total", {model, "rejected"},
              load.drafted_total - load.accepted_total);
  page->Count("rivulet_replies_cut_total", {model}, load.unread_replies_ended);
  AddStates(load.states, model, page);
  AddReplication(load.replication, model, page);
}

// Reasons that no client has got yet are exported as 0: rate() does not see the first value of a
// series, and so would miss the first error.
void AddErrors(ErrorCounts::Counts counts, Page* page) {
  for (const ErrorReason& reason : ErrorReasons()) {
    if (reason.scope == ReasonScope::kCall)
      counts.try_emplace({reason.code, std::string(reason.name)}, 0);
  }
  for (const auto& [error, count] : counts) {
    page->Count("rivulet_errors_total", {absl::StatusCodeToString(error.first), error.second},
                count);
  }
}

void AddLines(absl::string_view name, const LineCounts& counts, Page* page) {
  page->Count(name, {"written"}, counts.written);
  page->Count(name, {"dropped"}, counts.dropped);
  page->Count(name, {"failed"}, counts.failed);
}

void AddLogs(const RequestLog* requests, Page* page) {
  AddLines("rivulet_log_lines_total", LogCounts(), page);
  AddLines("rivulet_request_log_lines_total",
           requests == nullptr ? LineCounts() : requests->counts(), page);
}

void AddTracing(const Tracer* tracer, Page* page) {
  const OtlpExporter::Counts counts = tracer == nullptr ? OtlpExporter::Counts() : tracer->counts();
  page->Count("rivulet_trace_spans_total", {"sent"}, counts.sent);
  page->Count("rivulet_trace_spans_total", {"dropped"}, counts.dropped);
  page->Count("rivulet_trace_spans_total", {"failed"}, counts.failed);
}

void AddConnections(const ConnectionCounts& counts, Page* page) {
  page->Set("rivulet_connections", {}, counts.open);
  page->Set("rivulet_connections_limit", {}, counts.max_open);
  page->Count("rivulet_connections_accepted_total", {}, counts.accepted);
  page->Count("rivulet_connections_refused_total", {}, counts.refused);
  page->Count("rivulet_connections_closed_total", {}, counts.closed);
  if (counts.certificate_end) {
    page->Set("rivulet_tls_certificate_end_timestamp_seconds", {},
              absl::ToUnixSeconds(*counts.certificate_end));
  }
}

void AddProcess(Page* page) {
  page->Set("rivulet_build_info", {RIVULET_VERSION}, 1);
  page->Set("process_open_fds", {}, OpenDescriptors());
  page->Set("process_max_fds", {}, DescriptorLimit());
  const std::optional<ProcessUsage> usage = GetProcessUsage();
  if (!usage) return;
  page->CountSeconds("process_cpu_seconds_total", {}, usage->cpu_seconds);
  page->Set("process_start_time_seconds", {}, usage->start_seconds);
  page->Set("process_resident_memory_bytes", {}, usage->resident_bytes);
  page->Set("process_virtual_memory_bytes", {}, usage->virtual_bytes);
  page->Set("process_threads", {}, usage->threads);
}

void AddExperts(const ExpertLoad& load, const std::string& model, Page* page) {
  for (int layer = 0; layer < load.layers(); ++layer) {
    for (int expert = 0; expert < load.experts(); ++expert) {
      const uint64_t rows = load.rows(layer, expert);
      if (rows == 0) continue;
      page->Count("rivulet_expert_rows_total", {model, absl::StrCat(layer), absl::StrCat(expert)},
                  static_cast<int64_t>(rows));
    }
  }
}

}  // namespace

std::vector<MetricFamily> CollectMetrics(const ServedModels& models, const ServerCalls& calls) {
  Page page;
  const std::vector<ModelHold> all = models.all();
  if (!all.empty()) AddSessionStore(all.front(), &page);
  for (const ModelHold& model : all) {
    const std::string& name = model.name();
    page.Set("rivulet_model_info", {name, model.description().summary().backend()}, 1);
    AddRequests(model.engine()->meters(), name, &page);
    AddUsage(*model.engine()->meters().usage(), name, &page);
    AddTimes(model.engine()->meters(), name, &page);
    AddLoad(model.engine()->GetLoad(), name, &page);
    const ExpertLoad* const experts = model.engine()->limits().expert_load.get();
    if (experts != nullptr) AddExperts(*experts, name, &page);
  }
  AddErrors(calls.errors.counts(), &page);
  AddLogs(calls.sinks.log, &page);
  AddTracing(calls.sinks.tracer, &page);
  AddConnections(calls.connections.counts(), &page);
  AddProcess(&page);
  return page.Take();
}

}  // namespace rivulet
