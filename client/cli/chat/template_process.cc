// SPDX-License-Identifier: Apache-2.0
#include "client/cli/chat/template_process.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/options/environment.h"
#include "client/cli/output/text.h"
#include "model/base/error.h"
#include "model/base/program.h"
#include "nlohmann/json.hpp"

namespace rivulet {
namespace {

constexpr size_t kHeadBytes = 9;  // a letter, and the size of the rest, big-endian
constexpr char kValue = 'v';
// The worker ends itself after a second of computing; the machine may be busy.
constexpr timeval kPatience = {30, 0};

absl::Status Refused(const std::string& reason, const std::string& field,
                     absl::string_view message) {
  ErrorDetail detail;
  detail.reason = reason;
  detail.field = field;
  return MakeError(absl::StatusCode::kInvalidArgument, message, detail);
}

absl::Status NoEngine(absl::string_view message) {
  ErrorDetail detail;
  detail.reason = "NO_CHAT_TEMPLATE_ENGINE";
  return MakeError(absl::StatusCode::kFailedPrecondition, message, detail);
}

// Both handle EINTR and short counts. They return false at the end of the process and after
// kPatience.
bool SendAll(int socket, const std::string& bytes) {
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t n = send(socket, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno != EINTR) return false;
    if (n > 0) sent += static_cast<size_t>(n);
  }
  return true;
}

bool ReceiveAll(int socket, char* bytes, size_t size) {
  for (size_t received = 0; received < size;) {
    const ssize_t n = recv(socket, bytes + received, size - received, 0);
    if (n == 0 || (n < 0 && errno != EINTR)) return false;
    if (n > 0) received += static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

TemplateProcess::~TemplateProcess() {
  if (pid_ != 0) End();
}

absl::StatusOr<std::string> TemplateProcess::Run(Job job, const std::string& arguments) {
  if (pid_ == 0) RIVULET_RETURN_IF_ERROR(Start());
  std::optional<Answer> answer = Exchange(job, arguments);
  if (!answer.has_value()) {
    if (job == Job::kDivide) {
      return Refused("RESPONSE_PARSE_TOO_HARD", "",
                     absl::StrCat("dividing the reply takes too much (", End(), ")"));
    }
    return Refused(
        "CHAT_TEMPLATE_TOO_HARD", "messages",
        absl::StrCat("messages: the model's chat template: rendering it takes too much (", End(),
                     ")"));
  }
  if (answer->letter == kValue) return std::move(answer->bytes);
  // Code, field and message.
  const nlohmann::json error = nlohmann::json::parse(answer->bytes, nullptr, false);
  if (!error.is_array() || error.size() != 3 || !error[0].is_string() || !error[2].is_string()) {
    return absl::InternalError(
        absl::StrCat("the process of chat templates answered ", OneLine(answer->bytes)));
  }
  const std::string field = error[1].is_string() ? error[1].get<std::string>() : "";
  return Refused(
      error[0].get<std::string>(), field,
      absl::StrCat(field, field.empty() ? "" : ": ", OneLine(error[2].get<std::string>())));
}

absl::Status TemplateProcess::Start() {
  const std::string folder = ProgramFile().parent_path().parent_path() / "share/rivulet";
  if (const std::string worker = folder + "/chat_worker/main.py";
      access(worker.c_str(), R_OK) != 0) {
    return NoEngine(absl::StrCat("chat templates need the file ", worker,
                                 ", which is installed with the programs: ", strerror(errno)));
  }
  if (pythons_.empty()) pythons_ = Pythons();
  std::vector<std::string> tried;
  for (const std::string& python : pythons_) {
    std::string why;
    if (StartWith(python, folder, &why)) {
      pythons_ = {python};
      return absl::OkStatus();
    }
    tried.push_back(absl::StrCat(python, " (", why, ")"));
  }
  return NoEngine(absl::StrCat(
      "chat templates need Python 3.9 or newer with jinja2 and regex; tried: ",
      absl::StrJoin(tried, ", "),
      "; the packages python3-jinja2 and python3-regex of Debian have them, and so has "
      "rivulet-server[chat] of pip"));
}

bool TemplateProcess::StartWith(const std::string& python, const std::string& folder,
                                std::string* why) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    *why = strerror(errno);
    return false;
  }
  // -E: ignores PYTHONPATH. Not -I: packages of the user (pip install --user) may be used. The
  // folder takes the place of the current one, from which nothing is to be imported.
  const char* const program =
      "import sys; sys.path[0] = sys.argv[1]; from chat_worker.main import run; run()";
  const GivenFile given[] = {{ends[1], STDIN_FILENO}, {ends[1], STDOUT_FILENO}};
  const int error =
      StartProgram({python.c_str(), "-EBc", program, folder.c_str(), nullptr}, given, &pid_);
  close(ends[1]);
  socket_ = ends[0];
  if (error != 0) {
    close(socket_);
    pid_ = 0;
    *why = strerror(error);
    return false;
  }
  setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
  setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
  // An interpreter that cannot run the worker ends without an answer. If the process ends later, a
  // template caused it.
  if (Exchange(Job::kCheck, R"(["",{}])").has_value()) return true;
  *why = End();
  return false;
}

std::optional<TemplateProcess::Answer> TemplateProcess::Exchange(Job job,
                                                                 const std::string& arguments) {
  std::string head(1, static_cast<char>(job));
  for (int shift = 56; shift >= 0; shift -= 8) {
    head.push_back(static_cast<char>(uint64_t{arguments.size()} >> shift));
  }
  if (!SendAll(socket_, head) || !SendAll(socket_, arguments)) return std::nullopt;
  char answered[kHeadBytes];
  if (!ReceiveAll(socket_, answered, kHeadBytes)) return std::nullopt;
  uint64_t size = 0;
  for (size_t i = 1; i < kHeadBytes; ++i) size = (size << 8) | static_cast<uint8_t>(answered[i]);
  // A prompt has 64 MiB at most, and escapes in JSON.
  constexpr uint64_t kMostBytes = uint64_t{256} << 20;
  if (size > kMostBytes) return std::nullopt;
  Answer answer = {answered[0], std::string(size, '\0')};
  if (!ReceiveAll(socket_, answer.bytes.data(), answer.bytes.size())) return std::nullopt;
  return answer;
}

std::string TemplateProcess::End() {
  close(socket_);
  kill(pid_, SIGKILL);  // a process that has ended keeps its status
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) continue;
  pid_ = 0;
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGPROF) return "more than 1 s";
  if (WIFSIGNALED(status)) return absl::StrCat("signal ", WTERMSIG(status));
  return absl::StrCat("exit code ", WEXITSTATUS(status));
}

}  // namespace rivulet
