// SPDX-License-Identifier: Apache-2.0
// Converts arguments to the messages of rivulet.v1. Errors: TypeError and RangeError of checks.ts.
import { randomBytes } from 'node:crypto';

import * as check from './checks';
import {
  Constraint as ConstraintMessage,
  DetokenizeRequest,
  GenerateRequest,
  Priority as PriorityNumber,
  PromptCache as PromptCacheMessage,
  SamplingParams,
  ScoreRequest,
  Speculation as SpeculationMessage,
  StopConditions,
  TokenizeRequest,
  type TokenSequence,
} from './gen/rivulet/v1/inference';
import { AppendRequest } from './gen/rivulet/v1/session_service';
import type {
  AppendOptions,
  Constraint,
  DetokenizeOptions,
  Drafts,
  GenerateOptions,
  Priority,
  Prompt,
  PromptCache,
  SamplingOptions,
  ScoreOptions,
  SessionGenerateOptions,
  Speculation,
  TextOptions,
  TokenizeOptions,
} from './options';

/** Names of the options of every call. */
export const CALL = ['timeoutMs', 'signal', 'metadata'];

const TEXT = [...CALL, 'addSpecialTokens', 'parseSpecialTokens'];

const SAMPLING = [
  ...TEXT,
  'maxTokens',
  'temperature',
  'topK',
  'topP',
  'minP',
  'repetitionPenalty',
  'frequencyPenalty',
  'presencePenalty',
  'logitBias',
  'seed',
  'stop',
  'stopTokenIds',
  'includeStopString',
  'ignoreEos',
  'minTokens',
  'skipSpecialTokens',
  'speculation',
  'logprobs',
  'topLogprobs',
  'constraint',
  'cache',
  'priority',
  'resume',
];

type Sequence = { $case: 'text'; value: string } | { $case: 'tokens'; value: TokenSequence };
type Content = Sequence | { $case: 'imageValues'; value: Uint8Array };

function sequence(name: string, value: string | readonly number[] | Int32Array): Sequence {
  if (typeof value === 'string') return { $case: 'text', value: check.text(name, value) };
  return { $case: 'tokens', value: { ids: check.list(name, value, check.int32) } };
}

/** The oneof of a prompt. */
function content(name: string, value: Prompt): Content {
  return value instanceof Uint8Array ? { $case: 'imageValues', value } : sequence(name, value);
}

/** The result of `convert` for an option that is given. */
function optional<T, R>(
  name: string,
  value: T | undefined,
  convert: (name: string, value: T) => R,
): R | undefined {
  return value === undefined ? undefined : convert(name, value);
}

/** The fields of a message with a text. */
function special({ addSpecialTokens, parseSpecialTokens }: TextOptions): {
  addSpecialTokens: boolean | undefined;
  parseSpecialTokens: boolean | undefined;
} {
  return {
    addSpecialTokens: optional('addSpecialTokens', addSpecialTokens, check.boolean),
    parseSpecialTokens: optional('parseSpecialTokens', parseSpecialTokens, check.boolean),
  };
}

const PRIORITIES: Readonly<Record<Priority, PriorityNumber>> = {
  low: PriorityNumber.PRIORITY_LOW,
  normal: PriorityNumber.PRIORITY_NORMAL,
  high: PriorityNumber.PRIORITY_HIGH,
};

function priority(value: Priority | undefined): PriorityNumber {
  if (value === undefined) return PriorityNumber.PRIORITY_UNSPECIFIED;
  if (!Object.hasOwn(PRIORITIES, value))
    throw new RangeError(`priority: must be low, normal or high; got ${String(value)}`);
  return PRIORITIES[value];
}

function cache(value: boolean | PromptCache | undefined): PromptCacheMessage | undefined {
  if (value === undefined) return undefined;
  if (typeof value === 'boolean') return PromptCacheMessage.fromPartial({ enabled: value });
  const { salt, positions } = check.options('cache', value, ['salt', 'positions']);
  return PromptCacheMessage.fromPartial({
    enabled: true,
    salt: optional('cache.salt', salt, check.text),
    positions: optional('cache.positions', positions, (name, list) => check.list(name, list, check.int64)),
  });
}

const FORMS = ['jsonSchema', 'jsonObject', 'regex', 'choices', 'structuralTag'] as const;

function constraint(asked: Constraint | undefined): ConstraintMessage | undefined {
  if (asked === undefined) return undefined;
  const given = check.options('constraint', asked, [...FORMS, 'beginPosition', 'after']);
  const { jsonSchema, jsonObject, regex, choices, structuralTag, beginPosition, after } = given;
  if (FORMS.filter((form) => given[form] !== undefined).length !== 1)
    throw new TypeError(`constraint: must have one of ${FORMS.join(', ')}`);
  const texts = (name: string, list: readonly string[]) => check.list(name, list, check.text);
  const message = ConstraintMessage.fromPartial({
    beginPosition: optional('constraint.beginPosition', beginPosition, check.int64),
    after: optional('constraint.after', after, texts),
  });
  const json = (value: object | string) => (typeof value === 'string' ? value : JSON.stringify(value));
  if (jsonSchema !== undefined) {
    message.form = { $case: 'jsonSchema', value: json(jsonSchema) };
  } else if (structuralTag !== undefined) {
    message.form = { $case: 'structuralTag', value: json(structuralTag) };
  } else if (regex !== undefined) {
    message.form = { $case: 'regex', value: check.text('constraint.regex', regex) };
  } else if (choices !== undefined) {
    message.form = { $case: 'choices', value: { texts: texts('constraint.choices', choices) } };
  } else {
    message.form = { $case: 'jsonObject', value: check.boolean('constraint.jsonObject', jsonObject) };
  }
  return message;
}

function drafts(name: string, value: Drafts): number | undefined {
  if (typeof value !== 'string') return check.int32(name, value);
  if (value !== 'auto' && value !== 'off')
    throw new RangeError(`${name}: must be 'auto', 'off' or an integer; got ${String(value)}`);
  return value === 'off' ? 0 : undefined;
}

function speculation(value: Drafts | Speculation | undefined): SpeculationMessage | undefined {
  if (value === undefined) return undefined;
  if (typeof value !== 'object') return { drafts: drafts('speculation', value), prediction: undefined };
  const given = check.options('speculation', value, ['drafts', 'prediction']);
  return {
    drafts: optional('speculation.drafts', given.drafts, drafts),
    prediction: optional('speculation.prediction', given.prediction || undefined, sequence),
  };
}

function logitBias(value: Readonly<Record<number, number>> | undefined): Record<number, number> {
  if (typeof (value ?? {}) !== 'object')
    throw new TypeError('logitBias: must be an object of token ids and biases');
  const entries = Object.entries(value ?? {}).map(([token, bias]): [number, number] => {
    const name = `logitBias[${token}]`;
    return [check.int32(name, Number(token)), check.float(name, bias)];
  });
  return Object.fromEntries(entries);
}

/** The message of a generate() without its prompt and session. */
function sampled(options: SamplingOptions): GenerateRequest {
  const request = GenerateRequest.fromPartial(special(options));
  request.maxTokens = optional('maxTokens', options.maxTokens, check.int64);
  request.sampling = SamplingParams.fromPartial({
    temperature: optional('temperature', options.temperature, check.float),
    topK: optional('topK', options.topK, check.int32),
    topP: optional('topP', options.topP, check.float),
    minP: optional('minP', options.minP, check.float),
    repetitionPenalty: optional('repetitionPenalty', options.repetitionPenalty, check.float),
    frequencyPenalty: optional('frequencyPenalty', options.frequencyPenalty, check.float),
    presencePenalty: optional('presencePenalty', options.presencePenalty, check.float),
    logitBias: logitBias(options.logitBias),
    seed: optional('seed', options.seed, check.uint64),
  });
  const stop = typeof options.stop === 'string' ? [options.stop] : options.stop;
  request.stop = StopConditions.fromPartial({
    strings: optional('stop', stop, (name, strings) => check.list(name, strings, check.text)),
    tokenIds: optional('stopTokenIds', options.stopTokenIds, (name, ids) =>
      check.list(name, ids, check.int32),
    ),
    includeString: optional('includeStopString', options.includeStopString, check.boolean),
    ignoreEos: optional('ignoreEos', options.ignoreEos, check.boolean),
    minTokens: optional('minTokens', options.minTokens, check.int64),
  });
  request.skipSpecialTokens =
    optional('skipSpecialTokens', options.skipSpecialTokens, check.boolean) ?? false;
  request.speculation = speculation(options.speculation);
  request.logprobs = {
    enabled: optional('logprobs', options.logprobs, check.boolean) ?? false,
    topN: optional('topLogprobs', options.topLogprobs, check.int32) ?? 0,
  };
  request.constraint = constraint(options.constraint);
  request.cache = cache(options.cache);
  request.priority = priority(options.priority);
  return request;
}

/** The message of a client's generate(). */
export function generate(prompt: Prompt, asked: GenerateOptions | undefined): GenerateRequest {
  const options = check.options('generate', asked, [...SAMPLING, 'model', 'numSamples']);
  const request = sampled(options);
  // A seed is needed so that another call can continue the reply.
  request.sampling!.seed ??= randomBytes(8).readBigUInt64LE();
  request.model = optional('model', options.model, check.text) ?? '';
  request.prompt = content('prompt', prompt);
  request.numSamples = optional('numSamples', options.numSamples, check.int32);
  return request;
}

/** The message of a session's generate(), without model and session. */
export function sessionGenerate(prompt: Prompt, asked: SessionGenerateOptions | undefined): GenerateRequest {
  const request = sampled(check.options('generate', asked, [...SAMPLING, 'position', 'mark']));
  request.prompt = content('prompt', prompt);
  return request;
}

/** The message of score(). */
export function score(
  value: string | readonly number[] | Int32Array,
  asked: ScoreOptions | undefined,
): ScoreRequest {
  const options = check.options('score', asked, [
    ...TEXT,
    'model',
    'window',
    'outputPositions',
    'logprobs',
    'priority',
  ]);
  const request = ScoreRequest.fromPartial(special(options));
  const scored = content('content', value);
  if (scored.$case === 'imageValues')
    throw new TypeError('content: must be a string or an array of token ids; got a Uint8Array');
  request.content = scored;
  request.model = optional('model', options.model, check.text) ?? '';
  request.window = optional('window', options.window, check.int64);
  request.outputPositions = positions(options.outputPositions);
  request.logprobs = optional('logprobs', options.logprobs, check.boolean) ?? false;
  request.priority = priority(options.priority);
  return request;
}

/** The message of append(), without model and session. */
export function append(value: Prompt, asked: AppendOptions | undefined): AppendRequest {
  const names = [...TEXT, 'score', 'outputPositions', 'logprobs', 'mark', 'cache', 'priority'];
  const options = check.options('append', asked, names);
  const request = AppendRequest.fromPartial(special(options));
  request.content = content('content', value);
  request.outputPositions = positions(options.outputPositions);
  request.logprobs = optional('logprobs', options.logprobs, check.boolean) ?? false;
  const score = optional('score', options.score, check.boolean) ?? false;
  request.score = score || request.logprobs || options.outputPositions !== undefined;
  request.cache = cache(options.cache);
  request.priority = priority(options.priority);
  return request;
}

/** The message of tokenize(). */
export function tokenize(text: string, asked: TokenizeOptions | undefined): TokenizeRequest {
  const options = check.options('tokenize', asked, [...TEXT, 'model']);
  return {
    model: optional('model', options.model, check.text) ?? '',
    text: check.text('text', text),
    ...special(options),
  };
}

/** The message of detokenize(). */
export function detokenize(
  ids: readonly number[] | Int32Array,
  asked: DetokenizeOptions | undefined,
): DetokenizeRequest {
  const options = check.options('detokenize', asked, [...CALL, 'model', 'skipSpecialTokens']);
  return {
    model: optional('model', options.model, check.text) ?? '',
    ids: check.list('ids', ids, check.int32),
    skipSpecialTokens: optional('skipSpecialTokens', options.skipSpecialTokens, check.boolean) ?? false,
  };
}

function positions(value: readonly number[] | undefined): bigint[] {
  return optional('outputPositions', value, (name, list) => check.list(name, list, check.int64)) ?? [];
}

/** The token ids of a request; undefined for text, which the server tokenizes. */
export function knownTokens(value: Content | undefined): ArrayLike<number> | undefined {
  if (value === undefined) return [];
  if (value.$case === 'text') return value.value === '' ? [] : undefined;
  return value.$case === 'tokens' ? value.value.ids : value.value;
}
