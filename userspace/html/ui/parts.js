// Pieces that several pages show: bars with intervals, places, badges, tables, source lines.

import { append, clean, h, link, muted, name } from './dom.js';
import { base } from './doc.js';
import { interval, known, share } from './format.js';

export const hash = (page, parameters = {}) => {
  const query = new URLSearchParams(
    Object.entries(parameters).filter(([, value]) => value != null && value !== ''),
  );
  const text = query.toString();
  return `#/${page}${text ? `?${text}` : ''}`;
};

/** A bar with the whiskers of its interval; the number stands beside it. */
export function bar(value, ci95, most = 1) {
  const at = (x) => `${Math.max(0, Math.min(100, (x / (most || 1)) * 100))}%`;
  const box = h('span', { class: 'bar', 'aria-hidden': 'true' });
  if (known(value)) box.append(h('span', { class: 'bar-fill', style: { width: at(value) } }));
  if (ci95 && known(ci95[0]) && known(ci95[1]) && ci95[1] > ci95[0]) {
    const width = (Math.min(ci95[1], most) - Math.max(0, ci95[0])) / (most || 1);
    box.append(
      h('span', {
        class: 'bar-whisker',
        style: { left: at(ci95[0]), width: `${Math.max(0, width) * 100}%` },
      }),
    );
  }
  return box;
}

export const withInterval = (value, ci95, format = share) =>
  h('span', { class: 'number' }, format(value), ' ', h('span', { class: 'ci' }, interval(ci95, format)));

/** Where a function without lines is meant: an address in its file. */
export const address = (at) => (at.address ? `0x${at.address.toString(16)}` : '');

/** "function file:line" with a link to the code. */
export function place(at, most = 48, isLinked = true) {
  if (!at || (!at.function && !at.file)) return muted('unknown place');
  const function_ = at.function ? h('strong', null, name(at.function, most)) : null;
  const file = at.file ? `${base(at.file)}${at.line ? `:${at.line}` : ''}` : '';
  const where =
    file &&
    (isLinked
      ? link(hash('code', { f: at.file, l: at.line }), { class: 'where' }, name(file, 40))
      : h('span', { class: 'where muted' }, name(file, 40)));
  return h(
    'span',
    { class: 'place' },
    function_,
    at.via ? muted(' via ', name(at.via, 24)) : null,
    (where || at.address) && function_ ? ' ' : null,
    where || (at.address ? muted(name(address(at), 24)) : null),
  );
}

const SHAPES = {
  far: '▲',
  middle: '◆',
  near: '●',
  unknown: '○',
  good: '●',
  fair: '◆',
  poor: '▲',
  unsure: '?',
};
export const badge = (kind, text = kind) =>
  h(
    'span',
    { class: `badge is-${kind}` },
    h('span', { 'aria-hidden': 'true' }, `${SHAPES[kind] ?? ''} `),
    text,
  );

export function card(title, ...children) {
  const heading = typeof title === 'string' ? h('h2', null, title) : title;
  return h('section', { class: 'card' }, heading, ...children);
}

/** A small table; a column is {head, cell(row), number?, class?}. */
export function table(rows, columns, label) {
  const head = columns.map((column) =>
    h('th', { scope: 'col', class: column.number ? 'num' : null }, column.head),
  );
  const body = rows.map((row, at) =>
    h(
      'tr',
      null,
      columns.map((column) =>
        h('td', { class: column.number ? 'num' : column.class }, column.cell(row, at)),
      ),
    ),
  );
  return h(
    'div',
    { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': label },
    h('table', null, h('thead', null, h('tr', null, head)), h('tbody', null, body)),
  );
}

export const details = (summary, ...children) =>
  h('details', null, h('summary', null, summary), ...children);

/** Facts as a list of terms; rows without a value are left out. */
export function facts(rows) {
  const list = h('dl', { class: 'facts' });
  for (const [term, value] of rows) {
    if (value == null || value === '' || value === '–') continue;
    append(list, h('div', null, h('dt', null, term), h('dd', null, value)));
  }
  return list;
}

/** A few source lines around one. */
export function snippet(doc, file, line, around = 4) {
  const lines = file && line ? doc.lines(file) : null;
  if (!lines || line > lines.length) return null;
  const from = Math.max(1, line - around);
  const to = Math.min(lines.length, line + around);
  const rows = [];
  for (let at = from; at <= to; at += 1) {
    rows.push(
      h(
        'div',
        { class: at === line ? 'line is-here' : 'line' },
        h('span', { class: 'line-number' }, at),
        h('code', null, clean(lines[at - 1].slice(0, 400)) || ' '),
      ),
    );
  }
  return h(
    'div',
    { class: 'snippet', tabindex: '0', role: 'region', 'aria-label': `source around line ${line}` },
    rows,
  );
}

/** What limits a loop, in the words of the text report. */
const LIMITS = {
  integer_chain: 'chain of integers',
  fp_add_chain: 'chain of additions',
  fp_multiply_chain: 'chain of products',
  divide_chain: 'chain of divisions',
  load_chain: 'chain of loads',
  l1_misses: 'L1 misses',
  deeper_misses: 'misses beyond L2',
  width: 'instruction width',
  loads: 'load units',
  stores: 'store units',
  int_units: 'integer units',
  fp_units: 'floating point',
  window: 'reorder window',
};
export const boundBy = (limit) => LIMITS[limit] ?? limit.replaceAll('_', ' ');

/** Five steps of one hue; each has a text colour of its own. */
export const heat = (value) =>
  known(value) && value > 0 ? Math.min(5, Math.max(1, Math.ceil(value * 5))) : 0;

/** A group of buttons of which one is pressed. */
export function choice(label, options, chosen, onchoose) {
  return h(
    'div',
    { class: 'choice', role: 'group', 'aria-label': label },
    options.map(([value, text]) =>
      h(
        'button',
        { type: 'button', 'aria-pressed': String(value === chosen), onclick: () => onchoose(value) },
        text,
      ),
    ),
  );
}

export function select(label, options, chosen, onchoose) {
  const box = h(
    'select',
    { 'aria-label': label, onchange: () => onchoose(box.value) },
    options.map(([value, text]) => h('option', { value, selected: value === chosen }, text)),
  );
  return box;
}

export const empty = (...text) => h('p', { class: 'empty' }, ...text);
