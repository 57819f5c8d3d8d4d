// SPDX-License-Identifier: Apache-2.0
// Conversations, whose answers can be undone and forked.

import { described, isAbort } from "./api.js";
import { byId, count, make, offer, PromptField, seedOf, show } from "./dom.js";

/** @import { Api, ModelDetails } from "./api.js" */

/** @typedef {{ role: "system" | "user" | "assistant", content: string }} Message */

/**
 * The settings with which an answer is drawn.
 * @typedef {{ model: string, max_tokens: number, temperature: number, seed: number, system: string }} Settings
 */

/**
 * The functions of the panel that a conversation calls.
 * @typedef {object} Owner
 * @property {(from: Conversation, messages: Message[]) => void} fork
 * @property {(question: string) => void} askAgain
 * @property {(conversation: Conversation) => void} choose
 * @property {(conversation: Conversation, index: number) => Promise<void>} regenerate
 */

const NAMES = "ABCDEF"; // of the conversations on the page

/**
 * What a model keeps of a conversation, in a sentence.
 * @param {ModelDetails | undefined} model
 */
function memory(model) {
  if (model === undefined) return "";
  const { attention, max_sequence_tokens: limit } = model.rivulet;
  const end = limit === undefined ? "" : ` A conversation has at most ${count(limit)} tokens.`;
  if (attention === "softmax") return `This model is a softmax transformer: it keeps all that was said in a KV cache.${end}`;
  if (attention === "hybrid")
    return `This model is a hybrid: it keeps a state of fixed size, and a KV cache that grows as you talk.${end}`;
  const always = limit === undefined ? ", however long you talk" : "";
  return `This model is a linear transformer: its memory of a conversation has a fixed size${always}.${end}`;
}

class Conversation {
  /** @readonly */
  element;
  /** @readonly */
  name;
  settings;
  /** @type {Message[]} */
  #messages;
  #list = make("div", { className: "messages", tabIndex: 0 });
  #status = make("p", { className: "hint" });
  #problem = make("p", { className: "problem", hidden: true });
  #choice = make("button", { type: "button", className: "name" });
  #title = make("span", { className: "hint" });
  /** @type {AbortController | null} */
  #running = null;
  #api;
  #owner;

  /**
   * @param {Api} api
   * @param {Owner} owner
   * @param {string} name
   * @param {Settings} settings
   * @param {Message[]} messages
   */
  constructor(api, owner, name, settings, messages) {
    this.#api = api;
    this.#owner = owner;
    this.name = name;
    this.settings = settings;
    this.#messages = messages;
    this.#status.role = "status";
    this.#problem.role = "alert";
    this.#list.role = "log";
    this.#list.ariaLabel = `Conversation ${name}`;
    this.#choice.textContent = name;
    this.#choice.ariaLabel = `Talk in conversation ${name}`;
    this.#choice.addEventListener("click", () => owner.choose(this));
    const title = make("h3", {}, this.#choice, this.#title);
    this.element = make("article", { className: "conversation" }, title, this.#list, this.#problem, this.#status);
    this.element.dataset["name"] = name;
    this.#draw();
  }

  /** @param {boolean} chosen */
  set chosen(chosen) {
    this.#choice.ariaPressed = String(chosen);
  }

  get isBusy() {
    return this.#running !== null;
  }

  stop() {
    this.#running?.abort();
  }

  /**
   * Adds a question and its answer. A stopped answer stays; a failed answer is removed with its question.
   * @param {string} question
   */
  async ask(question) {
    if (!(await this.#answer([...this.#messages, { role: "user", content: question }]))) this.#owner.askAgain(question);
  }

  /**
   * Puts a new answer in place of an answer and what follows it. If the new answer fails, they stay.
   * @param {number} index of the answer
   * @param {number} seed
   */
  async regenerate(index, seed) {
    const before = this.settings.seed;
    this.settings.seed = seed;
    if (await this.#answer(this.#messages.slice(0, index))) return;
    this.settings.seed = before;
    this.#draw();
  }

  /**
   * Returns whether the messages have been answered. If not, the conversation is as it was.
   * @param {Message[]} messages
   */
  async #answer(messages) {
    const running = (this.#running = new AbortController());
    const before = this.#messages;
    /** @type {Message} */
    const answer = { role: "assistant", content: "" };
    this.#messages = [...messages, answer];
    show(this.#problem, "");
    this.#status.textContent = "answering";
    const place = this.#draw();
    let end = "";
    try {
      const { system, ...sampling } = this.settings;
      /** @type {Message[]} */
      const first = system.trim() === "" ? [] : [{ role: "system", content: system }];
      for await (const { choices } of await this.#api.chat({ ...sampling, messages: [...first, ...messages] }, running.signal)) {
        answer.content += choices[0]?.delta?.content ?? "";
        place.textContent = answer.content.trimStart();
        this.#list.scrollTop = this.#list.scrollHeight;
        if (choices[0]?.finish_reason === "length") end = `ended by the maximum of ${count(this.settings.max_tokens)} tokens`;
      }
    } catch (error) {
      if (isAbort(error)) end = "stopped";
      else show(this.#problem, described(error));
      if (!isAbort(error) || answer.content === "") this.#messages = before;
    }
    this.#status.textContent = end;
    this.#running = null;
    this.#draw();
    return this.#messages !== before;
  }

  /** Shows all messages; returns the place of the last one. */
  #draw() {
    let place = make("p");
    const shown = this.#messages.map(({ role, content }, index) => {
      place = make("p", {}, content.trimStart());
      const message = make("div", { className: `message ${role}` }, place);
      if (role === "assistant" && !this.isBusy) message.append(this.#actions(index, place));
      return message;
    });
    this.element.ariaBusy = String(this.isBusy);
    this.#title.textContent = `${this.settings.model}, seed ${this.settings.seed}`;
    this.#list.replaceChildren(...shown);
    this.#list.hidden = shown.length === 0;
    this.#list.scrollTop = this.#list.scrollHeight;
    return place;
  }

  /**
   * @param {number} index of an answer
   * @param {HTMLElement} place of its text
   */
  #actions(index, place) {
    /** @type {(name: string, title: string, action: () => void) => HTMLElement} */
    const button = (name, title, action) => {
      const made = make("button", { type: "button", title }, name);
      made.addEventListener("click", action);
      return made;
    };
    return make(
      "div",
      { className: "buttons" },
      button("Copy", "Copy the text of this answer", () => void this.#copy(place)),
      button("Regenerate", "Answer again with another seed, and forget what follows", () => void this.#owner.regenerate(this, index)),
      button("Undo", "Forget this answer and what follows, and ask again", () => {
        this.#owner.choose(this);
        this.#owner.askAgain(this.#messages[index - 1]?.content ?? "");
        this.#messages = this.#messages.slice(0, index - 1);
        this.#draw();
      }),
      button("Fork", "Go on after this answer in a second conversation", () => this.#owner.fork(this, this.#messages.slice(0, index + 1))),
    );
  }

  /**
   * Copies a text, or selects it where the browser forbids to copy: without HTTPS, except on localhost.
   * @param {HTMLElement} place
   */
  async #copy(place) {
    try {
      await navigator.clipboard.writeText(place.textContent ?? "");
      this.#status.textContent = "copied";
    } catch {
      getSelection()?.selectAllChildren(place);
      this.#status.textContent = "The browser does not let this page copy. The answer is selected: copy it with Ctrl+C.";
    }
  }
}

/** @implements {Owner} */
export class ChatPanel {
  #section = byId("chat", HTMLElement);
  #memory = byId("chat-memory", HTMLElement);
  #none = byId("chat-none", HTMLElement);
  #form = byId("chat-form", HTMLFormElement);
  #message = byId("chat-message", HTMLTextAreaElement);
  #model = byId("chat-model", HTMLSelectElement);
  #tokens = byId("chat-tokens", HTMLInputElement);
  #temperature = byId("chat-temperature", HTMLInputElement);
  #seed = byId("chat-seed", HTMLInputElement);
  #system = byId("chat-system", HTMLTextAreaElement);
  #send = byId("chat-send", HTMLButtonElement);
  #stop = byId("chat-stop", HTMLButtonElement);
  #new = byId("chat-new", HTMLButtonElement);
  #problem = byId("chat-problem", HTMLElement);
  #place = byId("conversations", HTMLElement);
  /** @type {ModelDetails[]} */
  #able = [];
  /** @type {Conversation[]} */
  #conversations = [];
  /** @type {Conversation | undefined} */
  #chosen;
  #prompt = new PromptField(this.#message, this.#model, ["Why is the sky blue?", "What news, my lord?"]);
  #api;

  /** @param {Api} api */
  constructor(api) {
    this.#api = api;
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.#ask();
    });
    this.#message.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#form.requestSubmit();
    });
    this.#stop.addEventListener("click", () => this.#chosen?.stop());
    this.#new.addEventListener("click", () => this.#clear());
    this.#model.addEventListener("change", () => this.#clear());
    this.#update();
  }

  /** @param {ModelDetails[]} models */
  use(models) {
    const texts = models.filter((model) => model.rivulet.content === "text");
    this.#able = texts.filter((model) => model.rivulet.chat_template !== undefined);
    offer(this.#model, this.#able.map((model) => model.id));
    this.#section.hidden = texts.length === 0;
    this.#none.hidden = this.#able.length > 0;
    this.#form.hidden = this.#able.length === 0;
    // A card in which nothing can be done comes last.
    byId(this.#able.length > 0 ? "text" : "load", HTMLElement).before(this.#section);
    this.#prompt.use(this.#able);
    this.#update();
  }

  async #ask() {
    const question = this.#message.value;
    if (question.trim() === "" || this.#chosen?.isBusy) return;
    const conversation = this.#chosen ?? this.#begin();
    this.#prompt.clear();
    await this.#run(conversation, () => conversation.ask(question));
  }

  /**
   * @param {Conversation} conversation
   * @param {number} index
   */
  async regenerate(conversation, index) {
    this.choose(conversation);
    if (!this.#form.reportValidity()) return;
    await this.#run(conversation, () => conversation.regenerate(index, this.#nextSeed()));
  }

  /**
   * Answers with the settings in the form.
   * @param {Conversation} conversation
   * @param {() => Promise<void>} answer
   */
  async #run(conversation, answer) {
    show(this.#problem, "");
    Object.assign(conversation.settings, this.#sampling());
    const answered = answer();
    this.#update();
    await answered;
    this.#update();
  }

  /** A seed that no conversation on the page has. */
  #nextSeed() {
    return Math.max(...this.#conversations.map((one) => one.settings.seed)) + 1;
  }

  #sampling() {
    const [max_tokens, temperature] = [this.#tokens.valueAsNumber, this.#temperature.valueAsNumber];
    return { max_tokens, temperature, system: this.#system.value };
  }

  #begin() {
    return this.#add({ model: this.#model.value, seed: seedOf(this.#seed), ...this.#sampling() }, []);
  }

  /**
   * @param {Settings} settings
   * @param {Message[]} messages
   */
  #add(settings, messages) {
    const name = /** @type {string} */ (NAMES[this.#conversations.length]);
    const conversation = new Conversation(this.#api, this, name, settings, messages);
    this.#conversations.push(conversation);
    this.#place.append(conversation.element);
    this.choose(conversation);
    return conversation;
  }

  #clear() {
    for (const conversation of this.#conversations) conversation.stop();
    this.#conversations = [];
    this.#chosen = undefined;
    this.#place.replaceChildren();
    show(this.#problem, "");
    this.#update();
  }

  /**
   * @param {Conversation} from
   * @param {Message[]} messages
   */
  fork(from, messages) {
    if (this.#conversations.length === NAMES.length) {
      show(this.#problem, `There are ${NAMES.length} conversations already. "New chat" closes them.`);
      return;
    }
    this.#add({ ...from.settings, seed: this.#nextSeed() }, messages);
  }

  /** @param {string} question */
  askAgain(question) {
    this.#prompt.fill(question);
  }

  /** @param {Conversation} conversation */
  choose(conversation) {
    this.#chosen = conversation;
    for (const one of this.#conversations) one.chosen = one === conversation;
    this.#update();
    this.#message.focus({ preventScroll: true });
  }

  #update() {
    this.#send.disabled = this.#chosen?.isBusy === true;
    this.#stop.disabled = this.#chosen?.isBusy !== true;
    this.#new.disabled = this.#conversations.length === 0;
    show(this.#memory, memory(this.#able.find((model) => model.id === this.#model.value)));
  }
}
