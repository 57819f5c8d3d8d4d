// SPDX-License-Identifier: Apache-2.0
// Elements of the page. Text gets into it by textContent alone.

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
 * Shows a text in its place, or hides the place where the text is empty.
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
 * The seed in a field, or a new one where the field is empty.
 * @param {HTMLInputElement} field
 */
export function seedOf(field) {
  if (field.value !== "") return field.valueAsNumber;
  return /** @type {number} */ (crypto.getRandomValues(new Uint32Array(1))[0]);
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
