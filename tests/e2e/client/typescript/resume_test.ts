// SPDX-License-Identifier: Apache-2.0
// Lost replies, by the rules of client/README.md, against a server that loses them as it is told.
// typescript_test.py compiles and runs this. It sets RIVULET_PROTO_DIR.
import { strict as assert } from 'node:assert';
import { test } from 'node:test';

import { status as codes } from '@grpc/grpc-js';
import {
  Code,
  RivuletClient,
  RivuletError,
  type ClientOptions,
  type GenerateStream,
  type Part,
} from 'rivulet-client';

import { status, withFake, type Fake, type Handlers, type Message } from './fake_server.js';

// No test waits this long: it ends one that hangs.
const PATIENCE = { timeoutMs: 120_000 };
const LIMIT = { timeout: 60_000 };
const HOUR_MS = 3_600_000;

const ended = (code: codes, reason: string, retrySeconds?: number): object =>
  status(code, 'said by the server', {
    ErrorInfo: { reason, domain: 'rivulet' },
    ...(retrySeconds !== undefined && { RetryInfo: { retryDelay: { seconds: String(retrySeconds) } } }),
  });
const DRAINING = ended(codes.UNAVAILABLE, 'DRAINING');
const OTHER = ended(codes.UNAVAILABLE, 'OTHER');
const FULL = ended(codes.RESOURCE_EXHAUSTED, 'QUEUE_FULL', 3);

const FINGERPRINT = '18446744073709551615';
const FIRST = { seed: '3', fingerprint: FINGERPRINT };
const END = { finish: { reason: 'FINISH_REASON_LENGTH' } };
const part = (sampleIndex: number, firstPosition: number, tokens: number[], more: object = {}): Message => ({
  sampleIndex,
  firstPosition: String(firstPosition),
  tokens,
  text: tokens.map((token) => `<${token}>`).join(''),
  ...more,
});
const usage = (completionTokens: number): Message => ({
  usage: { completionTokens: String(completionTokens) },
});

/** The tokens of each sample in a `resume`. */
const idsOf = ({ samples }: Message): number[][] => samples.map(({ ids = [] }) => ids);

/** A call: it sends `again`, which is nothing new, and `messages`, and ends with `error` or well. */
interface Step {
  again?: Message[];
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

/**
 * Generate by a script. Of each call: its request, and the time until its deadline. `parts`: what the
 * client gave out.
 */
class Script {
  readonly requests: Message[] = [];
  readonly leftMs: number[] = [];
  readonly parts: Part[] = [];
  readonly handlers: Handlers;
  #sent = 0;

  constructor(...steps: Step[]) {
    const self = this;
    this.handlers = {
      async *Generate(request, call) {
        self.requests.push(request);
        self.leftMs.push(Number(call.getDeadline()) - Date.now());
        const { again = [], messages = [], error } = steps[self.requests.length - 1] ?? { error: OTHER };
        yield* again;
        for (const message of messages) {
          if (message.tokens !== undefined) self.#sent += 1;
          yield message;
        }
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

  get tokens(): number[] {
    return this.parts.flatMap(({ tokens }) => tokens);
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

/** Asserts that a reply by `steps` ends with this error after as many calls, and returns what happened. */
async function failing(
  steps: Step[],
  calls: number,
  [code, reason]: [Code, string?],
  options: object = {},
  clientOptions?: ClientOptions,
): Promise<{ script: Script; waits: number[] }> {
  const script = new Script(...steps);
  let seen: number[] = [];
  await withWaits(async (waits) => {
    seen = waits;
    await withFake(
      script.handlers,
      async (client) => {
        const stream = client.generate('', { ...PATIENCE, ...options });
        await assert.rejects(script.read(stream), failsWith(code, reason));
      },
      clientOptions,
    );
  });
  assert.equal(script.requests.length, calls);
  return { script, waits: seen };
}

test('a lost reply goes on behind what was received, and nothing comes twice', async () => {
  // No server sends others than before, so they show whose are kept.
  const LATER = { seed: '4', fingerprint: '4' };
  const script = new Script(
    { messages: [part(0, 0, [1], FIRST), part(1, 0, [4], END), part(0, 1, [2, 3])], error: DRAINING },
    {
      again: [part(1, 1, [], { ...END, text: 'x' })],
      messages: [part(0, 3, [5], LATER)],
      error: OTHER,
    },
    { again: [part(1, 1, [], { ...LATER, ...END })], messages: [part(0, 4, [6], END), usage(6)] },
  );
  await withFake(script.handlers, async (client, { calls }) => {
    const options = { model: 'm', numSamples: 2, temperature: 0.5, stop: ['x'], seed: 3, ...PATIENCE };
    const stream = client.generate('abc', options);
    await script.read(stream);
    assert.deepEqual([stream.seed, stream.usage?.completionTokens], [3n, 6]);
    assert.deepEqual(
      calls['Generate']!.map((metadata) => metadata.get('grpc-previous-rpc-attempts')),
      [[], [], []],
    );
  });
  const reason = 'length' as const;
  assert.deepEqual(script.parts, [
    { sampleIndex: 0, firstPosition: 0, tokens: [1], text: '<1>' },
    { sampleIndex: 1, firstPosition: 0, tokens: [4], text: '<4>', finish: { reason } },
    { sampleIndex: 0, firstPosition: 1, tokens: [2, 3], text: '<2><3>' },
    { sampleIndex: 0, firstPosition: 3, tokens: [5], text: '<5>' },
    { sampleIndex: 0, firstPosition: 4, tokens: [6], text: '<6>', finish: { reason } },
  ]);
  const [first, ...later] = script.requests;
  assert.equal(first.resume, undefined);
  const received = later.map(({ resume, ...rest }) => {
    assert.deepEqual(rest, first);
    assert.equal(resume.fingerprint, FINGERPRINT);
    return idsOf(resume);
  });
  assert.deepEqual(received, [
    [[1, 2, 3], [4]],
    [[1, 2, 3, 5], [4]],
  ]);
});

test('waits double until something comes, or are what the server says, and the deadline ends them', async () => {
  const away = ended(codes.UNAVAILABLE, 'DRAINING', HOUR_MS / 1000);
  const script = new Script(
    { messages: [part(0, 0, [1], FIRST)], error: OTHER },
    ...Array.from({ length: 4 }, () => ({ error: OTHER })),
    { messages: [part(0, 1, [2])], error: OTHER },
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
  assert.equal(script.requests.length, 8);
});

test('a call that is lost after the usage has ended well', async () => {
  for (const resume of [true, false]) {
    for (const lost of [DRAINING, status(codes.UNKNOWN, 'gone'), status(codes.INTERNAL, 'gone')]) {
      let stream: GenerateStream | undefined;
      let calls = 0;
      async function* generate(): AsyncGenerator<Message> {
        calls += 1;
        yield { ...part(0, 0, [1], { ...FIRST, ...END }), ...usage(1) };
        await until(() => stream?.usage !== undefined); // the error would overtake the message
        throw lost;
      }
      await withFake({ Generate: generate }, async (client) => {
        stream = client.generate('', { ...PATIENCE, resume });
        const parts: Part[] = [];
        for await (const piece of stream) parts.push(piece);
        assert.deepEqual([calls, parts.length, stream.usage?.completionTokens], [1, 1, 1]);
      });
    }
  }
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
    const script = new Script({ messages: [part(0, 0, [1], FIRST)], error: away });
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
    assert.equal(script.requests.length, 1);
  }
});

test('a reply that has begun ends with its error without resume, or without a fingerprint', async () => {
  const { seed } = FIRST;
  const step = (first: object): Step => ({ messages: [part(0, 0, [1], first)], error: DRAINING });
  await failing([{ error: OTHER }, step(FIRST)], 2, [Code.UNAVAILABLE, 'DRAINING'], { resume: false });
  await failing([{ error: OTHER }, step({ seed })], 2, [Code.UNAVAILABLE, 'DRAINING']);
  const client = new RivuletClient('127.0.0.1:1');
  const wrong = { resume: 1 as unknown as boolean };
  assert.throws(() => client.generate('', wrong), /resume: must be true or false; got 1/);
});

test('a server that begins again is found out', async () => {
  const whole = [part(0, 0, [1], FIRST), part(0, 1, [2], END), usage(2)];
  const steps = [{ messages: whole.slice(0, 1), error: OTHER }, { messages: whole }];
  const script = new Script(...steps);
  await withFake(script.handlers, async (client) => {
    const read = script.read(client.generate('', PATIENCE));
    await assert.rejects(read, /INTERNAL: sample 0: the server sent position 0 instead of 1/);
  });
  assert.deepEqual(script.tokens, [1]);
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
const sessionPart = (position: number, more: object): Message =>
  part(0, position, [position + 1], { ...FIRST, session: progress(position + 1), ...more });

test('a reply on a session goes on from the same position and hash', async () => {
  const script = new Script(
    { error: OTHER },
    { messages: [sessionPart(0, {})], error: OTHER },
    { messages: [sessionPart(1, END), usage(2)] },
  );
  const handlers = { ...script.handlers, OpenSession: () => ({ session: session(0) }) };
  await withFake(handlers, async (client, { calls }) => {
    const opened = await client.openSession(PATIENCE);
    await script.read(opened.generate([], { ...PATIENCE, mark: 'end' }));
    const { position, sequenceHash, marks } = opened;
    assert.deepEqual([position, String(sequenceHash), marks.get('end')], [2, HASHES[2], 2]);
    assert.deepEqual(Object.keys(calls).sort(), ['Generate', 'OpenSession']);
  });
  assert.deepEqual(script.tokens, [1, 2]);
  const [first, ...later] = script.requests;
  const { position, sequenceHash, mark } = first.session;
  assert.deepEqual([position, sequenceHash, mark], ['0', HASHES[0], 'end']);
  assert.equal(first.sampling.seed, undefined);
  const received = later.map(({ resume, ...rest }) => {
    assert.deepEqual(rest, first);
    return [resume.fingerprint, resume.samples && idsOf(resume)];
  });
  assert.deepEqual(received, [
    [undefined, undefined],
    [FINGERPRINT, [[1]]],
  ]);
});

test('a request that goes back is sent again without the hash of what it dropped', async () => {
  const back = part(0, 0, [1], { ...FIRST, ...END, session: progress(1) });
  const script = new Script({ error: OTHER }, { messages: [back, usage(1)] });
  const handlers = { ...script.handlers, OpenSession: () => ({ session: session(1) }) };
  await withFake(handlers, async (client) => {
    const opened = await client.openSession(PATIENCE);
    await script.read(opened.generate([], { ...PATIENCE, position: 0 }));
  });
  const sent = script.requests.map((request) => [request.session.position, request.session.sequenceHash]);
  assert.deepEqual(sent, [
    ['0', HASHES[1]],
    ['0', undefined],
  ]);
});

test('a request that goes back is the same where its reply has begun', async () => {
  const back = part(0, 0, [1], { ...FIRST, session: progress(1) });
  const script = new Script(
    { messages: [back], error: OTHER },
    { messages: [part(0, 1, [2], { ...END, session: progress(2) }), usage(2)] },
  );
  const handlers = { ...script.handlers, OpenSession: () => ({ session: session(1) }) };
  await withFake(handlers, async (client) => {
    const opened = await client.openSession(PATIENCE);
    await script.read(opened.generate([], { ...PATIENCE, position: 0 }));
  });
  const [first, again] = script.requests.map(({ resume: _, ...rest }) => rest);
  assert.deepEqual(again, first);
});

const MOVED = ended(codes.ABORTED, 'SESSION_MOVED');
test('another call of the session ends a wait, and drops what was not seen', LIMIT, async () => {
  const away = ended(codes.UNAVAILABLE, 'DRAINING', HOUR_MS / 1000);
  const script = new Script({ messages: [sessionPart(0, {})], error: away });
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
  assert.equal(script.requests.length, 1);
});

test('a session whose lost reply is refused may hold tokens that were not seen', async () => {
  const refused = ended(codes.INVALID_ARGUMENT, 'INVALID_SAMPLING');
  for (const [first, rewinds] of [[{ error: OTHER }, 1], [{ error: refused }, undefined]] as const) {
    const script = new Script(first, { error: refused });
    const handlers = {
      ...script.handlers,
      OpenSession: () => ({ session: session(0) }),
      RewindSession: () => ({ session: session(0) }),
      Append: () => ({ progress: progress(1) }),
    };
    await withFake(handlers, async (client, { calls }) => {
      const opened = await client.openSession(PATIENCE);
      const read = script.read(opened.generate([], PATIENCE));
      await assert.rejects(read, failsWith(Code.INVALID_ARGUMENT, 'INVALID_SAMPLING'));
      await opened.append([1], PATIENCE);
      assert.equal(calls['RewindSession']?.length, rewinds);
    });
  }
});

test('a session that has moved may hold tokens that were not seen', async () => {
  const script = new Script({ error: MOVED });
  const handlers = {
    ...script.handlers,
    OpenSession: () => ({ session: session(0) }),
    RewindSession: () => ({ session: session(0) }),
    Append: () => ({ progress: progress(1) }),
  };
  const run = async (client: RivuletClient, { calls }: Fake): Promise<void> => {
    const opened = await client.openSession(PATIENCE);
    const read = script.read(opened.generate([], PATIENCE));
    await assert.rejects(read, failsWith(Code.ABORTED, 'SESSION_MOVED'));
    await opened.append([1], PATIENCE);
    assert.equal(calls['RewindSession']?.length, 1);
  };
  await withFake(handlers, run, { maxAttempts: 1 });
});
