// Elements without markup: text only ever becomes a text node, so that names from the traced program are
// inert. Styles are set as properties, which the page's content security policy allows.

const SVG = 'http://www.w3.org/2000/svg';

function fill(element, properties, children) {
  for (const [key, value] of Object.entries(properties ?? {})) {
    if (value == null || value === false) continue;
    if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
    else if (key === 'style')
      for (const [name, to] of Object.entries(value)) element.style.setProperty(name, to);
    else element.setAttribute(key, value === true ? '' : String(value));
  }
  append(element, children);
  return element;
}

export function append(element, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child == null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
export const s = (tag, properties, ...children) =>
  fill(document.createElementNS(SVG, tag), properties, children);

export const replace = (element, ...children) => {
  element.replaceChildren();
  return append(element, children);
};

// Controls of the direction of text are shown, so that a name cannot reorder the words around it.
const DIRECTION = /[\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c]/g;
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;
export const clean = (text) =>
  String(text)
    .replace(DIRECTION, (c) => `⟨U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}⟩`)
    .replace(CONTROL, '\ufffd');

/** Shortens in the middle. */
export function shorten(text, most) {
  if (text.length <= most) return text;
  const end = Math.floor(most / 3);
  return `${text.slice(0, most - end - 1)}…${text.slice(-end)}`;
}

/** Folds what stands between angle brackets, innermost first, and parameters, until a name is short. */
export function folded(text, most) {
  if (text.length <= most || text.length > 4000) return text;
  let name = text;
  for (let turn = 0; turn < 8 && name.length > most; turn += 1) {
    const next = name.replace(/<[^<>]*[^<>…][^<>]*>/g, '<…>');
    if (next === name) break;
    name = next;
  }
  if (name.length > most) name = name.replace(/\([^()]{8,}\)/g, '(…)');
  return /[\p{L}\d]/u.test(name) ? name : text;
}

/** A name from the traced program: isolated in its direction, shortened, whole in its title. */
export function name(text, most = 60, properties = {}) {
  const all = clean(text.length > 4000 ? shorten(text, 4000) : text);
  const shown = shorten(folded(all, most), most);
  return h('bdi', { title: shown === all ? null : shorten(all, 1500), ...properties }, shown);
}

export const link = (href, properties, ...children) => h('a', { href, ...properties }, ...children);
// A run of names and texts in the colour of what matters less.
export const muted = (...children) => h('span', { class: 'muted' }, ...children);
