// SPDX-License-Identifier: Apache-2.0
// Waits between the calls of a lost reply, and what ends them, against a server that loses replies as it
// is told. typescript_test.py compiles and runs this. It sets RIVULET_PROTO_DIR.
// contract/lost_replies_test.py has the rest of "Lost replies" in client/README.md.
import { strict as assert } from 'node:assert';
import { test } from 'node:test';

import { status as codes } from '@grpc/grpc-js';
import { Code, RivuletError, type GenerateStream, type Part, type RivuletClient } from 'rivulet-client';

import { status, withFake, type Handlers, type Message } from './fake_server.js';

// No test waits this long: it ends one that hangs.
const PATIENCE = { timeoutMs: 120_000 };
const LIMIT = { timeout: 60_000 };
const HOUR_MS = 3_600_000;

const ended = (code: codes, reason: string, retrySeconds?: number): object =>
  status(code, 'said by the server', {
    ErrorInfo: { reason, domain: 'rivulet' },
    ...(retrySeconds !== undefined && { RetryInfo: { retryDelay: { seconds: String(retrySeconds) } } }),
  });
const OTHER = ended(codes.UNAVAILABLE, 'OTHER');
const FULL = ended(codes.RESOURCE_EXHAUSTED, 'QUEUE_FULL', 3);

const FIRST = { seed: '3', fingerprint: '18446744073709551615' };
const part = (firstPosition: number, tokens: number[], more: object = {}): Message => ({
  firstPosition: String(firstPosition),
  tokens,
  ...more,
});

/** A call: it sends `messages`, and ends with `error` or well. */
interface Step {
  messages?: Message[];
  error?: object;
}

async function until(condition: () => boolean): Promise<void> {
  const end = performance.now() + LIMIT.timeout;
  while (!condition()) {
    assert.ok(performance.now() < end, `not in ${LIMIT.timeout} ms: ${condition}`);
    await new Promise((done) => setImmediate(done));
  }
}

/** Generate by a script. `calls`: how many there were. `parts`: what the client gave out. */
class Script {
  calls = 0;
  readonly parts: Part[] = [];
  readonly handlers: Handlers;
  #sent = 0;

  constructor(...steps: Step[]) {
    const self = this;
    this.handlers = {
      async *Generate(_, call) {
        const { messages = [], error } = steps[self.calls] ?? { error: OTHER };
        self.calls += 1;
        self.#sent += messages.length;
        yield* messages;
        if (error === undefined) return;
        // grpc-js gives out an error before the parts that wait.
        await until(() => self.parts.length >= self.#sent || call.cancelled);
        throw error;
      },
    };
  }

  async read(stream: GenerateStream): Promise<void> {
    for await (const piece of stream) this.parts.push(piece);
  }
}

function failsWith(code: Code, reason = ''): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof RivuletError, String(error));
    assert.deepEqual([Code[error.code], error.reason], [Code[code], reason]);
    return true;
  };
}

const BACKOFF = [95, 190, 380, 760, 1520]; // 100 ms, doubled, times 0.8 + 0.4 * RANDOM
const RANDOM = 0.375;

/** Runs `body` with a list of the waits between calls. They end at once; those of an hour do not end. */
async function withWaits(body: (waits: number[]) => Promise<void>): Promise<void> {
  const real = { setTimeout, random: Math.random };
  const waits: number[] = [];
  const isWait = (ms: number): boolean => [...BACKOFF, 3000, HOUR_MS].includes(ms);
  Math.random = () => RANDOM;
  globalThis.setTimeout = ((callback: () => void, ms: number, ...rest: []) => {
    const rounded = Math.round(ms);
    if (!isWait(rounded)) return real.setTimeout(callback, ms, ...rest);
    waits.push(rounded);
    return real.setTimeout(callback, rounded === HOUR_MS ? HOUR_MS : 0);
  }) as typeof setTimeout;
  try {
    await body(waits);
  } finally {
    globalThis.setTimeout = real.setTimeout;
    Math.random = real.random;
  }
}

test('waits double until something comes, or are what the server says, and the deadline ends them', async () => {
  const away = ended(codes.UNAVAILABLE, 'DRAINING', HOUR_MS / 1000);
  const script = new Script(
    { messages: [part(0, [1], FIRST)], error: OTHER },
    ...Array.from({ length: 4 }, () => ({ error: OTHER })),
    { messages: [part(1, [2])], error: OTHER },
    { error: FULL },
    { error: away },
  );
  await withWaits((waits) =>
    withFake(script.handlers, async (client) => {
      await assert.rejects(script.read(client.generate('', { timeoutMs: HOUR_MS / 2 })), (error) => {
        failsWith(Code.DEADLINE_EXCEEDED)(error);
        const { message, cause } = error as Error;
        assert.match(message, /timeout of 1800000 ms leaves no time .* after: UNAVAILABLE \(DRAINING\)/);
        return failsWith(Code.UNAVAILABLE, 'DRAINING')(cause);
      });
      assert.deepEqual(waits, [...BACKOFF, 95, 3000]);
    }),
  );
  assert.equal(script.calls, 8);
});

test('a signal, cancel(), leaving and close() end a wait at once', LIMIT, async () => {
  const why = new Error('the reader went away');
  const controller = new AbortController();
  const ways: [(stream: GenerateStream, client: RivuletClient) => unknown, unknown][] = [
    [() => controller.abort(why), why],
    [(stream) => stream.cancel(), undefined],
    [(stream) => stream.return(), undefined],
    [(_, client) => client.close(), undefined],
  ];
  for (const [end, cause] of ways) {
    const away = ended(codes.UNAVAILABLE, 'DRAINING', HOUR_MS / 1000);
    const script = new Script({ messages: [part(0, [1], FIRST)], error: away });
    await withWaits((waits) =>
      withFake(script.handlers, async (client) => {
        const stream = client.generate('', cause === undefined ? {} : { signal: controller.signal });
        const read = assert.rejects(script.read(stream), (error) => {
          assert.equal((error as Error).cause, cause);
          return failsWith(Code.CANCELLED)(error);
        });
        await until(() => waits.length === 1);
        end(stream, client);
        await read;
      }),
    );
    assert.equal(script.calls, 1);
  }
});

test('a server that begins again is found out', async () => {
  const first = { messages: [part(0, [1], FIRST)] };
  const script = new Script({ ...first, error: OTHER }, first);
  await withFake(script.handlers, async (client) => {
    const read = script.read(client.generate('', PATIENCE));
    await assert.rejects(read, /INTERNAL: sample 0: the server sent position 0 instead of 1/);
  });
  assert.equal(script.parts.length, 1);
});

// The running hash over no token, over 1, and over 1 and 2, computed apart from the client.
const HASHES = [0xcbf29ce484222325n, 0xad2aca7747985764n, 0xc9c28939c99668c6n].map(String);
const progress = (position: number): Message => ({
  position: String(position),
  sequenceHash: HASHES[position],
});
const session = (position: number): Message => ({
  sessionId: '0123456789abcdef0123456789abcdef',
  model: 'm',
  seed: '1',
  progress: progress(position),
});

test('another call of the session ends a wait, and drops what was not seen', LIMIT, async () => {
  const away = ended(codes.UNAVAILABLE, 'DRAINING', HOUR_MS / 1000);
  const script = new Script({ messages: [part(0, [1], { ...FIRST, session: progress(1) })], error: away });
  const handlers = {
    ...script.handlers,
    OpenSession: () => ({ session: session(0) }),
    RewindSession: () => ({ session: session(1) }),
    Append: () => ({ progress: progress(2) }),
  };
  await withWaits((waits) =>
    withFake(handlers, async (client, { calls }) => {
      const opened = await client.openSession(PATIENCE);
      const read = assert.rejects(script.read(opened.generate()), failsWith(Code.CANCELLED));
      await until(() => waits.length === 1);
      await opened.append([2], PATIENCE);
      await read;
      assert.deepEqual([calls['RewindSession']?.length, opened.position], [1, 2]);
    }),
  );
  assert.equal(script.calls, 1);
});
