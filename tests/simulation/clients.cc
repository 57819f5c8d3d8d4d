// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/clients.h"

#include <algorithm>
#include <utility>

#include "absl/time/time.h"

namespace rivulet::simulated {

bool Fits(const SessionInfo& info, const Client& client, const SessionState& state) {
  return info.id == client.id && info.position == state.size() && info.hash == state.hash() &&
         info.marks == state.marks && info.seed == client.seed && info.idle_timeout == client.idle;
}

Client* Clients::Open(const SessionInfo& info, const std::string& tenant,
                      std::vector<SessionState> maybe) {
  for (const Client& other : clients_) {
    if (other.id == info.id) journal_->Broken("a session id is used again");
  }
  Client& client = clients_.emplace_back();
  client.number = static_cast<int>(clients_.size());
  client.id = info.id;
  client.tenant = tenant;
  client.seed = info.seed;
  client.idle = info.idle_timeout;
  client.maybe = std::move(maybe);
  client.used_high = clock_.now();
  Used(&client, true);
  journal_->Note("session ", client.number, " of \"", tenant, "\", idle ",
                 absl::FormatDuration(client.idle));
  return &client;
}

void Clients::Expire(const Requests& requests) {
  if (clock_.went_back()) return;
  for (Client& client : clients_) {
    if (client.gone || clock_.now() < client.used_high + client.idle) continue;
    const bool used = std::any_of(requests.begin(), requests.end(), [&](const Asked& asked) {
      return asked.client == &client && !asked.foreign && asked.turn < clock_.turn() - 1;
    });
    if (used) continue;
    Gone(&client, clock_.turn());
    journal_->Count("expired");
    journal_->Note("session ", client.number, " expires");
  }
}

void Clients::Used(Client* client, bool for_certain) {
  client->used_high = std::max(client->used_high, clock_.now());
  // Told now, it may have ended in the last turn whose ends were told, after they were.
  if (for_certain) client->used_low = clock_.told();
}

void Clients::Gone(Client* client, int turn) {
  client->gone = true;
  client->gone_turn = turn;
}

int Clients::Most(int turn, const std::optional<std::string>& tenant) const {
  return static_cast<int>(
      std::count_if(clients_.begin(), clients_.end(), [&](const Client& client) {
        return (!client.gone || client.gone_turn > turn) && (!tenant || client.tenant == *tenant);
      }));
}

void Clients::Narrow(const Asked& asked,
                     absl::FunctionRef<std::vector<SessionState>(const SessionState&)> follow) {
  if (asked.client == nullptr || asked.foreign) return;
  std::vector<SessionState> next;
  for (const SessionState& state : asked.client->maybe) {
    for (SessionState& possible : follow(state)) {
      if (std::find(next.begin(), next.end(), possible) == next.end())
        next.push_back(std::move(possible));
    }
  }
  if (next.empty()) {
    for (const SessionState& state : asked.client->maybe) {
      journal_->Note("session ", asked.client->number, " held ", state.tokens);
    }
    return journal_->Broken("I1/I4: no state of session ", asked.client->number, " explains ",
                            asked.what);
  }
  asked.client->maybe = std::move(next);
}

Client* Clients::Choose(Choices* choices) {
  Client* client = nullptr;
  for (int tries = 0; tries == 0 || (tries < 5 && client->gone); ++tries) {
    client = &clients_[static_cast<size_t>(choices->Below(static_cast<int>(clients_.size())))];
  }
  return client;
}

}  // namespace rivulet::simulated
