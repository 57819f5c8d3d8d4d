import { pause } from "./dom.js";
const BUSY_MS = 10;
export class ApiError extends Error {
    code;
    status;
    constructor(message, code, status) {
        super(message);
        this.code = code;
        this.status = status;
    }
}
export function isAbort(error) {
    return error instanceof DOMException && error.name === "AbortError";
}
export function described(error) {
    if (error instanceof ApiError)
        return error.code === null ? error.message : `${error.message} (${error.code})`;
    return error instanceof Error ? error.message : String(error);
}
function errorOf(body, status) {
    const error = body?.error;
    const message = typeof error?.message === "string" ? error.message : `The gateway answered with status ${status}.`;
    return new ApiError(message, typeof error?.code === "string" ? error.code : null, status);
}
function connectionError(error, message) {
    return error instanceof TypeError ? new ApiError(message, null, 0) : error;
}
export class Api {
    wantsKey;
    key = "";
    constructor(wantsKey) {
        this.wantsKey = wantsKey;
    }
    useKey(key) {
        this.key = key;
    }
    async models() {
        const list = await this.call("GET", "v1/models");
        return Promise.all(list.data.map(({ id }) => this.call("GET", `v1/models/${encodeURIComponent(id)}`)));
    }
    async load() {
        return (await this.call("GET", "rivulet/v1/load")).data;
    }
    openSession(model, seed, idleTimeout) {
        return this.call("POST", "rivulet/v1/sessions", { model, seed, idle_timeout: idleTimeout });
    }
    async fork(model, session, position, seed) {
        const body = { model, position, seed, count: 1 };
        const list = await this.call("POST", `rivulet/v1/sessions/${session}/fork`, body);
        return list.data[0];
    }
    async closeSession(model, session) {
        await this.send("DELETE", `rivulet/v1/sessions/${session}?model=${encodeURIComponent(model)}`, undefined, { keepalive: true });
    }
    async stream(path, body, signal) {
        return chunks(await this.send("POST", path, { ...body, stream: true, return_token_ids: true }, { signal }));
    }
    async call(method, path, body) {
        return (await (await this.send(method, path, body, {})).json());
    }
    async send(method, path, body, options) {
        const headers = {};
        if (this.key !== "")
            headers["Authorization"] = `Bearer ${this.key}`;
        if (body !== undefined)
            headers["Content-Type"] = "application/json";
        let response;
        try {
            response = await fetch(path, { ...options, method, headers, body: body && JSON.stringify(body), cache: "no-store" });
        }
        catch (error) {
            throw connectionError(error, "The gateway does not answer. Is rivulet-gateway still running?");
        }
        if (response.ok)
            return response;
        if (response.status === 401)
            this.wantsKey();
        throw errorOf(await response.json().catch(() => null), response.status);
    }
}
async function* chunks(response) {
    const cut = "The answer was cut off: the connection to the gateway ended.";
    const reader = response.body.getReader();
    const decoder = new TextDecoder();
    let rest = "";
    let rested = performance.now();
    try {
        for (;;) {
            if (performance.now() - rested > BUSY_MS) {
                await pause(0);
                rested = performance.now();
            }
            const { done, value } = await reader.read().catch((error) => {
                throw connectionError(error, cut);
            });
            if (done)
                throw new ApiError(cut, null, 0);
            const events = (rest + decoder.decode(value, { stream: true })).split("\n\n");
            rest = events.pop();
            for (const event of events) {
                const data = event.replace(/^data: /, "");
                if (data === "[DONE]")
                    return;
                const chunk = JSON.parse(data);
                if ("error" in chunk)
                    throw errorOf(chunk, response.status);
                yield chunk;
            }
        }
    }
    finally {
        reader.cancel().catch(() => undefined);
    }
}
