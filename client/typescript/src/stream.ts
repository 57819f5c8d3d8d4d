// SPDX-License-Identifier: Apache-2.0
// A reply that streams.
import type { Messages } from './connection';
import { Code, RivuletError } from './errors';
import type { GenerateReply } from './gen/rivulet/v1/inference';
import { generation, part, usage, type Generation, type Part, type Usage } from './replies';

/** What a stream reads. */
export interface ReplySource {
  numSamples: number;
  /** Begins the call. */
  start(): Promise<Messages<GenerateReply>>;
  /** Sees every message before its part is given out. May throw. */
  received?(message: GenerateReply): void;
  /** Sees the error that ends the reply. */
  failed?(error: unknown): void;
}

/**
 * The parts of a reply as they arrive: `for await (const part of stream)`. The call begins with the
 * first part that is asked for. It ends when the loop is left; the server then frees the slot
 * within a step or two.
 *
 * Errors while iterating: RivuletError. A reply that has started is never restarted.
 */
export class GenerateStream implements AsyncIterableIterator<Part> {
  readonly #source: ReplySource;
  readonly #parts: AsyncGenerator<Part, undefined, undefined>;
  #messages: Messages<GenerateReply> | undefined;
  #cancelled = false;
  #begun = false;
  #seed: bigint | undefined;
  #usage: Usage | undefined;

  /** For RivuletClient and Session. */
  constructor(source: ReplySource) {
    this.#source = source;
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
    this.#messages?.cancel();
  }

  /**
   * Waits for the end and returns the whole reply. Errors: those of iterating; Error (parts were
   * taken before).
   */
  async collect(): Promise<Generation> {
    if (this.#begun) throw new Error('collect() must be called before any part is taken');
    const parts: Part[] = [];
    for await (const piece of this) parts.push(piece);
    return generation(parts, this.#source.numSamples, this.#seed, this.#usage);
  }

  async *#read(): AsyncGenerator<Part, undefined, undefined> {
    try {
      this.#refuseCancelled();
      this.#messages = await this.#source.start();
      if (this.#cancelled) this.#messages.cancel(); // by cancel(), which had nothing to end yet
      for await (const message of this.#messages) {
        // A part that arrived meanwhile must not be given out: a session has stopped counting.
        this.#refuseCancelled();
        this.#seed = message.seed ?? this.#seed;
        this.#source.received?.(message);
        if (message.usage !== undefined) this.#usage = usage(message.usage);
        const piece = part(message);
        if (piece !== undefined) yield piece;
      }
    } catch (error) {
      this.#source.failed?.(error);
      throw error;
    }
    return undefined;
  }

  #refuseCancelled(): void {
    if (this.#cancelled) throw new RivuletError(Code.CANCELLED, 'the reply was cancelled');
  }
}
