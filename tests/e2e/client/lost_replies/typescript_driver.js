// SPDX-License-Identifier: Apache-2.0
// typescript_driver.js FOLDER: generates for lost_replies_test.py with the client that is built in
// FOLDER. Each line of stdin is a job, each of stdout its outcome; jobs run at the same time.
// Fields are those of python_driver.py.
'use strict';
const readline = require('node:readline');
const { Code, RivuletClient, RivuletError } = require(process.argv[2]);

const camel = (name) => name.replace(/_(.)/g, (_, letter) => letter.toUpperCase());

function line(part) {
  const said = {
    sample_index: part.sampleIndex,
    first_position: part.firstPosition,
    tokens: [...part.tokens],
    logprobs: [...(part.logprobs ?? [])],
  };
  if (part.finish !== undefined) said.finish = part.finish.reason.toLowerCase().replace('-', '_');
  return said;
}

async function reply(client, request, message, job) {
  const { prompt, ...given } = request;
  const options = Object.fromEntries(Object.entries(given).map(([name, value]) => [camel(name), value]));
  if (message.sampling.seed !== undefined) options.seed = BigInt(message.sampling.seed);
  const parts = [];
  let stream;
  try {
    const from = job.session ? await client.session(job.session, { cookie: job.cookie }) : client;
    stream = from.generate(prompt, { ...options, resume: job.resume, timeoutMs: job.timeout * 1000 });
    for await (const part of stream) {
      parts.push(line(part));
      if (parts.length === 1) parts[0].seed = String(stream.seed);
    }
  } catch (error) {
    if (!(error instanceof RivuletError)) throw error;
    return { parts, error: { code: Code[error.code], reason: error.reason } };
  }
  const { promptTokens, completionTokens } = stream.usage;
  parts.push({ usage: { prompt_tokens: promptTokens, completion_tokens: completionTokens } });
  return { parts, error: null };
}

async function run(job) {
  const client = new RivuletClient(job.target, { maxAttempts: job.max_attempts });
  try {
    return await Promise.all(job.requests.map((request, i) => reply(client, request, job.messages[i], job)));
  } catch (error) {
    // The client, or this program, has a bug.
    return job.requests.map(() => ({ parts: [], error: { code: error.name, reason: String(error.stack) } }));
  } finally {
    client.close();
  }
}

readline.createInterface({ input: process.stdin }).on('line', async (text) => {
  const job = JSON.parse(text);
  console.log(JSON.stringify({ id: job.id, replies: await run(job) }));
});
