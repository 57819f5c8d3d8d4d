// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/connections/call_watch.h"

#include <grpc/grpc.h>
#include <grpc/support/alloc.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "server/log.h"

namespace rivulet {
namespace {

constexpr int kLeastStreams = 1000;
constexpr int kManyConnections = 4;  // as many calls as these may have are a reason to look
// A look costs some 30 us a connection. It is taken at once when there are many calls and this
// often otherwise, for calls of gRPC's own services, which are not counted here.
constexpr absl::Duration kLookEvery = absl::Milliseconds(250);
constexpr absl::Duration kLookAgainAfter = absl::Milliseconds(20);
constexpr int kIdleShare = 50;  // of the time, looks take at most one part in so many
constexpr int kBusyShare = 10;  // ... while there are many calls

// Of this thread, that it ran: what a look costs others, also where it had to wait for a core.
absl::Duration ThreadTime() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

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

// Calls visit(element) for each element of a list that comes in pages; `list(start)` is the page
// that begins with the id `start`, `ref` where an element has its id.
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
    connections.push_back({text.substr(text.find(' ') + 1), Number(data, "streamsStarted") -
                                                                Number(data, "streamsSucceeded") -
                                                                Number(data, "streamsFailed")});
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

struct CallWatch::State {
  explicit State(int64_t many_calls) : many(many_calls) {}

  bool Due() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return stopped || calls.load(std::memory_order_relaxed) > many;
  }
  void Count() {
    if (calls.fetch_add(1, std::memory_order_relaxed) != many) return;
    absl::MutexLock lock(&mutex);  // wakes whoever waits for Due
  }

  const int64_t many;
  std::atomic<int64_t> calls = 0;
  absl::Mutex mutex;
  bool stopped ABSL_GUARDED_BY(mutex) = false;
};

namespace {

// gRPC calls New... when a call arrives, before it waits for a thread, and Release when it has
// ended. Without a context from here it makes its own.
template <typename State>
class CallCounter final : public grpc::ContextAllocator {
 public:
  explicit CallCounter(std::shared_ptr<State> state) : state_(std::move(state)) {}

  grpc::CallbackServerContext* NewCallbackServerContext() override {
    state_->Count();
    return nullptr;
  }
  grpc::GenericCallbackServerContext* NewGenericCallbackServerContext() override {
    state_->Count();
    return nullptr;
  }
  void Release(grpc::CallbackServerContext*) override { --state_->calls; }
  void Release(grpc::GenericCallbackServerContext*) override { --state_->calls; }

 private:
  const std::shared_ptr<State> state_;
};

}  // namespace

CallWatch::CallWatch(int max_streams, Close close, List list)
    : max_streams_(std::max(max_streams, kLeastStreams)),
      list_(std::move(list)),
      close_(std::move(close)),
      state_(std::make_shared<State>(kManyConnections * max_streams_)),
      thread_([this] { Run(); }) {}

CallWatch::~CallWatch() {
  {
    absl::MutexLock lock(&state_->mutex);
    state_->stopped = true;
  }
  thread_.join();
}

std::unique_ptr<grpc::ContextAllocator> CallWatch::Counter() {
  return std::make_unique<CallCounter<State>>(state_);
}

void CallWatch::Run() {
  State& state = *state_;
  absl::Duration took;
  absl::MutexLock lock(&state.mutex);
  while (!state.stopped) {
    state.mutex.AwaitWithTimeout(absl::Condition(&state.stopped),
                                 std::max(kLookAgainAfter, kBusyShare * took));
    state.mutex.AwaitWithTimeout(absl::Condition(&state, &State::Due),
                                 std::max(kLookEvery, kIdleShare * took));
    if (state.stopped) return;
    state.mutex.Unlock();
    const absl::Duration begin = ThreadTime();
    Look();
    took = ThreadTime() - begin;
    state.mutex.Lock();
  }
}

void CallWatch::Look() {
  const std::vector<ConnectionCalls> connections = list_();
  int64_t calls = 0;
  for (const ConnectionCalls& connection : connections) calls += connection.calls;
  if (calls <= state_->many) return;
  for (const ConnectionCalls& connection : connections) {
    if (connection.calls <= 2 * max_streams_ || !close_(connection.peer)) continue;
    LogLimited(LogLevel::kWarning, "connections_closed",
               {{"reason", std::string("calls reset")},
                {"peer", connection.peer},
                {"calls", connection.calls}});
  }
}

}  // namespace rivulet
