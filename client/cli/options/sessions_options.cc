// SPDX-License-Identifier: Apache-2.0
// The command line of `rivulet sessions`.
#include "client/cli/options/option_parts.h"

namespace rivulet {
namespace {

struct Actions {
  CLI::App* app;
  SessionsOptions* options;

  CLI::App* Add(const char* name, const char* help, SessionsAction action) const {
    CLI::App* const sub = app->add_subcommand(name, help);
    SessionsOptions* const to = options;
    sub->callback([to, action] { to->action = action; });
    AddRemote(sub, &options->target)->required();
    AddModelName(sub, &options->target);
    AddTenant(sub, &options->target);
    return sub;
  }
  CLI::App* AddOnSession(const char* name, const char* help, SessionsAction action) const {
    CLI::App* const sub = Add(name, help, action);
    Utf8(sub->add_option("SESSION", options->session.id, "Id of the session"))->required();
    return sub;
  }
  void Json(CLI::App* sub) const {
    sub->add_flag("--json", options->json, "Print each session as a line of JSON");
  }
  void IdleTimeout(CLI::App* sub) const {
    AddSeconds(
        sub, "--idle-timeout", &options->idle_seconds,
        "Seconds without a request after which the session is closed; default: the server's");
  }
};

}  // namespace

void AddSessions(CLI::App* app, SessionsOptions* options) {
  app->require_subcommand(1);
  const Actions actions{app, options};

  CLI::App* const open =
      actions.Add("open", "Open a session; prints its id", SessionsAction::kOpen);
  AddSeed(open, &options->seed, "Seed of the session; default: a random seed");
  actions.IdleTimeout(open);
  actions.Json(open);

  CLI::App* const append = actions.AddOnSession(
      "append", "Process tokens without generating; prints the position", SessionsAction::kAppend);
  AddPrompt(append, "The tokens to append", options);
  AddSessionPlace(append, &options->session,
                  "Append at this position; tokens given there before are not appended twice",
                  "Set a mark at the position after the tokens, for rewind");
  AddSequenceHash(append, &options->session);
  AddCache(append, &options->cache);
  AddPriority(append, &options->priority);
  append->add_flag("--score", options->score,
                   "Also print the log-likelihood of the appended tokens");
  actions.Json(append);

  CLI::App* const fork = actions.AddOnSession(
      "fork", "Open sessions that continue from this one; prints their ids", SessionsAction::kFork);
  fork->add_option("--count", options->count, "Number of forks; default 1")
      ->check(CLI::Range(1, 256));
  AddSeed(fork, &options->seed, "Fork i gets seed + i; default: random seeds");
  AddSessionPlace(fork, &options->session, "Fork at this position; default: the session's end",
                  nullptr);
  AddSequenceHash(fork, &options->session);
  actions.Json(fork);

  CLI::App* const rewind = actions.AddOnSession(
      "rewind", "Drop the tokens after a position or a mark; prints the position",
      SessionsAction::kRewind);
  AddSessionPlace(rewind, &options->session, "Rewind to this position", "Rewind to this mark");
  rewind->get_option("--position")->excludes(rewind->get_option("--mark"));
  actions.Json(rewind);

  CLI::App* const snapshot = actions.AddOnSession(
      "snapshot", "Write a session to a file, for restore", SessionsAction::kSnapshot);
  snapshot->add_option("--out", options->file, "File to write")->check(PathGiven())->required();
  AddCookie(snapshot, &options->session);

  CLI::App* const restore = actions.Add("restore", "Open a session from a snapshot; prints its id",
                                        SessionsAction::kRestore);
  restore->add_option("--input", options->file, "File written by snapshot")
      ->check(PathGiven())
      ->required();
  actions.IdleTimeout(restore);
  actions.Json(restore);

  actions.Json(actions.Add("list", "List the open sessions, the least recently used first",
                           SessionsAction::kList));
  AddCookie(actions.AddOnSession("close", "Close a session and end the requests on it",
                                 SessionsAction::kClose),
            &options->session);
}

void FinishSessions(SessionsOptions* options) {
  if (options->action == SessionsAction::kRewind && !options->session.position.has_value() &&
      options->session.mark.empty()) {
    throw UsageError("--position or --mark is required");
  }
}

}  // namespace rivulet
