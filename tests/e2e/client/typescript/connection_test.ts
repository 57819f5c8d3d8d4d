// SPDX-License-Identifier: Apache-2.0
// The package rivulet-client against servers that fail in chosen ways, and its TLS against a
// balancer that terminates it. typescript_test.py compiles and runs this. It sets RIVULET_TARGET
// (HOST:PORT of a server), RIVULET_PROTO_DIR and RIVULET_CERTIFICATES, a folder with NAME.pem and
// NAME.key for the names server and client, both for the host NAME.test.
import { strict as assert } from 'node:assert';
import { readFileSync } from 'node:fs';
import * as net from 'node:net';
import { test } from 'node:test';
import * as tls from 'node:tls';

import { status as codes } from '@grpc/grpc-js';
import { Code, RivuletClient, RivuletError, type ClientOptions } from 'rivulet-client';

import { status, withFake, type Message } from './fake_server.js';

// No test waits this long: it ends one that hangs.
const PATIENCE = { timeoutMs: 120_000 };

function failsWith(code: Code, reason = ''): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof RivuletError, String(error));
    assert.deepEqual([Code[error.code], error.reason], [Code[code], reason]);
    return true;
  };
}

test('an error is what the server said', async () => {
  const busy = status(codes.RESOURCE_EXHAUSTED, 'the queue is full', {
    ErrorInfo: { reason: 'QUEUE_FULL', domain: 'rivulet', metadata: { queued: '8' } },
    RetryInfo: { retryDelay: { seconds: '2', nanos: 500_000_000 } },
    BadRequest: { fieldViolations: [{ field: 'prompt.tokens[3]' }, { field: 'other' }] },
    RequestInfo: { requestId: 'r-1' },
  });
  const score = (): Message => {
    throw busy;
  };
  await withFake({ Score: score }, async (client, { calls }) => {
    await assert.rejects(client.score('', PATIENCE), (error) => {
      assert.ok(error instanceof RivuletError);
      const { code, reason, field, retryAfterMs, requestId, metadata, details, message } = error;
      assert.deepEqual(
        [code, reason, field, retryAfterMs, requestId],
        [Code.RESOURCE_EXHAUSTED, 'QUEUE_FULL', 'prompt.tokens[3]', 2500, 'r-1'],
      );
      assert.deepEqual([{ ...metadata }, details], [{ queued: '8' }, 'the queue is full']);
      const where = 'QUEUE_FULL, prompt.tokens[3], request r-1';
      assert.equal(message, `RESOURCE_EXHAUSTED (${where}): the queue is full`);
      return true;
    });
    assert.equal(calls['Score']?.length, 1);
  });
});

test('cancel() ends the wait for a part that never comes', async () => {
  let calls = 0;
  async function* generate(): AsyncGenerator<Message> {
    calls += 1;
    if (calls === 1) yield { seed: '3', tokens: [1] };
    await new Promise(() => undefined);
  }
  await withFake({ Generate: generate }, async (client) => {
    const stream = client.generate('', PATIENCE);
    await stream.next();
    const waiting = assert.rejects(stream.next(), failsWith(Code.CANCELLED));
    stream.cancel();
    await waiting;
    const early = client.generate('', PATIENCE);
    const first = assert.rejects(early.next(), failsWith(Code.CANCELLED));
    early.cancel(); // before the call has begun
    await first;
  });
});

test('a count beyond 2^53 is an error, not another number', async () => {
  await withFake({ Score: () => ({ numScored: '9007199254740993' }) }, async (client) => {
    await assert.rejects(
      client.score('', PATIENCE),
      (error) => failsWith(Code.INTERNAL)(error) && /9007199254740993/.test(String(error)),
    );
  });
});

test('metadata of client and call, tenant, token and the name of the client are sent', async () => {
  const options = { bearerToken: 'abc.def', tenant: 'acme', metadata: { 'x-team': 'poets' } };
  await withFake(
    { Score: () => ({}) },
    async (client, { calls }) => {
      await client.score('', {
        ...PATIENCE,
        metadata: { 'x-more': 'yes', 'x-raw-bin': Uint8Array.of(0, 255) },
      });
      const [sent] = calls['Score']!;
      const names = ['authorization', 'rivulet-tenant', 'x-team', 'x-more', 'x-raw-bin'];
      assert.deepEqual(
        names.map((name) => sent!.get(name)),
        [['Bearer abc.def'], ['acme'], ['poets'], ['yes'], [Buffer.from([0, 255])]],
      );
      assert.match(String(sent!.get('user-agent')), /^rivulet-typescript\//);
    },
    options,
  );
});

test('drafts are as many as pay or at most a number', async () => {
  const sent: Message[] = [];
  function* generate(request: Message): Generator<Message> {
    sent.push(request.speculation);
    yield { seed: '3', tokens: [1], finish: {}, usage: { draftedTokens: '9', acceptedTokens: '7' } };
  }
  await withFake({ Generate: generate }, async (client) => {
    for (const speculation of ['off', 3, 'auto', { drafts: 0, prediction: 'a' }, { prediction: [4] }] as const) {
      const { usage } = await client.generate('', { speculation, ...PATIENCE }).collect();
      assert.deepEqual([usage.draftedTokens, usage.acceptedTokens], [9, 7]);
    }
  });
  const drafts = ({ drafts, text, tokens }: Message): Message => [drafts, text ?? tokens?.ids];
  assert.deepEqual(sent.map(drafts), [
    [0, undefined],
    [3, undefined],
    [undefined, undefined],
    [0, 'a'],
    [undefined, [4]],
  ]);
});

test('bad arguments are named before anything is sent', async () => {
  const bad: [string, () => unknown][] = [
    ['target: must be HOST:PORT', () => new RivuletClient('localhost')],
    ["got the URL 'https://host:1'", () => new RivuletClient('https://host:1')],
    ['with a port from 1 to 65535', () => new RivuletClient('host:65536')],
    ["got '::1:50051'", () => new RivuletClient('::1:50051')],
    ['maxAttempts: must be 1 to 5; got 6', () => new RivuletClient('host:1', { maxAttempts: 6 })],
    ['tenant: must be printable ASCII', () => new RivuletClient('host:1', { tenant: 'a b' })],
    ['bearerToken: must be printable ASCII', () => new RivuletClient('host:1', { bearerToken: 'secret\n' })],
    ['tls: cert and key must both', () => new RivuletClient('host:1', { tls: { cert: '-----BEGIN ' } })],
    ['tls.ca: must be PEM', () => new RivuletClient('host:1', { tls: { ca: 'ca.pem' } })],
    [
      'tls: ca, cert or key is not valid',
      () => new RivuletClient('host:1', { tls: { cert: '-----BEGIN ', key: '-----BEGIN ' } }),
    ],
    ["there is no option 'tsl'", () => new RivuletClient('host:1', { tsl: {} } as ClientOptions)],
  ];
  const client = new RivuletClient('127.0.0.1:1');
  const asked =
    (options: object): (() => unknown) =>
    () =>
      client.generate('', options);
  bad.push(
    ["generate: there is no option 'maxToken'", asked({ maxToken: 1 })],
    ['maxTokens: must be an integer; got 1.5', asked({ maxTokens: 1.5 })],
    ['topK: must be -2147483648 to 2147483647; got 4294967296', asked({ topK: 2 ** 32 })],
    ['temperature: must be a number', asked({ temperature: '1' })],
    ['temperature: must fit a float of 32 bits; got 1e+39', asked({ temperature: 1e39 })],
    ['seed: must be 0 to 2^64 - 1; got -1', asked({ seed: -1n })],
    ['seed: must be 0 to 9007199254740991', asked({ seed: 2 ** 53 })],
    ['stop[1]: must be a string; got 2', asked({ stop: ['a', 2] })],
    ['stop[0]: must be text that UTF-8 can encode', asked({ stop: '\ud800' })],
    ['priority: must be low, normal or high; got urgent', asked({ priority: 'urgent' })],
    ['logitBias[x]: must be an integer', asked({ logitBias: { x: 1 } })],
    ["cache: there is no option 'salz'", asked({ cache: { salz: '' } })],
    ["speculation: must be 'auto', 'off' or an integer; got fast", asked({ speculation: 'fast' })],
    ['speculation: must be an integer; got 1.5', asked({ speculation: 1.5 })],
    ['speculation.prediction[0]: must be an integer', asked({ speculation: { prediction: ['a'] } })],
    ['timeoutMs: must be milliseconds above 0; got 0', asked({ timeoutMs: 0 })],
    ['signal: must be an AbortSignal', asked({ signal: {} })],
    ['resume: must be true or false; got 1', asked({ resume: 1 })],
    ['metadata: a key must be of 0-9', asked({ metadata: { 'X-Team': 'a' } })],
    ['metadata.x-raw-bin: must be a Uint8Array', asked({ metadata: { 'x-raw-bin': 'a' } })],
    ['prompt: must be an array', () => client.generate({} as string)],
    ['prompt[1]: must be an integer; got 0.5', () => client.generate([1, 0.5])],
  );
  for (const [said, call] of bad) {
    assert.throws(call, (error) => {
      assert.ok(error instanceof TypeError || error instanceof RangeError, String(error));
      assert.ok(error.message.includes(said), `${error.message} does not say ${said}`);
      assert.ok(!error.message.includes('secret'));
      return true;
    });
  }
  await assert.rejects(
    client.score(Uint8Array.of(1) as unknown as number[]),
    /content: must be a string or an array/,
  );
});

test('a peer that hangs up is UNAVAILABLE, and waitForReady waits for another', async () => {
  const deaf = net.createServer((socket) => socket.destroy());
  await new Promise<void>((done) => deaf.listen(0, '127.0.0.1', done));
  deaf.unref(); // a failed test ends, too
  const target = `127.0.0.1:${(deaf.address() as net.AddressInfo).port}`;
  for (const waitForReady of [false, true]) {
    const client = new RivuletClient(target, { maxAttempts: 1, waitForReady });
    const code = waitForReady ? Code.DEADLINE_EXCEEDED : Code.UNAVAILABLE;
    await assert.rejects(client.models(waitForReady ? { timeoutMs: 500 } : PATIENCE), failsWith(code));
    client.close();
  }
  deaf.close();
});

// A balancer: TLS on its side of the clients, plaintext to the server.
async function balancer(options: tls.TlsOptions): Promise<{ target: string; close(): void }> {
  const [host, port] = process.env['RIVULET_TARGET']!.split(':');
  const open = new Set<net.Socket>();
  const server = tls.createServer({ ALPNProtocols: ['h2'], ...options }, (socket) => {
    const onward = net.connect(Number(port), host!);
    for (const [one, other] of [
      [socket, onward],
      [onward, socket],
    ] as const) {
      open.add(one);
      one.pipe(other);
      one.on('error', () => other.destroy());
    }
  });
  server.on('tlsClientError', () => undefined);
  await new Promise<void>((done) => server.listen(0, 'localhost', done));
  const close = (): void => {
    server.close();
    for (const socket of open) socket.destroy();
  };
  return { target: `localhost:${(server.address() as net.AddressInfo).port}`, close };
}

test('TLS: the roots decide, the name must fit, and a client shows its certificate', async () => {
  const pem = (name: string): Buffer => readFileSync(`${process.env['RIVULET_CERTIFICATES']!}/${name}`);
  const own = { cert: pem('server.pem'), key: pem('server.key') };
  const trusted = { ca: pem('server.pem'), serverName: 'server.test' };
  const client = { cert: pem('client.pem'), key: pem('client.key') };
  const plain = await balancer(own);
  const mutual = await balancer({
    ...own,
    ca: pem('client.pem'),
    requestCert: true,
    rejectUnauthorized: true,
  });
  const models = async (target: string, options: ClientOptions): Promise<number> => {
    const one = new RivuletClient(target, { maxAttempts: 1, ...options });
    try {
      return (await one.models(PATIENCE)).length;
    } finally {
      one.close();
    }
  };
  try {
    assert.equal(await models(plain.target, { tls: trusted, bearerToken: 'abc' }), 2);
    assert.equal(await models(plain.target, { tls: { ...trusted, ca: trusted.ca.toString() } }), 2);
    assert.equal(await models(mutual.target, { tls: { ...trusted, ...client } }), 2);
    const refused: [string, ClientOptions][] = [
      [plain.target, {}],
      [plain.target, { tls: {} }],
      [plain.target, { tls: { ...trusted, ca: pem('client.pem') } }],
      [plain.target, { tls: { ca: trusted.ca } }],
      [mutual.target, { tls: trusted }],
    ];
    for (const [target, options] of refused)
      await assert.rejects(models(target, options), failsWith(Code.UNAVAILABLE));
  } finally {
    plain.close();
    mutual.close();
  }
});
