// SPDX-License-Identifier: Apache-2.0
#include "client/cli/options/option_parts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "model/base/utf8.h"
#include "model/slot_choice.h"

namespace rivulet {
namespace {

bool ReadLogitBias(const std::string& entry, SamplingOptions* sampling) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(absl::string_view(entry), absl::MaxSplits(':', 1));
  int32_t id = 0;
  float bias = 0;
  if (!absl::SimpleAtoi(parts.first, &id) || !absl::SimpleAtof(parts.second, &bias)) return false;
  for (const auto& [other, other_bias] : sampling->logit_bias) {
    if (other == id) throw UsageError(absl::StrCat("--logit-bias names token ", id, " twice"));
  }
  sampling->logit_bias.emplace_back(id, bias);
  return true;
}

}  // namespace

// An empty path mostly comes from a shell variable that is not set.
CLI::Validator PathGiven() {
  return CLI::Validator(
      [](const std::string& path) { return path.empty() ? "the path must not be empty" : ""; }, "");
}

CLI::Option* Utf8(CLI::Option* option) {
  return option->each([option](const std::string& text) {
    const size_t bad = ValidUtf8Bytes(text);
    if (bad == text.size()) return;
    throw UsageError(absl::StrCat(option->get_name(), " is not valid UTF-8 at byte ", bad));
  });
}

CLI::Option* AddParsed(CLI::App* app, const std::string& name, const std::string& help,
                       const std::string& allowed,
                       const std::function<bool(const std::string&)>& read) {
  const auto read_all = [=](const CLI::results_t& values) {
    for (const std::string& value : values) {
      if (read(value)) continue;
      throw UsageError(absl::StrCat(name, " must be ", allowed, "; got \"", value, "\""));
    }
    return true;
  };
  return app->add_option(name, read_all, help)->type_name("TEXT");
}

CLI::Option* AddRemote(CLI::App* app, TargetOptions* target) {
  CLI::Option* const remote =
      Utf8(app->add_option("--target", target->target, "Address of a running server, HOST:PORT"));
  app->add_flag("--tls", target->tls, "Connect with TLS")->needs(remote);
  app->add_option("--tls-ca", target->tls_ca,
                  "CA certificates (PEM) that signed the server's certificate (implies --tls)")
      ->check(PathGiven())
      ->needs(remote);
  CLI::Option* const cert =
      app->add_option("--tls-cert", target->tls_cert,
                      "Client certificate (PEM) for the server (implies --tls)")
          ->check(PathGiven())
          ->needs(remote);
  CLI::Option* const key =
      app->add_option("--tls-key", target->tls_key, "Private key of --tls-cert, PEM")
          ->check(PathGiven())
          ->needs(cert);
  cert->needs(key);
  app->add_option("--tls-server-name", target->tls_server_name,
                  "Name in the server's certificate, where it is not the host of --target "
                  "(implies --tls)")
      ->needs(remote);
  app->add_option("--key-file", target->key_file,
                  "File that holds the API key, where the server asks for one; default: the key in "
                  "RIVULET_KEY")
      ->check(PathGiven())
      ->needs(remote);
  return remote;
}

CLI::Option* AddModelName(CLI::App* app, TargetOptions* target) {
  return Utf8(app->add_option("--model-name", target->model_name,
                              "Name of the model; needed if the server serves several"));
}

CLI::Option* AddTenant(CLI::App* app, TargetOptions* target) {
  return app->add_option("--tenant", target->tenant,
                         "Tenant, if no proxy sets it; sent as rivulet-tenant");
}

void AddCookie(CLI::App* app, SessionOptions* session) {
  app->add_option("--cookie", session->cookie,
                  "Behind a balancer: the cookie of the session's replica");
}

void AddSessionPlace(CLI::App* app, SessionOptions* session, const char* position_help,
                     const char* mark_help) {
  app->add_option("--position", session->position, position_help)
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  if (mark_help != nullptr) Utf8(app->add_option("--mark", session->mark, mark_help));
  AddCookie(app, session);
}

void AddSequenceHash(CLI::App* app, SessionOptions* session) {
  AddParsed(app, "--sequence-hash",
            "The session's sequence_hash, as the last --json printed it: refuse if it holds "
            "other tokens, and continue also while its store cannot be reached",
            "16 hexadecimal digits", [session](const std::string& hash) {
              return hash.size() == 16 &&
                     std::all_of(hash.begin(), hash.end(), absl::ascii_isxdigit) &&
                     absl::SimpleHexAtoi(hash, &session->sequence_hash.emplace());
            });
}

void AddPrompt(CLI::App* app, const char* help, PromptOptions* options) {
  CLI::Option_group* const prompt = app->add_option_group("Prompt", help);
  Utf8(prompt->add_option("--prompt", options->prompt, "Text"));
  AddIds(prompt, "--tokens", &options->tokens, "Token ids: 1,2,3");
  AddIntegers<std::string>(prompt, "--values", &options->values, 255,
                           "Values of an image: 0,12,...");
  prompt->add_option("--values-file", options->values_file, "Values of an image, one byte each")
      ->check(PathGiven());
  prompt->require_option(0, 1);
}

void AddSpecialTokens(CLI::App* app, SpecialTokenOptions* special) {
  app->add_option("--add-special-tokens", special->add,
                  "true or false: add the tokens that begin and end a text; default: those that "
                  "begin it, where it begins a sequence; tokenize: all");
  app->add_option("--parse-special-tokens", special->parse,
                  "false: control tokens that the text spells out are text; default: true");
}

void AddChatTemplate(CLI::App* app, std::string* file) {
  app->add_option("--chat-template", *file,
                  "File with the template of a conversation (Jinja); default: the model's")
      ->check(PathGiven());
}

void AddCache(CLI::App* app, CacheOptions* cache) {
  CLI::Option* const enabled = app->add_flag(
      "--cache", cache->enabled,
      "Share the states of a common prefix with other requests; the tokens are the same");
  Utf8(app->add_option("--cache-salt", cache->salt, "Share only with requests of the same salt"))
      ->needs(enabled);
  app->add_option("--cache-position", cache->positions,
                  "Also keep the state after this many tokens; repeatable")
      ->expected(1)
      ->take_all()
      ->needs(enabled);
}

void AddPriority(CLI::App* app, std::string* priority, const char* help) {
  app->add_option("--priority", *priority, help)->check(CLI::IsMember({"low", "normal", "high"}));
}

void AddTarget(CLI::App* app, TargetOptions* target) {
  CLI::Option* const remote = AddRemote(app, target);
  CLI::Option* const local = app->add_option(
      "--model", target->model_dir,
      "Model directory or GGUF file, served in this process; NAME=DIR names the model");
  AddModelName(app, target)->needs(remote);
  app->add_option("--backend", target->backend, "Backend: auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->needs(local);
  app->add_option("--precision", target->precision,
                  "CUDA: precision of matrix products, default or float32")
      ->check(CLI::IsMember({"default", "float32"}))
      ->needs(local);
  app->add_option("--weights", target->weights,
                  "Type of the weights in memory: auto, f32, f16, bf16, int8 or int4; "
                  "int4,head=f16 gives embedding and head another. On a GPU only int8 has an "
                  "effect")
      ->type_name("TYPE[,head=TYPE]")
      ->needs(local);
  AddParsed(app, "--max-context",
            "Maximum context length of models with softmax attention; default: 8192, less where "
            "the model or the memory allows less. auto:SLOTS: the largest that leaves memory for "
            "so many slots",
            "1 to 16777216, auto, or auto:SLOTS with 1 to 256 slots",
            [target](const std::string& text) {
              target->max_context = text;
              const auto choice = ParseContextChoice(text);
              return choice && CheckContextChoice(*choice).ok();
            })
      ->type_name("N")
      ->needs(local);
  app->add_option("--kv-cache", target->kv_cache,
                  "CPU: type of the KV cache of models with softmax attention, f32, f16 or bf16")
      ->check(CLI::IsMember({"f32", "f16", "bf16"}))
      ->needs(local);
  app->add_option("--device", target->device, "CUDA: number of the GPU")
      ->check(CLI::Range(0, 1023))
      ->needs(local);
  app->add_option("--threads", target->threads, "CPU: number of threads; 0: one per core")
      ->check(CLI::Range(0, 1024))
      ->needs(local);
}

void AddSeed(CLI::App* app, std::optional<uint64_t>* seed, const char* help) {
  AddParsed(app, "--seed", help, "an integer from 0 to 2^64-1",
            [seed](const std::string& text) { return absl::SimpleAtoi(text, &seed->emplace()); });
}

void AddSampling(CLI::App* app, SamplingOptions* sampling, const char* seed_help) {
  app->add_option("--temperature", sampling->temperature,
                  "0 takes the most likely token; default 1");
  app->add_option("--top-k", sampling->top_k, "Sample from the k most likely tokens; 0: all");
  app->add_option("--top-p", sampling->top_p,
                  "Sample from the most likely tokens with this total probability");
  app->add_option("--min-p", sampling->min_p,
                  "Drop tokens below this fraction of the highest probability");
  app->add_option("--repetition-penalty", sampling->repetition_penalty,
                  "Above 0; for tokens of prompt and output; default 1: none");
  app->add_option("--frequency-penalty", sampling->frequency_penalty,
                  "-2 to 2; per occurrence of a token in the output; default 0");
  app->add_option("--presence-penalty", sampling->presence_penalty,
                  "-2 to 2; once for each token in the output; default 0");
  AddParsed(app, "--logit-bias", "ID:BIAS: add BIAS to the logit of token ID; repeatable",
            "ID:BIAS",
            [sampling](const std::string& entry) { return ReadLogitBias(entry, sampling); })
      ->take_all()
      ->allow_extra_args();
  AddSeed(app, &sampling->seed, seed_help);
}

void AddCount(CLI::App* app, const char* name, std::optional<int64_t>* count, const char* help) {
  AddParsed(app, name, help, "an integer of 64 bits",
            [=](const std::string& text) { return absl::SimpleAtoi(text, &count->emplace()); });
}

void AddSpeculate(CLI::App* app, std::optional<int32_t>* drafts) {
  AddParsed(app, "--speculate",
            "Maximum number of drafts in a step, which change only the speed: auto (default), off "
            "or 0 to 16",
            "auto, off or an integer from 0 to 16", [drafts](const std::string& text) {
              drafts->reset();
              if (text == "auto") return true;
              return absl::SimpleAtoi(text == "off" ? "0" : text, &drafts->emplace()) &&
                     **drafts >= 0 && **drafts <= 16;
            });
}

void AddStop(CLI::App* app, std::vector<std::string>* stop, const char* help) {
  Utf8(app->add_option("--stop", *stop, help))->expected(1)->take_all();
}

}  // namespace rivulet
