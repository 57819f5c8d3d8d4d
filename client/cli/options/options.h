// SPDX-License-Identifier: Apache-2.0
// The command line of `rivulet`, parsed and checked for form. Checks that need a model or a server
// come later.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "server/keys/api_key.h"

namespace rivulet {

// Where the model runs: exactly one of `target` and `model_dir` is set.
struct TargetOptions {
  std::string target;      // HOST:PORT
  std::string model_name;  // one of the server's models; empty: its only model
  bool tls = false;
  std::string tls_ca;           // PEM file; empty: the system's roots
  std::string tls_cert;         // PEM file: this client's certificate; empty: none
  std::string tls_key;          // ... its private key
  std::string tls_server_name;  // name that the certificate must hold; empty: the target's host
  std::string key_file;         // holds the API key; empty: the key is in RIVULET_KEY, or none
  std::string tenant;           // owner of the sessions; empty: not sent
  std::string model_dir;        // DIR or NAME=DIR, a model directory, served in this process
  std::string backend = "auto";
  std::string precision = "default";
  std::string weights = "auto";
  std::string max_context = "auto";  // as ParseContextChoice reads it, and checked
  std::string kv_cache = "f32";
  int device = 0;   // GPU, as CUDA counts them
  int threads = 0;  // 0: every core
};

struct SamplingOptions {
  std::optional<float> temperature, top_p, min_p;
  std::optional<float> repetition_penalty, frequency_penalty, presence_penalty;
  std::optional<int32_t> top_k;
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::optional<uint64_t> seed;
};

// The input of a model: at most one of these.
struct PromptOptions {
  std::optional<std::string> prompt;
  std::optional<std::vector<int32_t>> tokens;
  std::optional<std::string> values;  // image values, one byte each
  std::string values_file;
};

// How a text is tokenized; absent: the server's default.
struct SpecialTokenOptions {
  std::optional<bool> add, parse;
};

// A session, and the effect of a request on it.
struct SessionOptions {
  std::string id;      // empty: none
  std::string cookie;  // leads a balancer to its replica; empty: none
  std::optional<int64_t> position;
  std::optional<uint64_t> sequence_hash;  // expected hash of the whole session, to be checked
  std::string mark;
};

// How a prompt shares its state with other requests.
struct CacheOptions {
  bool enabled = false;  // false: salt and positions are not set
  std::string salt;
  std::vector<int64_t> positions;
};

// What the text must be; at most one is set.
struct ConstraintOptions {
  std::string json_schema;  // file
  std::optional<std::string> regex;
  std::vector<std::string> choices;
};

// Without a prompt: an empty prompt, or none with a session.
struct GenerateOptions : PromptOptions {
  TargetOptions target;
  SpecialTokenOptions special;
  SessionOptions session;
  CacheOptions cache;
  std::string priority;  // "low", "normal", "high"; empty: the server's default
  SamplingOptions sampling;
  std::optional<int32_t> num_samples;
  std::optional<int64_t> max_tokens;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_tokens;
  bool ignore_eos = false;
  std::optional<int64_t> min_tokens;
  ConstraintOptions constraint;
  std::optional<int32_t> drafts;  // most in a step; absent: as many as pay
  bool logprobs = false;
  int32_t top_logprobs = 0;
  bool json = false;
  std::optional<double> deadline_seconds;
  bool resume = true;        // a reply that was cut off continues
  std::optional<int> count;  // samples, each on a line; with `out`: images
  std::string out;           // PNG file
  int columns = 8;
};

struct ChatOptions {
  TargetOptions target;
  std::string chat_template;  // file; empty: the model's own
  std::string system;         // the system's message; empty: none
  SamplingOptions sampling;
  std::optional<int64_t> max_tokens;  // of an answer
  std::vector<std::string> stop;      // empty: from the template
  std::optional<int32_t> drafts;      // as in GenerateOptions
  bool show_prompt = false;
  bool stats = false;
};

struct ScoreOptions {
  TargetOptions target;
  // Exactly one of these three.
  std::string input;             // JSON lines, "-" for stdin
  std::string idx;               // images in MNIST's format
  std::string text;              // a text file, scored as one line
  std::optional<int64_t> limit;  // images of `idx`, or scored tokens of `text`
  std::optional<double> tail;    // last fraction of `text`
  std::vector<int64_t> outputs;
  bool logprobs = false;
  std::optional<int64_t> window;
  std::string priority;       // as in GenerateOptions
  bool keep_going = false;    // of `input`: an invalid line does not end the run
  bool summary_only = false;  // of `quantize`: no line for each item
};

struct BatchOptions {
  TargetOptions target;
  std::string in, out;
  // Defaults for lines that do not set them; line N has the seed `seed` + N.
  SamplingOptions sampling;
  std::optional<int64_t> max_tokens;
  CacheOptions cache;
  std::string chat_template;     // as in ChatOptions
  std::string priority = "low";  // as in GenerateOptions
  bool unordered = false;
  std::optional<int> at_once;    // lines in flight
  double give_up_seconds = 600;  // end the run after this time without a success
  double progress_seconds = 60;  // if stderr is no terminal; 0: never
  bool fail_on_error = false;
};

struct TokenizeOptions {
  TargetOptions target;
  // Exactly one of these two.
  std::optional<std::string> text;
  std::string file;  // "-" for stdin
  SpecialTokenOptions special;
  bool json = false;
};

struct DetokenizeOptions {
  TargetOptions target;
  std::vector<int32_t> tokens;
  bool skip_special_tokens = false;
  bool bytes = false;  // print the tokens' bytes, UTF-8 or not
};

struct BenchOptions {
  TargetOptions target;
  // Above 0: open loop, requests/s independent of the answers. 0: closed loop of `concurrency`
  // workers, each of which sends `think_ms` after the end of its last request.
  double rate = 0;
  bool poisson = true;  // open loop: exponential gaps between requests; else equal gaps
  int64_t max_in_flight = 10000;
  int64_t concurrency = 1;
  double think_ms = 0;
  // The run ends at the first of the two limits; at least one is set. Neither counts the warm-up.
  std::optional<int64_t> requests;
  std::optional<double> duration_seconds;
  // Sent but not measured; at most one is above 0.
  double warmup_seconds = 0;
  int64_t warmup_requests = 0;
  bool score = false;  // Score instead of Generate
  // At most one of these three; none: an empty prompt.
  std::optional<std::string> prompt;
  std::optional<std::vector<int32_t>> tokens;
  int64_t prompt_length = 0;  // > 0: number of random tokens, drawn for each request
  SamplingOptions sampling;   // `seed` is set; request i has seed + i
  std::optional<int64_t> max_tokens;
  bool ignore_eos = false;
  int connections = 1;
  std::optional<double> deadline_seconds;
  std::string json;     // file, "-" for stdout; empty: none
  std::string picture;  // SVG file; empty: none
  bool fail_on_error = false;
};

enum class ModelsAction : uint8_t { kList, kLoad, kUnload };

struct ModelsOptions {
  TargetOptions target;
  ModelsAction action = ModelsAction::kList;
  std::string name;                     // of the model to load or unload
  std::optional<double> drain_seconds;  // unload
  bool json = false;
};

enum class SessionsAction : uint8_t {
  kOpen,
  kAppend,
  kFork,
  kRewind,
  kSnapshot,
  kRestore,
  kList,
  kClose
};

struct SessionsOptions : PromptOptions {  // append
  TargetOptions target;
  SessionsAction action = SessionsAction::kList;
  SessionOptions session;              // all but open, restore and list
  std::optional<int> count;            // fork
  std::optional<uint64_t> seed;        // open, fork
  std::optional<double> idle_seconds;  // open, restore
  bool score = false;                  // append
  CacheOptions cache;                  // append
  std::string priority;                // append; as in GenerateOptions
  std::string file;                    // of snapshot to write, of restore to read
  bool json = false;
};

struct HealthOptions {
  TargetOptions target;
  double deadline_seconds = 5;
};

struct LoadOptions {
  TargetOptions target;
  bool json = false;
};

struct QuantizeOptions {
  std::string model_dir, out;
  std::string weights;                               // model/weight_choice.h
  std::string check;                                 // a text file; empty: none
  std::optional<int64_t> check_window, check_limit;  // as in ScoreOptions
};

enum class KeysAction : uint8_t { kNew, kList, kRevoke };

struct KeysOptions {
  KeysAction action = KeysAction::kList;
  std::string file;
  std::string name;                 // new, revoke
  std::string tenant;               // new; empty: the name
  std::vector<std::string> models;  // new; empty: all
  bool admin = false;               // new
  std::string expires;              // new; empty: never
  KeyLimits limits;                 // new
  bool json = false;                // list
};

// Requested text (--help, --version): printed to stdout, exit code 0.
struct ShowText {
  std::string text;
};

struct LogLevelOptions {
  TargetOptions target;
  std::string level;  // to set; empty: the level is only shown
};

// `rivulet serve`: client/python/src/rivulet/gateway/serve.py parses them.
struct ServeOptions {
  std::vector<std::string> arguments;
};

using Command = std::variant<ShowText, GenerateOptions, ScoreOptions, TokenizeOptions,
                             DetokenizeOptions, BenchOptions, ModelsOptions, SessionsOptions,
                             BatchOptions, HealthOptions, LoadOptions, KeysOptions, QuantizeOptions,
                             LogLevelOptions, ChatOptions, ServeOptions>;

// `args` without the program's name; environment.h says what the environment adds. Errors:
// INVALID_ARGUMENT, one line that names the option.
absl::StatusOr<Command> ParseCommandLine(std::span<const std::string> args);

}  // namespace rivulet
