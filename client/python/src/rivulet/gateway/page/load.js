// SPDX-License-Identifier: Apache-2.0
// Gauges of the load of each model.

import { count, make } from "./dom.js";

/** @import { ModelLoad } from "./api.js" */

const SAMPLES = 120; // of the curve
const WIDTH = 120;
const HEIGHT = 30;
const SVG = "http://www.w3.org/2000/svg";

/** The rate of the last SAMPLES answers. */
class Curve {
  /** @readonly */
  element = document.createElementNS(SVG, "svg");
  #line = document.createElementNS(SVG, "polyline");
  /** @type {number[]} */
  #rates = [];

  constructor() {
    this.element.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    this.element.setAttribute("preserveAspectRatio", "none");
    this.element.setAttribute("aria-hidden", "true");
    this.element.append(this.#line);
  }

  /** @param {number} rate */
  add(rate) {
    this.#rates.push(rate);
    if (this.#rates.length > SAMPLES) this.#rates.shift();
    const most = Math.max(1, ...this.#rates);
    const first = SAMPLES - this.#rates.length;
    const points = this.#rates.map((one, index) => {
      const x = ((first + index) * WIDTH) / (SAMPLES - 1);
      return `${x.toFixed(1)},${(HEIGHT - 1 - (one / most) * (HEIGHT - 2)).toFixed(1)}`;
    });
    this.#line.setAttribute("points", points.join(" "));
  }
}

class Gauge {
  /** @readonly */
  element;
  #slots = make("meter", { min: 0 });
  #slotsText = make("dd");
  #rate = make("dd", { className: "rate" });
  #waiting = make("dd");
  #sessions = make("dd");
  #curve = new Curve();

  /** @param {string} model */
  constructor(model) {
    this.#slots.ariaLabel = `Slots of ${model} in use`;
    /** @type {(name: string, value: HTMLElement) => HTMLElement} */
    const entry = (name, value) => make("div", {}, make("dt", {}, name), value);
    this.element = make(
      "article",
      { className: "card gauge" },
      make("h3", {}, model),
      make(
        "dl",
        {},
        entry("slots in use", this.#slotsText),
        entry("tokens per second", this.#rate),
        entry("waiting", this.#waiting),
        entry("sessions", this.#sessions),
      ),
      this.#slots,
      this.#curve.element,
    );
    this.element.dataset["model"] = model;
  }

  /** @param {ModelLoad} load */
  show(load) {
    this.#slots.max = Math.max(1, load.slots);
    this.#slots.value = load.slots_used;
    this.#slotsText.textContent = `${count(load.slots_used)} of ${count(load.slots)}`;
    this.#rate.textContent = count(load.tokens_per_second);
    this.#waiting.textContent = count(load.queued);
    this.#sessions.textContent = count(load.sessions);
    this.#curve.add(load.tokens_per_second);
  }
}

export class Gauges {
  /** @type {Map<string, Gauge>} */
  #gauges = new Map();
  #place;

  /** @param {HTMLElement} place */
  constructor(place) {
    this.#place = place;
  }

  /** @param {ModelLoad[]} loads */
  show(loads) {
    const names = new Set(loads.map((load) => load.model));
    for (const [name, gauge] of this.#gauges) {
      if (names.has(name)) continue;
      gauge.element.remove();
      this.#gauges.delete(name);
    }
    for (const load of loads) {
      let gauge = this.#gauges.get(load.model);
      if (gauge === undefined) {
        gauge = new Gauge(load.model);
        this.#gauges.set(load.model, gauge);
        this.#place.append(gauge.element);
      }
      gauge.show(load);
    }
  }
}
