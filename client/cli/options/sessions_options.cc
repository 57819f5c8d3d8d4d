// SPDX-License-Identifier: Apache-2.0
// The command line of `rivulet sessions`.
#include <string>

#include "client/cli/options/option_parts.h"

namespace rivulet {
namespace {

struct Actions {
  CLI::App* app;
  SessionsOptions* options;
  RawValues* raw;

  CLI::App* Add(const char* name, const char* help, SessionsAction action) const {
    CLI::App* const sub = app->add_subcommand(name, help);
    SessionsOptions* const to = options;
    sub->callback([to, action] { to->action = action; });
    AddRemote(sub, &options->target)->required();
    sub->add_option("--model-name", options->target.model_name, "Which of the server's models");
    AddTenant(sub, &options->target);
    return sub;
  }
  CLI::App* AddOnSession(const char* name, const char* help, SessionsAction action) const {
    CLI::App* const sub = Add(name, help, action);
    sub->add_option("SESSION", options->session.id, "Its id")->required();
    return sub;
  }
  void Json(CLI::App* sub) const {
    sub->add_flag("--json", options->json, "One JSON line for each session");
  }
  void IdleTimeout(CLI::App* sub) const {
    sub->add_option("--idle-timeout", raw->idle,
                    "Seconds without a request after which it is closed; default: the server's");
  }
};

}  // namespace

void AddSessions(CLI::App* app, SessionsOptions* options, RawValues* raw) {
  app->require_subcommand(1);
  const Actions actions{app, options, raw};

  CLI::App* const open = actions.Add("open", "A new session; prints its id", SessionsAction::kOpen);
  open->add_option("--seed", raw->seed, "What it draws with; default: drawn");
  actions.IdleTimeout(open);
  actions.Json(open);

  CLI::App* const append = actions.AddOnSession(
      "append", "Feed without generating; prints the position", SessionsAction::kAppend);
  AddPrompt(append, "What to feed", options, raw);
  AddSessionPlace(append, &options->session,
                  "Where it goes; what was given there before is not fed twice",
                  "Name the position after it, for rewind");
  AddCache(append, &options->cache);
  AddPriority(append, &options->priority);
  append->add_flag("--score", options->score, "Also the log-likelihood of what is appended");
  actions.Json(append);

  CLI::App* const fork = actions.AddOnSession(
      "fork", "New sessions that go on from this one; prints their ids", SessionsAction::kFork);
  fork->add_option("--count", options->count, "How many; default 1")->check(CLI::Range(1, 256));
  fork->add_option("--seed", raw->seed, "Fork i draws with seed + i; default: drawn");
  AddSessionPlace(fork, &options->session, "Fork here; default: at its end", nullptr);
  actions.Json(fork);

  CLI::App* const rewind =
      actions.AddOnSession("rewind", "Drop what follows a position or a mark; prints the position",
                           SessionsAction::kRewind);
  AddSessionPlace(rewind, &options->session, "Back to this position", "Back to this mark");
  rewind->get_option("--position")->excludes(rewind->get_option("--mark"));
  actions.Json(rewind);

  CLI::App* const snapshot = actions.AddOnSession(
      "snapshot", "Write a session to a file that restore reads", SessionsAction::kSnapshot);
  snapshot->add_option("--out", options->file, "The file")->check(PathGiven())->required();
  AddCookie(snapshot, &options->session);

  CLI::App* const restore = actions.Add("restore", "A new session from a snapshot; prints its id",
                                        SessionsAction::kRestore);
  restore->add_option("--input", options->file, "The file")->check(PathGiven())->required();
  actions.IdleTimeout(restore);
  actions.Json(restore);

  actions.Json(actions.Add("list", "The open sessions, the one used longest ago first",
                           SessionsAction::kList));
  AddCookie(
      actions.AddOnSession("close", "End a session and what runs on it", SessionsAction::kClose),
      &options->session);
}

absl::Status FinishSessions(const RawValues& raw, SessionsOptions* options) {
  if (absl::Status status = CheckTarget(&options->target); !status.ok()) return status;
  if (absl::Status status = FinishPrompt(raw, options); !status.ok()) return status;
  if (absl::Status status = FinishSession(options->session); !status.ok()) return status;
  if (absl::Status status = FinishCache(options->cache); !status.ok()) return status;
  if (options->action == SessionsAction::kRewind && !options->session.position.has_value() &&
      options->session.mark.empty()) {
    return Usage("--position or --mark is needed");
  }
  SamplingOptions sampling;
  if (absl::Status status = FinishSampling(raw, &sampling); !status.ok()) return status;
  options->seed = sampling.seed;
  if (raw.idle.has_value()) {
    const absl::StatusOr<double> seconds = ParseSeconds(*raw.idle, "--idle-timeout");
    if (!seconds.ok()) return seconds.status();
    options->idle_seconds = *seconds;
  }
  return absl::OkStatus();
}

}  // namespace rivulet
