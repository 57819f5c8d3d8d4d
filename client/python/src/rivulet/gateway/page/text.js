// SPDX-License-Identifier: Apache-2.0
// Streams text, and shows forks of it side by side.

import { ApiError, described } from "./api.js";
import { Branch } from "./branch.js";
import { byId, offer, PromptField, seedOf, show } from "./dom.js";

/** @import { Api, ModelDetails } from "./api.js" */
/** @import { Origin, Owner } from "./branch.js" */

const NAMES = "ABCDEF"; // of the texts on the page
const IDLE_SECONDS = 600; // idle time after which the server closes a session that the page left open

/** @implements {Owner} */
export class TextPanel {
  #section = byId("text", HTMLElement);
  #prompt = byId("text-prompt", HTMLTextAreaElement);
  #model = byId("text-model", HTMLSelectElement);
  #tokens = byId("text-tokens", HTMLInputElement);
  #temperature = byId("text-temperature", HTMLInputElement);
  #seed = byId("text-seed", HTMLInputElement);
  #generate = byId("text-generate", HTMLButtonElement);
  #problem = byId("text-problem", HTMLElement);
  #place = byId("branches", HTMLElement);
  /** @type {Branch[]} */
  #branches = [];
  #field = new PromptField(this.#prompt, this.#model, ["Once upon a time", "To be, or not to be,"]);
  #api;

  /** @param {Api} api */
  constructor(api) {
    this.#api = api;
    byId("text-form", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      void this.#start();
    });
    addEventListener("pagehide", () => this.#clear());
  }

  /** @param {ModelDetails[]} models */
  use(models) {
    const texts = models.filter((model) => model.rivulet.content === "text");
    offer(this.#model, texts.map((model) => model.id));
    this.#section.hidden = texts.length === 0;
    this.#field.use(texts);
  }

  sampling() {
    return { max_tokens: this.#tokens.valueAsNumber, temperature: this.#temperature.valueAsNumber };
  }

  /** Begins a session with the prompt. */
  async #start() {
    this.#generate.disabled = true;
    this.#clear();
    show(this.#problem, "");
    try {
      const model = this.#model.value;
      const { id: session, seed, position } = await this.#api.openSession(model, seedOf(this.#seed), IDLE_SECONDS);
      const prompt = this.#prompt.value;
      const branch = this.#add({ name: "A", about: `seed ${seed}`, model, session, seed, prompt, pieces: [], position });
      this.#generate.disabled = false;
      const problem = await branch.run(prompt);
      if (problem !== "" && branch.isEmpty) {
        this.close(branch);
        show(this.#problem, problem);
      }
    } catch (error) {
      show(this.#problem, described(error));
    }
    this.#generate.disabled = false;
  }

  /**
   * @param {Branch} parent
   * @param {number} kept
   */
  async fork(parent, kept) {
    const taken = new Set(this.#branches.map((branch) => branch.origin.name));
    const name = [...NAMES].find((letter) => !taken.has(letter));
    if (name === undefined) throw new ApiError(`There are ${NAMES.length} texts already. Close one of them first.`, null, 0);
    const { model, prompt, name: from } = parent.origin;
    const { pieces, position } = parent.until(kept);
    const nextSeed = Math.max(...this.#branches.map((branch) => branch.origin.seed)) + 1;
    const { id: session, seed } = await this.#api.fork(model, parent.origin.session, position, nextSeed);
    const about = `fork of ${from}, seed ${seed}`;
    const child = this.#add({ name, about, model, session, seed, prompt, pieces, position });
    void child.run();
    void parent.run();
  }

  /** @param {Branch} branch */
  close(branch) {
    branch.end();
    branch.element.remove();
    this.#branches = this.#branches.filter((one) => one !== branch);
  }

  /** @param {Origin} origin */
  #add(origin) {
    const branch = new Branch(this.#api, this, origin);
    this.#branches.push(branch);
    this.#place.append(branch.element);
    return branch;
  }

  #clear() {
    for (const branch of this.#branches) this.close(branch);
  }
}
