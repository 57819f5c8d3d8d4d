// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/metric_table.h"

namespace rivulet {
namespace {

using enum MetricKind;

constexpr MetricInfo kMetrics[] = {
    {"rivulet_model_info", kGauge, "model,backend", "1 for each model that is loaded."},
    {"rivulet_backend_healthy", kGauge, "model", "1, or 0 once the backend has failed."},
    {"rivulet_model_draining", kGauge, "model",
     "1 once the model takes no new requests, because it is unloaded or the server stops."},
    {"rivulet_requests_started_total", kCounter, "model,method",
     "Requests that were accepted and begun; refused ones are in rivulet_errors_total."},
    {"rivulet_requests_finished_total", kCounter, "model,method,code,reason",
     "Begun requests that ended, by status code and the reason of an error."},
    {"rivulet_queue_refusals_total", kCounter, "model",
     "Requests that were refused because a queue was full."},
    {"rivulet_prompt_tokens_total", kCounter, "model",
     "Prompt, appended and scored tokens that were computed, implied and forced ones included."},
    {"rivulet_prompt_cached_tokens_total", kCounter, "model",
     "Given tokens that were not computed, because a kept state had seen them."},
    {"rivulet_generated_tokens_total", kCounter, "model",
     "Tokens that were sampled or forced, those that no reply holds included."},
    {"rivulet_forced_tokens_total", kCounter, "model",
     "Generated tokens without a draw, because a constraint allowed no other."},
    {"rivulet_usage_given_tokens_total", kCounter, "model,tenant,key",
     "Tokens that accepted requests of a tenant and an API key gave: prompts, appended and scored "
     "tokens, and those of a reply that is resumed."},
    {"rivulet_usage_generated_tokens_total", kCounter, "model,tenant,key",
     "Tokens that were put into replies to a tenant and an API key."},
    {"rivulet_queue_time_seconds", kHistogram, "model",
     "From the arrival of a request until it first gets slots."},
    {"rivulet_time_to_first_token_seconds", kHistogram, "model",
     "From the arrival of a Generate until its first token."},
    {"rivulet_reply_gap_seconds", kHistogram, "model",
     "Between two arrivals of tokens at the same reply; a client that reads fast gets a message "
     "for each."},
    {"rivulet_request_duration_seconds", kHistogram, "model",
     "From the arrival of a request until its end, for every method and code."},
    {"rivulet_run_duration_seconds", kHistogram, "model", "One run of the backend."},
    {"rivulet_run_rows", kHistogram, "model", "Sequences in a run of the backend."},
    {"rivulet_run_age_seconds", kGauge, "model",
     "Since the last run was completed, while there is something to run; else 0."},
    {"rivulet_expert_rows_total", kCounter, "model,layer,expert",
     "Token rows that an expert of a mixture of experts computed; with expert-metrics alone. "
     "A pair of layer and expert has a series once it had a row."},
    {"rivulet_slots", kGauge, "model", "Sequences that can hold a state at once."},
    {"rivulet_slots_used", kGauge, "model", "Slots that are held now."},
    {"rivulet_slots_used_ratio", kGauge, "model",
     "rivulet_slots_used of rivulet_slots, from 0 to 1: the use of the memory for states, for "
     "routers that read one number."},
    {"rivulet_slot_bytes", kGauge, "model,kind",
     "Memory of all slots (reserved), and what the sequences that hold slots have filled (used). "
     "The two differ per slot where states grow with their tokens (softmax attention)."},
    {"rivulet_sequences_at_limit_total", kCounter, "model",
     "Samples that ended (LENGTH) because a sequence of this model can have no more tokens: the "
     "model's positions or max-context."},
    {"rivulet_requests_running", kGauge, "model", "Samples and scores that hold a slot."},
    {"rivulet_queue_depth", kGauge, "model", "Samples, scores and session calls that wait."},
    {"rivulet_queue_limit", kGauge, "model", "The most that may wait."},
    {"rivulet_queue_oldest_wait_seconds", kGauge, "model",
     "How long the first of those that wait has waited."},
    {"rivulet_tenants", kGauge, "model", "Tenants that hold slots or wait for some."},
    {"rivulet_sessions", kGauge, "model", "Open sessions."},
    {"rivulet_states", kGauge, "model,tier",
     "States kept between runs, in memory or in a file alone (disk)."},
    {"rivulet_state_bytes", kGauge, "model,tier",
     "Bytes of the kept states: in memory, on their way to files (writing), in files (disk)."},
    {"rivulet_states_forgotten_total", kCounter, "model",
     "States that were dropped for want of room."},
    {"rivulet_state_file_errors_total", kCounter, "model",
     "Files of states that could not be written or read."},
    {"rivulet_session_claim_seconds", kHistogram, "model",
     "From a request's turn on its session until it has claimed it in the store that replicas "
     "share, or is refused."},
    {"rivulet_session_save_seconds", kHistogram, "model",
     "From the end of a request on a session until the store that replicas share has confirmed its "
     "changes, or the request is answered without; not a part of "
     "rivulet_request_duration_seconds."},
    {"rivulet_session_store_connected", kGauge, "",
     "1 while there is a connection to the Redis of session-store, else 0; absent without one, or "
     "without a model."},
    {"rivulet_session_store_takeovers_total", kCounter, "model",
     "Sessions that this replica took over as another replica, or an earlier process, had written "
     "them."},
    {"rivulet_session_store_lost_total", kCounter, "model",
     "Sessions that this replica could not write, because another one had taken them over "
     "(SESSION_MOVED)."},
    {"rivulet_session_store_writes_total", kCounter, "model",
     "Writes of sessions that the store confirmed."},
    {"rivulet_session_store_rewritten_total", kCounter, "model",
     "Times that the store had lost tokens of a session which this replica had, and wrote again."},
    {"rivulet_session_store_not_durable_total", kCounter, "model",
     "Requests that ended well, and were answered before the store had confirmed their changes."},
    {"rivulet_session_store_errors_total", kCounter, "model,code",
     "Calls of the store that failed: it did not answer (UNAVAILABLE), is full "
     "(RESOURCE_EXHAUSTED), has lost or changed what was written (DATA_LOSS), or holds what this "
     "server has no key for (FAILED_PRECONDITION)."},
    {"rivulet_session_states_total", kCounter, "model,result",
     "States of sessions that this replica published for others (published), did not publish "
     "because too many were being written (skipped) or because of an error (failed); and of "
     "those that a request was to continue from: read, or not there any more or damaged, so that "
     "the session's tokens were processed again (missing)."},
    {"rivulet_session_states_published_bytes_total", kCounter, "model",
     "Bytes that this replica wrote to publish states."},
    {"rivulet_prompt_cache_lookups_total", kCounter, "model,result",
     "Requests with the prompt cache on that found a state (hit) or none (miss)."},
    {"rivulet_prompt_cache_bytes", kGauge, "model", "Bytes of cached prompts."},
    {"rivulet_samples_parked", kGauge, "model",
     "Samples that gave up their slots because their client did not read, until they have slots "
     "again."},
    {"rivulet_samples_preempted", kGauge, "model",
     "Samples that gave up their slots to another tenant and wait to continue."},
    {"rivulet_preemptions_total", kCounter, "model",
     "Samples that gave up their slots to another tenant."},
    {"rivulet_drafts_total", kCounter, "model,result",
     "Drafts, which are guesses of next tokens, that were right (accepted) or wrong (rejected)."},
    {"rivulet_replies_cut_total", kCounter, "model",
     "Replies that were ended because nobody read them."},
    {"rivulet_errors_total", kCounter, "code,reason",
     "Errors that clients were told, by status code and reason, refused requests included; 0 for "
     "each reason that calls may have."},
    {"rivulet_log_lines_total", kCounter, "result",
     "Lines of the log on stderr: written, dropped because too many waited for its reader, or "
     "failed to be written."},
    {"rivulet_request_log_lines_total", kCounter, "result",
     "Lines of the request log: written, dropped because too many waited, or failed to be "
     "written."},
    {"rivulet_trace_spans_total", kCounter, "result",
     "Spans: sent, dropped because the collector was away or slow, or failed because it refused "
     "them."},
    {"rivulet_connections", kGauge, "", "Open connections of clients."},
    {"rivulet_connections_limit", kGauge, "", "The most that may be open; 0: no limit."},
    {"rivulet_connections_accepted_total", kCounter, "", "Connections that were accepted."},
    {"rivulet_connections_refused_total", kCounter, "",
     "Connections that were closed at once, at a limit."},
    {"rivulet_connections_closed_total", kCounter, "",
     "Connections that were closed because they reset too many calls."},
    {"rivulet_tls_certificate_end_timestamp_seconds", kGauge, "",
     "When the certificate that new connections get ends, since 1970; absent without TLS."},
    {"rivulet_build_info", kGauge, "version", "1, with the version of the server."},
    {"process_cpu_seconds_total", kCounter, "", "CPU time of the process, user and system."},
    {"process_start_time_seconds", kGauge, "", "Start of the process, since 1970."},
    {"process_resident_memory_bytes", kGauge, "", "Memory of the process that is resident."},
    {"process_virtual_memory_bytes", kGauge, "", "Address space of the process."},
    {"process_threads", kGauge, "", "Threads of the process."},
    {"process_open_fds", kGauge, "", "Open file descriptors."},
    {"process_max_fds", kGauge, "", "The most file descriptors that may be open."},
};

}  // namespace

std::span<const MetricInfo> Metrics() { return kMetrics; }

}  // namespace rivulet
