// SPDX-License-Identifier: Apache-2.0
// Draws images while the model generates their values.

import { described, isAbort } from "./api.js";
import { byId, count, make, offer, seedOf, show } from "./dom.js";

/** @import { Api, ImageShape, ModelDetails } from "./api.js" */

const COUNTS = [1, 4, 9, 16, 25, 36, 64];
const DEFAULT_COUNT = 16;
const CURSOR = [38, 190, 178]; // colour of the pixel that is drawn next

/** One image on a canvas of its own. */
class Picture {
  /** @readonly */
  canvas;
  #shape;
  #context;
  #pixels;
  #drawn = 0; // values
  #changed = true;

  /** @param {ImageShape} shape */
  constructor(shape) {
    this.#shape = shape;
    this.canvas = make("canvas", { width: shape.width, height: shape.height });
    this.#context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    this.#pixels = this.#context.createImageData(shape.width, shape.height);
    this.#point();
  }

  /** @param {number[]} values */
  add(values) {
    const { channels, num_levels } = this.#shape;
    for (const value of values) {
      const at = Math.floor(this.#drawn / channels) * 4;
      const level = Math.round((value * 255) / (num_levels - 1));
      if (channels === 1) this.#pixels.data.fill(level, at, at + 3);
      else this.#pixels.data[at + (this.#drawn % channels)] = level;
      this.#pixels.data[at + 3] = 255;
      this.#drawn++;
    }
    this.#point();
  }

  #point() {
    const at = Math.ceil(this.#drawn / this.#shape.channels) * 4;
    if (at < this.#pixels.data.length) this.#pixels.data.set([...CURSOR, 255], at);
    this.#changed = true;
  }

  paint() {
    if (this.#changed) this.#context.putImageData(this.#pixels, 0, 0);
    this.#changed = false;
  }
}

export class ImagesPanel {
  #section = byId("images", HTMLElement);
  #model = byId("images-model", HTMLSelectElement);
  #count = byId("images-count", HTMLSelectElement);
  #temperature = byId("images-temperature", HTMLInputElement);
  #seed = byId("images-seed", HTMLInputElement);
  #draw = byId("images-draw", HTMLButtonElement);
  #stop = byId("images-stop", HTMLButtonElement);
  #problem = byId("images-problem", HTMLElement);
  #canvases = byId("canvases", HTMLElement);
  #progress = byId("images-progress", HTMLProgressElement);
  #status = byId("images-status", HTMLElement);
  #api;
  /** @type {ModelDetails[]} */
  #models = [];
  /** @type {AbortController | null} */
  #running = null;

  /** @param {Api} api */
  constructor(api) {
    this.#api = api;
    byId("images-form", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#running === null) void this.#run();
    });
    this.#stop.addEventListener("click", () => this.#running?.abort());
    this.#model.addEventListener("change", () => this.#offerCounts());
  }

  /**
   * Keeps the models that draw images of one or three channels.
   * @param {ModelDetails[]} models
   */
  use(models) {
    this.#models = models.filter(({ rivulet: { image } }) => image !== undefined && [1, 3].includes(image.channels));
    offer(this.#model, this.#models.map((model) => model.id));
    this.#section.hidden = this.#models.length === 0;
    this.#offerCounts();
  }

  #offerCounts() {
    const most = this.#chosen()?.rivulet.max_num_samples ?? 1;
    const counts = COUNTS.filter((one) => one <= most);
    const before = Number(this.#count.value) || DEFAULT_COUNT;
    this.#count.replaceChildren(...counts.map((one) => make("option", { value: String(one) }, String(one))));
    this.#count.value = String(counts.filter((one) => one <= before).pop());
  }

  #chosen() {
    return this.#models.find((model) => model.id === this.#model.value);
  }

  async #run() {
    const model = /** @type {ModelDetails} */ (this.#chosen());
    const shape = /** @type {ImageShape} */ (model.rivulet.image);
    const pictures = Array.from({ length: Number(this.#count.value) }, () => new Picture(shape));
    const seed = seedOf(this.#seed);
    this.#begin(pictures, shape);
    const begun = performance.now();
    let end = "drawn";
    try {
      await this.#fill(model.id, pictures, seed, shape.height * shape.width * shape.channels);
    } catch (error) {
      end = isAbort(error) ? "stopped" : "failed";
      if (end === "failed") show(this.#problem, described(error));
    }
    const seconds = ((performance.now() - begun) / 1000).toFixed(1);
    this.#end(`${pictures.length} ${pictures.length === 1 ? "image" : "images"} ${end}`, `, seed ${seed}, ${seconds} s`);
  }

  /**
   * @param {Picture[]} pictures
   * @param {ImageShape} shape
   */
  #begin(pictures, shape) {
    this.#running = new AbortController();
    this.#draw.disabled = true;
    this.#stop.disabled = false;
    show(this.#problem, "");
    this.#canvases.replaceChildren(...pictures.map((picture) => picture.canvas));
    this.#canvases.hidden = false;
    this.#canvases.ariaLabel = `${pictures.length} images, being drawn`;
    this.#progress.hidden = false;
    this.#progress.max = pictures.length * shape.height * shape.width * shape.channels;
    this.#progress.value = 0;
    this.#status.textContent = "drawing";
  }

  /**
   * @param {string} what
   * @param {string} details
   */
  #end(what, details) {
    this.#running = null;
    this.#draw.disabled = false;
    this.#stop.disabled = true;
    this.#canvases.ariaLabel = what;
    this.#status.textContent = `${what}: ${count(this.#progress.value)} values${details}`;
  }

  /**
   * @param {string} model
   * @param {Picture[]} pictures
   * @param {number} seed
   * @param {number} values of each picture
   */
  async #fill(model, pictures, seed, values) {
    const temperature = this.#temperature.valueAsNumber;
    const body = { model, prompt: [], n: pictures.length, max_tokens: values, temperature, seed };
    const chunks = await this.#api.stream("v1/completions", body, /** @type {AbortController} */ (this.#running).signal);
    let drawn = 0;
    let frame = 0;
    const paint = () => {
      frame = 0;
      for (const picture of pictures) picture.paint();
      this.#progress.value = drawn;
    };
    try {
      for await (const chunk of chunks) {
        for (const choice of chunk.choices) {
          pictures[choice.index]?.add(choice.token_ids);
          drawn += choice.token_ids.length;
        }
        frame ||= requestAnimationFrame(paint);
      }
    } finally {
      cancelAnimationFrame(frame);
      paint();
    }
  }
}
