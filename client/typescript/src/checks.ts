// SPDX-License-Identifier: Apache-2.0
// Checks of arguments. Each returns its value, or throws a TypeError (a wrong type) or a RangeError
// (a value that the field cannot hold). The error names the argument and states the value. The
// server checks everything else.
import { inspect } from 'node:util';

const shown = (value: unknown): string => inspect(value, { breakLength: Infinity, maxStringLength: 200 });

export function text(name: string, value: unknown): string {
  if (typeof value !== 'string') throw new TypeError(`${name}: must be a string; got ${shown(value)}`);
  const lone = value.search(/\p{Surrogate}/u);
  if (lone >= 0)
    throw new RangeError(
      `${name}: must be text that UTF-8 can encode; code unit ${lone} is a lone surrogate`,
    );
  return value;
}

export function boolean(name: string, value: unknown): boolean {
  if (typeof value !== 'boolean') throw new TypeError(`${name}: must be true or false; got ${shown(value)}`);
  return value;
}

export function integer(name: string, value: unknown, low: number, high: number): number {
  if (typeof value !== 'number' || !Number.isInteger(value)) {
    throw new TypeError(`${name}: must be an integer; got ${shown(value)}`);
  }
  if (value < low || value > high) throw new RangeError(`${name}: must be ${low} to ${high}; got ${value}`);
  return value;
}

export const int32 = (name: string, value: unknown): number => integer(name, value, -(2 ** 31), 2 ** 31 - 1);

/** A count or position for a field of 64 bits. */
export const int64 = (name: string, value: unknown): bigint =>
  BigInt(integer(name, value, Number.MIN_SAFE_INTEGER, Number.MAX_SAFE_INTEGER));

export function uint64(name: string, value: unknown): bigint {
  if (typeof value !== 'bigint') return BigInt(integer(name, value, 0, Number.MAX_SAFE_INTEGER));
  if (value < 0n || value >= 1n << 64n) throw new RangeError(`${name}: must be 0 to 2^64 - 1; got ${value}`);
  return value;
}

/** A number for a float of 32 bits. */
export function float(name: string, value: unknown): number {
  if (typeof value !== 'number') throw new TypeError(`${name}: must be a number; got ${shown(value)}`);
  if (Number.isFinite(value) && !Number.isFinite(Math.fround(value))) {
    throw new RangeError(`${name}: must fit a float of 32 bits; got ${value}`);
  }
  return value;
}

/** Milliseconds above 0. */
export function milliseconds(name: string, value: unknown): number {
  if (typeof value !== 'number') throw new TypeError(`${name}: must be a number; got ${shown(value)}`);
  if (!(Number.isFinite(value) && value > 0))
    throw new RangeError(`${name}: must be milliseconds above 0; got ${value}`);
  return value;
}

/** The array of `check` over a list of numbers. */
export function list<T>(name: string, value: unknown, check: (name: string, value: unknown) => T): T[] {
  if (!Array.isArray(value) && !(value instanceof Int32Array)) {
    throw new TypeError(`${name}: must be an array; got ${shown(value)}`);
  }
  return Array.from<unknown, T>(value, (entry, index) => check(`${name}[${index}]`, entry));
}

/**
 * An object of options with no other keys than `keys`: a misspelt option must not be ignored.
 * Checks the options of every call.
 */
export function options<T extends object>(call: string, value: T | undefined, keys: readonly string[]): T {
  if (value === undefined) return {} as T;
  if (typeof value !== 'object' || value === null)
    throw new TypeError(`${call}: options must be an object; got ${shown(value)}`);
  for (const key of Object.keys(value)) {
    if (!keys.includes(key)) throw new TypeError(`${call}: there is no option ${shown(key)}`);
  }
  const {
    timeoutMs,
    signal,
    metadata: headers,
  }: { timeoutMs?: unknown; signal?: unknown; metadata?: unknown } = value;
  if (timeoutMs !== undefined) milliseconds('timeoutMs', timeoutMs);
  if (signal !== undefined && !(signal instanceof AbortSignal))
    throw new TypeError(`signal: must be an AbortSignal; got ${shown(signal)}`);
  metadata(headers);
  return value;
}

/** Pairs of a header's key and value. */
export function metadata(value: unknown): [string, string | Uint8Array][] {
  if (value === undefined) return [];
  if (typeof value !== 'object' || value === null)
    throw new TypeError(`metadata: must be an object; got ${shown(value)}`);
  return Object.entries(value).map(([key, content]) => {
    if (!/^[0-9a-z_.-]+$/.test(key) || key.startsWith('grpc-')) {
      throw new RangeError(
        `metadata: a key must be of 0-9 a-z _ . - and not begin with grpc-; got ${shown(key)}`,
      );
    }
    const fits = key.endsWith('-bin') ? content instanceof Uint8Array : typeof content === 'string';
    // The value may be a secret, so the error does not state it.
    if (!fits)
      throw new TypeError(`metadata.${key}: must be a Uint8Array if the key ends in -bin, else a string`);
    if (typeof content === 'string' && !/^[ -~]*$/.test(content)) {
      throw new RangeError(`metadata.${key}: must be printable ASCII`);
    }
    return [key, content as string | Uint8Array];
  });
}
