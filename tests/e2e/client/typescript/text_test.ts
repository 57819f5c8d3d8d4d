// SPDX-License-Identifier: Apache-2.0
// Texts and tokens of models with a tokenizer. typescript_test.py compiles and runs this. It sets
// RIVULET_TARGET (HOST:PORT) to a server with the models "text", whose tokenizer is that of
// text_models.py, and "plain", which has none.
import { strict as assert } from 'node:assert';
import { after, test } from 'node:test';

import { Code, RivuletClient, RivuletError } from 'rivulet-client';

const client = new RivuletClient(process.env['RIVULET_TARGET']!);
after(() => client.close());

const TEXT = { model: 'text', timeoutMs: 120_000 };
// Ids of "<s>", with which a text begins, "<end>", "<name>", and of pieces.
const START = 30;
const END = 31;
const NAME = 32;
const [A, THE, SPACE, AND, BYTE_C3, E_ACUTE] = [0, 16, 8, 21, 11, 25];

function refuses(code: Code, reason: string, field: string): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof RivuletError, String(error));
    assert.deepEqual([Code[error.code], error.reason, error.field], [Code[code], reason, field]);
    return true;
  };
}

test('a text becomes tokens with the bytes that they stand for', async () => {
  const { ids, begins, ends } = await client.tokenize('the é<end>', TEXT);
  assert.deepEqual(ids, [START, THE, SPACE, E_ACUTE, END]);
  assert.deepEqual(begins, [0, 0, 3, 4, 6]);
  assert.deepEqual(ends, [0, 3, 4, 6, 11]);
  assert.deepEqual((await client.tokenize('the', { ...TEXT, addSpecialTokens: false })).ids, [THE]);
  // As text it needs a "<", which the vocabulary does not have.
  const spelt = client.tokenize('<end>', { ...TEXT, parseSpecialTokens: false });
  await assert.rejects(spelt, refuses(Code.INVALID_ARGUMENT, 'TEXT_NOT_IN_VOCABULARY', 'text'));
});

test('tokens become a text, and the bytes that are none', async () => {
  const all = await client.detokenize(Int32Array.of(START, A, BYTE_C3, NAME), TEXT);
  assert.equal(all.text, '<s>a\ufffd<name>');
  const { text, rawBytes } = await client.detokenize([START, A, BYTE_C3, NAME], {
    ...TEXT,
    skipSpecialTokens: true,
  });
  assert.equal(text, 'a\ufffd<name>');
  assert.deepEqual(Buffer.from(rawBytes), Buffer.from('a\xc3<name>', 'latin1'));
});

test('a constraint says what the text is', async () => {
  const ask = (constraint: object, prompt: number[] = [START, THE]) =>
    client.generate(prompt, { ...TEXT, maxTokens: 20, seed: 3, constraint }).collect();
  const chosen = await ask({ choices: ['the and', 'the the'] });
  assert.ok(['the and', 'the the'].includes(chosen.text), chosen.text);
  assert.equal(chosen.samples[0]?.finish?.reason, 'constraint');
  assert.equal((await ask({ regex: 'a{3}' })).text, 'aaa');
  // The text began behind START, and its end is missing.
  assert.equal((await ask({ choices: ['the and'], beginPosition: 1 })).text, ' and');
  // It begins behind the prompt's "and".
  assert.equal((await ask({ choices: ['aa'], after: ['the', 'and'] }, [START, AND])).text, 'aa');
  const structuralTag = { type: 'structural_tag', format: { type: 'const_string', value: 'aa' } };
  for (const tag of [structuralTag, JSON.stringify(structuralTag)])
    assert.equal((await ask({ structuralTag: tag })).text, 'aa');
  const quoted = ask({ jsonSchema: { type: 'string' } }); // the vocabulary has no quotation mark
  await assert.rejects(
    quoted,
    refuses(Code.INVALID_ARGUMENT, 'CONSTRAINT_NOT_SPELLABLE', 'constraint'),
  );
  assert.throws(() => ask({ jsonObject: true, regex: 'a' }), {
    name: 'TypeError',
    message: 'constraint: must have one of jsonSchema, jsonObject, regex, choices, structuralTag',
  });
});

test('generate, score and append decide about special tokens', async () => {
  const options = { ...TEXT, seed: 4, maxTokens: 40, ignoreEos: true };
  const given = await client.generate('the and', options).collect();
  const same = await client.generate([START, THE, AND], options).collect();
  assert.deepEqual(given.tokens, same.tokens);
  const plain = await client.generate('the', { ...options, addSpecialTokens: false }).collect();
  assert.deepEqual(plain.tokens, (await client.generate([THE], options).collect()).tokens);
  const controls = { ...options, skipSpecialTokens: true, logitBias: { [START]: 100 } };
  assert.equal((await client.generate('the', controls).collect()).text, '');
  const bounded = client.generate('the', { ...options, minTokens: 41 }).collect();
  const refused = refuses(Code.INVALID_ARGUMENT, 'MIN_TOKENS_OUT_OF_RANGE', 'stop.min_tokens');
  await assert.rejects(bounded, refused);

  assert.equal((await client.score('the and', TEXT)).numScored, 2);
  assert.equal((await client.score('the and', { ...TEXT, addSpecialTokens: false })).numScored, 1);

  const session = await client.openSession(TEXT);
  await session.append('the', { addSpecialTokens: false, timeoutMs: TEXT.timeoutMs });
  const end = await session.append('<end>', { timeoutMs: TEXT.timeoutMs });
  assert.equal(end.numScored, 0);
  assert.equal(session.position, 2);
  const spelt = session.append('<end>', { parseSpecialTokens: false, timeoutMs: TEXT.timeoutMs });
  await assert.rejects(spelt, refuses(Code.INVALID_ARGUMENT, 'TEXT_NOT_IN_VOCABULARY', 'content.text'));
  await session.close();
});

test('what the server or the client refuses is named', async () => {
  const none = client.tokenize('a', { ...TEXT, model: 'plain' });
  await assert.rejects(none, refuses(Code.INVALID_ARGUMENT, 'TEXT_NOT_SUPPORTED', 'text'));
  const beyond = client.detokenize([1, 39], TEXT);
  await assert.rejects(beyond, refuses(Code.INVALID_ARGUMENT, 'TOKEN_OUT_OF_RANGE', 'ids[1]'));
  const tokens = client.score([1, 2], { ...TEXT, addSpecialTokens: true });
  await assert.rejects(tokens, refuses(Code.INVALID_ARGUMENT, 'NEEDS_TEXT', 'add_special_tokens'));
  // @ts-expect-error: a number is no switch
  await assert.rejects(client.tokenize('a', { ...TEXT, parseSpecialTokens: 1 }), {
    name: 'TypeError',
    message: 'parseSpecialTokens: must be true or false; got 1',
  });
  // @ts-expect-error: a text is no list of ids
  await assert.rejects(client.detokenize('a', TEXT), { message: "ids: must be an array; got 'a'" });
});
