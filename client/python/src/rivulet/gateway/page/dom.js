// SPDX-License-Identifier: Apache-2.0
// Elements of the page. Text is set only by textContent.

/** @import { ModelDetails } from "./api.js" */

/**
 * @template {HTMLElement} T
 * @param {string} id
 * @param {new () => T} kind
 */
export function byId(id, kind) {
  const found = document.getElementById(id);
  if (!(found instanceof kind)) throw new Error(`the page has no ${kind.name} "${id}"`);
  return found;
}

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Partial<HTMLElementTagNameMap[K]>} properties
 * @param {(Node | string)[]} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/**
 * Shows a text in its place, or hides the place if the text is empty.
 * @param {HTMLElement} place
 * @param {string} text
 */
export function show(place, text) {
  place.textContent = text;
  place.hidden = text === "";
}

/**
 * Offers models by name, and keeps the chosen one if it is still there.
 * @param {HTMLSelectElement} select
 * @param {string[]} names
 */
export function offer(select, names) {
  const chosen = select.value;
  select.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
  if (names.includes(chosen)) select.value = chosen;
}

/**
 * The seed in a field, or a new seed if the field is empty.
 * @param {HTMLInputElement} field
 */
export function seedOf(field) {
  if (field.value !== "") return field.valueAsNumber;
  return /** @type {number} */ (crypto.getRandomValues(new Uint32Array(1))[0]);
}

/** A field with a suggested prompt that fits the chosen model, until the user writes in it. */
export class PromptField {
  #field;
  #select;
  #candidates;
  #suggested = "";
  /** @type {Map<string, string | undefined>} */
  #alphabets = new Map();

  /**
   * @param {HTMLTextAreaElement} field
   * @param {HTMLSelectElement} select of the model
   * @param {string[]} candidates for a model of any text, then for models with a small alphabet
   */
  constructor(field, select, candidates) {
    this.#field = field;
    this.#select = select;
    this.#candidates = candidates;
    select.addEventListener("change", () => this.#suggest());
  }

  /** @param {ModelDetails[]} models */
  use(models) {
    this.#alphabets = new Map(models.map((model) => [model.id, model.rivulet.alphabet]));
    this.#suggest();
  }

  /** @param {string} text */
  fill(text) {
    this.#field.value = text;
  }

  clear() {
    this.#field.value = "";
    this.#suggested = "\n"; // no user writes this, so the field stays empty
  }

  #suggest() {
    if (this.#field.value !== this.#suggested) return;
    const alphabet = this.#alphabets.get(this.#select.value);
    const [any, ...others] = this.#candidates;
    const fits = alphabet ? others.find((one) => [...one].every((letter) => alphabet.includes(letter))) : any;
    this.#suggested = this.#field.value = fits ?? alphabet?.slice(0, 1) ?? "";
  }
}

const form = new Intl.NumberFormat("en");

/**
 * A count with its separators.
 * @param {number} value
 */
export function count(value) {
  return form.format(Math.round(value));
}

/**
 * @param {number} milliseconds
 * @returns {Promise<void>}
 */
export function pause(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}
