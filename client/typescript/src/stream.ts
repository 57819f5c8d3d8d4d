// SPDX-License-Identifier: Apache-2.0
// A reply that streams, over several calls if a call is lost.
import * as check from './checks';
import { deadlineOf, type Cancellable, type Connection } from './connection';
import { Code, RivuletError } from './errors';
import {
  InferenceServiceService as Inference,
  type GenerateReply,
  type GenerateRequest,
} from './gen/rivulet/v1/inference';
import type { SamplingOptions } from './options';
import { RepeatedReply } from './repeat';
import { durability, generation, usage, type Durability, type Generation, type Part, type Usage } from './replies';

/** The functions that a session adds to a stream. */
export interface ReplyHooks {
  /** The cookie by which a balancer finds the session's replica. */
  cookie?(): string;
  /** Runs before the first call, and may complete the call's request. */
  begin?(): Promise<void>;
  /** Called when a message has come, with the cookie for the session's replica. */
  moved?(cookie: string): void;
  /** The request of the call after a first call that has brought nothing. */
  again?(request: GenerateRequest): GenerateRequest;
  /** Gets every message before its part is returned. May throw. */
  received?(message: GenerateReply): void;
  /** Whether a call that ended with this error must be repeated at once. */
  repaired?(error: unknown): Promise<boolean>;
  /** Gets the error that ends the reply. `repeated`: there was more than one call. */
  failed?(error: unknown, repeated: boolean): void;
}

/**
 * The parts of a reply as they arrive: `for await (const part of stream)`. The call begins when the
 * first part is requested. It ends when the loop is left; the server then frees the slot within one
 * or two steps.
 *
 * If a call is lost, another call continues the reply, on any server behind the target, without
 * missing or repeated tokens (option `resume`). `usage` has the times of the last call.
 *
 * Errors while iterating: RivuletError; FAILED_PRECONDITION (RESUME_MISMATCH): the server of a later
 * call would continue with other tokens.
 */
export class GenerateStream implements AsyncIterableIterator<Part> {
  readonly #connection: Connection;
  readonly #options: SamplingOptions;
  readonly #hooks: ReplyHooks;
  readonly #reply: RepeatedReply;
  readonly #numSamples: number;
  readonly #parts: AsyncGenerator<Part, undefined, undefined>;
  #running: Cancellable | undefined;
  #cancelled = false;
  #begun = false;
  #seed: bigint | undefined;
  #usage: Usage | undefined;
  #durability: Durability | undefined;

  /** Called by RivuletClient and Session only. */
  constructor(
    connection: Connection,
    request: GenerateRequest,
    options: SamplingOptions = {},
    hooks: ReplyHooks = {},
  ) {
    this.#connection = connection;
    this.#options = options;
    this.#hooks = hooks;
    const resume = check.boolean('resume', options.resume ?? true);
    this.#reply = new RepeatedReply(request, resume, connection.maxAttempts);
    this.#numSamples = request.numSamples ?? 1;
    this.#parts = this.#read();
  }

  /** The seed that is used; undefined before the first part. */
  get seed(): bigint | undefined {
    return this.#seed;
  }

  /** Token counts and times of the reply; undefined before its end. */
  get usage(): Usage | undefined {
    return this.#usage;
  }

  /** For a reply on a session, at its end, if the server shares a store with other servers. */
  get durability(): Durability | undefined {
    return this.#durability;
  }

  next(): Promise<IteratorResult<Part, undefined>> {
    this.#begun = true;
    return this.#parts.next();
  }

  /** Ends the call, as leaving a loop does. */
  return(): Promise<IteratorResult<Part, undefined>> {
    this.cancel();
    return this.#parts.return(undefined);
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  /** Ends the call. A loop over the parts then throws CANCELLED. Does nothing if the call has ended. */
  cancel(): void {
    this.#cancelled = true;
    this.#running?.cancel();
  }

  /**
   * Waits for the end and returns the whole reply. Errors: the errors of iterating; Error (parts
   * were taken before).
   */
  async collect(): Promise<Generation> {
    if (this.#begun) throw new Error('collect() must be called before any part is taken');
    const parts: Part[] = [];
    for await (const piece of this) parts.push(piece);
    return generation(parts, this.#numSamples, this.#seed, this.#usage, this.#durability);
  }

  async *#read(): AsyncGenerator<Part, undefined, undefined> {
    try {
      this.#refuseCancelled();
      await this.#hooks.begin?.();
      this.#reply.cookie = this.#hooks.cookie?.() ?? '';
      const deadline = deadlineOf(this.#options);
      for (;;) {
        try {
          yield* this.#call(deadline);
          return undefined;
        } catch (error) {
          if (this.#reply.hasEnded(error)) return undefined;
          if (!(await this.#hooks.repaired?.(error))) await this.#wait(error, deadline);
        }
      }
    } catch (error) {
      this.#hooks.failed?.(error, this.#reply.repeated);
      throw error;
    }
  }

  async *#call(deadline: number): AsyncGenerator<Part, void, undefined> {
    this.#refuseCancelled();
    const request = this.#reply.request();
    const forNothing = this.#reply.repeated && !this.#reply.begun;
    const messages = this.#connection.download<GenerateRequest, GenerateReply>(
      Inference.generate,
      forNothing ? (this.#hooks.again?.(request) ?? request) : request,
      this.#options,
      this.#reply.cookie,
      deadline,
    );
    this.#running = messages;
    for await (const message of messages) {
      const cookie = messages.cookie();
      if (cookie !== '') {
        this.#reply.cookie = cookie;
        this.#hooks.moved?.(cookie);
      }
      // A part that arrived meanwhile must not be returned: a session has stopped counting.
      this.#refuseCancelled();
      this.#seed ??= message.seed;
      this.#hooks.received?.(message);
      if (message.usage !== undefined) {
        this.#usage = usage(message.usage);
        this.#durability = durability(message.durability);
      }
      const piece = this.#reply.take(message);
      if (piece !== undefined) yield piece;
    }
  }

  /** Waits until the call after a failed call. Errors: the error that ends the reply. */
  async #wait(error: unknown, deadline: number): Promise<void> {
    const ms = this.#reply.waitMs(error);
    if (Date.now() + ms >= deadline) {
      const text = `the timeout of ${this.#options.timeoutMs} ms leaves no time to try again after: `;
      throw new RivuletError(Code.DEADLINE_EXCEEDED, text + (error as Error).message, { cause: error });
    }
    this.#refuseCancelled();
    const pause = this.#connection.pause(ms, this.#options);
    this.#running = pause;
    await pause.ended;
  }

  #refuseCancelled(): void {
    if (this.#cancelled) throw new RivuletError(Code.CANCELLED, 'the reply was cancelled');
  }
}
