// What ran when: samples of a live trace by function, watched reuses as spans from use to reuse; phases of
// an exact run by where their reuses are found.

import { responsive, stacked, legend } from '../charts.js';
import { h, name, replace, s, clean } from '../dom.js';
import { bytes, count, nanoseconds, approx, share } from '../format.js';
import { card, details, empty, table } from '../parts.js';
import { isStartUp } from '../doc.js';

const SERIES = 7;
/** Fewer samples a step would show noise. */
const SAMPLES_A_STEP = 8;
const STEPS = 60;

/** The innermost function that is no start-up or library code, else the innermost. */
function own(doc, node, memo) {
  if (!memo.has(node)) {
    const path = doc.path(node).reverse();
    const frame = path.find((of) => of.file && !isStartUp(of)) ?? path[0];
    memo.set(node, frame?.function ?? 'unknown');
  }
  return memo.get(node);
}

function live(doc) {
  const { samples, reuses, wallUs } = doc.live;
  const n = samples.us.length;
  if (!n) return card('Timeline', empty('No samples were taken.'));
  const memo = new Map();
  const names = samples.node.map((node) => own(doc, node, memo));
  const sums = new Map();
  names.forEach((of, at) => sums.set(of, (sums.get(of) ?? 0) + samples.cpuUs[at]));
  const main = [...sums.entries()]
    .sort((a, b) => b[1] - a[1])
    .slice(0, SERIES)
    .map(([of]) => of);
  const end = Math.max(wallUs, ...samples.us) || 1;
  const count_ = Math.max(1, Math.min(STEPS, Math.floor(n / SAMPLES_A_STEP)));
  const steps = Array.from({ length: count_ }, (_, at) => ({
    from: (end * at) / count_,
    to: (end * (at + 1)) / count_,
    values: new Array(main.length + 1).fill(0),
    n: 0,
  }));
  samples.us.forEach((us, at) => {
    const step = steps[Math.min(count_ - 1, Math.floor((us / end) * count_))];
    const series = main.indexOf(names[at]);
    step.values[series < 0 ? main.length : series] += samples.cpuUs[at];
    step.n += 1;
  });
  for (const step of steps) {
    const all = step.values.reduce((sum, x) => sum + x, 0);
    if (all > 0) step.values = step.values.map((x) => x / all);
  }
  const spans = reuses.from
    .map((from, at) => ({
      from,
      to: reuses.to[at],
      use: own(doc, reuses.use[at], memo),
      reuse: own(doc, reuses.reuse[at], memo),
      thread: reuses.thread[at],
    }))
    .filter((span) => span.to > span.from)
    .sort((a, b) => b.to - b.from - (a.to - a.from))
    .slice(0, 400);
  const legendNames = [
    ...main.map((of) => name(of, 40)),
    sums.size > main.length ? 'other functions' : null,
  ].filter(Boolean);
  return [
    card(
      'CPU time by function, over the trace',
      h(
        'p',
        { class: 'muted' },
        `${count(n)} samples in ${count(count_)} steps of ${nanoseconds((end / count_) * 1e3)}; shares of the CPU time of each step.`,
      ),
      stacked({
        label: 'CPU time by function over the trace',
        steps,
        yText: share,
        xText: (us) => nanoseconds(us * 1e3),
        xTitle: 'since the start',
      }),
      legend(legendNames),
      details(
        'Numbers',
        table(
          steps,
          [
            { head: 'from', number: true, cell: (step) => nanoseconds(step.from * 1e3) },
            { head: 'samples', number: true, cell: (step) => count(step.n) },
            ...main.map((of, at) => ({
              head: name(of, 20),
              number: true,
              cell: (step) => share(step.values[at]),
            })),
          ],
          'shares by step',
        ),
      ),
    ),
    spans.length
      ? card(
          'Reuses that were watched, from use to reuse',
          h(
            'p',
            { class: 'muted' },
            spans.length < reuses.from.length
              ? `The ${count(spans.length)} longest of ${count(reuses.from.length)}: each line begins at a use and ends at the reuse.`
              : `${count(spans.length)} reuses: each line begins at a use and ends at the reuse.`,
          ),
          arcs(spans, end),
          details(
            'Longest',
            table(
              spans.slice(0, 50),
              [
                { head: 'lasts', number: true, cell: (span) => nanoseconds((span.to - span.from) * 1e3) },
                { head: 'from', number: true, cell: (span) => nanoseconds(span.from * 1e3) },
                { head: 'use in', cell: (span) => name(span.use, 40) },
                { head: 'reuse in', cell: (span) => name(span.reuse, 40) },
              ],
              'longest reuses',
            ),
          ),
        )
      : null,
  ];
}

/** Spans by length: the longer, the higher. */
function arcs(spans, end) {
  return responsive(180, `${spans.length} spans from use to reuse`, (svg, width, height) => {
    const [left, right, top, bottom] = [56, 8, 10, 26];
    const lengths = spans.map((span) => Math.log10(Math.max(1, span.to - span.from)));
    const [low, high] = [Math.floor(Math.min(...lengths)), Math.ceil(Math.max(...lengths)) || 1];
    const x = (us) => left + (us / end) * (width - left - right);
    const y = (log) => height - bottom - ((log - low) / (high - low || 1)) * (height - top - bottom);
    for (let at = low; at <= high; at += 1) {
      svg.append(
        s('line', { class: 'grid', x1: left, x2: width - right, y1: y(at), y2: y(at) }),
        s(
          'text',
          { class: 'tick', x: left - 6, y: y(at) + 4, 'text-anchor': 'end' },
          nanoseconds(10 ** at * 1e3),
        ),
      );
    }
    spans.forEach((span, at) => {
      const row = y(lengths[at]);
      svg.append(
        s(
          'g',
          null,
          s(
            'title',
            null,
            clean(`${span.use} → ${span.reuse}, ${nanoseconds((span.to - span.from) * 1e3)}`.slice(0, 500)),
          ),
          s('line', {
            class: 'span',
            x1: x(span.from),
            x2: Math.max(x(span.to), x(span.from) + 1.5),
            y1: row,
            y2: row,
          }),
          s('circle', { class: 'span-end', cx: Math.max(x(span.to), x(span.from) + 1.5), cy: row, r: 2 }),
        ),
      );
    });
    for (const part of [0, 0.5, 1])
      svg.append(
        s(
          'text',
          {
            class: 'tick',
            x: x(end * part),
            y: height - 6,
            'text-anchor': part === 0 ? 'start' : part === 1 ? 'end' : 'middle',
          },
          nanoseconds(end * part * 1e3),
        ),
      );
  });
}

function exact(doc) {
  const key = Object.keys(doc.report.reuse)
    .sort((a, b) => Number(b) - Number(a))
    .find((of) => doc.report.reuse[of].phases?.length);
  if (!key)
    return card('Timeline', empty('This report has no phases: runs with more than 16 threads have none.'));
  const { phases } = doc.report.reuse[key];
  const caches = doc.caches.length
    ? doc.caches.map((cache) => [cache.bytes, `within L${cache.level} (${bytes(cache.bytes)})`])
    : [
        [32768, 'within 32 KiB'],
        [1 << 20, 'within 1 MiB'],
        [32 << 20, 'within 32 MiB'],
      ];
  const names = [...caches.map(([, text]) => text), 'farther', 'first touch'];
  const threads = [...new Set(phases.map((phase) => phase.thread))];
  return threads.slice(0, 16).map((thread) => {
    const rows = phases.filter((phase) => phase.thread === thread);
    const steps = rows.map((phase) => {
      const values = new Array(names.length).fill(0);
      for (const bin of phase.stack.bins ?? []) {
        const at = caches.findIndex(([size]) => bin.high * Number(key) <= size);
        values[at < 0 ? caches.length : at] += bin.count ?? 0;
      }
      values[names.length - 1] = phase.cold;
      const all = values.reduce((sum, x) => sum + x, 0) || 1;
      return {
        from: phase.first_access,
        to: phase.first_access + phase.accesses,
        values: values.map((x) => x / all),
        touches: phase.touches,
      };
    });
    return card(
      threads.length > 1 ? `Thread ${thread}` : 'Where the data is found, over the run',
      h(
        'p',
        { class: 'muted' },
        `${count(steps.length)} phases; of the touches of ${key} bytes, the share whose data lies within an LRU cache; a bin across its size counts as outside.`,
      ),
      stacked({
        label: 'where data is found over the run',
        steps,
        yText: share,
        xText: approx,
        xTitle: 'accesses of the thread',
      }),
      legend(names),
      details(
        'Numbers',
        table(
          steps,
          [
            { head: 'from access', number: true, cell: (step) => count(step.from) },
            { head: 'touches', number: true, cell: (step) => count(step.touches) },
            ...names.map((of, at) => ({ head: of, number: true, cell: (step) => share(step.values[at]) })),
          ],
          'phases',
        ),
      ),
    );
  });
}

export const timeline = {
  id: 'timeline',
  title: 'Timeline',
  isThere: (doc) =>
    !!doc.live?.samples?.us?.length || Object.values(doc.report.reuse).some((of) => of.phases?.length),
  render(root, parameters, doc) {
    replace(root, h('h1', { class: 'sr-only' }, 'Timeline'), doc.live ? live(doc) : exact(doc));
  },
};
