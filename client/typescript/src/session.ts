// SPDX-License-Identifier: Apache-2.0
// A conversation with a model, whose state the server keeps.
import * as check from './checks';
import type { Answer, Connection, Method } from './connection';
import { Code, RivuletError } from './errors';
import type { GenerateReply, GenerateRequest } from './gen/rivulet/v1/inference';
import type { SessionProgress, SessionRef } from './gen/rivulet/v1/session';
import {
  ForkSessionRequest,
  RewindSessionRequest,
  SessionServiceService as Sessions,
} from './gen/rivulet/v1/session_service';
import { toNumber } from './numbers';
import type {
  AppendOptions,
  CallOptions,
  ForkOptions,
  Prompt,
  RewindOptions,
  SessionGenerateOptions,
  SnapshotOptions,
} from './options';
import { Pending, type Given } from './pending';
import {
  durability,
  score,
  sessionInfo,
  type Appended,
  type Durability,
  type SessionInfo,
} from './replies';
import { append, CALL, knownTokens, sessionGenerate } from './requests';
import { hashTokens } from './sequence';
import { GenerateStream } from './stream';

// The server returns these errors before it changes anything.
const UNCHANGED = [
  Code.INVALID_ARGUMENT,
  Code.NOT_FOUND,
  Code.OUT_OF_RANGE,
  Code.FAILED_PRECONDITION,
  Code.RESOURCE_EXHAUSTED,
  Code.PERMISSION_DENIED,
  Code.UNAUTHENTICATED,
  Code.ABORTED,
];

// After SESSION_MOVED the session may have new tokens.
const unchanged = (error: unknown): boolean =>
  error instanceof RivuletError && UNCHANGED.includes(error.code) && error.reason !== 'SESSION_MOVED';

// Reasons with which the server says that the session is shorter than its object knows.
const BEHIND = ['SESSION_HASH_MISMATCH', 'POSITION_OUT_OF_RANGE', 'MARK_NOT_FOUND'];

/** Data of a session besides the server's description. */
export interface SessionExtras {
  cookie: string;
  sameNumerics?: boolean;
}

/**
 * A session, from RivuletClient.openSession(), session() and restoreSession(), or fork().
 *
 * The object counts the tokens that it gave and received, and continues after them. The next call
 * drops tokens that the server generated beyond these, in a reply that was left early or lost.
 * Replies are checked against the server's running hash; a difference is DATA_LOSS. After given
 * text the object takes over the server's hash, because the server tokenizes the text.
 *
 * Where replicas share a store of sessions, the object keeps the tokens that the store did not have at
 * the end of a reply or append() (Durability). If the replica is lost and the session is found
 * without these tokens, the next call gives them again, with their marks, and then takes effect.
 * All tokens that are given again count as given tokens: for penalties, and for `position` of
 * generate(). They are not given again if the session was cut within a text, or if another object
 * has used it.
 *
 * Calls take effect in the order in which they are made, and a call ends a reply that still runs.
 * Only one object at a time should use a session. If another object has used it, calls throw
 * FAILED_PRECONDITION (SESSION_HASH_MISMATCH); RivuletClient.session() continues from the new
 * position.
 */
export class Session {
  readonly #connection: Connection;
  readonly #info: SessionInfo;
  readonly #extras: SessionExtras;
  #position = 0;
  #hash = 0n;
  #marks = new Map<string, number>();
  readonly #pending = new Pending();
  // The server may hold tokens that this object never saw.
  #ahead = false;
  #running: GenerateStream | undefined;
  #last: Promise<unknown> = Promise.resolve();

  /** Called by RivuletClient only. */
  constructor(connection: Connection, info: SessionInfo, extras: SessionExtras) {
    this.#connection = connection;
    this.#info = info;
    this.#extras = extras;
    this.#settle(info);
  }

  /** 32 lower-case hexadecimal digits, for RivuletClient.session(). */
  get id(): string {
    return this.#info.id;
  }

  get model(): string {
    return this.#info.model;
  }

  /** Tokens given and received so far. */
  get position(): number {
    return this.#position;
  }

  /** FNV-1a, 64 bits, over the tokens up to `position`. */
  get sequenceHash(): bigint {
    return this.#hash;
  }

  /** The seed of a generate() that names none. */
  get seed(): bigint {
    return this.#info.seed;
  }

  /** Position of each mark. */
  get marks(): ReadonlyMap<string, number> {
    return this.#marks;
  }

  /** Milliseconds without a call after which the server closes the session. */
  get idleTimeoutMs(): number {
    return this.#info.idleTimeoutMs;
  }

  /** Cookie by which a balancer finds the session's replica (RivuletClient.session()); or "". */
  get cookie(): string {
    return this.#extras.cookie;
  }

  /**
   * For a restored session: true if the snapshot was made with this server's numerics id, so that
   * further tokens are bit-identical. Undefined for any other session.
   */
  get sameNumerics(): boolean | undefined {
    return this.#extras.sameNumerics;
  }

  /**
   * Processes tokens without generating. After UNAVAILABLE or DEADLINE_EXCEEDED the same append() may
   * be repeated; tokens are not appended twice.
   */
  async append(content: Prompt, options: AppendOptions = {}): Promise<Appended> {
    const request = append(content, options);
    const mark = check.text('mark', options.mark ?? '');
    return this.#inOrder(options, async () => {
      const begin = this.#position;
      request.model = this.model;
      request.session = this.#ref(begin, mark);
      const reply = await this.#changing(() =>
        this.#orGivenAgain(options, () => this.#call(Sessions.append, request, options)),
      );
      this.#advance(reply.progress, begin, request, []);
      const durable = durability(reply.durability);
      this.#ended(mark, durable);
      const cachedTokens = toNumber(reply.cachedTokens);
      return { ...score(reply), cachedTokens, ...(durable && { durability: durable }) };
    });
  }

  /**
   * Appends the prompt, if there is one, and streams generated tokens. For several continuations,
   * use fork().
   */
  generate(prompt: Prompt = [], options: SessionGenerateOptions = {}): GenerateStream {
    const request = sessionGenerate(prompt, options);
    const at =
      options.position === undefined ? undefined : toNumber(check.int64('position', options.position));
    const mark = check.text('mark', options.mark ?? '');
    let begun = false;
    let goesBack = false;
    let givenAgain = false;
    // No part has come: the first call may have dropped tokens of its hash, so the next call has no
    // hash. With a fingerprint the server ignores the hash.
    const again = (later: GenerateRequest): GenerateRequest =>
      goesBack && later.session
        ? { ...later, session: { ...later.session, sequenceHash: undefined } }
        : later;
    const received = (message: GenerateReply): void => {
      if (message.session !== undefined) {
        const begin = begun ? this.#position : toNumber(request.session?.position ?? 0n);
        const given = begun ? {} : { ...request, content: request.prompt };
        this.#advance(message.session, begin, given, message.tokens);
        begun = true;
      }
      if (message.usage !== undefined) {
        this.#ahead = false;
        this.#ended(mark, durability(message.durability));
      }
    };
    const repaired = async (error: unknown): Promise<boolean> => {
      if (request.session === undefined || givenAgain) return false;
      const at = toNumber(request.session.position ?? 0n);
      const hash = this.#last.then(() => this.#giveAgain(error, at, options));
      this.#last = hash.catch(() => undefined);
      const found = await hash;
      if (found === undefined) return false;
      request.session.sequenceHash = found;
      givenAgain = true;
      goesBack = false;
      return true;
    };
    const failed = (error: unknown, repeated: boolean): void => {
      if (!begun && !repeated && unchanged(error)) this.#ahead = false;
    };
    const begin = (): Promise<void> =>
      this.#inOrder(options, async () => {
        request.model = this.model;
        request.session = this.#ref(at ?? this.#position, mark);
        goesBack = at !== undefined && at < this.#position;
        this.#ahead = true;
        this.#running = stream;
      });
    const moved = (cookie: string): void => {
      this.#extras.cookie = cookie;
    };
    const hooks = { cookie: () => this.cookie, moved, begin, again, received, repaired, failed };
    const stream = new GenerateStream(this.#connection, request, options, hooks);
    return stream;
  }

  /** Opens sessions that continue from this one, which does not change. Opens all or none. */
  async fork(options: ForkOptions = {}): Promise<Session[]> {
    const { count, seed, position } = check.options('fork', options, [...CALL, 'count', 'seed', 'position']);
    const request = ForkSessionRequest.fromPartial({
      count: check.int32('count', count ?? 1),
      ...(seed !== undefined && { seed: check.uint64('seed', seed) }),
    });
    const at = position === undefined ? undefined : toNumber(check.int64('position', position));
    return this.#inOrder(options, async () => {
      request.model = this.model;
      request.session = this.#ref(at ?? this.#position, '');
      const { sessions } = await this.#orGivenAgain(options, () =>
        this.#call(Sessions.forkSession, request, options, false),
      );
      const { cookie } = this;
      return sessions.map((session) => new Session(this.#connection, sessionInfo(session), { cookie }));
    });
  }

  /** Drops the tokens after a position or a mark. */
  async rewind(options: RewindOptions): Promise<void> {
    const { position, mark } = check.options('rewind', options, [...CALL, 'position', 'mark']);
    if ((position === undefined) === (mark === undefined))
      throw new TypeError('rewind: exactly one of position and mark must be given');
    const to: RewindSessionRequest['to'] =
      mark === undefined
        ? { $case: 'position', value: check.int64('position', position) }
        : { $case: 'mark', value: check.text('mark', mark) };
    return this.#inOrder(options, () => this.#rewind(to, options), false);
  }

  /** The session as bytes for RivuletClient.restoreSession(). The bytes outlive the server. */
  async snapshot(options: SnapshotOptions = {}): Promise<Uint8Array> {
    const { position } = check.options('snapshot', options, [...CALL, 'position']);
    const asked = position === undefined ? undefined : check.int64('position', position);
    return this.#inOrder(
      options,
      async () => {
        // The position leaves out tokens that were not received, without a rewind, which a draining
        // server refuses. So a session can be moved to another server.
        if (asked !== undefined && asked > this.#position) await this.#settled(options);
        const request = { model: this.model, sessionId: this.id, position: asked ?? BigInt(this.#position) };
        const read = async (cookie: string, deadline: number): Promise<Answer<Uint8Array>> => {
          const chunks: Uint8Array[] = [];
          const method = Sessions.snapshotSession;
          const messages = this.#connection.download(method, request, options, cookie, deadline);
          for await (const { chunk } of messages) chunks.push(chunk);
          return { reply: new Uint8Array(Buffer.concat(chunks)), cookie: messages.cookie() };
        };
        return this.#orGivenAgain(options, () => this.#onSession(options, true, read));
      },
      false,
    );
  }

  /** Closes the session and ends its requests. Does nothing if the session is closed. */
  async close(options: CallOptions = {}): Promise<void> {
    check.options('close', options, CALL);
    return this.#inOrder(
      options,
      async () => {
        try {
          await this.#call(Sessions.closeSession, { model: this.model, sessionId: this.id }, options);
        } catch (error) {
          if (!(error instanceof RivuletError && error.reason === 'SESSION_NOT_FOUND')) throw error;
        }
      },
      false,
    );
  }

  /**
   * Runs `action` after the earlier calls. Ends a running reply first, because a reply that nobody
   * reads would delay every other call. `settled`: first drops tokens that this object does not
   * know.
   */
  #inOrder<T>(options: CallOptions, action: () => Promise<T>, settled = true): Promise<T> {
    const result = this.#last.then(async () => {
      this.#running?.cancel();
      this.#running = undefined;
      if (settled) await this.#settled(options);
      return action();
    });
    this.#last = result.catch(() => undefined);
    return result;
  }

  /** Drops tokens on the server that this object does not know. */
  async #settled(options: CallOptions): Promise<void> {
    if (this.#ahead) await this.#rewind({ $case: 'position', value: BigInt(this.#position) }, options);
  }

  /** `repeats`: a repetition has no further effect. */
  #call<Q, R>(method: Method<Q, R>, request: Q, options: CallOptions, repeats = true): Promise<R> {
    return this.#onSession(options, repeats, (cookie, deadline) =>
      this.#connection.unary(method, request, options, cookie, deadline),
    );
  }

  async #onSession<R>(
    options: CallOptions,
    repeats: boolean,
    make: (cookie: string, deadline: number) => Promise<Answer<R>>,
  ): Promise<R> {
    const { reply, cookie } = await this.#connection.onSession(options, this.cookie, repeats, make);
    this.#extras.cookie = cookie;
    return reply;
  }

  async #rewind(to: RewindSessionRequest['to'], options: CallOptions): Promise<void> {
    const request = { model: this.model, sessionId: this.id, to };
    const { session } = await this.#changing(() =>
      this.#orGivenAgain(options, () => this.#call(Sessions.rewindSession, request, options)),
    );
    this.#settle(sessionInfo(session));
  }

  /** Returns call(). If the session has lost tokens, gives them again and repeats the call. */
  async #orGivenAgain<T>(options: CallOptions, call: () => Promise<T>): Promise<T> {
    try {
      return await call();
    } catch (error) {
      if ((await this.#giveAgain(error, this.#position, options)) === undefined) throw error;
      return call();
    }
  }

  /**
   * Called after a call that ended with `error`: gives lost tokens (that were not durable) again,
   * up to a position. Returns the session's hash there; undefined if no tokens are lost.
   */
  async #giveAgain(error: unknown, to: number, options: CallOptions): Promise<bigint | undefined> {
    if (!(error instanceof RivuletError && BEHIND.includes(error.reason)) || this.#pending.empty)
      return undefined;
    const asked = { model: this.model, sessionId: this.id };
    const info = sessionInfo((await this.#call(Sessions.getSession, asked, options)).session);
    const hash = to === this.#position ? this.#hash : this.#pending.hashAt(to);
    if (hash === undefined || this.#pending.hashAt(info.position) !== info.sequenceHash) return undefined;
    const missing = this.#pending.missing(info.position, to);
    let [position, sequenceHash] = [BigInt(info.position), info.sequenceHash];
    for (const request of missing) {
      request.model = this.model;
      request.session = { sessionId: this.id, position, sequenceHash, mark: request.session?.mark ?? '' };
      const { progress } = await this.#call(Sessions.append, request, options);
      [position, sequenceHash] = [progress?.position ?? 0n, progress?.sequenceHash ?? 0n];
    }
    if (missing.length === 0) return undefined;
    checkHash(Number(position), sequenceHash, hash);
    return hash;
  }

  /** Surrounds a call that changes the session: records whether the call's result is known. */
  async #changing<T>(call: () => Promise<T>): Promise<T> {
    try {
      const result = await call();
      this.#ahead = false;
      return result;
    } catch (error) {
      this.#ahead ||= !unchanged(error);
      throw error;
    }
  }

  #ref(position: number, mark: string): SessionRef {
    return { sessionId: this.id, position: BigInt(position), mark, sequenceHash: this.#hash };
  }

  #settle(info: SessionInfo): void {
    this.#position = info.position;
    this.#hash = info.sequenceHash;
    this.#marks = new Map(Object.entries(info.marks));
    this.#pending.clear(); // opening and rewinding succeed only if they are durable
  }

  /** Called when a request has succeeded. */
  #ended(mark: string, durable: Durability | undefined): void {
    if (mark !== '') this.#marks.set(mark, this.#position);
    this.#pending.ended(this.#position, this.#hash, mark, durable);
  }

  /**
   * Notes that the session continued from `begin` with a request's content and with generated
   * tokens. Errors: RivuletError DATA_LOSS (the server holds other tokens).
   */
  #advance(
    progress: SessionProgress | undefined,
    begin: number,
    request: Given,
    generated: readonly number[],
  ): void {
    const given = knownTokens(request.content); // undefined: text, which the server tokenized
    if (progress === undefined)
      throw new RivuletError(Code.INTERNAL, 'the server does not say where the session is');
    const position = toNumber(progress.position);
    if (given !== undefined) {
      const expected = begin + given.length + generated.length;
      if (position !== expected) {
        throw new RivuletError(
          Code.DATA_LOSS,
          `the server is at position ${position} of the session, its replies end at ${expected}`,
        );
      }
    }
    // The hash of an earlier durable position is not kept.
    const hash = begin === this.#position ? this.#hash : this.#pending.hashAt(begin);
    const known = given !== undefined && hash !== undefined ? hashTokens(given, hash) : undefined;
    if (known !== undefined) checkHash(position, progress.sequenceHash, hashTokens(generated, known));
    this.#pending.cut(begin);
    this.#pending.add(begin, position - generated.length, hash, request);
    this.#pending.extend(position - generated.length, known, generated);
    for (const [mark, at] of this.#marks) if (at > begin) this.#marks.delete(mark);
    this.#position = position;
    this.#hash = progress.sequenceHash;
  }
}

/** Errors: RivuletError DATA_LOSS, if the server's hash at a position is not the expected one. */
function checkHash(position: number, sequenceHash: bigint, expected: bigint): void {
  if (sequenceHash === expected) return;
  throw new RivuletError(
    Code.DATA_LOSS,
    `the server's tokens up to position ${position} hash to ${sequenceHash.toString(16)}, ` +
      `those that were given and received to ${expected.toString(16)}`,
  );
}
