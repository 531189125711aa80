// Parallelism between instructions: how many could run at once, for windows of several sizes. Shown where
// a report has it.

import { bars, curve, responsive } from '../charts.js';
import { h, name, replace, s } from '../dom.js';
import { approx, count, interval, known, plain, share } from '../format.js';
import { bar, card, choice, details, empty, facts, table } from '../parts.js';

const label = (of) => (of === 'inf' || of == null ? 'all' : count(Number(of)));
const value = (x) => (x != null && typeof x === 'object' ? x.value : x);
const ci = (row) => row.ci95 ?? row.ilp?.ci95;

/** Share of the instructions that run with so many others, or more. */
function cumulative(row) {
  const bins = row.by_parallelism ?? [];
  const weight = (bin) => value(bin.instructions) ?? value(bin.cycles) ?? 0;
  const all = bins.reduce((sum, bin) => sum + weight(bin), 0) || 1;
  let left = all;
  return bins.map((bin) => {
    const point = { x: Math.max(1, value(bin.low) || 1), y: left / all };
    left -= weight(bin);
    return point;
  });
}

function overTime(row, title) {
  const steps = (row.over_time ?? []).filter((step) => known(value(step.ilp)));
  if (steps.length < 2) return null;
  return card(
    `Over the run, window ${title}`,
    responsive(220, 'instructions at once over the run', (svg, width, height) => {
      const [left, right, top, bottom] = [52, 10, 12, 42];
      const most = Math.max(...steps.map((step) => value(step.ilp))) * 1.05 || 1;
      const end =
        steps[steps.length - 1].from + (steps[steps.length - 1].from - steps[steps.length - 2].from) || 1;
      const x = (at) => left + ((at - steps[0].from) / (end - steps[0].from || 1)) * (width - left - right);
      const y = (at) => height - bottom - (at / most) * (height - top - bottom);
      for (const part of [0, 0.5, 1]) {
        svg.append(
          s('line', { class: 'grid', x1: left, x2: width - right, y1: y(most * part), y2: y(most * part) }),
          s(
            'text',
            { class: 'tick', x: left - 6, y: y(most * part) + 4, 'text-anchor': 'end' },
            plain(most * part),
          ),
          s(
            'text',
            {
              class: 'tick',
              x: x(steps[0].from + (end - steps[0].from) * part),
              y: height - bottom + 18,
              'text-anchor': part === 0 ? 'start' : part === 1 ? 'end' : 'middle',
            },
            approx(steps[0].from + (end - steps[0].from) * part),
          ),
        );
      }
      const points = steps.flatMap((step, at) => [
        [step.from, value(step.ilp)],
        [steps[at + 1]?.from ?? end, value(step.ilp)],
      ]);
      svg.append(
        s('polyline', {
          class: 'line series-0',
          points: points.map(([a, b]) => `${x(a)},${y(b)}`).join(' '),
        }),
        s(
          'text',
          { class: 'tick', x: (left + width - right) / 2, y: height - 6, 'text-anchor': 'middle' },
          'since the start',
        ),
      );
    }),
    details(
      'Numbers',
      table(
        steps,
        [
          { head: 'from', number: true, cell: (step) => approx(step.from) },
          { head: 'instructions at once', number: true, cell: (step) => plain(value(step.ilp)) },
        ],
        'parallelism over the run',
      ),
    ),
  );
}

const MOST_CLASSES = 6;

/** Shares of a class's instructions by parallelism, for the classes with the most instructions. */
function byClass(row, title) {
  const bins = row.by_parallelism ?? [];
  const sums = new Map();
  for (const bin of bins)
    for (const [key, count] of Object.entries(bin.by_class ?? {}))
      sums.set(key, (sums.get(key) ?? 0) + value(count));
  const all = [...sums.values()].reduce((sum, count) => sum + count, 0);
  const classes = [...sums].sort((one, other) => other[1] - one[1]).slice(0, MOST_CLASSES);
  if (bins.length < 2 || !classes.length) return null;
  return card(
    `By type of instruction, window ${title}`,
    h(
      'div',
      { class: 'multiples' },
      classes.map(([key, sum]) =>
        h(
          'section',
          null,
          h('h3', null, name(key, 24), ` ${share(sum / all)} of the instructions`),
          bars({
            label: `${key}: instructions by parallelism`,
            yText: share,
            xTitle: 'instructions at once, from',
            height: 150,
            bins: bins.map((bin) => ({
              label: approx(value(bin.low)),
              value: value(bin.by_class?.[key] ?? 0) / sum,
            })),
          }),
        ),
      ),
    ),
  );
}

/** Loops and functions that could use several processors. */
function regions(of) {
  if (!of?.regions?.length) return null;
  return card(
    'Could several processors share the work?',
    table(
      of.regions,
      [
        { head: 'region', cell: (each) => [each.kind, ' ', name(each.place.function ?? 'unknown', 40)] },
        { head: 'line', number: true, cell: (each) => each.place.line ?? '' },
        {
          head: `speed-up at most, ${of.processors} processors`,
          number: true,
          cell: (each) => number(each.speed_up),
        },
        { head: 'any number', number: true, cell: (each) => number(each.speed_up_unlimited) },
        { head: 'at once', number: true, cell: (each) => number(each.self_parallelism) },
        { head: 'work', number: true, cell: (each) => share(value(each.share)) },
        {
          head: 'iterations',
          number: true,
          cell: (each) => (known(each.iterations) ? approx(each.iterations) : ''),
        },
      ],
      'self-parallelism of loops and functions',
    ),
  );
}

const number = (of) => (known(value(of)) ? plain(value(of)) : '');

export const parallelism = {
  id: 'parallelism',
  title: 'Parallelism',
  isThere: (doc) => !!doc.report.parallelism?.windows?.length,
  render(root, parameters, doc, { go }) {
    const of = doc.report.parallelism;
    // Several predictors have the same windows.
    const isSeveral = new Set(of.windows.map((row) => row.predictor)).size > 1;
    const key = (row) => (isSeveral ? `${row.window}-${row.predictor}` : String(row.window));
    const title = (row) => (isSeveral ? `${label(row.window)} ${row.predictor}` : label(row.window));
    const update = (from) => {
      const at = Math.max(
        0,
        of.windows.findIndex((row) => key(row) === from.get('w')),
      );
      const row = of.windows[at];
      const most = Math.max(...of.windows.map((each) => value(each.ilp) || 0), 1e-9);
      const points = cumulative(row);
      const classes = [
        ...new Set((row.by_parallelism ?? []).flatMap((bin) => Object.keys(bin.by_class ?? {}))),
      ];
      replace(
        root,
        h('h1', { class: 'sr-only' }, 'Parallelism'),
        card(
          'How many instructions could run at once?',
          facts([
            ['dependences', of.view ? name(of.view, 20) : null],
            ['ignored', of.ignored?.length ? [].concat(of.ignored).join(', ') : null],
            ['latency', of.latency ? name(of.latency, 20) : null],
            ['branches', of.predictor ? name(of.predictor, 20) : null],
            ['instructions', known(of.instructions) ? approx(of.instructions) : null],
          ]),
          table(
            of.windows,
            [
              { head: 'window', number: true, cell: title },
              {
                head: 'instructions at once',
                number: true,
                cell: (each) => [plain(value(each.ilp)), bar(value(each.ilp), ci(each), most)],
              },
              {
                head: '95 %',
                number: true,
                cell: (each) => (ci(each) ? interval(ci(each), plain) : 'counted'),
              },
              { head: 'cycles', number: true, cell: (each) => approx(value(each.cycles)) },
            ],
            'parallelism by window',
          ),
          h(
            'p',
            { class: 'muted' },
            'A window is how many instructions a processor looks ahead; "all" looks at the whole run.',
          ),
        ),
        h(
          'div',
          { class: 'controls' },
          choice(
            'window',
            of.windows.map((each) => [key(each), title(each)]),
            key(row),
            (w) => go('parallelism', { w }),
          ),
        ),
        points.length > 1
          ? card(
              `Instructions by parallelism, window ${title(row)}`,
              curve({
                label: 'share of instructions that run with so many others or more',
                series: [{ series: 0, points }],
                xText: approx,
                yText: share,
                xTitle: 'instructions at once, or more',
              }),
              details(
                'Numbers',
                table(
                  row.by_parallelism,
                  [
                    { head: 'from', number: true, cell: (bin) => approx(value(bin.low)) },
                    { head: 'to below', number: true, cell: (bin) => approx(value(bin.high)) },
                    { head: 'cycles', number: true, cell: (bin) => approx(value(bin.cycles)) },
                    { head: 'instructions', number: true, cell: (bin) => approx(value(bin.instructions)) },
                    ...classes.map((key) => ({
                      head: name(key, 20),
                      number: true,
                      cell: (bin) => approx(value(bin.by_class?.[key])),
                    })),
                  ],
                  'by parallelism',
                ),
              ),
            )
          : points.length
            ? null
            : empty('No distribution.'),
        byClass(row, title(row)),
        overTime(row, title(row)),
        regions(doc.report.self_parallelism),
      );
    };
    update(parameters);
    return { update };
  },
};
