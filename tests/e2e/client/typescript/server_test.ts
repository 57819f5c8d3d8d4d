// SPDX-License-Identifier: Apache-2.0
// The package rivulet-client against a server. typescript_test.py compiles and runs this. It sets
// RIVULET_TARGET (HOST:PORT) and RIVULET_DIGITS, a JSON file {"seed": "decimal",
// "digits": [[pixel...]...]} of what the server must draw.
import { strict as assert } from 'node:assert';
import { readFileSync } from 'node:fs';
import { after, test } from 'node:test';

import { Code, RivuletClient, RivuletError, type Part, type Session } from 'rivulet-client';

const expected: { seed: string; digits: number[][] } = JSON.parse(
  readFileSync(process.env['RIVULET_DIGITS']!, 'utf8'),
);
const target = process.env['RIVULET_TARGET']!;
const client = new RivuletClient(target);

const TEXT = 'shakespeare-rfa';
const IMAGES = 'mnist-linear';
const PATIENCE = { timeoutMs: 120_000 };
// A reply that would go on for many minutes.
const ENDLESS = { model: TEXT, maxTokens: 1_000_000, seed: 1 };

function failsWith(code: Code, reason: string, field = ''): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof RivuletError, String(error));
    assert.deepEqual([Code[error.code], error.reason, error.field], [Code[code], reason, field]);
    for (const said of [Code[code], reason, field, error.details])
      assert.ok(error.message.includes(said), error.message);
    return true;
  };
}

async function slotsUsed(): Promise<number> {
  const { models } = await client.load(TEXT, PATIENCE);
  return models[0]!.slotsUsed;
}

async function waitForSlots(wanted: number): Promise<void> {
  let used = -1;
  for (let i = 0; i < 1200; i += 1) {
    used = await slotsUsed();
    if (used === wanted) return;
    await new Promise((done) => setTimeout(done, 50));
  }
  assert.fail(`${used} slots in use after 60 s, ${wanted} expected`);
}

const opened: Session[] = [];
async function open(model: string, seed?: bigint): Promise<Session> {
  const session = await client.openSession({ model, seed, ...PATIENCE });
  opened.push(session);
  return session;
}
after(async () => {
  for (const session of opened) await session.close(PATIENCE);
  client.close();
});

test('digits arrive pixel by pixel, with a seed of 64 bits', async () => {
  const seed = BigInt(expected.seed);
  const digits = expected.digits.map((): number[] => []);
  const stream = client.generate([], { model: IMAGES, seed, numSamples: digits.length, ...PATIENCE });
  let messages = 0;
  for await (const part of stream) {
    const digit = digits[part.sampleIndex]!;
    if (part.tokens.length > 0) assert.equal(part.firstPosition, digit.length);
    digit.push(...part.tokens);
    messages += 1;
  }
  assert.deepEqual(digits, expected.digits);
  assert.equal(stream.seed, seed);
  assert.equal(stream.usage?.completionTokens, digits.flat().length);
  assert.ok(stream.usage.totalMs >= stream.usage.firstTokenMs && stream.usage.firstTokenMs > 0);
  assert.ok(messages > digits.length, 'nothing was streamed');
});

test('an image continues from given values', async () => {
  const rows = Uint8Array.from(expected.digits[0]!.slice(0, 28 * 14));
  const reply = await client.generate(rows, { model: IMAGES, seed: 1, ...PATIENCE }).collect();
  assert.equal(reply.usage.promptTokens, rows.length);
  assert.equal(reply.tokens.length, 28 * 28 - rows.length);
  const same = await client.generate(Array.from(rows), { model: IMAGES, seed: 1, ...PATIENCE }).collect();
  assert.deepEqual(same.tokens, reply.tokens);
});

test('the whole reply is the sum of its parts, and a seed gives it again', async () => {
  const options = {
    model: TEXT,
    maxTokens: 40,
    temperature: 0.8,
    numSamples: 2,
    logprobs: true,
    topLogprobs: 3,
    ...PATIENCE,
  };
  const reply = await client.generate('ROMEO:', options).collect();
  assert.equal(reply.samples.length, 2);
  for (const sample of reply.samples) {
    assert.equal(sample.tokens.length, 40);
    assert.equal(sample.text.length, 40);
    assert.equal(sample.logprobs?.length, 40);
    assert.equal(sample.topLogprobs?.length, 40);
    for (const top of sample.topLogprobs) assert.equal(top.tokenIds.length, 3);
    assert.deepEqual(sample.finish, { reason: 'length' });
  }
  const parts: Part[] = [];
  const again = client.generate('ROMEO:', { ...options, seed: reply.seed });
  for await (const part of again) parts.push(part);
  for (const [index, { tokens, text }] of reply.samples.entries()) {
    const own = parts.filter(({ sampleIndex }) => sampleIndex === index);
    assert.deepEqual(
      own.flatMap((part) => part.tokens),
      tokens,
    );
    assert.equal(own.map((part) => part.text).join(''), text);
  }
  await assert.rejects(again.collect(), /before any part is taken/);
});

test('a stop string ends a reply and is named', async () => {
  const whole = await client
    .generate('ROMEO:', { model: TEXT, maxTokens: 60, seed: 5, ...PATIENCE })
    .collect();
  const stop = whole.text.slice(20, 24);
  const cut = await client
    .generate('ROMEO:', { model: TEXT, maxTokens: 60, seed: 5, stop, ...PATIENCE })
    .collect();
  assert.equal(cut.text, whole.text.slice(0, whole.text.indexOf(stop)));
  assert.deepEqual(cut.samples[0]!.finish, { reason: 'stop_string', stopString: stop });
});

test('options change what is drawn', async () => {
  const draw = async (options: object): Promise<string> =>
    (
      await client
        .generate('ROMEO:', { model: TEXT, maxTokens: 30, seed: 3, ...PATIENCE, ...options })
        .collect()
    ).text;
  const plain = await draw({});
  const greedy = await draw({ temperature: 0 });
  assert.notEqual(plain, greedy);
  for (const options of [{ topK: 1 }, { topP: 1e-6 }, { minP: 1 }]) assert.equal(await draw(options), greedy);
  const first = (
    await client.generate('ROMEO:', { model: TEXT, maxTokens: 1, temperature: 0, ...PATIENCE }).collect()
  ).tokens[0]!;
  assert.notEqual(await draw({ temperature: 0, logitBias: { [first]: -100 } }), greedy);
  assert.notEqual(await draw({ temperature: 0, repetitionPenalty: 10 }), greedy);
  assert.notEqual(await draw({ temperature: 0, frequencyPenalty: 2 }), greedy);
  assert.notEqual(await draw({ temperature: 0, presencePenalty: 2 }), greedy);
  const stopped = await client
    .generate('ROMEO:', { model: TEXT, temperature: 0, stopTokenIds: [first], ...PATIENCE })
    .collect();
  assert.deepEqual(stopped.samples[0]!.finish, { reason: 'stop_token', stopTokenId: first });
});

test('a cached prompt gives the same tokens', async () => {
  const prompt = 'Verona. A public place. Enter SAMPSON and GREGORY. SAMPSON:';
  const options = { model: TEXT, maxTokens: 20, seed: 1, ...PATIENCE };
  const plain = await client.generate(prompt, options).collect();
  const cache = { salt: 'typescript', positions: [23] };
  await client.generate(prompt, { ...options, cache }).collect();
  const cached = await client.generate(prompt, { ...options, cache, priority: 'high' }).collect();
  assert.equal(cached.text, plain.text);
  assert.ok(cached.usage.cachedPromptTokens > 0);
});

test('score says how likely a text is', async () => {
  const score = await client.score('To be, or not to be', {
    model: TEXT,
    logprobs: true,
    outputPositions: [0, 2],
    ...PATIENCE,
  });
  assert.equal(score.logprobs.length, score.numScored);
  const sum = score.logprobs.reduce((total, logprob) => total - logprob, 0);
  assert.ok(Math.abs(sum - score.nllNats) < 1e-3 * score.nllNats, `${sum} ${score.nllNats}`);
  const { architecture } = await client.model(TEXT, PATIENCE);
  assert.deepEqual(
    score.outputs.map(({ length }) => length),
    [architecture?.vocabSize, architecture?.vocabSize],
  );
  const windows = await client.score('To be, or not to be', {
    model: TEXT,
    window: 5,
    priority: 'low',
    ...PATIENCE,
  });
  assert.notEqual(windows.nllNats, score.nllNats);
  const bare = await client.score(new Int32Array([1, 2, 3]), { model: TEXT, ...PATIENCE });
  assert.deepEqual([bare.logprobs, bare.outputs], [[], []]);
});

test('models and load are numbers', async () => {
  assert.deepEqual(
    (await client.models(PATIENCE)).map(({ name }) => name),
    [IMAGES, TEXT],
  );
  const { summary, limits, content } = await client.model(IMAGES, PATIENCE);
  assert.ok(summary && summary.numParameters > 1e6 && summary.stateBytes > 0);
  assert.equal(limits?.maxTokens, 1048576);
  assert.deepEqual(content?.kind, { $case: 'image', value: { height: 28, width: 28, channels: 1 } });
  const { models, server } = await client.load('', PATIENCE);
  assert.deepEqual(
    models.map(({ model }) => model),
    [IMAGES, TEXT],
  );
  assert.equal(models[0]!.oldestWaitMs, 0);
  assert.ok(server && server.connections >= 1);
});

test('leaving the loop frees the slot', async () => {
  await waitForSlots(0);
  let inUse = 0;
  for await (const _ of client.generate('ROMEO:', { ...ENDLESS, ...PATIENCE })) {
    inUse = await slotsUsed();
    break;
  }
  assert.equal(inUse, 1);
  await waitForSlots(0);
});

test('an AbortSignal ends the call, with its reason as the cause', async () => {
  const controller = new AbortController();
  const why = new Error('the reader went away');
  let parts = 0;
  await assert.rejects(
    async () => {
      for await (const _ of client.generate('ROMEO:', {
        ...ENDLESS,
        ...PATIENCE,
        signal: controller.signal,
      })) {
        parts += 1;
        controller.abort(why);
      }
    },
    (error) => failsWith(Code.CANCELLED, '')(error) && (error as Error).cause === why,
  );
  assert.ok(parts > 0);
  await waitForSlots(0);
  const { signal } = controller;
  await assert.rejects(client.models({ signal }), failsWith(Code.CANCELLED, ''));
});

test('cancel() ends a loop with CANCELLED', async () => {
  const stream = client.generate('ROMEO:', { ...ENDLESS, ...PATIENCE });
  await assert.rejects(
    async () => {
      for await (const _ of stream) stream.cancel();
    },
    failsWith(Code.CANCELLED, ''),
  );
  await waitForSlots(0);
});

test('a deadline ends the reply with DEADLINE_EXCEEDED and frees the slot', async () => {
  await assert.rejects(client.generate('ROMEO:', { ...ENDLESS, timeoutMs: 1000 }).collect(), (error) => {
    assert.ok(error instanceof RivuletError);
    assert.equal(error.code, Code.DEADLINE_EXCEEDED);
    assert.match(error.message, /within its timeout of 1000 ms/);
    return true;
  });
  await waitForSlots(0);
});

test('close() ends running calls, and later calls throw', async () => {
  const other = new RivuletClient(target);
  await assert.rejects(
    async () => {
      for await (const _ of other.generate('ROMEO:', { ...ENDLESS, ...PATIENCE })) other.close();
    },
    failsWith(Code.CANCELLED, ''),
  );
  await assert.rejects(other.models(), /the client is closed/);
  await waitForSlots(0);
});

test('an error says why, and which field', async () => {
  const bad = client.generate([], { model: IMAGES, topP: 2, ...PATIENCE });
  await assert.rejects(bad.collect(), failsWith(Code.INVALID_ARGUMENT, 'INVALID_SAMPLING', 'sampling.top_p'));
  const unknown = client.score('A', { model: 'nobody', ...PATIENCE });
  await assert.rejects(unknown, failsWith(Code.NOT_FOUND, 'MODEL_NOT_FOUND', 'model'));
  const token = client.score([1, 100_000], { model: TEXT, ...PATIENCE });
  await assert.rejects(token, failsWith(Code.INVALID_ARGUMENT, 'TOKEN_OUT_OF_RANGE', 'content.tokens[1]'));
});

test('a request that is too large is not sent', async () => {
  const own = new RivuletClient(target);
  const { limits } = await own.model(TEXT, PATIENCE);
  assert.equal(Number(limits?.maxMessageBytes), 4 << 20);
  const large = 'A'.repeat(4 << 20);
  const refused = failsWith(Code.INVALID_ARGUMENT, 'MESSAGE_TOO_LARGE');
  await assert.rejects(own.score(large, { model: TEXT, ...PATIENCE }), refused);
  await assert.rejects(own.generate(large, { model: TEXT, ...PATIENCE }).collect(), refused);
  own.close();
});

test('a session continues, forks and rewinds', async () => {
  const session = await open(TEXT, 7n);
  assert.equal(session.seed, 7n);
  const { numScored } = await session.append('ROMEO:', { mark: 'prompt', logprobs: true, ...PATIENCE });
  // The model has no bos: nothing predicts the first character.
  assert.deepEqual([numScored, session.position, session.marks.get('prompt')], [5, 6, 6]);
  const stream = session.generate([], { maxTokens: 30, mark: 'end', ...PATIENCE });
  let text = '';
  for await (const part of stream) {
    text += part.text;
    if (part.tokens.length > 0) assert.equal(part.sessionPosition, session.position);
  }
  assert.deepEqual([text.length, session.position, session.marks.get('end')], [30, 36, 36]);

  const options = { maxTokens: 20, ...PATIENCE };
  const forks = await session.fork({ count: 2, seed: 9, ...PATIENCE });
  opened.push(...forks);
  assert.deepEqual(
    forks.map(({ seed, position }) => [seed, position]),
    [
      [9n, 36],
      [10n, 36],
    ],
  );
  const texts = await Promise.all(
    forks.map(async (fork) => (await fork.generate([], options).collect()).text),
  );
  assert.notEqual(texts[0], texts[1]);
  assert.equal(session.position, 36);
  assert.equal((await session.generate([], { ...options, seed: 9 }).collect()).text, texts[0]);

  await session.rewind({ mark: 'prompt', ...PATIENCE });
  assert.deepEqual([session.position, [...session.marks.keys()]], [6, ['prompt']]);
  assert.equal((await session.generate([], { maxTokens: 30, ...PATIENCE }).collect()).text, text);
  assert.equal(
    (await session.generate([], { maxTokens: 24, position: 12, ...PATIENCE }).collect()).text,
    text.slice(6),
  );
  await session.rewind({ position: 36, ...PATIENCE });
});

test('a session continues after the last part that was taken', async () => {
  const session = await open(TEXT, 3n);
  await session.append('JULIET:', PATIENCE);
  const whole = (await session.generate([], { maxTokens: 60, ...PATIENCE }).collect()).text;
  await session.rewind({ position: 7, ...PATIENCE });
  let text = '';
  for await (const part of session.generate([], { ...PATIENCE, maxTokens: 60 })) {
    text += part.text;
    if (text.length >= 10) break;
  }
  assert.equal(session.position, 7 + text.length);
  text += (await session.generate([], { maxTokens: 60 - text.length, ...PATIENCE }).collect()).text;
  assert.equal(text, whole);
});

test('a call ends a reply that still runs', async () => {
  const session = await open(TEXT, 3n);
  const running = session.generate('JULIET:', { ...PATIENCE, maxTokens: 1_000_000 });
  const first = await running.next();
  const position = session.position;
  assert.equal(position, 7 + first.value!.tokens.length);
  await session.append('A', PATIENCE);
  assert.equal(session.position, position + 1);
  await assert.rejects(running.next(), failsWith(Code.CANCELLED, ''));
});

test('calls of a session take effect in order, without waiting for each', async () => {
  const session = await open(TEXT, 1n);
  await Promise.all([...'ROMEO:'].map((letter) => session.append(letter, PATIENCE)));
  assert.equal(session.position, 6);
  const other = await open(TEXT, 1n);
  await other.append('ROMEO:', PATIENCE);
  assert.equal(session.sequenceHash, other.sequenceHash);
});

test('given tokens are checked against the hash of the server', async () => {
  const session = await open(IMAGES, 1n);
  await session.append(Uint8Array.from(expected.digits[0]!.slice(0, 100)), PATIENCE);
  await session.append(expected.digits[0]!.slice(100, 200), PATIENCE);
  await session
    .generate(new Int32Array(expected.digits[0]!.slice(200, 300)), { maxTokens: 50, ...PATIENCE })
    .collect();
  assert.equal(session.position, 350);
});

test('a snapshot outlives its session', async () => {
  const session = await open(TEXT, 5n);
  await session.append('ROMEO:', { mark: 'prompt', ...PATIENCE });
  const snapshot = await session.snapshot(PATIENCE);
  const whole = (await session.generate([], { maxTokens: 20, ...PATIENCE }).collect()).text;
  const early = await session.snapshot({ position: 3, ...PATIENCE });
  await session.close(PATIENCE);
  const restored = await client.restoreSession(snapshot, { model: TEXT, idleTimeoutMs: 90_500, ...PATIENCE });
  opened.push(restored);
  assert.deepEqual([restored.position, restored.sameNumerics, restored.idleTimeoutMs], [6, true, 90_500]);
  assert.equal(restored.marks.get('prompt'), 6);
  assert.equal((await restored.generate([], { maxTokens: 20, ...PATIENCE }).collect()).text, whole);
  const other = await client.restoreSession(early, { model: TEXT, ...PATIENCE });
  opened.push(other);
  assert.equal(other.position, 3);
  snapshot[snapshot.length >> 1]! ^= 1;
  const damaged = client.restoreSession(snapshot, { model: TEXT, ...PATIENCE });
  await assert.rejects(damaged, failsWith(Code.DATA_LOSS, 'SNAPSHOT_DAMAGED', 'chunk'));
});

test('a session is listed, found by its id, and gone once it is closed', async () => {
  const session = await open(TEXT);
  await session.append('ROMEO:', PATIENCE);
  const listed = (await client.sessions({ model: TEXT, ...PATIENCE })).find(({ id }) => id === session.id);
  assert.deepEqual(
    [listed?.position, listed?.sequenceHash, listed?.seed],
    [6, session.sequenceHash, session.seed],
  );
  const same = await client.session(session.id, { model: TEXT, ...PATIENCE });
  assert.deepEqual([same.position, same.sequenceHash], [6, session.sequenceHash]);
  await same.append('A', PATIENCE);
  const late = session.append('B', PATIENCE);
  await assert.rejects(
    late,
    failsWith(Code.FAILED_PRECONDITION, 'SESSION_HASH_MISMATCH', 'session.sequence_hash'),
  );
  await same.close(PATIENCE);
  await session.close(PATIENCE);
  await assert.rejects(
    same.append('A', PATIENCE),
    failsWith(Code.NOT_FOUND, 'SESSION_NOT_FOUND', 'session.session_id'),
  );
});
