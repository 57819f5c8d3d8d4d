// SPDX-License-Identifier: Apache-2.0
// Calls of the gateway that serves this page (docs/gateway.md).

import { pause } from "./dom.js";

const BUSY_MS = 10;

/** @typedef {{ height: number, width: number, channels: number, num_levels: number }} ImageShape */

/**
 * @typedef {object} ModelDetails
 * @property {string} id
 * @property {{ content: string, max_tokens: number, max_num_samples: number, image?: ImageShape, alphabet?: string,
 *   chat_template?: string, attention: "linear" | "softmax" | "hybrid",
 *   max_sequence_tokens?: number }} rivulet
 */

/**
 * @typedef {object} ModelLoad
 * @property {string} model
 * @property {number} slots
 * @property {number} slots_used
 * @property {number} queued
 * @property {number} tokens_per_second
 * @property {number} sessions
 */

/**
 * @typedef {object} Chunk
 * @property {{ index: number, text: string, finish_reason: string | null, token_ids: number[], delta?: { content?: string } }[]} choices
 * @property {{ id: string, position: number }} [session]
 */

/** @typedef {{ id: string, position: number, seed: number }} SessionEntry */

export class ApiError extends Error {
  /** @readonly */
  code;
  /** @readonly */
  status;

  /**
   * @param {string} message
   * @param {string | null} code the reason, or null if the gateway gave no answer
   * @param {number} status
   */
  constructor(message, code, status) {
    super(message);
    this.code = code;
    this.status = status;
  }
}

/** @param {unknown} error */
export function isAbort(error) {
  return error instanceof DOMException && error.name === "AbortError";
}

/**
 * An error in words for the page.
 * @param {unknown} error
 */
export function described(error) {
  if (error instanceof ApiError) return error.code === null ? error.message : `${error.message} (${error.code})`;
  return error instanceof Error ? error.message : String(error);
}

/**
 * @param {unknown} body
 * @param {number} status
 */
function errorOf(body, status) {
  const error = /** @type {{ error?: { message?: unknown, code?: unknown } } | null} */ (body)?.error;
  const message = typeof error?.message === "string" ? error.message : `The gateway answered with status ${status}.`;
  return new ApiError(message, typeof error?.code === "string" ? error.code : null, status);
}

/**
 * If the connection fails, fetch() and the reader of a body throw a TypeError.
 * @param {unknown} error
 * @param {string} message
 */
function connectionError(error, message) {
  return error instanceof TypeError ? new ApiError(message, null, 0) : error;
}

export class Api {
  #key = "";
  #wantsKey;

  /** @param {() => void} wantsKey called if the server refuses a call because its key is absent or wrong */
  constructor(wantsKey) {
    this.#wantsKey = wantsKey;
  }

  /** @param {string} key */
  useKey(key) {
    this.#key = key;
  }

  /** @returns {Promise<ModelDetails[]>} */
  async models() {
    /** @type {{ data: { id: string }[] }} */
    const list = await this.#call("GET", "v1/models");
    return Promise.all(list.data.map(({ id }) => this.#call("GET", `v1/models/${encodeURIComponent(id)}`)));
  }

  async load() {
    /** @type {{ data: ModelLoad[] }} */
    const list = await this.#call("GET", "rivulet/v1/load");
    return list.data;
  }

  /**
   * @param {string} model
   * @param {number} seed
   * @param {number} idleTimeout
   * @returns {Promise<SessionEntry>}
   */
  openSession(model, seed, idleTimeout) {
    return this.#call("POST", "rivulet/v1/sessions", { model, seed, idle_timeout: idleTimeout });
  }

  /**
   * @param {string} model
   * @param {string} session
   * @param {number} position
   * @param {number} seed
   */
  async fork(model, session, position, seed) {
    const body = { model, position, seed, count: 1 };
    /** @type {{ data: [SessionEntry] }} */
    const list = await this.#call("POST", `rivulet/v1/sessions/${session}/fork`, body);
    return list.data[0];
  }

  /**
   * Closes a session, also while the page is being closed.
   * @param {string} model
   * @param {string} session
   */
  async closeSession(model, session) {
    await this.#send("DELETE", `rivulet/v1/sessions/${session}?model=${encodeURIComponent(model)}`, undefined, { keepalive: true });
  }

  /**
   * The chunks of a reply. Errors before the first chunk are thrown at once, later errors by the generator.
   * @param {string} path
   * @param {object} body
   * @param {AbortSignal} signal
   */
  async stream(path, body, signal) {
    return chunks(await this.#send("POST", path, { ...body, stream: true, return_token_ids: true }, { signal }));
  }

  /**
   * The same for an answer in a conversation.
   * @param {object} body
   * @param {AbortSignal} signal
   */
  async chat(body, signal) {
    return chunks(await this.#send("POST", "v1/chat/completions", { ...body, stream: true }, { signal }));
  }

  /**
   * @template T
   * @param {string} method
   * @param {string} path
   * @param {object} [body]
   * @returns {Promise<T>}
   */
  async #call(method, path, body) {
    return (await this.#send(method, path, body, {})).json();
  }

  /**
   * @param {string} method
   * @param {string} path
   * @param {object | undefined} body
   * @param {RequestInit} options
   */
  async #send(method, path, body, options) {
    /** @type {Record<string, string>} */
    const headers = {};
    if (this.#key !== "") headers["Authorization"] = `Bearer ${this.#key}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    let response;
    try {
      response = await fetch(path, { ...options, method, headers, body: body && JSON.stringify(body), cache: "no-store" });
    } catch (error) {
      throw connectionError(error, "The gateway does not answer. Is rivulet-gateway still running?");
    }
    if (response.ok) return response;
    if (response.status === 401) this.#wantsKey();
    throw errorOf(await response.json().catch(() => null), response.status);
  }
}

/**
 * @param {Response} response
 * @returns {AsyncGenerator<Chunk>}
 */
async function* chunks(response) {
  const cut = "The answer was cut off: the connection to the gateway ended.";
  const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let rested = performance.now();
  try {
    for (;;) {
      if (performance.now() - rested > BUSY_MS) {
        await pause(0); // reading chunks without a pause would leave no time to draw or to click
        rested = performance.now();
      }
      const { done, value } = await reader.read().catch((/** @type {unknown} */ error) => {
        throw connectionError(error, cut);
      });
      if (done) throw new ApiError(cut, null, 0);
      const events = (rest + decoder.decode(value, { stream: true })).split("\n\n");
      rest = /** @type {string} */ (events.pop());
      for (const event of events) {
        const line = event.split("\n").find((one) => one.startsWith("data: "));
        if (line === undefined) continue; // a comment
        if (line === "data: [DONE]") return;
        const chunk = /** @type {Chunk | { error: unknown }} */ (JSON.parse(line.slice(6)));
        if ("error" in chunk) throw errorOf(chunk, response.status);
        yield chunk;
      }
    }
  } finally {
    reader.cancel().catch(() => undefined); // an aborted stream refuses
  }
}
