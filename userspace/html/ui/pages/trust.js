// How sure the numbers are, what is left out, and what the measurement cost.

import { h, name, replace, clean } from '../dom.js';
import {
  approx,
  bytes,
  count,
  interval,
  known,
  nanoseconds,
  percent,
  plain,
  seconds,
  share,
} from '../format.js';
import { cacheName } from '../doc.js';
import { bar, card, details, facts, table, withInterval } from '../parts.js';
import { notices } from './overview.js';

/** Objects known in part are named from this share of the accesses, as in the text report. */
const NAMED_IN_PART = 0.05;

const causes = (of, heads) => {
  const rows = Object.entries(of ?? {}).sort((a, b) => b[1] - a[1]);
  return rows.length
    ? table(
        rows,
        [
          { head: heads[0], cell: ([key]) => clean(key) },
          { head: heads[1], number: true, cell: ([, n]) => count(n) },
        ],
        heads[0],
      )
    : null;
};

/** Shares of the accesses by the reason why less is known of the object, as in the text report. */
function knownInPart(doc) {
  const shares = new Map();
  for (const row of doc.report.objects ?? [])
    if (row.unknown) shares.set(row.unknown, (shares.get(row.unknown) ?? 0) + (row.access_share || 0));
  const rows = [...shares].filter(([, part]) => part >= NAMED_IN_PART).sort((a, b) => b[1] - a[1]);
  return rows.length
    ? rows.slice(0, 2).map(([why, part], i) => [i ? '; ' : '', share(part), ': ', name(why, 200)])
    : null;
}

function sure(doc) {
  const { report: r } = doc;
  const w = r.windows;
  const sampled = Object.values(r.reuse).find((of) => of.sampled_lines)?.sampled_lines;
  return card(
    'How sure',
    facts([
      ['samples', count(r.run.samples)],
      ['accesses seen', r.run.sample_lines ? name(r.run.sources.rate) : null],
      [
        'lines sampled',
        sampled
          ? `${count(sampled.lines)}, with ${count(sampled.touches)} touches of ${count(sampled.touches_expected)} expected`
          : null,
      ],
      ['watchpoints', count(r.run.watches)],
      ['look-ahead windows', count(w?.n)],
      ['accesses in windows', approx(w?.accesses)],
      ['accesses a nanosecond', w ? withInterval(w.accesses_per_ns, w.accesses_per_ns_ci95, plain) : null],
      [
        'distances may be wrong by a factor of',
        known(w?.accesses_per_ns_factor_of_doubt) ? plain(w.accesses_per_ns_factor_of_doubt) : null,
      ],
      [
        'uses confirmed where the window showed them',
        w?.uses_confirmed ? withInterval(w.uses_confirmed.value, w.uses_confirmed.ci95) : null,
      ],
      [
        'reuses whose accesses were counted',
        w?.reuses_counted ? withInterval(w.reuses_counted.value, w.reuses_counted.ci95) : null,
      ],
      [
        'uses without a reuse',
        r.not_reused ? withInterval(r.not_reused.fraction, r.not_reused.ci95) : null,
      ],
      [
        'accesses without a known object',
        r.objects_summary
          ? withInterval(r.objects_summary.unknown_share, r.objects_summary.unknown_share_ci95)
          : null,
      ],
      ['accesses on objects known in part', knownInPart(doc)],
      [
        'time in the kernel',
        r.kernel_time?.share ? withInterval(r.kernel_time.share.value, r.kernel_time.share.ci95) : null,
      ],
      ['counted in part', r.counted_in_part != null ? count(r.counted_in_part) : null],
      ['without calling context', r.without_context != null ? count(r.without_context) : null],
      ['out of order', r.out_of_order_buffers != null ? `${count(r.out_of_order_buffers)} buffers` : null],
      [
        'pairs not named',
        r.pairs_not_named
          ? `${count(r.pairs_not_named.pairs)} pairs of instructions, ${count(r.pairs_not_named.reuses)} reuses`
          : null,
      ],
    ]),
    Object.entries(r.reuse)
      .filter(([, of]) => of.cross_check)
      .map(([key, of]) =>
        h(
          'p',
          { class: 'muted' },
          `Cross-check at ${key} bytes: ${of.cross_check.estimator} gives the same distances to S = ${plain(of.cross_check.s)}${of.cross_check.largest_difference.outside_ci95 ? '; one bin lies outside its interval' : ''}.`,
        ),
      ),
    w?.rate_sources
      ? details(
          'Where the rate of accesses comes from',
          table(
            Object.entries(w.rate_sources),
            [
              { head: 'source', cell: ([key]) => clean(key) },
              { head: 'of the CPU time', number: true, cell: ([, x]) => [share(x), bar(x)] },
            ],
            'sources of the rate',
          ),
        )
      : null,
    w?.ends ? details('Why windows ended', causes(w.ends, ['reason', 'windows'])) : null,
  );
}

const CAUSES = {
  stop: 'pauses of threads',
  trap: 'traps of watchpoints',
  bpf: 'eBPF programs',
  heap: 'allocation tracking',
  strings: 'memory copies slowed by watchpoints',
  controller: 'locality-bpf itself (not counted above)',
};

function cost(doc) {
  const of = doc.report.overhead;
  if (!of) return null;
  const rows = Object.entries(of.by_cause)
    .filter(([, value]) => known(value))
    .sort((a, b) => b[1] - a[1]);
  const most = Math.max(
    of.budget_percent,
    ...rows.filter(([key]) => key !== 'controller').map(([, x]) => x),
    1e-9,
  );
  return card(
    'What the measurement cost',
    facts([
      [
        "of the program's time",
        [h('strong', null, percent(of.measured_percent)), ` of a budget of ${percent(of.budget_percent)}`],
      ],
      [
        'pauses',
        `${count(of.stops)}, the longest ${nanoseconds(of.longest_stop_ns)} (target ${nanoseconds(of.max_stop_ns)})`,
      ],
    ]),
    table(
      rows,
      [
        { head: 'cause', cell: ([key]) => CAUSES[key] ?? key },
        {
          head: "of the program's time",
          number: true,
          cell: ([key, x]) => [percent(x), key === 'controller' ? null : bar(x, null, most)],
        },
      ],
      'cost by cause',
    ),
  );
}

function ledger(doc) {
  const of = doc.report.ledger;
  if (!of) return null;
  const lost = Object.values(of.lost).reduce((sum, n) => sum + n, 0);
  return card(
    'What was seen and lost',
    h(
      'p',
      null,
      of.balanced == null
        ? 'The trace was cut short, so the counts are not known.'
        : [
            of.balanced ? 'The counts balance: ' : h('strong', null, 'The counts do not balance: '),
            `${count(of.seen)} records seen = ${count(of.filtered)} filtered + ${count(of.submitted)} recorded + ${count(lost)} lost; ${count(of.watch.armed)} watchpoints = ${count(of.watch.trapped)} trapped + ${count(of.watch.censored)} withdrawn + ${count(of.watch.refused)} refused.`,
          ],
    ),
    of.imbalance ? h('p', null, of.imbalance) : null,
    h(
      'div',
      { class: 'columns' },
      [
        ['Pauses', causes(of.stops, ['pause', 'number'])],
        ['Filtered', causes(of.filtered_by, ['reason', 'samples'])],
        ['Lost', causes(of.lost, ['cause', 'samples'])],
        ['Uses that are unknown', causes(of.unreachable, ['reason', 'uses'])],
      ]
        .filter(([, rows]) => rows)
        .map(([title, rows]) => h('div', null, h('h3', null, title), rows)),
    ),
  );
}

function run(doc) {
  const { run: of } = doc.report;
  const host = of.host ?? {};
  return card(
    'What ran',
    facts([
      ['command', name(of.command, 160)],
      ['processes', (of.pids ?? []).slice(0, 20).join(', ')],
      ['started', of.started],
      ['lasted', [seconds(of.wall_s), ', ', seconds(of.cpu_s), ' of CPU time']],
      ['ended by', of.ended_by],
      ['exit status', of.exit_status],
      ['machine', host.cpu ? `${host.cpu}, ${host.cpus} CPUs, Linux ${host.kernel}` : null],
      [
        'caches',
        doc.caches
          .map(
            (cache) => `L${cache.level} ${bytes(cache.bytes)}, ${cache.ways} ways, lines of ${cache.line}`,
          )
          .join('; '),
      ],
      ['addresses from', of.sources?.address],
      ['clock', of.sources?.clock],
      // The same shares by CPU time stand in the table of rates.
      ['rate from', doc.report.windows?.rate_sources ? null : of.sources?.rate],
      ['allocations from', of.sources?.heap],
      ['estimator', of.estimator],
      ['policy', of.policy],
      ['kernel touches', of.user_only ? 'passed over' : null],
      [
        'time resolution',
        known(of.distance_resolution_ns) ? nanoseconds(of.distance_resolution_ns) : null,
      ],
      ['order', of.order],
      ['measured', of.measured],
      [
        'functions',
        of.functions?.length ? of.functions.map((text, i) => [i ? ', ' : '', name(text, 60)]) : null,
      ],
      [
        'programs',
        of.programs?.length
          ? of.programs.slice(0, 10).map((row, i) => [i ? ', ' : '', name(row.file, 60)])
          : null,
      ],
      ['written by', `locality-bpf ${doc.report.tool_version}, ${doc.report.schema}`],
    ]),
    doc.report.rows_left_out
      ? details('Rows that this page leaves out', causes(doc.report.rows_left_out, ['table', 'rows']))
      : null,
    doc.sources.some((source) => source.text == null)
      ? details(
          'Source files that are not shown',
          table(
            doc.sources.filter((source) => source.text == null),
            [
              { head: 'file', cell: (row) => name(row.file, 100) },
              { head: 'why', cell: (row) => row.why },
            ],
            'source files',
          ),
        )
      : null,
  );
}

function levels(doc) {
  const rows = doc.report.cache_use?.levels;
  if (!rows?.length) return null;
  return card(
    'Lines loaded and bytes never used',
    table(
      rows,
      [
        { head: 'cache', cell: (row) => `${cacheName(row.level)} ${bytes(row.bytes)}` },
        { head: 'lines loaded', number: true, cell: (row) => approx(row.lines_loaded) },
        { head: 'bytes loaded', number: true, cell: (row) => bytes(row.bytes_loaded) },
        {
          head: 'never used',
          number: true,
          cell: (row) => [share(row.lost_share), bar(row.lost_share, row.lost_share_ci95)],
        },
        {
          head: '95 %',
          number: true,
          cell: (row) => (row.lost_share_ci95 ? interval(row.lost_share_ci95) : 'counted'),
        },
      ],
      'cache levels',
    ),
  );
}

function mix(doc) {
  const of = doc.report.mix;
  if (!of) return null;
  const rows = Object.entries(of.classes ?? {})
    .filter(([, x]) => x > 0)
    .sort((a, b) => b[1] - a[1]);
  return card(
    'What was executed',
    facts([
      ['instructions', count(of.instructions)],
      ['accesses', count(of.accesses)],
      ['loads for each instruction', plain(of.loads)],
      ['stores for each instruction', plain(of.stores)],
      ['branches', share(of.branches)],
    ]),
    rows.length
      ? details(
          'Classes of instructions',
          table(
            rows,
            [
              { head: 'class', cell: ([key]) => key.replaceAll('_', ' ') },
              { head: 'of all', number: true, cell: ([, x]) => [share(x), bar(x)] },
            ],
            'classes',
          ),
        )
      : null,
  );
}

export const trust = {
  id: 'trust',
  title: 'Cost & trust',
  isThere: () => true,
  render(root, parameters, doc) {
    replace(
      root,
      h('h1', { class: 'sr-only' }, 'Cost and trust'),
      notices(doc),
      h(
        'div',
        { class: 'columns' },
        [sure(doc), cost(doc), ledger(doc), levels(doc), mix(doc), run(doc)].filter(Boolean),
      ),
    );
  },
};
