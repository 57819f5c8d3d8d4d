// SPDX-License-Identifier: Apache-2.0
#include "client/cli/options/option_parts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/output/text.h"

namespace rivulet {
namespace {

absl::Status SetLogitBias(const std::vector<std::string>& entries, SamplingOptions* sampling) {
  for (const std::string& entry : entries) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(absl::string_view(entry), absl::MaxSplits(':', 1));
    int32_t id = 0;
    float bias = 0;
    if (!absl::SimpleAtoi(parts.first, &id) || !absl::SimpleAtof(parts.second, &bias)) {
      return Usage(absl::StrCat("--logit-bias must be ID:BIAS; got \"", entry, "\""));
    }
    for (const auto& [other, other_bias] : sampling->logit_bias) {
      if (other == id) return Usage(absl::StrCat("--logit-bias names token ", id, " twice"));
    }
    sampling->logit_bias.emplace_back(id, bias);
  }
  return absl::OkStatus();
}

}  // namespace

// An empty path mostly is a variable of the shell that is not set.
CLI::Validator PathGiven() {
  return CLI::Validator(
      [](const std::string& path) { return path.empty() ? "the path must not be empty" : ""; }, "");
}

CLI::Option* AddRemote(CLI::App* app, TargetOptions* target) {
  CLI::Option* const remote =
      app->add_option("--target", target->target, "Address of a running server, HOST:PORT");
  app->add_flag("--tls", target->tls, "Connect with TLS")->needs(remote);
  app->add_option(
         "--tls-ca", target->tls_ca,
         "File with the authorities that sign the server's certificate, PEM (implies --tls)")
      ->check(PathGiven())
      ->needs(remote);
  CLI::Option* const cert =
      app->add_option("--tls-cert", target->tls_cert,
                      "Certificate to show to the server, PEM (implies --tls)")
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
  if (mark_help != nullptr) app->add_option("--mark", session->mark, mark_help);
  AddCookie(app, session);
}

void AddSequenceHash(CLI::App* app, RawValues* raw) {
  app->add_option("--sequence-hash", raw->sequence_hash,
                  "The session's sequence_hash, as the last --json printed it: refuse if it holds "
                  "other tokens, and continue also while its store cannot be reached");
}

void AddPrompt(CLI::App* app, const char* help, PromptOptions* options, RawValues* raw) {
  CLI::Option_group* const prompt = app->add_option_group("Prompt", help);
  prompt->add_option("--prompt", options->prompt, "Text");
  prompt->add_option("--tokens", raw->tokens, "Token ids: 1,2,3");
  prompt->add_option("--values", raw->values, "Values of an image: 0,12,...");
  prompt->add_option("--values-file", options->values_file, "Values of an image, one byte each")
      ->check(PathGiven());
  prompt->require_option(0, 1);
}

void AddSpecialTokens(CLI::App* app, SpecialTokenOptions* special) {
  app->add_option("--add-special-tokens", special->add,
                  "true or false: add the tokens that begin and end a text; default: where the "
                  "text begins a sequence");
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
  app->add_option("--cache-salt", cache->salt, "Share only with requests of the same salt")
      ->needs(enabled);
  app->add_option("--cache-position", cache->positions,
                  "Also keep the state after this many tokens; repeatable")
      ->expected(1)
      ->take_all()
      ->needs(enabled);
}

void AddPriority(CLI::App* app, std::string* priority) {
  app->add_option("--priority", *priority,
                  "Order among the tenant's own requests: low, normal or high")
      ->check(CLI::IsMember({"low", "normal", "high"}));
}

void AddTarget(CLI::App* app, TargetOptions* target) {
  CLI::Option* const remote = AddRemote(app, target);
  CLI::Option* const local = app->add_option(
      "--model", target->model_dir,
      "Model directory or GGUF file, served in this process; NAME=DIR names the model");
  app->add_option("--model-name", target->model_name,
                  "Name of the model; needed if the server serves several")
      ->needs(remote);
  app->add_option("--backend", target->backend, "Backend: auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->needs(local);
  app->add_option("--precision", target->precision,
                  "CUDA: precision of matrix products, default or float32")
      ->check(CLI::IsMember({"default", "float32"}))
      ->needs(local);
  app->add_option("--weights", target->weights,
                  "CPU: type of the weights in memory, auto, f32, f16, bf16, int8 or int4; "
                  "int4,head=f16 gives embedding and head another")
      ->type_name("TYPE[,head=TYPE]")
      ->needs(local);
  app->add_option("--max-context", target->max_context,
                  "Models with softmax attention: maximum number of tokens that a sequence feeds; "
                  "default: 8192, less where the model or the memory allows less")
      ->check(CLI::Range(1, 1 << 24))
      ->needs(local);
  app->add_option("--kv-cache", target->kv_cache,
                  "CPU, models with softmax attention: type of keys and values, f32, f16 or bf16")
      ->check(CLI::IsMember({"f32", "f16", "bf16"}))
      ->needs(local);
  app->add_option("--device", target->device, "CUDA: number of the GPU")
      ->check(CLI::Range(0, 1023))
      ->needs(local);
  app->add_option("--threads", target->threads, "CPU: number of threads; 0: one per core")
      ->check(CLI::Range(0, 1024))
      ->needs(local);
}

void AddSampling(CLI::App* app, SamplingOptions* sampling, RawValues* raw) {
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
  app->add_option("--logit-bias", raw->logit_bias,
                  "ID:BIAS: add BIAS to the logit of token ID; repeatable")
      ->expected(1)
      ->take_all();
  app->add_option("--seed", raw->seed, "Equal seeds give equal tokens; default: a random seed");
}

absl::Status Usage(absl::string_view message) {
  return absl::InvalidArgumentError(OneLine(message));
}

absl::Status CheckUtf8(absl::string_view option, absl::string_view text) {
  const size_t bad = FirstInvalidUtf8(text);
  if (bad == text.size()) return absl::OkStatus();
  return Usage(absl::StrCat(option, " is not valid UTF-8 at byte ", bad));
}

absl::Status CheckTarget(TargetOptions* target) {
  if (absl::Status status = CheckUtf8("--target", target->target); !status.ok()) return status;
  if (absl::Status status = CheckUtf8("--model-name", target->model_name); !status.ok()) {
    return status;
  }
  if (target->target.empty() && target->model_dir.empty()) {
    return Usage("--target HOST:PORT (or RIVULET_TARGET) or --model DIR is required");
  }
  if (!target->target.empty() && !target->model_dir.empty()) {
    return Usage(
        "--target and --model exclude each other: --target calls a running server, --model DIR "
        "serves a model in this process; --model-name names a model of the server");
  }
  if (!target->tls_ca.empty() || !target->tls_cert.empty() || !target->tls_server_name.empty()) {
    target->tls = true;
  }
  if (!target->target.empty()) {
    if (absl::StrContains(target->target, "://")) {
      return Usage(absl::StrCat("--target must be HOST:PORT, with --tls for TLS; got the URL \"",
                                target->target, "\""));
    }
    const size_t colon = target->target.rfind(':');
    uint32_t port = 0;
    if (colon == std::string::npos || colon == 0 ||
        !absl::SimpleAtoi(absl::string_view(target->target).substr(colon + 1), &port) ||
        port == 0 || port > 65535) {
      return Usage(absl::StrCat("--target must be HOST:PORT with a port from 1 to 65535; got \"",
                                target->target, "\""));
    }
  }
  return absl::OkStatus();
}

absl::Status FinishPrompt(const RawValues& raw, PromptOptions* prompt) {
  if (absl::Status status = CheckUtf8("--prompt", prompt->prompt.value_or("")); !status.ok()) {
    return status;
  }
  if (raw.tokens.has_value()) {
    auto ids = ParseIds(*raw.tokens, "--tokens");
    if (!ids.ok()) return ids.status();
    prompt->tokens = *std::move(ids);
  }
  if (raw.values.has_value()) {
    auto values = ParseIntegers(*raw.values, "--values", 0, 255);
    if (!values.ok()) return values.status();
    prompt->values.emplace();
    for (const int64_t value : *values) prompt->values->push_back(static_cast<char>(value));
  }
  return absl::OkStatus();
}

absl::Status FinishSession(const RawValues& raw, SessionOptions* session) {
  for (const auto& [option, text] :
       {std::make_pair("SESSION", &session->id), std::make_pair("--mark", &session->mark)}) {
    if (absl::Status status = CheckUtf8(option, *text); !status.ok()) return status;
  }
  if (!raw.sequence_hash.has_value()) return absl::OkStatus();
  const std::string& hash = *raw.sequence_hash;
  if (hash.size() == 16 && std::all_of(hash.begin(), hash.end(), absl::ascii_isxdigit) &&
      absl::SimpleHexAtoi(hash, &session->sequence_hash.emplace())) {
    return absl::OkStatus();
  }
  return Usage(absl::StrCat("--sequence-hash must be 16 hexadecimal digits; got \"", hash, "\""));
}

absl::Status FinishCache(const CacheOptions& cache) {
  return CheckUtf8("--cache-salt", cache.salt);
}

absl::StatusOr<double> ParseSeconds(const std::string& text, absl::string_view option) {
  double seconds = 0;
  // No more than 1e9, so that now and the deadline can be added.
  if (absl::SimpleAtod(text, &seconds) && seconds > 0 && seconds <= 1e9) return seconds;
  return Usage(
      absl::StrCat(option, " must be above 0 and at most 1e9 seconds; got \"", text, "\""));
}

absl::Status ParseMaxTokens(const RawValues& raw, std::optional<int64_t>* max_tokens) {
  if (!raw.max_tokens.has_value() || absl::SimpleAtoi(*raw.max_tokens, &max_tokens->emplace())) {
    return absl::OkStatus();
  }
  return Usage(
      absl::StrCat("--max-tokens must be an integer of 64 bits; got \"", *raw.max_tokens, "\""));
}

absl::Status FinishSampling(const RawValues& raw, SamplingOptions* sampling) {
  if (raw.seed.has_value() && !absl::SimpleAtoi(*raw.seed, &sampling->seed.emplace())) {
    return Usage(
        absl::StrCat("--seed must be an integer from 0 to 2^64-1; got \"", *raw.seed, "\""));
  }
  return SetLogitBias(raw.logit_bias, sampling);
}

}  // namespace rivulet
