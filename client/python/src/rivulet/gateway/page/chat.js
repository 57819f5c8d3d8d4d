// SPDX-License-Identifier: Apache-2.0
// Conversations, whose answers can be undone and forked.

import { described, isAbort } from "./api.js";
import { byId, make, offer, PromptField, seedOf, show } from "./dom.js";

/** @import { Api, ModelDetails } from "./api.js" */

/** @typedef {{ role: "user" | "assistant", content: string }} Message */

/**
 * The settings with which an answer is drawn.
 * @typedef {{ model: string, max_tokens: number, temperature: number, seed: number }} Settings
 */

/**
 * The functions of the panel that a conversation calls.
 * @typedef {object} Owner
 * @property {(from: Conversation, messages: Message[]) => void} fork
 * @property {(question: string) => void} askAgain
 * @property {(conversation: Conversation) => void} choose
 */

const NAMES = "ABCDEF"; // of the conversations on the page

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
    const title = make("h3", {}, this.#choice, make("span", { className: "hint" }, `${settings.model}, seed ${settings.seed}`));
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
    const running = (this.#running = new AbortController());
    const before = this.#messages;
    /** @type {Message} */
    const answer = { role: "assistant", content: "" };
    this.#messages = [...before, { role: "user", content: question }, answer];
    show(this.#problem, "");
    this.#status.textContent = "answering";
    const place = this.#draw();
    let end = "";
    try {
      const body = { ...this.settings, messages: this.#messages.slice(0, -1) };
      for await (const { choices } of await this.#api.chat(body, running.signal)) {
        answer.content += choices[0]?.delta?.content ?? "";
        place.textContent = answer.content.trimStart();
        this.#list.scrollTop = this.#list.scrollHeight;
        if (choices[0]?.finish_reason === "length") end = `cut after ${this.settings.max_tokens} tokens`;
      }
    } catch (error) {
      if (isAbort(error)) end = "stopped";
      else show(this.#problem, described(error));
      if (!isAbort(error) || answer.content === "") this.#messages = before;
      if (this.#messages === before) this.#owner.askAgain(question);
    }
    this.#status.textContent = end;
    this.#running = null;
    this.#draw();
  }

  /** Shows all messages; returns the place of the last one. */
  #draw() {
    let place = make("p");
    const shown = this.#messages.map(({ role, content }, index) => {
      place = make("p", {}, content.trimStart());
      const message = make("div", { className: `message ${role}` }, place);
      if (role === "assistant" && !this.isBusy) message.append(this.#actions(index));
      return message;
    });
    this.element.ariaBusy = String(this.isBusy);
    this.#list.replaceChildren(...shown);
    this.#list.hidden = shown.length === 0;
    this.#list.scrollTop = this.#list.scrollHeight;
    return place;
  }

  /** @param {number} index of an answer */
  #actions(index) {
    const undo = make("button", { type: "button", title: "Forget this answer and what follows, and ask again" }, "Undo");
    undo.addEventListener("click", () => {
      this.#owner.choose(this);
      this.#owner.askAgain(this.#messages[index - 1]?.content ?? "");
      this.#messages = this.#messages.slice(0, index - 1);
      this.#draw();
    });
    const fork = make("button", { type: "button", title: "Go on after this answer in a second conversation" }, "Fork");
    fork.addEventListener("click", () => this.#owner.fork(this, this.#messages.slice(0, index + 1)));
    return make("div", { className: "buttons" }, undo, fork);
  }
}

/** @implements {Owner} */
export class ChatPanel {
  #section = byId("chat", HTMLElement);
  #none = byId("chat-none", HTMLElement);
  #form = byId("chat-form", HTMLFormElement);
  #message = byId("chat-message", HTMLTextAreaElement);
  #model = byId("chat-model", HTMLSelectElement);
  #tokens = byId("chat-tokens", HTMLInputElement);
  #temperature = byId("chat-temperature", HTMLInputElement);
  #seed = byId("chat-seed", HTMLInputElement);
  #send = byId("chat-send", HTMLButtonElement);
  #stop = byId("chat-stop", HTMLButtonElement);
  #new = byId("chat-new", HTMLButtonElement);
  #problem = byId("chat-problem", HTMLElement);
  #place = byId("conversations", HTMLElement);
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
    const able = texts.filter((model) => model.rivulet.chat_template !== undefined);
    offer(this.#model, able.map((model) => model.id));
    this.#section.hidden = texts.length === 0;
    this.#none.hidden = able.length > 0;
    this.#form.hidden = able.length === 0;
    this.#prompt.use(able);
  }

  async #ask() {
    const question = this.#message.value;
    if (question.trim() === "" || this.#chosen?.isBusy) return;
    show(this.#problem, "");
    const conversation = this.#chosen ?? this.#begin();
    Object.assign(conversation.settings, this.#sampling());
    this.#prompt.clear();
    const asked = conversation.ask(question);
    this.#update();
    await asked;
    this.#update();
  }

  #sampling() {
    return { max_tokens: this.#tokens.valueAsNumber, temperature: this.#temperature.valueAsNumber };
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
    this.#add({ ...from.settings, seed: from.settings.seed + this.#conversations.length }, messages);
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
  }
}
