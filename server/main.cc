// SPDX-License-Identifier: Apache-2.0
// rivulet-server: flags, serve, drain on SIGTERM or SIGINT; on SIGHUP read the files of keys (API
// keys and encryption keys) again and open the file of the request log again. Exit codes: 0
// success, 1 a bug of the server, 2 bad usage, input or model, 3 backend absent or failed, address
// unavailable, or a listener that does not answer. If the start fails, stderr has one line and no
// log. With --check-config it has a line for each fault, and the exit code is the code of the
// gravest fault: 1, else 2, else 3.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "model/base/error.h"
#include "server/base/leave_behind.h"
#include "server/base/line_writer.h"
#include "server/config/server_config.h"
#include "server/log.h"
#include "server/process/crash_handler.h"
#include "server/process/descriptors.h"
#include "server/server.h"
#include "server/start/config_check.h"

namespace rivulet {
namespace {

constexpr int kFailedExitCode = 3;
// How long the end may take after all replies have ended; with the rest, less than 2 s.
constexpr absl::Duration kMostCloseTime = absl::Milliseconds(1850);
// How long the reader of stderr may take to read why a start failed.
constexpr absl::Duration kLastLineTime = absl::Seconds(2);

int ExitCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kUnimplemented:
      return 3;
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
      return 1;
    default:
      return 2;
  }
}

// Writes one line to stderr.
void Complain(absl::string_view message) {
  std::string line(message);
  for (char& c : line) {
    if (c == '\n') c = ' ';
  }
  const absl::Time end = absl::Now() + kLastLineTime;
  WriteWhile(STDERR_FILENO, absl::StrCat("rivulet-server: ", line, "\n"),
             [end] { return absl::Now() < end; });
}

int Fail(const absl::Status& status) {
  Complain(status.message());
  return ExitCode(status);
}

int Show(const std::string& text) {
  const bool written = std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  return written ? 0 : Fail(absl::InvalidArgumentError("stdout cannot be written"));
}

// For --check-config: a line for each fault and each warning.
int Check(const ServerCommand& command) {
  std::vector<absl::Status> faults = command.faults;
  ConfigReport report = CheckConfig(command.config);
  for (absl::Status& fault : report.faults) {
    // A setting with a fault in the file kept its default, which proves nothing.
    const bool known =
        std::any_of(command.faults.begin(), command.faults.end(), [&](const absl::Status& other) {
          const std::string& field = GetErrorDetail(other).field;
          return !field.empty() && field == GetErrorDetail(fault).field;
        });
    if (!known) faults.push_back(std::move(fault));
  }
  int code = 0;
  for (const absl::Status& fault : faults) {
    const int own = Fail(fault);
    code = code == 0 ? own : std::min(code, own);
  }
  for (const std::string& warning : report.warnings) {
    Complain(absl::StrCat("warning: ", warning));
  }
  if (code != 0) return code;
  std::string shown;
  for (const std::string& note : report.notes) absl::StrAppend(&shown, note, "\n");
  return Show(absl::StrCat(shown, "the configuration is good\n"));
}

// Waits for `duration`, or for a signal of `signals`, which it returns; 0 without one. On SIGHUP
// the server reads its files of keys again and opens the file of its request log again; if it has
// neither, SIGHUP is logged and ignored, because a closing terminal sends it.
int AwaitSignal(const sigset_t& signals, absl::Duration duration, Server* server) {
  constexpr absl::Duration kLookEvery = absl::Milliseconds(200);
  const absl::Time end = absl::Now() + duration;
  do {
    const timespec timeout =
        absl::ToTimespec(std::clamp(end - absl::Now(), absl::ZeroDuration(), kLookEvery));
    const int signal = sigtimedwait(&signals, nullptr, &timeout);
    LogSuppressed();
    if (signal > 0 && signal != SIGHUP) return signal;
    if (signal == SIGHUP) {
      std::vector<std::string> actions;
      if (server->ReloadKeys()) actions.push_back("keys read again");
      if (server->ReopenRequestLog()) actions.push_back("request log opened again");
      if (actions.empty()) actions.push_back("ignored");
      LogLimited(LogLevel::kInfo, "sighup", {{"action", absl::StrJoin(actions, ", ")}});
    }
  } while (absl::Now() < end);
  return 0;
}

// Waits for `duration`; a signal of `signals` meanwhile ends the process at once.
void WaitUnlessSignal(const sigset_t& signals, absl::Duration duration, Server* server) {
  if (AwaitSignal(signals, duration, server) == 0) return;
  SetLogMode(LogMode::kDirect);
  Log(LogLevel::kWarning, "stopped", {{"reason", "second signal"}});
  std::_Exit(0);
}

// Ends the process, so that its supervisor starts another. It runs no destructors, as they would
// wait for a device that has failed or hangs.
[[noreturn]] void EndFailed(Server* server) {
  // Time for clients and balancers to see the health status and how their replies ended.
  static constexpr absl::Duration kNoticeTime = absl::Seconds(2);
  SetLogMode(LogMode::kDirect);
  Log(LogLevel::kError, "failed", {{"exit_code", int64_t{kFailedExitCode}}});
  std::thread([server] { server->Drain(absl::Now() + kNoticeTime); }).detach();
  absl::SleepFor(2 * kNoticeTime);
  std::_Exit(kFailedExitCode);
}

// Blocks until a signal of `signals` comes, then announces the drain, and drains. Does not return
// once a backend has failed.
void ServeUntilSignal(const sigset_t& signals, const ServerConfig& config, Server* server) {
  int signal = 0;
  while ((signal = AwaitSignal(signals, absl::Milliseconds(200), server)) == 0) {
    if (server->failed()) EndFailed(server);
  }
  if (config.drain_delay_seconds > 0) {
    Log(LogLevel::kInfo, "leaving",
        {{"signal", int64_t{signal}}, {"seconds", int64_t{config.drain_delay_seconds}}});
    server->AnnounceDrain();
    WaitUnlessSignal(signals, absl::Seconds(config.drain_delay_seconds), server);
  }
  Log(LogLevel::kInfo, "draining",
      {{"signal", int64_t{signal}}, {"seconds", int64_t{config.drain_seconds}}});
  std::atomic<bool> replies_over = false, done = false;
  std::atomic<bool> all_ended = false;
  std::thread drain([&] {
    all_ended = server->EndReplies(absl::Now() + absl::Seconds(config.drain_seconds));
    replies_over = true;
    server->Close();
    done = true;
  });
  while (!replies_over) WaitUnlessSignal(signals, absl::Milliseconds(50), server);
  const absl::Time end = absl::Now() + kMostCloseTime;
  while (!done && absl::Now() < end) WaitUnlessSignal(signals, absl::Milliseconds(50), server);
  LogSuppressed(true);
  SetLogMode(LogMode::kDirect);
  if (!done) {
    Log(LogLevel::kWarning, "stopped",
        {{"all_replies_ended", all_ended.load()}, {"reason", "connections did not close"}});
    std::_Exit(0);
  }
  drain.join();
  Log(LogLevel::kInfo, "stopped", {{"all_replies_ended", all_ended.load()}});
}

int Main(int argc, char** argv) {
  LeaveOpenSslBehind();
  absl::StatusOr<ServerCommand> command = ParseServerCommand(argc, argv);
  if (!command.ok()) return Fail(command.status());
  if (command->action == ServerAction::kShow) return Show(command->output);
  if (command->action == ServerAction::kCheck) {
    RaiseDescriptorLimit();
    return Check(*command);
  }
  InstallCrashHandler();
  // Before any thread starts, so that all inherit the mask and only this thread gets signals.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);  // a vanished reader of the log must not end the server

  SetLogLevel(LogLevelOf(command->config.log_level));
  SetLogMode(LogMode::kHeld);
  const int64_t before = RaiseDescriptorLimit();
  Log(LogLevel::kInfo, "descriptors", {{"limit", DescriptorLimit()}, {"limit_before", before}});
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Create(command->config);
  if (!server.ok()) {
    SetLogMode(LogMode::kOff);
    return Fail(server.status());
  }
  SetLogMode(LogMode::kOn);
  ServeUntilSignal(signals, command->config, server->get());
  return 0;
}

}  // namespace
}  // namespace rivulet

int main(int argc, char** argv) { return rivulet::Main(argc, argv); }
