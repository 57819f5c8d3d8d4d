// SPDX-License-Identifier: Apache-2.0
// Draws images while the model generates their values.

import { described, isAbort, type Api, type ImageShape, type ModelDetails } from "./api.js";
import { byId, count, make, offer, seedOf, show } from "./dom.js";

const COUNTS = [1, 4, 9, 16, 25, 36, 64];
const DEFAULT_COUNT = 16;
const CURSOR = [38, 190, 178]; // colour of the pixel that is drawn next

/** One image on a canvas of its own. */
class Picture {
  readonly canvas: HTMLCanvasElement;
  private readonly context: CanvasRenderingContext2D;
  private readonly pixels: ImageData;
  private drawn = 0; // values
  private changed = true;

  constructor(private readonly shape: ImageShape) {
    this.canvas = make("canvas", { width: shape.width, height: shape.height });
    this.context = this.canvas.getContext("2d") as CanvasRenderingContext2D;
    this.pixels = this.context.createImageData(shape.width, shape.height);
    this.point();
  }

  add(values: number[]): void {
    const { channels, num_levels } = this.shape;
    for (const value of values) {
      const at = Math.floor(this.drawn / channels) * 4;
      const level = Math.round((value * 255) / (num_levels - 1));
      if (channels === 1) this.pixels.data.fill(level, at, at + 3);
      else this.pixels.data[at + (this.drawn % channels)] = level;
      this.pixels.data[at + 3] = 255;
      this.drawn++;
    }
    this.point();
  }

  private point(): void {
    const at = Math.ceil(this.drawn / this.shape.channels) * 4;
    if (at < this.pixels.data.length) this.pixels.data.set([...CURSOR, 255], at);
    this.changed = true;
  }

  paint(): void {
    if (this.changed) this.context.putImageData(this.pixels, 0, 0);
    this.changed = false;
  }
}

export class ImagesPanel {
  private readonly section = byId("images", HTMLElement);
  private readonly model = byId("images-model", HTMLSelectElement);
  private readonly count = byId("images-count", HTMLSelectElement);
  private readonly temperature = byId("images-temperature", HTMLInputElement);
  private readonly seed = byId("images-seed", HTMLInputElement);
  private readonly draw = byId("images-draw", HTMLButtonElement);
  private readonly stop = byId("images-stop", HTMLButtonElement);
  private readonly problem = byId("images-problem", HTMLElement);
  private readonly canvases = byId("canvases", HTMLElement);
  private readonly progress = byId("images-progress", HTMLProgressElement);
  private readonly status = byId("images-status", HTMLElement);
  private models: ModelDetails[] = [];
  private running: AbortController | null = null;

  constructor(private readonly api: Api) {
    byId("images-form", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.running === null) void this.run();
    });
    this.stop.addEventListener("click", () => this.running?.abort());
    this.model.addEventListener("change", () => this.offerCounts());
  }

  /** Takes those models that draw images of one channel or three. */
  use(models: ModelDetails[]): void {
    this.models = models.filter(({ rivulet: { image } }) => image !== undefined && [1, 3].includes(image.channels));
    offer(this.model, this.models.map((model) => model.id));
    this.section.hidden = this.models.length === 0;
    this.offerCounts();
  }

  private offerCounts(): void {
    const most = this.chosen()?.rivulet.max_num_samples ?? 1;
    const counts = COUNTS.filter((one) => one <= most);
    const before = Number(this.count.value) || DEFAULT_COUNT;
    this.count.replaceChildren(...counts.map((one) => make("option", { value: String(one) }, String(one))));
    this.count.value = String(counts.filter((one) => one <= before).pop());
  }

  private chosen(): ModelDetails | undefined {
    return this.models.find((model) => model.id === this.model.value);
  }

  private async run(): Promise<void> {
    const model = this.chosen() as ModelDetails;
    const shape = model.rivulet.image as ImageShape;
    const pictures = Array.from({ length: Number(this.count.value) }, () => new Picture(shape));
    const seed = seedOf(this.seed);
    this.begin(pictures, shape);
    const begun = performance.now();
    let end = "drawn";
    try {
      await this.fill(model.id, pictures, seed, shape.height * shape.width * shape.channels);
    } catch (error) {
      end = isAbort(error) ? "stopped" : "failed";
      if (end === "failed") show(this.problem, described(error));
    }
    const seconds = ((performance.now() - begun) / 1000).toFixed(1);
    this.end(`${pictures.length} ${pictures.length === 1 ? "image" : "images"} ${end}`, `, seed ${seed}, ${seconds} s`);
  }

  private begin(pictures: Picture[], shape: ImageShape): void {
    this.running = new AbortController();
    this.draw.disabled = true;
    this.stop.disabled = false;
    show(this.problem, "");
    this.canvases.replaceChildren(...pictures.map((picture) => picture.canvas));
    this.canvases.hidden = false;
    this.canvases.ariaLabel = `${pictures.length} images, being drawn`;
    this.progress.hidden = false;
    this.progress.max = pictures.length * shape.height * shape.width * shape.channels;
    this.progress.value = 0;
    this.status.textContent = "drawing";
  }

  private end(what: string, details: string): void {
    this.running = null;
    this.draw.disabled = false;
    this.stop.disabled = true;
    this.canvases.ariaLabel = what;
    this.status.textContent = `${what}: ${count(this.progress.value)} values${details}`;
  }

  private async fill(model: string, pictures: Picture[], seed: number, values: number): Promise<void> {
    const temperature = this.temperature.valueAsNumber;
    const body = { model, prompt: [], n: pictures.length, max_tokens: values, temperature, seed };
    const chunks = await this.api.stream("v1/completions", body, (this.running as AbortController).signal);
    let drawn = 0;
    let frame = 0;
    const paint = () => {
      frame = 0;
      for (const picture of pictures) picture.paint();
      this.progress.value = drawn;
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
