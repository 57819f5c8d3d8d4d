// SPDX-License-Identifier: Apache-2.0
// Calls of the gateway that serves this page (docs/gateway.md).

import { pause } from "./dom.js";

const BUSY_MS = 10;

export interface ImageShape {
  height: number;
  width: number;
  channels: number;
  num_levels: number;
}

export interface ModelDetails {
  id: string;
  rivulet: { content: string; max_tokens: number; max_num_samples: number; image?: ImageShape };
}

export interface ModelLoad {
  model: string;
  slots: number;
  slots_used: number;
  queued: number;
  tokens_per_second: number;
  sessions: number;
}

export interface Chunk {
  choices: { index: number; text: string; finish_reason: string | null; token_ids: number[] }[];
  session?: { id: string; position: number };
}

export interface SessionEntry {
  id: string;
  position: number;
  seed: number;
}

/** code: the reason, or null where the gateway gave no answer. */
export class ApiError extends Error {
  constructor(
    message: string,
    readonly code: string | null,
    readonly status: number,
  ) {
    super(message);
  }
}

export function isAbort(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}

/** An error in words for the page. */
export function described(error: unknown): string {
  if (error instanceof ApiError) return error.code === null ? error.message : `${error.message} (${error.code})`;
  return error instanceof Error ? error.message : String(error);
}

function errorOf(body: unknown, status: number): ApiError {
  const error = (body as { error?: { message?: unknown; code?: unknown } } | null)?.error;
  const message = typeof error?.message === "string" ? error.message : `The gateway answered with status ${status}.`;
  return new ApiError(message, typeof error?.code === "string" ? error.code : null, status);
}

/** What fetch() and the reader of a body throw where the connection failed is a TypeError. */
function connectionError(error: unknown, message: string): unknown {
  return error instanceof TypeError ? new ApiError(message, null, 0) : error;
}

export class Api {
  private key = "";

  /** wantsKey: called where the server refuses a call because its key is absent or wrong. */
  constructor(private readonly wantsKey: () => void) {}

  useKey(key: string): void {
    this.key = key;
  }

  async models(): Promise<ModelDetails[]> {
    const list = await this.call<{ data: { id: string }[] }>("GET", "v1/models");
    return Promise.all(list.data.map(({ id }) => this.call<ModelDetails>("GET", `v1/models/${encodeURIComponent(id)}`)));
  }

  async load(): Promise<ModelLoad[]> {
    return (await this.call<{ data: ModelLoad[] }>("GET", "rivulet/v1/load")).data;
  }

  openSession(model: string, seed: number, idleTimeout: number): Promise<SessionEntry> {
    return this.call("POST", "rivulet/v1/sessions", { model, seed, idle_timeout: idleTimeout });
  }

  async fork(model: string, session: string, position: number, seed: number): Promise<SessionEntry> {
    const body = { model, position, seed, count: 1 };
    const list = await this.call<{ data: [SessionEntry] }>("POST", `rivulet/v1/sessions/${session}/fork`, body);
    return list.data[0];
  }

  /** Also while the page is being closed. */
  async closeSession(model: string, session: string): Promise<void> {
    await this.send("DELETE", `rivulet/v1/sessions/${session}?model=${encodeURIComponent(model)}`, undefined, { keepalive: true });
  }

  /** The chunks of a reply. Errors before the first are thrown at once, others by the generator. */
  async stream(path: string, body: object, signal: AbortSignal): Promise<AsyncGenerator<Chunk>> {
    return chunks(await this.send("POST", path, { ...body, stream: true, return_token_ids: true }, { signal }));
  }

  private async call<T>(method: string, path: string, body?: object): Promise<T> {
    return (await (await this.send(method, path, body, {})).json()) as T;
  }

  private async send(method: string, path: string, body: object | undefined, options: RequestInit): Promise<Response> {
    const headers: Record<string, string> = {};
    if (this.key !== "") headers["Authorization"] = `Bearer ${this.key}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    let response: Response;
    try {
      response = await fetch(path, { ...options, method, headers, body: body && JSON.stringify(body), cache: "no-store" });
    } catch (error) {
      throw connectionError(error, "The gateway does not answer. Is rivulet-gateway still running?");
    }
    if (response.ok) return response;
    if (response.status === 401) this.wantsKey();
    throw errorOf(await response.json().catch(() => null), response.status);
  }
}

async function* chunks(response: Response): AsyncGenerator<Chunk> {
  const cut = "The answer was cut off: the connection to the gateway ended.";
  const reader = (response.body as ReadableStream<Uint8Array>).getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let rested = performance.now();
  try {
    for (;;) {
      if (performance.now() - rested > BUSY_MS) {
        await pause(0); // while chunks are there, reading them would leave no time to draw or to click
        rested = performance.now();
      }
      const { done, value } = await reader.read().catch((error: unknown) => {
        throw connectionError(error, cut);
      });
      if (done) throw new ApiError(cut, null, 0);
      const events = (rest + decoder.decode(value, { stream: true })).split("\n\n");
      rest = events.pop() as string;
      for (const event of events) {
        const data = event.replace(/^data: /, "");
        if (data === "[DONE]") return;
        const chunk = JSON.parse(data) as Chunk | { error: unknown };
        if ("error" in chunk) throw errorOf(chunk, response.status);
        yield chunk;
      }
    }
  } finally {
    reader.cancel().catch(() => undefined); // an aborted stream refuses
  }
}
