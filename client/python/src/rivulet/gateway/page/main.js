// SPDX-License-Identifier: Apache-2.0
// Finds the models of the server, hands them to the panels, and watches the load.

import { Api, described } from "./api.js";
import { ChatPanel } from "./chat.js";
import { byId, pause, show } from "./dom.js";
import { ImagesPanel } from "./images.js";
import { Gauges } from "./load.js";
import { TextPanel } from "./text.js";

const POLL_MS = 500;

const connection = byId("connection", HTMLElement);
const problem = byId("problem", HTMLElement);
const load = byId("load", HTMLElement);
const keyForm = byId("key-form", HTMLFormElement);
const key = byId("key", HTMLInputElement);

const api = new Api(() => {
  keyForm.hidden = false;
});
const panels = [new ChatPanel(api), new TextPanel(api), new ImagesPanel(api)];
const gauges = new Gauges(byId("gauges", HTMLElement));
/** @type {string | undefined} */
let known; // names of the models that the panels have

async function poll() {
  const loads = await api.load();
  const names = JSON.stringify(loads.map(({ model }) => model));
  if (names !== known) {
    const models = await api.models();
    for (const panel of panels) panel.use(models);
    known = names;
  }
  gauges.show(loads);
  load.hidden = false;
  show(problem, loads.length === 0 ? "The server has no models." : "");
  connection.textContent = loads.length === 1 ? "connected, 1 model" : `connected, ${loads.length} models`;
  connection.dataset["state"] = "good";
}

async function watch() {
  for (;;) {
    if (!document.hidden && keyForm.hidden) {
      try {
        await poll();
      } catch (error) {
        connection.textContent = keyForm.hidden ? "not connected" : "a key is needed";
        connection.dataset["state"] = "bad";
        show(problem, described(error));
      }
    }
    await pause(POLL_MS);
  }
}

keyForm.addEventListener("submit", (event) => {
  event.preventDefault();
  api.useKey(key.value);
  key.value = "";
  keyForm.hidden = true;
});
void watch();
