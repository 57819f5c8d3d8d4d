export function byId(id, kind) {
    const found = document.getElementById(id);
    if (!(found instanceof kind))
        throw new Error(`the page has no ${kind.name} "${id}"`);
    return found;
}
export function make(tag, properties = {}, ...children) {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
}
export function show(place, text) {
    place.textContent = text;
    place.hidden = text === "";
}
export function offer(select, names) {
    const chosen = select.value;
    select.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
    if (names.includes(chosen))
        select.value = chosen;
}
export function seedOf(field) {
    if (field.value !== "")
        return field.valueAsNumber;
    return crypto.getRandomValues(new Uint32Array(1))[0];
}
const form = new Intl.NumberFormat("en");
export function count(value) {
    return form.format(Math.round(value));
}
export function pause(milliseconds) {
    return new Promise((resolve) => setTimeout(resolve, milliseconds));
}
