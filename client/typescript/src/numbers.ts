// SPDX-License-Identifier: Apache-2.0
// Numbers of 64 bits and durations. Counts and positions are numbers of JavaScript, which are exact
// up to 2^53; only seeds and hashes use all 64 bits and are bigints.
import { Code, RivuletError } from './errors';
import type { Duration } from './gen/google/protobuf/duration';

/** A message whose 64-bit counts are numbers. */
export type Plain<T> = T extends bigint
  ? number
  : T extends Uint8Array
    ? T
    : T extends object
      ? { [K in keyof T]: Plain<T[K]> }
      : T;

/** Errors: RivuletError INTERNAL (beyond 2^53: a number of JavaScript would not be exact). */
export function toNumber(value: bigint): number {
  const number = Number(value);
  if (!Number.isSafeInteger(number)) {
    throw new RivuletError(
      Code.INTERNAL,
      `the server sent ${value}, which a number of JavaScript cannot hold`,
    );
  }
  return number;
}

/** A copy of a message with numbers in place of bigints. Errors: the errors of toNumber. */
export function plain<T>(message: T): Plain<T>;
export function plain(message: unknown): unknown {
  if (typeof message === 'bigint') return toNumber(message);
  if (Array.isArray(message)) return message.map((entry) => plain<unknown>(entry));
  if (typeof message !== 'object' || message === null || message instanceof Uint8Array) return message;
  return Object.fromEntries(Object.entries(message).map(([key, value]) => [key, plain<unknown>(value)]));
}

/** Milliseconds of a duration; 0 for an absent one. */
export function durationMs(duration: Duration | undefined): number {
  return duration === undefined ? 0 : toNumber(duration.seconds) * 1000 + duration.nanos / 1e6;
}

/** Milliseconds as a duration, rounded to a microsecond. */
export function duration(ms: number): Duration {
  const micros = Math.round(ms * 1000);
  const seconds = Math.floor(micros / 1e6);
  return { seconds: BigInt(seconds), nanos: (micros - seconds * 1e6) * 1000 };
}
