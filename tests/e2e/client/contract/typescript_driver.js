// SPDX-License-Identifier: Apache-2.0
// typescript_driver.js FOLDER: makes calls for the tests of this folder with the client that is
// built in FOLDER. Each line of stdin is a job, each of stdout its outcome; jobs run at the same
// time. Jobs and outcomes are those of python_driver.py.
'use strict';
const readline = require('node:readline');
const { Code, RivuletClient, RivuletError } = require(process.argv[2]);

const clients = {}; // by the names that the tests give them
const sessions = {};

const camel = (name) => name.replace(/_(.)/g, (_, letter) => letter.toUpperCase());
const print = (value) => console.log(JSON.stringify(value));

/** Of options, which have the names and units of the Python client. */
function native({ timeout, seed, ...given }) {
  const named = Object.entries(given).map(([name, value]) => [camel(name), value]);
  return {
    ...Object.fromEntries(named),
    ...(timeout !== undefined && { timeoutMs: timeout * 1000 }),
    ...(seed !== undefined && { seed: BigInt(seed) }),
  };
}

function line(part) {
  const said = {
    sample_index: part.sampleIndex,
    first_position: part.firstPosition,
    tokens: [...part.tokens],
    logprobs: [...(part.logprobs ?? [])],
  };
  if (part.text !== '') said.text = part.text;
  if (part.finish !== undefined) said.finish = part.finish.reason.toLowerCase().replace('-', '_');
  return said;
}

/** Takes the parts of a reply, the first `take` of them, with the seed at the first and the usage behind the last. */
async function read(stream, parts, take, saw = () => undefined) {
  for await (const part of stream) {
    parts.push(line(part));
    if (parts.length === 1) parts[0].seed = String(stream.seed);
    if (part.tokens.length > 0) saw();
    if (parts.length === take) return;
  }
  const { promptTokens, completionTokens } = stream.usage;
  parts.push({ usage: { prompt_tokens: promptTokens, completion_tokens: completionTokens } });
}

function errorLine(error) {
  if (!(error instanceof RivuletError)) throw error;
  const { code, reason, details, field, retryAfterMs, metadata } = error;
  const delay = retryAfterMs === undefined ? null : retryAfterMs / 1000;
  return { code: Code[code], reason, message: details, field, retry_delay: delay, metadata };
}

function sessionLine({ id, position, sequenceHash, marks, cookie }) {
  return { id, position, sequence_hash: String(sequenceHash), marks: Object.fromEntries(marks), cookie };
}

function durabilityLine({ durability: told }) {
  if (told === undefined) return null;
  return { durable: told.durable, position: told.position, other_numerics_id: told.otherNumericsId ?? '' };
}

const steps = {
  async connect({ client, target, options }) {
    clients[client] = new RivuletClient(target, native(options));
  },
  async open_session({ client, session, options }) {
    sessions[session] = await clients[client].openSession(native(options));
  },
  async session({ client, session, of, options }) {
    sessions[session] = await clients[client].session(of, native(options));
  },
  async restore({ client, session }) {
    sessions[session] = await clients[client].restoreSession(Buffer.from('bytes'));
  },
  async fork({ session }) {
    return { forks: (await sessions[session].fork()).map(sessionLine) };
  },
  async append({ session, content, options }) {
    return { durability: durabilityLine(await sessions[session].append(content, native(options))) };
  },
  async rewind({ session, options }) {
    await sessions[session].rewind(native(options));
  },
  async snapshot({ session, options }) {
    await sessions[session].snapshot(native(options));
  },
  async close({ session }) {
    await sessions[session].close();
  },
  async score({ client, content, options }) {
    return { num_scored: (await clients[client].score(content, native(options))).numScored };
  },
  async generate({ client, session, prompt, options, take, parts }) {
    const stream = (sessions[session] ?? clients[client]).generate(prompt, native(options));
    const early = durabilityLine(stream);
    if (take === 'all') return { durability: durabilityLine(await stream.collect()) };
    await read(stream, parts, take, () => print({ saw: client }));
    return { early, durability: durabilityLine(stream) };
  },
};

async function step(job) {
  job.parts = [];
  const outcome = { parts: job.parts, error: null };
  try {
    Object.assign(outcome, await steps[job.step](job));
  } catch (error) {
    outcome.error = errorLine(error);
  }
  if (job.session in sessions) outcome.session = sessionLine(sessions[job.session]);
  return outcome;
}

async function reply(client, { prompt, ...options }, { sampling }, job) {
  const said = { parts: [], error: null };
  const given = { ...options, resume: job.resume, timeout: job.timeout };
  if (sampling.seed !== undefined) given.seed = sampling.seed; // in full
  try {
    const session = job.session && (await client.session(job.session, { cookie: job.cookie }));
    await read((session || client).generate(prompt, native(given)), said.parts);
    if (session) said.session = { position: session.position, sequence_hash: String(session.sequenceHash) };
  } catch (error) {
    said.error = errorLine(error);
  }
  return said;
}

async function replies(job) {
  const client = new RivuletClient(job.target, { maxAttempts: job.max_attempts });
  try {
    return await Promise.all(job.requests.map((request, i) => reply(client, request, job.messages[i], job)));
  } finally {
    client.close();
  }
}

const input = readline.createInterface({ input: process.stdin });
input.on('close', () => Object.values(clients).forEach((client) => client.close()));
input.on('line', async (text) => {
  const job = JSON.parse(text);
  let outcome;
  try {
    outcome = await (job.step ? step(job) : replies(job));
  } catch (error) {
    // The client, or this program, has a bug.
    const bug = { parts: [], error: { code: error.name, reason: String(error.stack) } };
    outcome = job.step ? bug : job.requests.map(() => bug);
  }
  print({ id: job.id, outcome });
});
