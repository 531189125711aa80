// Source files with their numbers beside each line: CPU time, misses, bytes loaded and never used, pairs.

import { base, cacheName } from '../doc.js';
import { clean, h, link, muted, name, replace } from '../dom.js';
import { count, known, plain, share } from '../format.js';
import { card, empty, hash, heat, select } from '../parts.js';

/** Numbers of all lines: file, then line. */
function numbers(doc) {
  if (doc.codeNumbers) return doc.codeNumbers;
  const files = new Map();
  const at = (file, line) => {
    if (!files.has(file)) files.set(file, { lines: new Map(), weight: 0, functions: new Map() });
    const of = files.get(file);
    if (!of.lines.has(line)) of.lines.set(line, { cpu: 0, misses: 0, accesses: 0, use: {}, pairs: 0 });
    return of.lines.get(line);
  };
  const r = doc.report;
  for (const row of r.hot?.by_line ?? [])
    if (row.file && row.line) at(row.file, row.line).cpu += row.share || 0;
  const level = doc.ranked ?? doc.levels[0];
  for (const object of r.objects ?? []) {
    for (const row of object.lines) {
      if (!row.file || !row.line) continue;
      const line = at(row.file, row.line);
      line.misses += row.miss_share[level] || 0;
      line.accesses += row.access_share || 0;
    }
  }
  for (const row of r.cache_use?.by_loading_line ?? []) {
    if (!row.file || !row.line) continue;
    const use = at(row.file, row.line).use;
    const before = use[row.level];
    use[row.level] = {
      share: (before?.share ?? 0) + (row.share || 0),
      used: before?.used ?? row.used_bytes_per_line,
      traffic: (before?.traffic ?? 0) + (row.traffic_share || 0),
      lines: (before?.lines ?? 0) + (row.lines_loaded || 0),
    };
  }
  for (const row of r.loops ?? []) {
    if (row.place.file && row.place.line) at(row.place.file, row.place.line).loop = row;
    for (const access of row.accesses)
      if (row.place.file && access.line && access.line === row.place.line)
        at(row.place.file, access.line).loop = row;
  }
  const { pairs: p, places } = doc;
  for (let pair = 0; pair < doc.n; pair += 1) {
    for (const number of new Set([p.use[pair], p.reuse[pair]])) {
      if (!(number > 0)) continue;
      const file = doc.text(places.file[number - 1]);
      const line = places.line[number - 1];
      if (!file || !line) continue;
      const of = at(file, line);
      of.pairs += p.weight[pair] || 0;
      const far = doc.farWeight(pair);
      of.far = (of.far ?? 0) + far;
    }
  }
  const last = doc.useLevel;
  for (const of of files.values())
    for (const line of of.lines.values())
      of.weight +=
        line.cpu + line.misses + (line.use[last]?.share ?? 0) + (line.far ?? 0) + line.pairs * 0.1;
  doc.codeNumbers = files;
  return files;
}

const cell = (value, text, most) =>
  h(
    'td',
    { class: `num heat-${known(value) && value > 0 ? heat(value / (most || 1)) : 0}` },
    known(value) && value >= 0.0005 ? text : '',
  );

function lines(doc, file, of, level, chosen) {
  const text = doc.lines(file);
  const hasCpu = !!doc.report.hot?.by_line?.length;
  const hasMisses = !!doc.report.objects?.length;
  const hasUse = !!level;
  const all = [...of.lines.values()];
  const most = (pick) => Math.max(...all.map(pick).filter(known), 1e-12);
  const [cpuMost, missMost, useMost] = [
    most((l) => l.cpu),
    most((l) => l.misses),
    most((l) => l.use[level]?.share),
  ];
  const numbersOf = [...of.lines.keys()].sort((a, b) => a - b);
  const shownLines = text ? text.map((_, i) => i + 1) : numbersOf;
  const rows = shownLines.map((number) => {
    const line = of.lines.get(number);
    const pairs = line ? doc.pairsAt(file, number) : [];
    const use = line?.use[level];
    return h(
      'tr',
      { id: `L${number}`, class: number === chosen ? 'is-here' : null },
      hasCpu ? cell(line?.cpu, share(line?.cpu), cpuMost) : null,
      hasMisses ? cell(line?.misses, share(line?.misses), missMost) : null,
      hasUse ? cell(use?.share, use ? share(use.share) : '', useMost) : null,
      hasUse ? h('td', { class: 'num muted' }, use && known(use.used) ? plain(use.used) : '') : null,
      h(
        'td',
        { class: 'num' },
        pairs.length
          ? link(
              hash('pairs', { q: `${base(file).toLowerCase()}:${number}`, id: pairs[0] }),
              null,
              `${count(pairs.length)} pair${pairs.length === 1 ? '' : 's'}`,
            )
          : '',
      ),
      h('td', { class: 'line-number' }, number),
      h(
        'td',
        { class: 'source' },
        text ? clean((text[number - 1] ?? '').slice(0, 500)) : muted('source is not in this file'),
      ),
    );
  });
  const th = (head, title) => h('th', { scope: 'col', class: 'num', title }, head);
  return h(
    'div',
    { class: 'scroll code', tabindex: '0', role: 'region', 'aria-label': 'source' },
    h(
      'table',
      null,
      h(
        'thead',
        null,
        h(
          'tr',
          null,
          hasCpu ? th('CPU') : null,
          hasMisses ? th(`${doc.ranked ?? doc.levels[0] ?? ''} misses`) : null,
          hasUse
            ? th(`unused, ${cacheName(level)}`, 'share of the bytes that are loaded into this cache and never used')
            : null,
          hasUse ? th('B/line', 'bytes used of a line of 64') : null,
          th('pairs'),
          th('line'),
          h('th', { scope: 'col' }, 'source'),
        ),
      ),
      h('tbody', null, rows),
    ),
  );
}

export const code = {
  id: 'code',
  title: 'Code',
  isThere: () => true,
  render(root, parameters, doc, { go }) {
    const files = [...numbers(doc).entries()].sort(
      (a, b) => b[1].weight - a[1].weight || (a[0] < b[0] ? -1 : 1),
    );
    if (!files.length) {
      replace(
        root,
        card(
          'Code',
          empty('No line of source is known: the program has no debug information. Compile it with -g.'),
        ),
      );
      return null;
    }
    const levels = (doc.report.cache_use?.levels ?? []).map((row) => row.level);
    const update = (from) => {
      const asked = from.get('f');
      const file =
        asked && numbers(doc).has(asked)
          ? asked
          : asked && doc.source(asked)?.text != null
            ? asked
            : files[0][0];
      const of = numbers(doc).get(file) ?? { lines: new Map(), weight: 0 };
      const level = levels.includes(from.get('level')) ? from.get('level') : doc.useLevel;
      const chosen = Number(from.get('l')) || hottest(of);
      const source = doc.source(file);
      const all = files.reduce((sum, [, row]) => sum + row.weight, 0) || 1;
      const list = h(
        'ul',
        { class: 'files' },
        files
          .slice(0, 100)
          .map(([path, row]) =>
            h(
              'li',
              null,
              link(
                hash('code', { f: path, level: from.get('level') }),
                { 'aria-current': path === file ? 'page' : null, title: clean(path.slice(0, 1000)) },
                h('span', null, name(base(path), 30)),
                h('span', { class: 'muted' }, share(row.weight / all)),
              ),
            ),
          ),
      );
      const why = !doc.sources.length
        ? 'Source was left out of this report (--no-source), or no file was found.'
        : source?.text == null
          ? `The source is ${source?.why ?? 'not in this report'}.`
          : source.changed
            ? 'This file is newer than the trace: lines may have moved.'
            : null;
      replace(
        root,
        h('h1', { class: 'sr-only' }, 'Code'),
        h(
          'div',
          { class: 'split is-files' },
          h(
            'nav',
            { 'aria-label': 'files' },
            h('h2', null, 'Files by weight'),
            list,
            files.length > 100 ? muted(`${files.length - 100} further files`) : null,
          ),
          h(
            'section',
            { class: 'card' },
            h(
              'div',
              { class: 'controls' },
              h('h2', null, name(file, 90)),
              levels.length > 1
                ? select(
                    'cache',
                    levels.map((of) => [of, `unused bytes of ${cacheName(of)}`]),
                    level,
                    (to) => go('code', { f: file, l: from.get('l'), level: to }),
                  )
                : null,
            ),
            why ? h('p', { class: 'hint' }, why) : null,
            lines(doc, file, of, level, Number(from.get('l')) || null),
          ),
        ),
      );
      const row = document.getElementById(`L${chosen}`);
      const box = root.querySelector('.code');
      if (row && box) box.scrollTop = Math.max(0, row.offsetTop - box.clientHeight / 3);
    };
    update(parameters);
    return { update };
  },
};

function hottest(of) {
  let best = null;
  for (const [line, row] of of.lines) {
    const weight = row.cpu + row.misses + row.pairs;
    if (!best || weight > best.weight) best = { line, weight };
  }
  return best?.line;
}
