// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/connections/connection_calls.h"

#include <grpc/grpc.h>
#include <grpc/support/alloc.h>

#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"

namespace rivulet {
namespace {

using Json = nlohmann::json;

Json Parsed(char* text) {
  if (text == nullptr) return Json();  // ended meanwhile
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  gpr_free(text);
  return json;
}

// Members of channelz's messages (grpc/channelz/v1): numbers of 64 bits are strings, 0 is absent.
int64_t Number(const Json& object, const char* name) {
  const auto found = object.find(name);
  int64_t number = 0;
  if (found == object.end() || !found->is_string()) return 0;
  return absl::SimpleAtoi(found->get_ref<const std::string&>(), &number) ? number : 0;
}

const Json& MemberOf(const Json& object, const char* name) {
  static const Json nothing = Json::object();
  const auto found = object.find(name);
  return found == object.end() ? nothing : *found;
}

// Calls visit(element) for each element of a list that comes in pages. `list(start)` is the page
// that begins with the id `start`; `ref` is the member of an element with its id.
template <typename List, typename Visit>
void ForEach(const List& list, const char* elements, const char* ref, const char* id,
             const Visit& visit) {
  for (int64_t start = 0;;) {
    const Json page = Parsed(list(start));
    const Json& found = MemberOf(page, elements);
    for (const Json& element : found) {
      const int64_t number = Number(*ref == '\0' ? element : MemberOf(element, ref), id);
      visit(number);
      start = number + 1;
    }
    const Json& end = MemberOf(page, "end");
    if (found.empty() || (end.is_boolean() && end.get<bool>())) return;
  }
}

}  // namespace

std::vector<ConnectionCalls> CallsByConnection() {
  std::vector<ConnectionCalls> connections;
  const auto add_socket = [&connections](int64_t id) {
    const Json answer = Parsed(grpc_channelz_get_socket(id));
    const Json& socket = MemberOf(answer, "socket");
    const Json& data = MemberOf(socket, "data");
    const Json& name = MemberOf(MemberOf(socket, "ref"), "name");  // "chttp2 ipv4:1.2.3.4:56"
    if (!name.is_string()) return;
    const auto& text = name.get_ref<const std::string&>();
    connections.push_back({id, text.substr(text.find(' ') + 1), Number(data, "streamsStarted"),
                           Number(data, "streamsSucceeded"), Number(data, "streamsFailed")});
  };
  ForEach(
      [](int64_t start) { return grpc_channelz_get_servers(start); }, "server", "ref", "serverId",
      [&add_socket](int64_t server) {
        ForEach(
            [server](int64_t start) { return grpc_channelz_get_server_sockets(server, start, 0); },
            "socketRef", "", "socketId", add_socket);
      });
  return connections;
}

}  // namespace rivulet
