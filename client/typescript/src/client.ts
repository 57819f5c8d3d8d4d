// SPDX-License-Identifier: Apache-2.0
// The client of a server.
import * as check from './checks';
import { Connection, type Answer, type ClientOptions } from './connection';
import { InferenceServiceService as Inference } from './gen/rivulet/v1/inference';
import type { Session as SessionMessage } from './gen/rivulet/v1/session';
import {
  SessionServiceService as Sessions,
  type RestoreSessionRequest,
} from './gen/rivulet/v1/session_service';
import { duration, plain } from './numbers';
import type {
  AttachOptions,
  CallOptions,
  DetokenizeOptions,
  GenerateOptions,
  ModelOptions,
  OpenSessionOptions,
  Prompt,
  RestoreOptions,
  ScoreOptions,
  TokenizeOptions,
} from './options';
import {
  detokenizedText,
  modelLoad,
  score,
  sessionInfo,
  tokens,
  type DetokenizedText,
  type Model,
  type ModelLoad,
  type ModelSummary,
  type Score,
  type ServerLoad,
  type SessionInfo,
  type Tokens,
} from './replies';
import * as requests from './requests';
import { Session } from './session';
import { GenerateStream } from './stream';

const CHUNK_BYTES = 1 << 20; // the most that RestoreSession accepts in a message

const modelName = (name: string | undefined): string => check.text('model', name ?? '');

/**
 * A connection to the Rivulet server at `target`: "HOST:PORT", or a name with one of gRPC's
 * schemes, such as "dns:///HOST:PORT" or "unix:PATH". It connects with the first call.
 *
 * Every call takes `timeoutMs`, `signal` and `metadata` among its options. Calls may run
 * concurrently. Errors: TypeError and RangeError, which name the wrong argument; calls throw
 * RivuletError.
 */
export class RivuletClient {
  readonly #connection: Connection;

  constructor(target: string, options?: ClientOptions) {
    this.#connection = new Connection(target, options);
  }

  /** Ends running calls with CANCELLED. Later calls throw an Error. */
  close(): void {
    this.#connection.close();
  }

  /**
   * Streams generated tokens: `for await (const part of client.generate('ROMEO:', options))`. For
   * the whole reply: `await client.generate(...).collect()`.
   */
  generate(prompt: Prompt, options?: GenerateOptions): GenerateStream {
    const request = requests.generate(prompt, options);
    return new GenerateStream(this.#connection, request, options);
  }

  /**
   * Returns how likely a text or a sequence of token ids is. With a bos every token is scored;
   * without a bos, all but the first of each window.
   */
  async score(content: string | readonly number[] | Int32Array, options?: ScoreOptions): Promise<Score> {
    const request = requests.score(content, options);
    return score((await this.#connection.unary(Inference.score, request, options ?? {})).reply);
  }

  /** Converts a text to tokens of the model; tells which bytes of the text each stands for. */
  async tokenize(text: string, options?: TokenizeOptions): Promise<Tokens> {
    const request = requests.tokenize(text, options);
    return tokens((await this.#connection.unary(Inference.tokenize, request, options ?? {})).reply);
  }

  /** The text of token ids. */
  async detokenize(
    ids: readonly number[] | Int32Array,
    options?: DetokenizeOptions,
  ): Promise<DetokenizedText> {
    const request = requests.detokenize(ids, options);
    return detokenizedText((await this.#connection.unary(Inference.detokenize, request, options ?? {})).reply);
  }

  /** The models that the server serves. */
  async models(options: CallOptions = {}): Promise<ModelSummary[]> {
    check.options('models', options, requests.CALL);
    return plain((await this.#connection.unary(Inference.listModels, {}, options)).reply.models);
  }

  /**
   * One model; the name may be empty if the server serves exactly one model. After this call, a
   * request that is larger than limits.maxMessageBytes fails with MESSAGE_TOO_LARGE before it is
   * sent.
   */
  async model(name = '', options: CallOptions = {}): Promise<Model> {
    check.options('model', options, requests.CALL);
    const { reply } = await this.#connection.unary(Inference.getModel, { model: modelName(name) }, options);
    this.#connection.maxMessageBytes = Number(reply.limits?.maxMessageBytes ?? 0);
    return plain(reply);
  }

  /** Capacity and load of one model, or of every model if the name is empty, and of the server. */
  async load(
    name = '',
    options: CallOptions = {},
  ): Promise<{ models: ModelLoad[]; server: ServerLoad | undefined }> {
    check.options('load', options, requests.CALL);
    const { models, server } = (
      await this.#connection.unary(Inference.getLoad, { model: modelName(name) }, options)
    ).reply;
    return { models: models.map(modelLoad), server: plain(server) };
  }

  /**
   * Opens a session without tokens. Tokens are processed once, and the session can be continued, forked
   * and rewound at any position, until close() or its idle timeout.
   */
  async openSession(options: OpenSessionOptions = {}): Promise<Session> {
    const { model, seed, idleTimeoutMs } = check.options('openSession', options, [
      ...requests.CALL,
      'model',
      'seed',
      'idleTimeoutMs',
    ]);
    const request = {
      model: modelName(model),
      ...(seed !== undefined && { seed: check.uint64('seed', seed) }),
      idleTimeout: idleTimeout(idleTimeoutMs),
    };
    return this.#opened(await this.#connection.unary(Sessions.openSession, request, options));
  }

  /** The session with this id, at its current position, to continue it in another program. */
  async session(id: string, options: AttachOptions = {}): Promise<Session> {
    const { model, cookie } = check.options('session', options, [...requests.CALL, 'model', 'cookie']);
    const request = { model: modelName(model), sessionId: check.text('id', id) };
    const way = check.text('cookie', cookie ?? '');
    const answer = await this.#connection.onSession(options, way, true, (cookie, deadline) =>
      this.#connection.unary(Sessions.getSession, request, options, cookie, deadline),
    );
    return this.#opened(answer);
  }

  /** The tenant's sessions, the least recently used first. */
  async sessions(options: ModelOptions = {}): Promise<SessionInfo[]> {
    const { model } = check.options('sessions', options, [...requests.CALL, 'model']);
    const found: SessionInfo[] = [];
    let pageToken = '';
    do {
      const request = { model: modelName(model), pageSize: 0, pageToken };
      const { reply } = await this.#connection.unary(Sessions.listSessions, request, options);
      found.push(...reply.sessions.map(sessionInfo));
      pageToken = reply.nextPageToken;
    } while (pageToken !== '');
    return found;
  }

  /** Opens a session from a snapshot of Session.snapshot(), made by this server or another. */
  async restoreSession(snapshot: Uint8Array, options: RestoreOptions = {}): Promise<Session> {
    const { model, idleTimeoutMs } = check.options('restoreSession', options, [
      ...requests.CALL,
      'model',
      'idleTimeoutMs',
    ]);
    if (!(snapshot instanceof Uint8Array)) throw new TypeError('snapshot: must be a Uint8Array');
    const first = { model: modelName(model), idleTimeout: idleTimeout(idleTimeoutMs) };
    function* messages(): Generator<RestoreSessionRequest> {
      for (let at = 0; at === 0 || at < snapshot.length; at += CHUNK_BYTES) {
        yield { ...first, chunk: snapshot.subarray(at, at + CHUNK_BYTES) };
      }
    }
    const answer = await this.#connection.upload(Sessions.restoreSession, messages(), options);
    return this.#opened(answer, answer.reply.sameNumerics);
  }

  #opened(
    { reply, cookie }: Answer<{ session: SessionMessage | undefined }>,
    sameNumerics?: boolean,
  ): Session {
    return new Session(this.#connection, sessionInfo(reply.session), { cookie, sameNumerics });
  }
}

function idleTimeout(ms: number | undefined): ReturnType<typeof duration> | undefined {
  return ms === undefined ? undefined : duration(check.milliseconds('idleTimeoutMs', ms));
}
