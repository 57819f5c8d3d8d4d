// SPDX-License-Identifier: Apache-2.0
// One session and the text that it has generated.

import { ApiError, described, isAbort } from "./api.js";
import { count, make, pause, show } from "./dom.js";

/** @import { Api, Chunk } from "./api.js" */

/**
 * Text that arrived in one chunk, usually one token. begin: the session's position before it.
 * @typedef {{ text: string, begin: number, shared: boolean }} Piece
 */

/**
 * The beginning of a branch: a prompt, or a copy of the first pieces of another branch.
 * @typedef {object} Origin
 * @property {string} name
 * @property {string} about
 * @property {string} model
 * @property {string} session
 * @property {number} seed
 * @property {string} prompt
 * @property {Piece[]} pieces
 * @property {number} position
 */

/**
 * The functions of the panel that a branch calls.
 * @typedef {object} Owner
 * @property {() => { max_tokens: number, temperature: number }} sampling
 * @property {(parent: Branch, kept: number) => Promise<void>} fork
 * @property {(branch: Branch) => void} close
 */

/**
 * Repeats a call while a stopped reply still runs in the server and changes the session.
 * @template T
 * @param {() => Promise<T>} call
 */
async function onceSettled(call) {
  for (let attempt = 1; ; attempt++) {
    try {
      return await call();
    } catch (error) {
      if (!(error instanceof ApiError && error.code === "SESSION_HASH_MISMATCH") || attempt === 30) throw error;
      await pause(100);
    }
  }
}

export class Branch {
  /** @readonly */
  origin;
  /** @readonly */
  element;
  #text = make("div", { className: "text", tabIndex: 0 });
  #problem = make("p", { className: "problem", hidden: true });
  #status = make("p", { className: "hint" });
  #go = make("button", { type: "button" }, "Continue");
  #stop = make("button", { type: "button" }, "Stop");
  #discard = make("button", { type: "button" }, "Close");
  #forkButton = make("button", { type: "button", className: "fork" }, "Fork here");
  #choice = make("input", { type: "range", min: "1", step: "1" });
  #chosen = make("output");
  #pieces;
  /** @type {HTMLElement[]} */
  #spans = []; // of the shown pieces
  #line = make("div");
  #frame = 0;
  #position;
  #begin; // position of the next piece; unknown until the prompt is in the session
  /** @type {HTMLElement | undefined} */
  #marked;
  /** @type {AbortController | null} */
  #running = null;
  #api;
  #owner;

  /**
   * @param {Api} api
   * @param {Owner} owner
   * @param {Origin} origin
   */
  constructor(api, owner, origin) {
    this.#api = api;
    this.#owner = owner;
    this.origin = origin;
    this.#pieces = origin.pieces.map((piece) => ({ ...piece, shared: true }));
    this.#position = origin.position;
    this.#begin = this.#pieces.length === 0 ? null : origin.position;
    this.#line.append(make("span", { className: "prompt" }, origin.prompt));
    this.#text.append(this.#line);
    this.#paint();
    this.element = this.#layout();
    this.#listen();
    this.#update();
  }

  #layout() {
    const { name, about } = this.origin;
    this.#problem.role = "alert";
    this.#status.role = "status";
    this.#text.role = "region";
    this.#text.ariaLabel = `Text ${name}`;
    this.#discard.ariaLabel = `Close text ${name}`;
    this.#choice.ariaLabel = `Token of text ${name} after which to fork`;
    const title = make("h3", {}, make("span", { className: "name" }, name), make("span", { className: "hint" }, about));
    const choosing = make("div", { className: "choosing" }, this.#choice, this.#chosen, this.#forkButton);
    const buttons = make("div", { className: "buttons" }, this.#go, this.#stop, this.#discard, this.#status);
    const branch = make("article", { className: "branch" }, title, this.#text, this.#problem, choosing, buttons);
    branch.dataset["name"] = name;
    return branch;
  }

  #listen() {
    this.#go.addEventListener("click", () => void this.run());
    this.#stop.addEventListener("click", () => this.#running?.abort());
    this.#discard.addEventListener("click", () => this.#owner.close(this));
    this.#choice.addEventListener("input", () => this.#mark());
    this.#text.addEventListener("click", (event) => {
      const index = this.#spans.indexOf(/** @type {HTMLElement} */ (event.target));
      if (index < 0 || this.#choice.disabled) return;
      this.#choice.value = String(index + 1);
      this.#mark();
    });
    this.#forkButton.addEventListener("click", () => void this.#fork());
  }

  /**
   * Generates from the end of the text. Returns an error text, or "".
   * @param {string} [prompt] given to the session first
   */
  async run(prompt) {
    const running = (this.#running = new AbortController());
    let problem = "";
    let end = "done";
    show(this.#problem, problem);
    this.#status.textContent = "generating";
    this.#update();
    const { model, session } = this.origin;
    const body = { ...this.#owner.sampling(), model, prompt, position: this.#position };
    const path = `rivulet/v1/sessions/${session}/generate`;
    try {
      const chunks = await onceSettled(() => this.#api.stream(path, body, running.signal));
      for await (const chunk of chunks) {
        this.#take(chunk);
        if (chunk.choices[0]?.finish_reason === "stop") end = "ended by the model";
      }
    } catch (error) {
      end = isAbort(error) ? "stopped" : "failed";
      if (!isAbort(error)) problem = described(error);
    }
    this.#paint();
    this.#status.textContent = end;
    show(this.#problem, problem);
    this.#running = null;
    this.#update();
    return problem;
  }

  /** @param {Chunk} chunk */
  #take(chunk) {
    const choice = chunk.choices[0];
    if (choice === undefined || chunk.session === undefined) return;
    this.#position = chunk.session.position;
    const first = this.#position - choice.token_ids.length;
    this.#begin ??= first;
    const characters = [...choice.text];
    if (choice.text !== "") {
      if (this.#begin === first && characters.length === choice.token_ids.length) {
        characters.forEach((character, index) => this.#extend(character, first + index));
      } else {
        this.#extend(choice.text, this.#begin); // a character of several tokens, or tokens of several characters
      }
      this.#begin = this.#position;
    }
  }

  /**
   * @param {string} text
   * @param {number} begin
   */
  #extend(text, begin) {
    this.#pieces.push({ text, begin, shared: false });
    this.#frame ||= requestAnimationFrame(() => this.#paint());
  }

  /** Shows the pieces that are not shown yet. If the end of the text was visible, it stays visible. */
  #paint() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    const atEnd = this.#text.scrollTop + this.#text.clientHeight > this.#text.scrollHeight - 24;
    for (const piece of this.#pieces.slice(this.#spans.length)) {
      const span = make("span", { className: piece.shared ? "shared" : "" }, piece.text);
      this.#spans.push(span);
      this.#line.append(span);
      // A block for each line: so the browser lays out only the last line, even of a long text.
      if (piece.text.includes("\n")) this.#text.append((this.#line = make("div")));
    }
    if (atEnd) this.#text.scrollTop = this.#text.scrollHeight;
  }

  get isEmpty() {
    return this.#pieces.length === 0;
  }

  /**
   * The pieces before a fork, and the session's position there.
   * @param {number} kept
   */
  until(kept) {
    const position = this.#pieces[kept]?.begin ?? this.#begin ?? this.#position;
    return { pieces: this.#pieces.slice(0, kept), position };
  }

  /** Stops a running reply and closes the session. An error is ignored, because an idle session ends by itself. */
  end() {
    this.#running?.abort();
    void this.#api.closeSession(this.origin.model, this.origin.session).catch(() => undefined);
  }

  async #fork() {
    show(this.#problem, "");
    this.#forkButton.disabled = true;
    try {
      const kept = Number(this.#choice.value);
      await onceSettled(() => this.#owner.fork(this, kept));
    } catch (error) {
      show(this.#problem, described(error));
    }
    this.#update();
  }

  #update() {
    const busy = this.#running !== null;
    this.element.ariaBusy = String(busy);
    this.#go.disabled = this.#forkButton.disabled = this.#choice.disabled = busy || this.isEmpty;
    this.#stop.disabled = !busy;
    if (busy || this.isEmpty) return;
    const fresh = this.#marked === undefined;
    this.#choice.max = String(this.#pieces.length);
    if (fresh) this.#choice.value = String(Math.ceil(this.#pieces.length / 2));
    this.#mark();
  }

  /** Shows in the text which token is chosen. */
  #mark() {
    const kept = Number(this.#choice.value);
    this.#marked?.classList.remove("chosen");
    this.#marked = this.#spans[kept - 1];
    this.#marked?.classList.add("chosen");
    const start = this.#pieces[0]?.begin ?? 0;
    const total = this.#position - start;
    this.#chosen.textContent = `after token ${count(this.until(kept).position - start)} of ${count(total)}`;
  }
}
