// SPDX-License-Identifier: Apache-2.0
// Elements of the page. Text gets into it by textContent alone.

export function byId<T extends HTMLElement>(id: string, kind: new () => T): T {
  const found = document.getElementById(id);
  if (!(found instanceof kind)) throw new Error(`the page has no ${kind.name} "${id}"`);
  return found;
}

export function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  properties: Partial<HTMLElementTagNameMap[K]> = {},
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** Shows a text in its place, or hides the place where the text is empty. */
export function show(place: HTMLElement, text: string): void {
  place.textContent = text;
  place.hidden = text === "";
}

/** Offers models by name, and keeps the chosen one if it is still there. */
export function offer(select: HTMLSelectElement, names: string[]): void {
  const chosen = select.value;
  select.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
  if (names.includes(chosen)) select.value = chosen;
}

/** The seed in a field, or a new one where the field is empty. */
export function seedOf(field: HTMLInputElement): number {
  if (field.value !== "") return field.valueAsNumber;
  return crypto.getRandomValues(new Uint32Array(1))[0] as number;
}

const form = new Intl.NumberFormat("en");

/** A count with its separators. */
export function count(value: number): string {
  return form.format(Math.round(value));
}

export function pause(milliseconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}
