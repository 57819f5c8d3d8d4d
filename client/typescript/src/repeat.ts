// SPDX-License-Identifier: Apache-2.0
// Continues a reply whose call is lost: "Lost replies" in client/README.md.
import { Code, leavesReplica, RivuletError } from './errors';
import type { GenerateReply, GenerateRequest } from './gen/rivulet/v1/inference';
import { broken, part, type Part } from './replies';

const FIRST_WAIT_MS = 100; // doubled; too few calls to reach the 2 s of the rules
const LOSSES_WITH_COOKIE = 2; // lost calls in a row; then another replica is asked
const EMPTY_CALLS = 5; // calls in a row that bring nothing, once the reply has begun

/** The received part of a reply, and the call that continues it. No input or output. */
export class RepeatedReply {
  readonly #request: GenerateRequest;
  readonly #resume: boolean;
  readonly #maxAttempts: number;
  readonly #numSamples: number;
  // By sample: the received tokens, and whether the sample has ended.
  readonly #tokens = new Map<number, number[]>();
  readonly #ended = new Set<number>();
  #fingerprint: bigint | undefined;
  #begun = false;
  #complete = false; // the usage has come
  #repeated = false;
  // Lost calls, from the last one that brought something. The first error says why it was lost.
  #losses = 0;
  #loss: RivuletError | undefined;
  #cookie = '';
  #dropsCookie = false; // the next call is made without the cookie ...
  #keepsCookie = false; // ... no more: only the cookie's replica knows the session

  /** `request`: of the first call, with a seed or a session. */
  constructor(request: GenerateRequest, resume: boolean, maxAttempts: number) {
    this.#request = request;
    this.#resume = resume;
    this.#maxAttempts = maxAttempts;
    this.#numSamples = request.numSamples ?? 1;
  }

  /** The cookie of the next call; "": none. */
  get cookie(): string {
    return this.#dropsCookie ? '' : this.#cookie;
  }

  /** Sets the session's cookie: before the first call, and when a call has brought a new one. */
  set cookie(cookie: string) {
    this.#cookie = cookie;
  }

  /** Whether a call after the first has something to continue. */
  get begun(): boolean {
    return this.#fingerprint !== undefined;
  }

  /** Whether a second call was made or is due. */
  get repeated(): boolean {
    return this.#repeated;
  }

  /**
   * The part that a message holds; undefined if it holds no part, or a part that has come before.
   * Errors: RivuletError INTERNAL (a gap, or tokens again).
   */
  take(message: GenerateReply): Part | undefined {
    this.#fingerprint ??= message.fingerprint;
    this.#complete ||= message.usage !== undefined;
    const piece = part(message);
    if (piece === undefined) return undefined;
    const { sampleIndex: index, firstPosition } = piece;
    if (index < 0 || index >= this.#numSamples)
      throw broken(`the server sent a part of sample ${index} of ${this.#numSamples}`);
    if (this.#ended.has(index)) return undefined;
    const tokens = this.#tokens.get(index) ?? [];
    if (piece.tokens.length > 0 && firstPosition !== tokens.length)
      throw broken(
        `sample ${index}: the server sent position ${firstPosition} instead of ${tokens.length}`,
      );
    for (const token of piece.tokens) tokens.push(token);
    this.#tokens.set(index, tokens);
    if (piece.finish) this.#ended.add(index);
    this.#begun = true;
    this.#losses = 0;
    return piece;
  }

  /** The request of the next call. */
  request(): GenerateRequest {
    if (!this.#repeated) return this.#request;
    const came = this.#fingerprint === undefined ? 0 : this.#numSamples;
    const samples = Array.from({ length: came }, (_, index) => ({ ids: this.#tokens.get(index) ?? [] }));
    return { ...this.#request, resume: { fingerprint: this.#fingerprint, samples } };
  }

  /** Whether the reply is complete although a call ended with `error`. */
  hasEnded(error: unknown): boolean {
    return this.#complete && error instanceof RivuletError && error.code === Code.UNAVAILABLE;
  }

  /** Milliseconds from a failed call to the next one. Errors: the error that ends the reply. */
  waitMs(error: unknown): number {
    if (!(error instanceof RivuletError && this.#isLost(error))) throw error;
    if (this.#losses === 0) this.#loss = error;
    if (this.#losses >= this.#mostLosses()) throw this.#loss;
    this.#losses += 1;
    this.#chooseCookie(error);
    this.#repeated = true;
    return error.retryAfterMs ?? FIRST_WAIT_MS * 2 ** (this.#losses - 1) * (0.8 + 0.4 * Math.random());
  }

  #isLost(error: RivuletError): boolean {
    const refusedForNow = error.code === Code.RESOURCE_EXHAUSTED && error.retryAfterMs !== undefined;
    const lost = error.code === Code.UNAVAILABLE || error.reason === 'SESSION_MOVED';
    return lost || (this.#repeated && refusedForNow) || this.#isUnknownThere(error);
  }

  /** Whether a replica that was reached without the cookie does not know the session. */
  #isUnknownThere(error: RivuletError): boolean {
    return this.#dropsCookie && error.reason === 'SESSION_NOT_FOUND';
  }

  #chooseCookie(error: RivuletError): void {
    this.#keepsCookie ||= this.#isUnknownThere(error);
    const leaves = leavesReplica(error) || this.#losses >= LOSSES_WITH_COOKIE;
    this.#dropsCookie = leaves && this.#cookie !== '' && !this.#keepsCookie;
  }

  /** Maximum number of further calls before another part comes. */
  #mostLosses(): number {
    if (!this.#begun) return this.#maxAttempts - 1;
    return this.#resume && this.#fingerprint !== undefined ? EMPTY_CALLS : 0;
  }
}
