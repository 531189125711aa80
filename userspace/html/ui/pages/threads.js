// Threads: how many, which were sampled, and how each reuses data.

import { h, muted, name, replace } from '../dom.js';
import { count, known, nanoseconds, NONE, share, approx } from '../format.js';
import { bar, card, empty, facts, table } from '../parts.js';

function exact(doc) {
  const rows = [...doc.report.threads].sort((a, b) => b.accesses - a.accesses);
  const all = rows.reduce((sum, row) => sum + row.accesses, 0) || 1;
  return card(
    'Threads',
    rows.length
      ? table(
          rows.slice(0, 500),
          [
            {
              head: 'accesses',
              number: true,
              cell: (row) => [count(row.accesses), bar(row.accesses / all)],
            },
            { head: 'of all', number: true, cell: (row) => share(row.accesses / all) },
            { head: 'instructions', number: true, cell: (row) => count(row.instructions) },
            { head: 'process', number: true, cell: (row) => row.pid },
            { head: 'thread', number: true, cell: (row) => row.tid },
          ],
          'threads',
        )
      : empty('No thread was counted.'),
    rows.length > 500 ? muted(`${count(rows.length - 500)} further threads`) : null,
  );
}

/** Threads that start alike are many: one row for each name. */
function byName(doc) {
  const threads = doc.live?.threads ?? [];
  const cpu = new Map();
  const { samples } = doc.live;
  samples.thread.forEach((thread, at) => cpu.set(thread, (cpu.get(thread) ?? 0) + samples.cpuUs[at]));
  const all = [...cpu.values()].reduce((sum, x) => sum + x, 0) || 1;
  const groups = new Map();
  for (const thread of threads) {
    const key = `${thread.name}\n${thread.pid}`;
    const group = groups.get(key) ?? {
      name: thread.name,
      pid: thread.pid,
      threads: 0,
      n: 0,
      cpu: 0,
      from: Infinity,
      to: 0,
      not_held: null,
    };
    group.threads += 1;
    group.n += thread.n;
    group.cpu += (cpu.get(thread.number) ?? 0) / all;
    group.from = Math.min(group.from, thread.from);
    group.to = Math.max(group.to, thread.to ?? doc.live.wallUs);
    group.not_held ??= thread.not_held;
    groups.set(key, group);
  }
  return [...groups.values()].sort((a, b) => b.cpu - a.cpu);
}

function live(doc) {
  const of = doc.report.threads ?? {};
  const rows = doc.live ? byName(doc) : [];
  const reuse = of.reuse ?? [];
  const ratio = (row, level) =>
    (row.reuse['64'] ?? Object.values(row.reuse)[0])?.at_caches?.find((point) => point.level === level);
  return [
    card(
      'Threads',
      facts([
        ['seen', count(of.seen)],
        ['processes', count(of.processes)],
        ['ended during the trace', count(of.ended)],
        ['measured without stops', count(of.not_held)],
      ]),
      rows.length
        ? table(
            rows.slice(0, 300),
            [
              { head: 'CPU time', number: true, cell: (row) => [share(row.cpu), bar(row.cpu)] },
              { head: 'samples', number: true, cell: (row) => count(row.n) },
              {
                head: 'name',
                cell: (row) => [
                  name(row.name, 30),
                  row.threads > 1 ? muted(` × ${count(row.threads)} threads`) : null,
                ],
              },
              { head: 'process', number: true, cell: (row) => row.pid },
              {
                head: 'lived',
                cell: (row) => `${nanoseconds(row.from * 1e3)} – ${nanoseconds(row.to * 1e3)}`,
              },
              { head: 'not stopped, because', cell: (row) => row.not_held ?? muted(NONE) },
            ],
            'threads with samples',
          )
        : empty('No thread was sampled.'),
    ),
    reuse.length
      ? card(
          'Predicted misses by thread',
          table(
            reuse,
            [
              { head: 'thread', cell: (row) => [name(row.name, 30), muted(` ${row.tid}`)] },
              ...doc.caches.map((cache) => ({
                head: `misses of L${cache.level}`,
                number: true,
                cell: (row) => {
                  const at = ratio(row, cache.level);
                  return at ? [share(at.ratio), bar(at.ratio, at.ci95)] : NONE;
                },
              })),
              {
                head: 'half of the reuses of words within',
                number: true,
                cell: (row) => {
                  const at = (row.reuse['8'] ?? Object.values(row.reuse)[0])?.time?.median;
                  return at && known(at.value)
                    ? at.unit === 'cpu_ns'
                      ? nanoseconds(at.value)
                      : approx(at.value)
                    : NONE;
                },
              },
            ],
            'misses by thread',
          ),
          of.reuse_left_out ? muted(`${count(of.reuse_left_out)} further threads with samples`) : null,
        )
      : null,
  ];
}

export const threads = {
  id: 'threads',
  title: 'Threads',
  isThere: (doc) => !!doc.report.threads,
  render(root, parameters, doc) {
    replace(
      root,
      h('h1', { class: 'sr-only' }, 'Threads'),
      Array.isArray(doc.report.threads) ? exact(doc) : live(doc),
    );
  },
};
