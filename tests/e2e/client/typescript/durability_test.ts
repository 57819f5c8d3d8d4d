// SPDX-License-Identifier: Apache-2.0
// What the client makes of the durability of a session: it is told, and what was not durable and is
// lost is given again. typescript_test.py compiles and runs this. It sets RIVULET_PROTO_DIR.
import { strict as assert } from 'node:assert';
import { test } from 'node:test';

import { status as codes } from '@grpc/grpc-js';
import { Code, RivuletError, type Durability, type Session } from 'rivulet-client';

import { status, withFake, type Handlers, type Message } from './fake_server.js';

const ID = '0123456789abcdef'.repeat(2);
const TEXT = [1, 2]; // the tokens of any text
const NOT_DURABLE = { durable: false, position: 1 };

/** What session.proto says. */
function fnv1a(tokens: number[]): string {
  const bytes = new Uint8Array(Int32Array.from(tokens).buffer);
  const step = (hash: bigint, byte: number): bigint =>
    BigInt.asUintN(64, (hash ^ BigInt(byte)) * 0x100000001b3n);
  return bytes.reduce(step, 0xcbf29ce484222325n).toString();
}

function fail(code: codes, reason: string): never {
  throw status(code, 'said by the server', { ErrorInfo: { reason, domain: 'rivulet' } });
}

/** Holds one session. Every token that it draws is the one before it and one. */
class Replica {
  tokens: number[] = [];
  marks: Record<string, number> = {};
  /** Called after the next drawn token, to end the call. */
  cut: (() => Promise<never>) | undefined;
  readonly handlers: Handlers;
  append: (request: Message) => Message;

  /** `durability`: what it says of each request. */
  constructor(durability: Durability | undefined) {
    const self = this;
    this.append = ({ session, content, tokens }) => {
      this.check(session.position, session.sequenceHash);
      this.take(session, content, tokens);
      this.mark(session.mark);
      return { progress: this.progress(), durability };
    };
    this.handlers = {
      OpenSession: () => ({ session: this.session() }),
      GetSession: () => ({ session: this.session() }),
      Append: (request) => this.append(request),
      ForkSession: ({ session }) => {
        this.check(session.position, session.sequenceHash);
        return { sessions: [this.session()] };
      },
      RewindSession: ({ position, mark }) => {
        if (mark !== undefined && !(mark in this.marks)) fail(codes.NOT_FOUND, 'MARK_NOT_FOUND');
        this.check(position ?? this.marks[mark]);
        this.lose(Number(position ?? this.marks[mark]));
        return { session: this.session() };
      },
      async *Generate({ session, prompt, tokens, resume, maxTokens }) {
        const came = resume?.samples?.[0]?.ids ?? [];
        self.check(session.position, came.length > 0 ? undefined : session.sequenceHash);
        self.take(session, prompt, tokens);
        self.tokens.push(...came);
        for (let index = came.length; index < Number(maxTokens); ++index) {
          const token = self.tokens.at(-1)! + 1;
          self.tokens.push(token);
          const message = { firstPosition: String(index), tokens: [token], seed: '7', fingerprint: '11' };
          yield { ...message, session: self.progress() };
          const { cut } = self;
          self.cut = undefined;
          await cut?.();
        }
        self.mark(session.mark);
        const finish = { reason: 'FINISH_REASON_LENGTH' };
        yield { firstPosition: maxTokens, finish, session: self.progress(), usage: {}, durability };
      },
    };
  }

  progress(): Message {
    return { position: String(this.tokens.length), sequenceHash: fnv1a(this.tokens) };
  }

  session(): Message {
    return { sessionId: ID, model: 'm', progress: this.progress(), seed: '7', marks: this.marks };
  }

  /** What comes after the position. */
  lose(position: number): void {
    this.tokens.length = position;
    this.marks = Object.fromEntries(Object.entries(this.marks).filter(([, at]) => at <= position));
  }

  check(position: string, hash?: string): void {
    if (hash !== undefined && hash !== fnv1a(this.tokens))
      fail(codes.FAILED_PRECONDITION, 'SESSION_HASH_MISMATCH');
    if (Number(position) > this.tokens.length) fail(codes.OUT_OF_RANGE, 'POSITION_OUT_OF_RANGE');
  }

  take(session: Message, kind: string, tokens: Message): void {
    this.lose(Number(session.position));
    this.tokens.push(...(kind === 'text' ? TEXT : (tokens?.ids ?? [])));
  }

  mark(name: string | undefined): void {
    if (name) this.marks[name] = this.tokens.length;
  }
}

/** Runs `body` with an empty session on a replica. */
async function withSession(
  durability: Durability | undefined,
  body: (session: Session, replica: Replica) => Promise<void>,
): Promise<void> {
  const replica = new Replica(durability);
  await withFake(replica.handlers, async (client) => body(await client.openSession(), replica));
}

/** [1, 2 | given 3 | 4, 5 | text 1, 2 | 3, 4], with marks. */
async function fill(session: Session): Promise<void> {
  await session.generate([1], { maxTokens: 1, mark: 'reply' }).collect();
  await session.append([3], { mark: 'given' });
  await session.generate([], { maxTokens: 2 }).collect();
  await session.append('ab', { mark: 'text' });
  await session.generate([], { maxTokens: 2 }).collect();
  assert.equal(session.position, 9);
}

test('the durability of a reply and of an append is told', async () => {
  for (const durability of [NOT_DURABLE, { durable: true, position: 3, otherNumericsId: 'cpu' }, undefined]) {
    await withSession(durability, async (session) => {
      const stream = session.generate([1], { maxTokens: 1 });
      assert.equal(stream.durability, undefined);
      assert.deepEqual((await stream.collect()).durability, durability);
      assert.deepEqual(stream.durability, durability);
      assert.deepEqual((await session.append([3])).durability, durability);
    });
  }
});

test('every call gives again what is lost', async () => {
  const whole = [1, 2, 3, 4, 5, 1, 2, 3, 4];
  const calls: [(session: Session) => Promise<unknown>, number[]][] = [
    [(session) => session.generate([8], { maxTokens: 1 }).collect(), [...whole, 8, 9]],
    [(session) => session.append([8]), [...whole, 8]],
    [(session) => session.fork(), whole],
    [(session) => session.rewind({ position: 8 }), whole.slice(0, 8)],
    [(session) => session.rewind({ mark: 'text' }), whole.slice(0, 7)],
    // What is given again is given, so it goes no further than where the reply begins.
    [(session) => session.generate([], { maxTokens: 1, position: 8 }).collect(), [...whole.slice(0, 8), 4]],
  ];
  for (const [call, expected] of calls) {
    // The durable position, and where more was written before the replica was lost.
    for (const found of [1, 2, 4, 5, 7]) {
      await withSession(NOT_DURABLE, async (session, replica) => {
        await fill(session);
        replica.lose(found);
        await call(session);
        assert.deepEqual(replica.tokens, expected, `${call}, found at ${found}`);
        assert.deepEqual(replica.marks, { reply: 2, given: 3, text: 7 });
        assert.deepEqual([session.position, session.sequenceHash], [expected.length, BigInt(fnv1a(expected))]);
      });
    }
  }
});

test('a lost reply continues where what came before it is lost, too', async () => {
  await withSession(NOT_DURABLE, async (session, replica) => {
    await session.append([1, 2, 3]);
    let taken = (): void => undefined;
    const first = new Promise<void>((done) => (taken = done));
    replica.cut = async () => {
      await first; // grpc-js gives out an error before the parts that wait
      replica.lose(1);
      throw status(codes.UNAVAILABLE, 'cut');
    };
    const tokens: number[] = [];
    for await (const part of session.generate([5], { maxTokens: 3 })) {
      tokens.push(...part.tokens);
      taken();
    }
    assert.deepEqual(tokens, [6, 7, 8]);
    assert.deepEqual(replica.tokens, [1, 2, 3, 5, 6, 7, 8]);
  });
});

test('other sessions are left as they are', async () => {
  const cases: [string, (replica: Replica) => unknown, Durability | undefined][] = [
    ['cut within a text', (replica) => replica.lose(6), NOT_DURABLE],
    ['continued by another', (replica) => replica.tokens.push(30), NOT_DURABLE],
    ['rewound and continued by another', (replica) => replica.tokens.splice(3, 9, 30), NOT_DURABLE],
    ['lost though it was durable', (replica) => replica.lose(3), { durable: true, position: 99 }],
    ['without a store', (replica) => replica.lose(3), undefined],
  ];
  for (const [name, change, durability] of cases) {
    await withSession(durability, async (session, replica) => {
      await fill(session);
      change(replica);
      const found = [...replica.tokens];
      await assert.rejects(session.append([8]), (error) => {
        assert.ok(error instanceof RivuletError, name);
        assert.deepEqual([error.code, error.reason], [Code.FAILED_PRECONDITION, 'SESSION_HASH_MISMATCH'], name);
        return true;
      });
      assert.deepEqual(replica.tokens, found, name);
    });
  }
});

test('tokens that the server takes otherwise are DATA_LOSS, and are given again once', async () => {
  for (const [hash, code] of [
    ['5', Code.DATA_LOSS],
    [fnv1a([1, 2, 1, 2]), Code.FAILED_PRECONDITION],
  ] as const) {
    await withSession(NOT_DURABLE, async (session, replica) => {
      await session.append([1, 2]);
      await session.append('ab');
      replica.lose(2);
      let appends = 0;
      replica.append = () => {
        appends += 1;
        return { progress: { position: '4', sequenceHash: hash } };
      };
      await assert.rejects(session.generate([], { maxTokens: 1 }).collect(), { code });
      assert.equal(appends, 1);
    });
  }
});
