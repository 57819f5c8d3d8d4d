// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/connections/first_bytes.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace rivulet {
namespace {

// Whether `bytes` begin with a method of HTTP/1: letters and a space. The preface of HTTP/2 has the
// same form. A client sends a method in one piece; pieces of one are left to gRPC.
bool IsHttp1(absl::string_view bytes) {
  const auto letters = static_cast<size_t>(
      std::find_if_not(bytes.begin(), bytes.end(), absl::ascii_isupper) - bytes.begin());
  return letters >= 3 && letters < bytes.size() && bytes[letters] == ' ' &&
         !absl::StartsWith(bytes, "PRI ");
}

}  // namespace

FirstBytes PeekFirstBytes(int fd) {
  char bytes[8];  // the longest method in use has 7 letters
  const ssize_t got = recv(fd, bytes, sizeof(bytes), MSG_PEEK | MSG_DONTWAIT);
  if (got < 0 && errno == EAGAIN) return FirstBytes::kNone;
  if (got <= 0) return FirstBytes::kEnd;
  return IsHttp1({bytes, static_cast<size_t>(got)}) ? FirstBytes::kHttp1 : FirstBytes::kOther;
}

void AnswerHttp1(int fd, bool tls) {
  // In the form of OpenAI's errors, as its clients show no other text.
  const std::string body = absl::StrCat(
      R"({"error": {"message": "This port speaks gRPC)", tls ? " over TLS" : "",
      ", not HTTP/1.1; start `rivulet serve`, or rivulet-gateway for this server, and use its HTTP "
      R"(port.", "type": "invalid_request_error", "param": null, "code": "not_grpc"}})",
      "\n");
  const std::string answer = absl::StrCat(
      "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: ", body.size(),
      "\r\nConnection: close\r\n\r\n", body);
  DiscardReceived(fd);
  send(fd, answer.data(), answer.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  shutdown(fd, SHUT_WR);
}

void DiscardReceived(int fd) { recv(fd, nullptr, 1 << 30, MSG_DONTWAIT | MSG_TRUNC); }

}  // namespace rivulet
