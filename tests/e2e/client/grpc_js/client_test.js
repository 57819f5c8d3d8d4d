// SPDX-License-Identifier: Apache-2.0
// A client as a developer on Node.js writes it: @grpc/grpc-js, with the .proto files or by reflection alone.
// grpc_js_test.py runs it against a server and sets RIVULET_TARGET (HOST:PORT), RIVULET_PROTO_DIR and
// RIVULET_DIGITS, a JSON file {"seed": "decimal", "digits": [[pixel...]...]} of what the server must draw.
'use strict';
const assert = require('node:assert/strict');
const fs = require('node:fs');
const { after, before, test } = require('node:test');
const grpc = require('@grpc/grpc-js');
const protoLoader = require('@grpc/proto-loader');
const { GrpcReflection } = require('grpc-js-reflection-client');
const Long = require('long');

const target = process.env.RIVULET_TARGET;
const expected = JSON.parse(fs.readFileSync(process.env.RIVULET_DIGITS, 'utf8'));
// 64-bit numbers as decimal strings: a number of JavaScript holds 53 bits.
const format = { keepCase: true, longs: String, enums: String, defaults: true, oneofs: true };
const files = ['rivulet/v1/inference.proto', 'google/rpc/status.proto', 'google/rpc/error_details.proto'];
const definition = protoLoader.loadSync(files, { ...format, includeDirs: [process.env.RIVULET_PROTO_DIR] });
const credentials = grpc.credentials.createInsecure();
let client;

before(() => {
  const { InferenceService } = grpc.loadPackageDefinition(definition).rivulet.v1;
  client = new InferenceService(target, credentials);
});
after(() => client.close());

const deadline = (seconds) => ({ deadline: Date.now() + 1000 * seconds });
const sleep = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

// The reply of a unary method; rejects with grpc's ServiceError.
function unary(method, request) {
  return new Promise((done, fail) => {
    client[method](request, deadline(120), (error, reply) => (error ? fail(error) : done(reply)));
  });
}

// {seed, digits: [sample][pixel], messages} of a Generate; rejects with grpc's ServiceError.
async function draw(stub, seed, count) {
  const request = { model: 'mnist-linear', tokens: { ids: [] }, sampling: { seed }, num_samples: count };
  const drawn = { digits: Array.from({ length: count }, () => []), messages: 0 };
  for await (const part of stub.Generate(request, deadline(120))) {
    if (drawn.messages === 0) drawn.seed = part.seed;
    if (part.tokens.length > 0) {
      assert.equal(Number(part.first_position), drawn.digits[part.sample_index].length);
    }
    drawn.digits[part.sample_index].push(...part.tokens);
    drawn.messages += 1;
  }
  return drawn;
}

async function slotsUsed() {
  const { models } = await unary('GetLoad', { model: 'shakespeare-rfa' });
  return models[0].slots_used;
}

async function waitForSlots(wanted) {
  let used;
  for (let i = 0; i < 600; i += 1) {
    used = await slotsUsed();
    if (used === wanted) return;
    await sleep(50);
  }
  assert.fail(`${used} slots in use after 30 s, ${wanted} expected`);
}

// A reply that would go on for many minutes; resolves to the error that ends it. onData is called for every message.
function endless(options, onData) {
  return new Promise((done, fail) => {
    const request = { model: 'shakespeare-rfa', text: 'ROMEO:', max_tokens: '1000000', sampling: { seed: '1' } };
    const call = client.Generate(request, options);
    call.on('data', () => onData(call));
    call.on('error', done);
    call.on('end', () => fail(new Error('the reply ended without an error')));
  });
}

// {type: message} of the details that a failed call carries.
function detailsOf(error) {
  const [packed] = error.metadata.get('grpc-status-details-bin');
  const status = definition['google.rpc.Status'].deserialize(packed);
  assert.equal(status.code, error.code);
  assert.equal(status.message, error.details);
  return Object.fromEntries(
    status.details.map(({ type_url, value }) => {
      const type = type_url.split('/').pop();
      return [type, definition[type].deserialize(value)];
    }),
  );
}

test('digits arrive pixel by pixel, with the .proto files', async () => {
  const drawn = await draw(client, expected.seed, expected.digits.length);
  assert.deepEqual(drawn.digits, expected.digits);
  assert.ok(drawn.messages > expected.digits.length, 'nothing was streamed');
});

test('digits arrive pixel by pixel, by reflection alone', async () => {
  const reflection = new GrpcReflection(target, credentials, {}, 'v1alpha');
  assert.ok((await reflection.listServices()).includes('rivulet.v1.InferenceService'));
  const descriptor = await reflection.getDescriptorBySymbol('rivulet.v1.InferenceService');
  const { InferenceService } = descriptor.getPackageObject(format).rivulet.v1;
  const stub = new InferenceService(target, credentials);
  try {
    const drawn = await draw(stub, expected.seed, expected.digits.length);
    assert.deepEqual(drawn.digits, expected.digits);
  } finally {
    stub.close();
  }
});

test('a seed of 64 bits arrives intact as a string and as a Long', async () => {
  for (const seed of [expected.seed, Long.fromString(expected.seed, true)]) {
    const drawn = await draw(client, seed, 1);
    assert.equal(drawn.seed, expected.seed);
    assert.deepEqual(drawn.digits, expected.digits.slice(0, 1));
  }
});

test('models and 64-bit counts are read', async () => {
  const { models } = await unary('ListModels', {});
  assert.deepEqual(models.map(({ name }) => name), ['mnist-linear', 'shakespeare-rfa']);
  const { limits, content } = await unary('GetModel', { model: 'mnist-linear' });
  assert.equal(limits.max_tokens, '1048576');
  assert.deepEqual([content.kind, content.image.height, content.image.width], ['image', 28, 28]);
});

test('cancelling frees the slot', async () => {
  await waitForSlots(0);
  let inUse;
  const error = await endless(deadline(120), async (call) => {
    if (inUse !== undefined) return;
    inUse = 0;
    inUse = await slotsUsed();
    call.cancel();
  });
  assert.equal(error.code, grpc.status.CANCELLED);
  assert.equal(inUse, 1);
  await waitForSlots(0);
});

test('a deadline ends the reply with DEADLINE_EXCEEDED and frees the slot', async () => {
  let messages = 0;
  const error = await endless(deadline(5), () => { messages += 1; });
  assert.equal(error.code, grpc.status.DEADLINE_EXCEEDED);
  assert.ok(messages > 0, 'nothing arrived before the deadline');
  await waitForSlots(0);
});

test('an error says in its details why, and which field', async () => {
  const request = { model: 'mnist-linear', tokens: { ids: [] }, sampling: { top_p: 2 } };
  const error = await new Promise((done, fail) => {
    const call = client.Generate(request, deadline(120));
    call.on('data', () => fail(new Error('a bad request was answered')));
    call.on('error', done);
  });
  assert.equal(error.code, grpc.status.INVALID_ARGUMENT);
  const details = detailsOf(error);
  const { reason, domain } = details['google.rpc.ErrorInfo'];
  assert.deepEqual([reason, domain], ['INVALID_SAMPLING', 'rivulet']);
  const violations = details['google.rpc.BadRequest'].field_violations;
  assert.deepEqual(violations, [{ field: 'sampling.top_p', description: error.details }]);
});

test('an unknown model is NOT_FOUND, with its reason', async () => {
  await assert.rejects(unary('Score', { model: 'nobody', text: 'A' }), (error) => {
    assert.equal(error.code, grpc.status.NOT_FOUND);
    assert.equal(detailsOf(error)['google.rpc.ErrorInfo'].reason, 'MODEL_NOT_FOUND');
    return true;
  });
});
