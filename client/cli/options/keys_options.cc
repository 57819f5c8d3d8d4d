// SPDX-License-Identifier: Apache-2.0
// The command line of `rivulet keys`.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/cli/options/option_parts.h"
#include "server/keys/key_json.h"

namespace rivulet {

void AddKeys(CLI::App* app, KeysOptions* options) {
  app->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, KeysAction action) {
    CLI::App* const sub = app->add_subcommand(name, help);
    sub->callback([options, action] { options->action = action; });
    sub->add_option("--keys-file", options->file, "File of keys that rivulet-server reads")
        ->check(PathGiven())
        ->required();
    return sub;
  };
  CLI::App* const fresh =
      add("new", "Make a key; prints it, once. The file holds only its SHA-256", KeysAction::kNew);
  Utf8(fresh->add_option("NAME", options->name, "Name of the key, for operators"))->required();
  Utf8(fresh->add_option("--tenant", options->tenant, "Tenant of its calls; default: NAME"));
  Utf8(fresh->add_option("--model-name", options->models,
                         "A model that it may use; repeatable. Default: all models"))
      ->expected(1)
      ->take_all();
  fresh->add_flag("--admin", options->admin, "It may load and unload models");
  Utf8(fresh->add_option("--expires", options->expires,
                         "When it expires, for example 2027-01-31T00:00:00Z; default: never"));
  for (const KeyLimit& limit : kKeyLimits) {
    fresh
        ->add_option(absl::StrCat("--", absl::StrReplaceAll(limit.name, {{"_", "-"}})),
                     options->limits.*limit.value,
                     absl::StrCat(limit.meaning, "; default: no limit"))
        ->check(CLI::Range(int64_t{1}, kMaxKeyLimit));
  }
  add("list", "Print the keys' names, tenants, models, expiry and limits", KeysAction::kList)
      ->add_flag("--json", options->json, "Print each key as a line of JSON");
  CLI::App* const revoke = add("revoke", "Remove a key from the file", KeysAction::kRevoke);
  Utf8(revoke->add_option("NAME", options->name, "Name of the key"))->required();
}

}  // namespace rivulet
