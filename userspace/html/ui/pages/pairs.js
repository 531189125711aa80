// Pairs of use and reuse: filter, search and sort over columns; both call paths side by side.

import { base, FAR, isStartUp } from '../doc.js';
import { h, link, muted, name, replace } from '../dom.js';
import { bytes, count, distance, interval, known, share } from '../format.js';
import { Grid } from '../grid.js';
import {
  badge,
  bar,
  card,
  details,
  empty,
  hash,
  place,
  select,
  snippet,
  table,
  withInterval,
} from '../parts.js';

const FILTERS = [
  ['all', 'all pairs'],
  ['far', '▲ far: the caches have lost the data'],
  ['middle', '◆ in between'],
  ['near', '● near'],
  ['cross', 'reuse by another thread'],
  ['kernel', 'reuse by the kernel'],
];
const GROUPS = [
  ['', 'each pair'],
  ['function', 'by function'],
  ['file', 'by file'],
  ['object', 'by data object'],
];

/** What each pair is compared with, once: texts of places are few, pairs may be many. */
function texts(doc) {
  doc.placeTexts ??= doc.places.function.map(
    (of, at) =>
      [of, doc.places.file[at], doc.places.via[at]]
        .map((number) => doc.text(number) ?? '')
        .join(' ')
        .toLowerCase() + `:${doc.places.line[at]}`,
  );
  return doc.placeTexts;
}

/** Numbers of the pairs that a search finds: words must all be there, words after a minus must not. */
export function found(doc, query, only) {
  const { pairs: p, n } = doc;
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const want = words.filter((word) => !word.startsWith('-') || word === '-');
  const refuse = words
    .filter((word) => word.startsWith('-') && word.length > 1)
    .map((word) => word.slice(1));
  const places = texts(doc);
  const memo = new Map();
  const has = (number, word, of) => {
    if (!(number > 0)) return false;
    let hits = memo.get(of + word);
    if (!hits) memo.set(of + word, (hits = new Map()));
    let hit = hits.get(number);
    if (hit == null)
      hits.set(
        number,
        (hit =
          of === 'p' ? places[number - 1].includes(word) : doc.text(number).toLowerCase().includes(word)),
      );
    return hit;
  };
  const matches = (at, word) =>
    has(p.use[at], word, 'p') || has(p.reuse[at], word, 'p') || has(p.object[at], word, 'o');
  const filter = {
    far: (at) => p.far[at] === FAR,
    middle: (at) => p.far[at] === 1,
    near: (at) => p.far[at] === 0,
    cross: (at) => p.cross?.[at] > 0,
    kernel: (at) => p.kernel?.[at] > 0,
  }[only];
  const rows = [];
  for (let at = 0; at < n; at += 1) {
    if (filter && !filter(at)) continue;
    if (want.every((word) => matches(at, word)) && !refuse.some((word) => matches(at, word))) rows.push(at);
  }
  return rows;
}

const KEYS = {
  weight: (doc) => doc.pairs.weight,
  time: (doc) => doc.pairs.time,
  stack: (doc) => doc.pairs.stack,
  n: (doc) => doc.pairs.count,
  rank: (doc) => doc.ranks(),
};

function sorted(doc, rows, key, isUp) {
  if (key === 'object' || key === 'place') {
    // Texts are few and compared once; pairs are sorted by the places of their texts in that order.
    const column = key === 'object' ? doc.pairs.object : doc.pairs.use;
    const text =
      key === 'object'
        ? (number) => doc.text(number) ?? '\uffff'
        : (number) => texts(doc)[number - 1] ?? '\uffff';
    const numbers = [...new Set(column)]
      .map((number) => [text(number), number])
      .sort((a, b) => (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0));
    const rank = new Map(numbers.map(([, number], at) => [number, at]));
    const of = Float64Array.from(column, (number) => rank.get(number));
    const sign = isUp ? 1 : -1;
    return rows.sort((a, b) => sign * (of[a] - of[b]) || a - b);
  }
  const of = Float64Array.from(KEYS[key](doc) ?? [], (value) => value ?? -1);
  const sign = isUp ? 1 : -1;
  return rows.sort((a, b) => sign * (of[a] - of[b]) || a - b);
}

/** Rows that share a name become one: weights and counts add up, the farthest distance stands for all. */
function grouped(doc, rows, by) {
  const groups = new Map();
  const label = { function: (pl) => pl.function ?? 'unknown', file: (pl) => base(pl.file) ?? 'unknown' }[
    by
  ];
  for (const at of rows) {
    const key =
      by === 'object'
        ? (doc.text(doc.pairs.object[at]) ?? 'no data object')
        : `${label(doc.place(doc.pairs.use[at]))} → ${label(doc.place(doc.pairs.reuse[at]))}`;
    const group = groups.get(key) ?? { key, weight: 0, far: 0, n: 0, pairs: 0 };
    group.weight += doc.pairs.weight[at];
    group.far += doc.farWeight(at);
    group.n += doc.pairs.count[at];
    group.pairs += 1;
    groups.set(key, group);
  }
  return [...groups.values()].sort((a, b) => b.far - a.far || b.weight - a.weight);
}

function frames(doc, path, from) {
  return h(
    'ol',
    { class: 'path' },
    path
      .slice(from)
      .map((frame) =>
        h(
          'li',
          null,
          h('span', { class: isStartUp(frame) ? 'muted' : null }, name(frame.function ?? 'unknown', 70)),
          ' ',
          frame.file
            ? link(
                hash('code', { f: frame.file, l: frame.line }),
                { class: 'where' },
                name(`${base(frame.file)}${frame.line ? `:${frame.line}` : ''}`, 40),
              )
            : muted(name(base(frame.module) ?? '', 40)),
          frame.inlined ? h('span', { class: 'muted inlined' }, ' inlined') : null,
        ),
      ),
  );
}

function side(doc, title, at, node, cut, from) {
  const path = doc.path(node);
  return h(
    'div',
    { class: 'side' },
    h('h3', null, title, ' ', place(at, 60)),
    cut ? h('p', { class: 'muted' }, `Outer frames are missing: ${cut}`) : null,
    path.length > from ? frames(doc, path, from) : null,
    snippet(doc, at.file, at.line),
  );
}

function detail(doc, id) {
  const pair = doc.pair(id);
  const [use, reuse] = [doc.path(pair.useNode), doc.path(pair.reuseNode)];
  let common = 0;
  const most = Math.min(use.length, reuse.length) - 1;
  while (common < most && use[common].number === reuse[common].number) common += 1;
  const contexts = doc.contexts(id);
  const sizes = doc.missSizes ?? [];
  return card(
    h(
      'h2',
      null,
      name(pair.use.function ?? 'unknown', 40),
      ' → ',
      name(pair.reuse.function ?? 'unknown', 40),
    ),
    h(
      'p',
      null,
      withInterval(pair.weight, pair.ci95),
      ' of all reuses',
      known(pair.time)
        ? [
            ', ',
            h('strong', null, distance(pair.time, pair.unit)),
            pair.unit === 'accesses' ? (pair.time === 1 ? ' access apart' : ' accesses apart') : ' apart',
            pair.timeCi && pair.timeCi[0] !== pair.timeCi[1]
              ? [
                  ' ',
                  h(
                    'span',
                    { class: 'ci' },
                    interval(pair.timeCi, (x) => distance(x, pair.unit)),
                  ),
                ]
              : null,
          ]
        : null,
      known(pair.p90) ? [', 90 % within ', distance(pair.p90, pair.unit)] : null,
      known(pair.stack)
        ? [', ', h('strong', null, bytes(pair.stack * doc.granule)), ' of distinct data between']
        : null,
      ' · ',
      badge(pair.class),
      pair.n <= 3
        ? h('span', { class: 'weak' }, ` weak: seen ${pair.n === 1 ? 'once' : `${pair.n} times`}`)
        : [' · ', count(pair.n), ' seen'],
    ),
    sizes.length
      ? h(
          'p',
          null,
          'Misses a cache of ',
          sizes.map((size, i) => [
            i ? ', of ' : '',
            bytes(size),
            ' in ',
            h('strong', null, share(doc.pairs[`misses${size}`][id] / (pair.n || 1))),
          ]),
          ' of its reuses.',
        )
      : null,
    pair.object
      ? h(
          'p',
          null,
          'On ',
          objectLink(doc, pair.object),
          ` (${pair.objectKind}`,
          known(pair.objectShare) ? `, ${share(pair.objectShare)} of the pair)` : ')',
        )
      : null,
    pair.cross > 0 || pair.kernel > 0
      ? h(
          'p',
          null,
          pair.cross > 0 ? `${share(pair.cross)} of the reuses are by another thread. ` : null,
          pair.kernel > 0 ? `${share(pair.kernel)} are by the kernel on the program's behalf.` : null,
        )
      : null,
    pair.ancestor && pair.useNode !== pair.reuseNode
      ? h(
          'p',
          { class: 'hint' },
          'Both happen below ',
          place({ ...pair.ancestor, via: null }, 60),
          ': the place to fuse, to block, or to hand data over.',
        )
      : null,
    common > 0
      ? details(
          [
            'Common path, ',
            `${common} frame${common === 1 ? '' : 's'}, down to `,
            name(use[common - 1].function ?? 'unknown', 50),
          ],
          frames(doc, use.slice(0, common), 0),
        )
      : null,
    h(
      'div',
      { class: 'sides' },
      side(doc, 'Use', pair.use, pair.useNode, pair.useCut, common),
      side(doc, 'Reuse', pair.reuse, pair.reuseNode, pair.reuseCut, common),
    ),
    contexts.length
      ? details(
          `${count(pair.contextsTotal)} pairs of call paths`,
          table(
            contexts,
            [
              { head: 'of all reuses', number: true, cell: (row) => share(row.weight) },
              { head: 'distance', number: true, cell: (row) => distance(row.time, pair.unit) },
              { head: 'seen', number: true, cell: (row) => count(row.n) },
              { head: 'use below', cell: (row) => callers(doc, row.use) },
              { head: 'reuse below', cell: (row) => callers(doc, row.reuse) },
            ],
            'pairs of call paths',
          ),
        )
      : null,
  );
}

function callers(doc, node) {
  const path = doc
    .path(node)
    .filter((frame) => !isStartUp(frame))
    .slice(0, -1)
    .slice(-3);
  return path.length
    ? path.map((frame, i) => [i ? ' › ' : '', name(frame.function ?? 'unknown', 24)])
    : muted('–');
}

export function objectLink(doc, text) {
  const at = (doc.report.objects ?? []).findIndex((row) => row.name === text);
  return at >= 0 ? link(hash('data', { id: at }), null, name(text, 50)) : name(text, 50);
}

export const pairs = {
  id: 'pairs',
  title: 'Reuse pairs',
  isThere: () => true,
  render(root, parameters, doc, { go }) {
    if (!doc.n) {
      replace(root, card('Reuse pairs', empty('No reuse was seen. ', doc.report.empty ?? '')));
      return null;
    }
    const state = { only: 'all', q: '', sort: 'rank', up: '', by: '', id: '' };
    const read = (from) => {
      for (const key of Object.keys(state))
        state[key] = from.get(key) ?? { only: 'all', sort: 'rank' }[key] ?? '';
      if (!['weight', 'time', 'stack', 'n', 'rank', 'object', 'place'].includes(state.sort))
        state.sort = 'rank';
    };
    const said = h('p', { class: 'muted', role: 'status' });
    const panel = h('div', { class: 'panel' });
    const list = h('div', { class: 'list' });
    const change = (by, isNew = false) => {
      const next = { ...state, ...by };
      if (next.only === 'all') next.only = '';
      if (next.sort === 'rank') next.sort = '';
      go('pairs', next, !isNew);
    };
    const hasStack = !!doc.pairs.stack;
    let most = 1e-9;
    for (let at = 0; at < doc.n; at += 1) most = Math.max(most, doc.pairs.weight[at] || 0);
    most = Math.min(1, most * 1.6);
    const unit = doc.pairs.unit === 'cpu_ns' ? 'time apart' : 'accesses apart';
    const columns = [
      {
        key: 'weight',
        head: 'of reuses',
        width: '88px',
        number: true,
        sort: true,
        cell: (at) =>
          h(
            'div',
            null,
            share(doc.pairs.weight[at]),
            doc.pairs.low
              ? bar(doc.pairs.weight[at], [doc.pairs.low[at], doc.pairs.high[at]], most)
              : bar(doc.pairs.weight[at], null, most),
          ),
      },
      {
        key: 'place',
        head: 'use → reuse',
        width: 'minmax(170px, 1fr)',
        sort: true,
        cell: (at) => [
          h('div', { class: 'cut' }, place(doc.place(doc.pairs.use[at]), 34, false)),
          h('div', { class: 'cut' }, '→ ', place(doc.place(doc.pairs.reuse[at]), 34, false)),
        ],
      },
      {
        key: 'time',
        head: unit,
        width: '84px',
        number: true,
        sort: true,
        cell: (at) =>
          h(
            'div',
            null,
            distance(doc.pairs.time?.[at], doc.pairs.unit),
            h('br'),
            badge(['near', 'middle', 'far', 'unknown'][doc.pairs.far[at]]),
          ),
      },
      hasStack
        ? {
            key: 'stack',
            head: 'data between',
            width: '74px',
            number: true,
            sort: true,
            cell: (at) => (known(doc.pairs.stack[at]) ? bytes(doc.pairs.stack[at] * doc.granule) : '–'),
          }
        : null,
      {
        key: 'object',
        head: 'data object',
        width: 'minmax(76px, .42fr)',
        sort: true,
        cell: (at) =>
          doc.pairs.object[at]
            ? h(
                'div',
                null,
                name(doc.text(doc.pairs.object[at]), 22),
                h('br'),
                muted(doc.text(doc.pairs.objectKind[at]) ?? ''),
              )
            : muted('–'),
      },
      {
        key: 'n',
        head: 'seen',
        width: '46px',
        number: true,
        sort: true,
        cell: (at) =>
          h('span', { class: doc.pairs.count[at] <= 3 ? 'weak' : null }, count(doc.pairs.count[at])),
      },
    ].filter(Boolean);
    const grid = new Grid({
      label: 'pairs of use and reuse',
      columns,
      onselect: (at) => change({ id: at }),
      onsort: (key) => change({ sort: key, up: state.sort === key && !state.up ? '1' : '' }),
    });
    const search = h('input', {
      type: 'search',
      placeholder: 'filter: words, -words',
      'aria-label': 'filter pairs',
      class: 'filter',
      oninput: () => change({ q: search.value, id: '' }),
    });
    const kinds = FILTERS.filter(
      ([key]) =>
        ({ cross: doc.pairs.cross?.some((x) => x > 0), kernel: doc.pairs.kernel?.some((x) => x > 0) })[
          key
        ] ?? true,
    );
    const filters = h('div', { class: 'controls' });
    let shown = null;
    const update = (from, isFirst = false) => {
      read(from);
      const key = [state.only, state.q, state.sort, state.up, state.by].join('\n');
      if (key !== shown) {
        const rows = sorted(doc, found(doc, state.q, state.only), state.sort, !!state.up);
        const all = rows.reduce((sum, at) => sum + (doc.pairs.weight[at] || 0), 0);
        replace(
          said,
          `${count(rows.length)} of ${count(doc.n)} pairs, ${share(Math.min(1, all))} of all reuses`,
        );
        if (document.activeElement !== search) search.value = state.q;
        replace(
          filters,
          select('which pairs', kinds, state.only, (only) => change({ only, id: '' }, true)),
          select('group', GROUPS, state.by, (by) => change({ by }, true)),
          search,
        );
        shown = key;
        replace(list, state.by ? groupTable(doc, rows, state.by) : grid.element);
        grid.at = -1;
        grid.setRows(rows, { key: state.sort, isUp: !!state.up });
      }
      const id = state.id === '' ? grid.rows[0] : Number(state.id);
      if (id == null || !(id >= 0 && id < doc.n)) replace(panel, empty('No pair fits the filter.'));
      else {
        const row = grid.rows.indexOf(id);
        if (row >= 0) requestAnimationFrame(() => grid.select(row, true));
        replace(panel, detail(doc, id));
      }
    };
    replace(
      root,
      h('h1', { class: 'sr-only' }, 'Reuse pairs'),
      h('div', { class: 'split' }, h('div', null, filters, said, list), panel),
    );
    update(parameters);
    return { update, move: (by) => grid.move(by), search };
  },
};

function groupTable(doc, rows, by) {
  const groups = grouped(doc, rows, by);
  const most = Math.max(...groups.map((group) => group.weight), 1e-9);
  const query = (group) =>
    group.key
      .split(' → ')
      .map((part) => part.split(/\s+/)[0])
      .join(' ');
  return [
    groups.length > 200 ? muted(`the 200 heaviest of ${count(groups.length)} groups`) : null,
    table(
      groups.slice(0, 200),
      [
        {
          head: 'of reuses',
          number: true,
          cell: (group) => [share(Math.min(1, group.weight)), bar(group.weight, null, most)],
        },
        { head: 'far', number: true, cell: (group) => share(Math.min(1, group.far)) },
        { head: 'pairs', number: true, cell: (group) => count(group.pairs) },
        {
          head: by === 'object' ? 'data object' : 'use → reuse',
          cell: (group) => link(hash('pairs', { q: query(group) }), null, name(group.key, 80)),
        },
      ],
      'groups of pairs',
    ),
  ];
}
