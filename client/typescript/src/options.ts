// SPDX-License-Identifier: Apache-2.0
// The options of calls. Absent always means the server's default.

/**
 * A prompt. A string is text. A Uint8Array holds the first values of an image in raster order,
 * channels interleaved. Other numbers are token ids. It may be empty for a model with a bos.
 */
export type Prompt = string | readonly number[] | Int32Array | Uint8Array;

/** Headers of a call: lower-case keys. The value of a key that ends in "-bin" is bytes. */
export type CallMetadata = Readonly<Record<string, string | Uint8Array>>;

/** Order among the tenant's own requests that wait for a slot; it takes nothing from other tenants. */
export type Priority = 'low' | 'normal' | 'high';

/** Options of every call. */
export interface CallOptions {
  /**
   * Milliseconds for the whole call, with streaming and every repetition; after it,
   * DEADLINE_EXCEEDED. Absent: no limit.
   */
  timeoutMs?: number;
  /** Ends the call when it is aborted: CANCELLED, with the signal's reason as `cause`. */
  signal?: AbortSignal;
  /** Sent after the client's own metadata. */
  metadata?: CallMetadata;
}

/** Lets requests with a common prefix process the prefix once. Changes only time, not the tokens. */
export interface PromptCache {
  /** States are shared only with requests of the same salt, at most 64 bytes. */
  salt?: string;
  /**
   * Also keep the state after this many tokens of the prompt (on a session: of its sequence),
   * because other requests continue from there. At most 16.
   */
  positions?: readonly number[];
}

/** Options of calls that take a text. They have no effect on token ids. */
export interface TextOptions extends CallOptions {
  /**
   * Adds the tokens with which the tokenizer begins and ends a text. Absent: those at its beginning,
   * if the text begins a sequence; in tokenize() all of them.
   */
  addSpecialTokens?: boolean;
  /** Names of control tokens in the text become these tokens; absent: true. */
  parseSpecialTokens?: boolean;
}

/** Options of every generate(). */
export interface SamplingOptions extends TextOptions {
  /** Per sample, 1 to limits.maxTokens of the model. */
  maxTokens?: number;
  /** >= 0; absent: 1. With 0 the most likely token is taken. */
  temperature?: number;
  /** >= 0; 0: all tokens. */
  topK?: number;
  /** (0, 1]. */
  topP?: number;
  /** [0, 1]. */
  minP?: number;
  /** > 0, over prompt and output. */
  repetitionPenalty?: number;
  /** [-2, 2], per occurrence in the output. */
  frequencyPenalty?: number;
  /** [-2, 2], once for each token that is in the output. */
  presencePenalty?: number;
  /** Token id to a bias in [-100, 100]. */
  logitBias?: Readonly<Record<number, number>>;
  /**
   * 0 to 2^64 - 1; above 2^53 - 1 as a bigint. Absent: the client draws a seed
   * (GenerateStream.seed); in a session, the session's seed.
   */
  seed?: number | bigint;
  /** Ends a sample when its text would contain one of these. */
  stop?: string | readonly string[];
  /** Ends a sample when one of these is sampled. */
  stopTokenIds?: readonly number[];
  /** Keeps the matched stop string in the output. */
  includeStopString?: boolean;
  /** Does not end a sample at the model's eos. */
  ignoreEos?: boolean;
  /** The minimum number of tokens per sample, 0 to maxTokens; `stop` is found only behind them. */
  minTokens?: number;
  /** Control tokens have no text, also for `stop`. */
  skipSpecialTokens?: boolean;
  /**
   * How drafts speed up the reply; its tokens stay the same. A number is the maximum number of
   * drafts in a step, 0 to 16, 'off' is 0, 'auto' (also if absent) as many as pay.
   */
  speculation?: Drafts | Speculation;
  /** The log-probability of every token, in nats. */
  logprobs?: boolean;
  /** Also the n most likely tokens at every position, 0 to 20; needs logprobs. */
  topLogprobs?: number;
  /** What the text of each sample must be. */
  constraint?: Constraint;
  /** Shares states of the prompt with other requests; true is the same as {}. */
  cache?: boolean | PromptCache;
  priority?: Priority;
  /** Continues a reply that has begun if its call is lost; absent: true. */
  resume?: boolean;
}

/** As SamplingOptions.speculation. */
export type Drafts = 'auto' | 'off' | number;

/** How drafts speed up a reply: guesses of the next tokens, which one step of the model checks. */
export interface Speculation {
  drafts?: Drafts;
  /**
   * A text or token ids that the reply will repeat in part, such as the file that the reply edits.
   * At most 131,072 tokens.
   */
  prediction?: string | readonly number[];
}

/**
 * What a text must be: exactly one of the first five, of at most 65,536 bytes. docs/constraints.md
 * says what is enforced; the server refuses the rest (reason CONSTRAINT_UNSUPPORTED).
 */
export interface Constraint {
  /** JSON that satisfies this JSON schema, an object or its text. */
  jsonSchema?: object | string;
  /** true: any JSON object. */
  jsonObject?: boolean;
  /** A text that this regular expression matches as a whole. */
  regex?: string;
  /** One of these texts, at most 1000. */
  choices?: readonly string[];
  /** What this structural tag describes, an object or its text. */
  structuralTag?: object | string;
  /** The position of the sequence behind which the text begins; absent: where the reply begins. */
  beginPosition?: number;
  /**
   * The text begins behind the first of these that is written, such as "</think>". At most 8, of 1
   * to 64 bytes.
   */
  after?: readonly string[];
}

/** Options of RivuletClient.generate(). */
export interface GenerateOptions extends SamplingOptions {
  /** May be absent if the server serves exactly one model. */
  model?: string;
  /** Independent continuations, 1 to limits.maxNumSamples of the model. */
  numSamples?: number;
}

/** Options of Session.generate(). */
export interface SessionGenerateOptions extends SamplingOptions {
  /**
   * Where to continue, 0 to the session's position; absent: its end. Generated tokens after it are
   * dropped. Given tokens are dropped only by rewind().
   */
  position?: number;
  /** Sets a mark with this name at the position after the reply. */
  mark?: string;
}

/** Options of RivuletClient.score(). */
export interface ScoreOptions extends TextOptions {
  /** May be absent if the server serves exactly one model. */
  model?: string;
  /** Cuts a long sequence into windows of this many scored tokens, each scored from an empty state. */
  window?: number;
  /** Indices of scored tokens (0 = the first) whose raw head outputs are returned. */
  outputPositions?: readonly number[];
  /** Returns the log-likelihood of each scored token. */
  logprobs?: boolean;
  priority?: Priority;
}

/** Options of Session.append(). */
export interface AppendOptions extends TextOptions {
  /** Returns how likely the tokens are; otherwise numScored of the result is 0. */
  score?: boolean;
  /** As in ScoreOptions; implies score. */
  outputPositions?: readonly number[];
  /** As in ScoreOptions; implies score. */
  logprobs?: boolean;
  /** Sets a mark with this name at the position after the tokens. */
  mark?: string;
  cache?: boolean | PromptCache;
  priority?: Priority;
}

/** Options of RivuletClient.tokenize(). */
export interface TokenizeOptions extends TextOptions {
  /** May be absent if the server serves exactly one model. */
  model?: string;
}

/** Options of calls about one model. */
export interface ModelOptions extends CallOptions {
  /** May be absent if the server serves exactly one model. */
  model?: string;
}

/** Options of RivuletClient.detokenize(). */
export interface DetokenizeOptions extends ModelOptions {
  /** Leaves out the text of control tokens. */
  skipSpecialTokens?: boolean;
}

/** Options of RivuletClient.restoreSession(). */
export interface RestoreOptions extends ModelOptions {
  /** 1 s to 24 h without a call after which the server closes the session. */
  idleTimeoutMs?: number;
}

/** Options of RivuletClient.openSession(). */
export interface OpenSessionOptions extends RestoreOptions {
  /** The seed of every generate() that names none. Absent: the server draws one. */
  seed?: number | bigint;
}

/** Options of RivuletClient.session(). */
export interface AttachOptions extends ModelOptions {
  /** Session.cookie of the other object; needed only behind a balancer. */
  cookie?: string;
}

/** Options of Session.fork(). */
export interface ForkOptions extends CallOptions {
  /** 1 (also if absent) to 256. */
  count?: number;
  /** Fork i gets `seed + i`. Absent: the server draws seeds, so that the forks differ. */
  seed?: number | bigint;
  /** Where the forks continue; absent: the end. */
  position?: number;
}

/** Options of Session.rewind(): exactly one of position and mark. */
export interface RewindOptions extends CallOptions {
  position?: number;
  mark?: string;
}

/** Options of Session.snapshot(). */
export interface SnapshotOptions extends CallOptions {
  /** Number of tokens that the snapshot holds; absent: all. */
  position?: number;
}
