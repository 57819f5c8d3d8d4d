// SPDX-License-Identifier: Apache-2.0
// The results of calls, and functions that read them from messages.
import { Code, RivuletError } from './errors';
import {
  FinishReason as FinishNumber,
  type DetokenizeReply,
  type Finish as FinishMessage,
  type GenerateReply,
  type GetModelReply,
  type ModelLoad as ModelLoadMessage,
  type ScoreReply,
  type ServerLoad as ServerLoadMessage,
  type TokenizeReply,
  type TopLogprobs,
  type Usage as UsageMessage,
} from './gen/rivulet/v1/inference';
import type { ModelSummary as ModelSummaryMessage } from './gen/rivulet/v1/model';
import type { Durability as DurabilityMessage, Session as SessionMessage } from './gen/rivulet/v1/session';
import { durationMs, plain, toNumber, type Plain } from './numbers';

export type { TopLogprobs };

/**
 * Why a sample ended. "length": maxTokens, or the model's last position. "stop_token": the model's
 * eos or one of stopTokenIds was sampled. "constraint": the text of the request's constraint is
 * complete. "unknown": a reason from a server that is newer than this client.
 */
export type FinishReason = 'length' | 'stop_token' | 'stop_string' | 'constraint' | 'unknown';

/** How a sample ended. */
export interface Finish {
  reason: FinishReason;
  /** The stop string that matched. */
  stopString?: string;
  /** The stop token that was sampled; it is not among the tokens. */
  stopTokenId?: number;
}

/**
 * A part of one sample. Parts of a sample arrive in order and without gaps; parts of different
 * samples interleave.
 */
export interface Part {
  /** Which continuation, 0 to numSamples - 1. */
  sampleIndex: number;
  /** Index of tokens[0] among the sample's generated tokens. */
  firstPosition: number;
  /** Token ids; for a model of images, its values in raster order. */
  tokens: number[];
  /** The text of the tokens, for models whose content is text; else "". */
  text: string;
  /** [tokens], in nats, of the model's own distribution; if requested. */
  logprobs?: number[];
  /** [tokens], if requested. */
  topLogprobs?: TopLogprobs[];
  /** On the last part of each sample. */
  finish?: Finish;
  /** Position of the session after this part, for a reply on a session. */
  sessionPosition?: number;
}

/** Token counts over all samples, the implied bos not counted, and times since the request's arrival. */
export interface Usage {
  promptTokens: number;
  completionTokens: number;
  /** The part of promptTokens that was not processed, because a kept state included it. */
  cachedPromptTokens: number;
  /** Drafts that were checked. They depend on other requests and on the machine. */
  draftedTokens: number;
  /** The right ones among them. */
  acceptedTokens: number;
  /** To the first slot. */
  queueMs: number;
  /** To the first generated token. */
  firstTokenMs: number;
  totalMs: number;
}

/**
 * Whether the effect of a request on its session is in the store that the replicas share, so that
 * the effect outlives the replica.
 */
export interface Durability {
  /**
   * If false, the store did not confirm it in time. The server continues to write the tokens, and
   * the Session keeps the missing ones.
   */
  durable: boolean;
  /** The session's tokens before this position are known to be in the store. */
  position: number;
  /**
   * The replica took the session over from a replica with this numerics id, which differs from its
   * own, and processed its tokens again.
   */
  otherNumericsId?: string;
}

/** One complete continuation: the joined parts of a sample. */
export type Sample = Required<Pick<Part, 'tokens' | 'text' | 'finish'>> &
  Pick<Part, 'logprobs' | 'topLogprobs'>;

/** A complete reply. The same request with `seed` gives the same reply. */
export interface Generation {
  /** [numSamples] */
  samples: Sample[];
  seed: bigint;
  usage: Usage;
  /** For a reply on a session, if the server shares a store of sessions with other servers. */
  durability?: Durability;
  /** The text of sample 0. */
  text: string;
  /** The tokens of sample 0. */
  tokens: number[];
}

/** How likely given tokens are. */
export interface Score {
  /** Negative log-likelihood: the sum over the scored tokens, in nats. */
  nllNats: number;
  numScored: number;
  /** [numScored], in nats; empty unless requested. */
  logprobs: number[];
  /** [outputPositions][vocabulary]: raw outputs of the head; empty unless requested. */
  outputs: number[][];
}

/** A text as tokens. */
export interface Tokens {
  ids: number[];
  /**
   * ids[i] stands for the bytes begins[i] to ends[i] - 1 of the text's UTF-8: all code points of
   * which the token holds at least a part. So the ranges of neighbours may overlap. An added token
   * has an empty range.
   */
  begins: number[];
  ends: number[];
  /** The last so many of `ids` were added behind the text. They are not part of a prompt. */
  addedBehind: number;
}

/** Tokens as text. */
export interface DetokenizedText {
  /**
   * The text of a sequence that begins with the tokens: `rawBytes`, with U+FFFD for bytes that are
   * not UTF-8, and without the space that some tokenizers put before a text.
   */
  text: string;
  /** The bytes of the tokens, one token after another. */
  rawBytes: Uint8Array;
}

/** The result of append(). */
export interface Appended extends Score {
  /** Tokens that were not processed, because a kept state included them. */
  cachedTokens: number;
  /** Present if the server shares a store of sessions with other servers. */
  durability?: Durability;
}

/** Name, size and fingerprint of a model. */
export type ModelSummary = Plain<ModelSummaryMessage>;
/** A model: summary, architecture, content, limits, numericsId, configJson. */
export type Model = Plain<GetModelReply>;
/** Capacity and load of a model. */
export type ModelLoad = Omit<Plain<ModelLoadMessage>, 'oldestWait'> & {
  /** Time that the oldest request has waited for slots; 0 if none waits. */
  oldestWaitMs: number;
};
/** Connections and refusals since the server started. */
export type ServerLoad = Plain<ServerLoadMessage>;

/** The server's description of a session. */
export interface SessionInfo {
  id: string;
  model: string;
  position: number;
  /** FNV-1a, 64 bits, over the tokens up to `position`. */
  sequenceHash: bigint;
  /** The seed of a generate() that names none. */
  seed: bigint;
  marks: Record<string, number>;
  idleTimeoutMs: number;
  idleMs: number;
  busy: boolean;
  /** Memory of its states, and bytes of the states that are only in files. */
  stateBytes: number;
  stateDiskBytes: number;
}

const REASONS: Readonly<Record<number, FinishReason>> = {
  [FinishNumber.FINISH_REASON_LENGTH]: 'length',
  [FinishNumber.FINISH_REASON_STOP_TOKEN]: 'stop_token',
  [FinishNumber.FINISH_REASON_STOP_STRING]: 'stop_string',
  [FinishNumber.FINISH_REASON_CONSTRAINT]: 'constraint',
};

function finish({ reason, stopString, stopTokenId }: FinishMessage): Finish {
  return {
    reason: REASONS[reason] ?? 'unknown',
    ...(stopString !== '' && { stopString }),
    ...(stopTokenId !== undefined && { stopTokenId }),
  };
}

/** The part that a message holds; undefined if it holds only the usage. */
export function part(message: GenerateReply): Part | undefined {
  const { tokens, text, logprobs, topLogprobs } = message;
  if (message.usage !== undefined && tokens.length === 0 && text === '' && message.finish === undefined)
    return undefined;
  return {
    sampleIndex: message.sampleIndex,
    firstPosition: toNumber(message.firstPosition),
    tokens,
    text,
    ...(logprobs.length > 0 && { logprobs }),
    ...(topLogprobs.length > 0 && { topLogprobs }),
    ...(message.finish && { finish: finish(message.finish) }),
    ...(message.session && { sessionPosition: toNumber(message.session.position) }),
  };
}

export function usage(message: UsageMessage): Usage {
  return {
    promptTokens: toNumber(message.promptTokens),
    completionTokens: toNumber(message.completionTokens),
    cachedPromptTokens: toNumber(message.cachedPromptTokens),
    draftedTokens: toNumber(message.draftedTokens),
    acceptedTokens: toNumber(message.acceptedTokens),
    queueMs: durationMs(message.queueTime),
    firstTokenMs: durationMs(message.firstTokenTime),
    totalMs: durationMs(message.totalTime),
  };
}

export function durability(message: DurabilityMessage | undefined): Durability | undefined {
  if (message === undefined) return undefined;
  const { durable, otherNumericsId } = message;
  const told = { durable, position: toNumber(message.position) };
  return otherNumericsId === '' ? told : { ...told, otherNumericsId };
}

export const broken = (text: string): RivuletError => new RivuletError(Code.INTERNAL, text);

function sample(index: number, parts: readonly Part[]): Sample {
  const joined: Omit<Sample, 'finish'> = { tokens: [], text: '' };
  for (const piece of parts) {
    joined.text += piece.text;
    for (const token of piece.tokens) joined.tokens.push(token);
    for (const logprob of piece.logprobs ?? []) (joined.logprobs ??= []).push(logprob);
    for (const entry of piece.topLogprobs ?? []) (joined.topLogprobs ??= []).push(entry);
  }
  const end = parts[parts.length - 1]?.finish;
  if (end === undefined) throw broken(`sample ${index}: the reply ended before it did`);
  return { ...joined, finish: end };
}

/** The whole reply from RepeatedReply's parts. Errors: RivuletError INTERNAL (unended sample). */
export function generation(
  parts: readonly Part[],
  numSamples: number,
  seed: bigint | undefined,
  end: Usage | undefined,
  durable: Durability | undefined,
): Generation {
  if (seed === undefined || end === undefined) throw broken('the reply ended without seed or usage');
  const pieces = Array.from({ length: numSamples }, (): Part[] => []);
  for (const piece of parts) pieces[piece.sampleIndex]?.push(piece);
  const samples = pieces.map((own, index) => sample(index, own));
  const [first] = samples;
  return {
    samples,
    seed,
    usage: end,
    ...(durable && { durability: durable }),
    text: first?.text ?? '',
    tokens: first?.tokens ?? [],
  };
}

export function score(message: ScoreReply): Score {
  return {
    nllNats: message.nllNats,
    numScored: toNumber(message.numScored),
    logprobs: message.logprobs,
    outputs: message.outputs.map(({ values }) => values),
  };
}

export function tokens({ ids, begins, ends, addedBehind }: TokenizeReply): Tokens {
  return { ids, begins: begins.map(toNumber), ends: ends.map(toNumber), addedBehind };
}

export function detokenizedText({ text, rawBytes }: DetokenizeReply): DetokenizedText {
  return { text, rawBytes };
}

export function modelLoad(message: ModelLoadMessage): ModelLoad {
  const { oldestWait, ...rest } = message;
  return { ...plain(rest), oldestWaitMs: durationMs(oldestWait) };
}

export function sessionInfo(message: SessionMessage | undefined): SessionInfo {
  if (message === undefined) throw broken('the server sent a reply without a session');
  return {
    id: message.sessionId,
    model: message.model,
    position: toNumber(message.progress?.position ?? 0n),
    sequenceHash: message.progress?.sequenceHash ?? 0n,
    seed: message.seed,
    marks: plain(message.marks),
    idleTimeoutMs: durationMs(message.idleTimeout),
    idleMs: durationMs(message.idle),
    busy: message.busy,
    stateBytes: toNumber(message.stateBytes),
    stateDiskBytes: toNumber(message.stateDiskBytes),
  };
}
