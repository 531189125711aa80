// Loops of the machine code: what they access, with which strides, and what they wait for.

import { h, muted, name, replace } from '../dom.js';
import { approx, count, known, NONE, plain, share } from '../format.js';
import { Grid } from '../grid.js';
import { address, bar, boundBy, card, facts, place, snippet, table, withInterval } from '../parts.js';
import { base } from '../doc.js';

/** What limits a loop, for readers. */
const BOUNDS = {
  integer_chain: 'a chain of integer operations: each iteration waits for the one before it',
  fp_add_chain: 'a chain of floating-point additions: several accumulators would break it',
  fp_multiply_chain: 'a chain of floating-point multiplications',
  divide_chain: 'a chain of divisions',
  load_chain: 'a chain of loads whose results are the next operands',
  pointer_chase: 'pointers: each load needs the address that the one before it brought',
  store_forwarding: 'values that are stored and loaded again at once',
  mispredictions: 'branches that the processor predicts wrongly',
  l1_misses: 'lines that are not in the first cache',
  deeper_misses: 'lines that are not in the second cache',
  page_faults: 'page faults',
  width: 'instructions that the processor can start in a cycle',
  loads: 'loads that the processor can start in a cycle',
  stores: 'stores that the processor can start in a cycle',
  int_units: 'integer units',
  fp_units: 'floating-point units',
  divider: 'the divider',
  window: 'instructions that the processor can look ahead',
};

const stride = (value) => (known(value) ? `${value > 0 ? '+' : ''}${count(value)} B` : NONE);
const pattern = (row) =>
  row.chased
    ? 'pointer chase'
    : row.indexed
      ? 'indexed by another load'
      : !known(row.inner_stride)
        ? 'irregular'
        : row.inner_stride === 0
          ? 'the same place'
          : Math.abs(row.inner_stride) <= row.bytes
            ? 'sequential'
            : 'strided';

function detail(doc, row) {
  const cycles = row.cycles?.value;
  const core = row.core_cycles?.value;
  const hasBoth = known(cycles) && known(core);
  return card(
    h('h2', null, place(row.place, 60)),
    facts([
      ['CPU time', withInterval(row.share.value, row.share.ci95)],
      [
        'bound by',
        row.bound_by
          ? h(
              'span',
              null,
              h('strong', null, name(boundBy(row.bound_by), 60)),
              BOUNDS[row.bound_by] ? `: ${BOUNDS[row.bound_by]}` : '',
            )
          : null,
      ],
      [
        'an iteration',
        [
          row.cycles ? [withInterval(cycles, row.cycles.ci95, plain), ' cycles, '] : null,
          `${plain(row.instructions)} instructions, ${plain(row.lines_per_iteration)} new lines`,
        ],
      ],
      [
        'with all data in the first cache',
        row.core_cycles ? [withInterval(core, row.core_cycles.ci95, plain), ' cycles'] : null,
      ],
      [
        'iterations',
        known(row.iterations?.value) ? `${approx(row.iterations.value)} a second of CPU time` : null,
      ],
      [
        'trips',
        known(row.trips.median)
          ? `${count(row.trips.median)} (median of ${count(row.trips.n)} ${row.trips.n === 1 ? 'run' : 'runs'})`
          : known(row.trips.at_least)
            ? `at least ${count(row.trips.at_least)}`
            : null,
      ],
      [
        'time in the kernel',
        row.kernel_share ? withInterval(row.kernel_share.value, row.kernel_share.ci95) : null,
      ],
      [
        'mispredicted branches',
        row.mispredicted ? withInterval(row.mispredicted.value, row.mispredicted.ci95, plain) : null,
      ],
      ['misses in flight', row.mlp ? withInterval(row.mlp.value, row.mlp.ci95, plain) : null],
      ['seen', `${count(row.n)} windows`],
    ]),
    hasBoth
      ? h(
          'div',
          {
            class: 'cycles',
            role: 'img',
            'aria-label': `${plain(core)} of ${plain(cycles)} cycles compute`,
          },
          h(
            'div',
            {
              class: 'cycles-core',
              style: { width: `${Math.min(100, (core / Math.max(core, cycles)) * 100)}%` },
            },
            'computes',
          ),
          h('div', { class: 'cycles-wait' }, core < cycles * 0.98 ? 'waits' : ''),
        )
      : null,
    h('h3', null, 'Accesses'),
    row.accesses.length
      ? table(
          row.accesses,
          [
            { head: 'line', number: true, cell: (of) => of.line ?? NONE },
            { head: '', cell: (of) => of.kind },
            { head: 'bytes', number: true, cell: (of) => of.bytes },
            { head: 'stride', number: true, cell: (of) => stride(of.inner_stride) },
            { head: 'to the next run', number: true, cell: (of) => stride(of.outer_stride) },
            { head: 'pattern', cell: (of) => pattern(of) },
            { head: 'regular', number: true, cell: (of) => share(of.stride_share) },
            {
              head: 'new lines each',
              number: true,
              cell: (of) => [plain(of.lines_per_access), bar(of.lines_per_access, null, 1)],
            },
            {
              head: 'data',
              cell: (of) =>
                of.object ? [name(of.object, 30), ' ', muted(name(of.field ?? '', 30))] : muted('–'),
            },
          ],
          'accesses of the loop',
        )
      : muted('none that the windows show'),
    snippet(doc, row.place.file, row.place.line, 8),
  );
}

export const loops = {
  id: 'loops',
  title: 'Loops',
  isThere: (doc) => !!doc.report.loops?.length,
  render(root, parameters, doc, { go }) {
    const rows = doc.report.loops;
    const panel = h('div', { class: 'panel' });
    const most = Math.min(1, 1.6 * Math.max(1e-9, ...rows.map((row) => row.share.value || 0)));
    const grid = new Grid({
      label: 'loops',
      height: 62,
      onselect: (at) => go('loops', { id: at }, true),
      columns: [
        {
          key: 'share',
          head: 'CPU time',
          width: '96px',
          number: true,
          cell: (at) =>
            h(
              'div',
              null,
              share(rows[at].share.value),
              bar(rows[at].share.value, rows[at].share.ci95, most),
            ),
        },
        {
          key: 'cycles',
          head: 'cycles',
          width: '80px',
          number: true,
          cell: (at) =>
            h(
              'div',
              null,
              plain(rows[at].cycles?.value),
              h('br'),
              muted(known(rows[at].core_cycles?.value) ? `(${plain(rows[at].core_cycles.value)})` : ''),
            ),
        },
        {
          key: 'loop',
          head: 'loop',
          width: 'minmax(140px, 1fr)',
          cell: (at) =>
            h(
              'div',
              null,
              h('strong', null, name(rows[at].place.function ?? 'unknown', 28)),
              ' ',
              muted(
                name(
                  rows[at].place.line
                    ? `${base(rows[at].place.file) ?? ''}:${rows[at].place.line}`
                    : (base(rows[at].place.file) ?? address(rows[at].place)),
                  28,
                ),
              ),
              h('br'),
              muted(
                rows[at].bound_by ? ['bound by ', name(boundBy(rows[at].bound_by), 40)] : '',
              ),
            ),
        },
      ],
    });
    replace(
      root,
      h('h1', { class: 'sr-only' }, 'Loops'),
      h(
        'div',
        { class: 'split is-narrow' },
        h(
          'div',
          null,
          h(
            'p',
            { class: 'muted' },
            `${count(rows.length)} ${rows.length === 1 ? 'loop' : 'loops'}; cycles of an iteration, in brackets those with all data in the first cache`,
          ),
          h('div', { class: 'list' }, grid.element),
        ),
        panel,
      ),
    );
    grid.setRows(
      rows.map((_, at) => at),
      null,
    );
    const update = (from) => {
      const id = Math.max(0, Math.min(rows.length - 1, Number(from.get('id') ?? 0) || 0));
      requestAnimationFrame(() => grid.select(id, true));
      replace(panel, detail(doc, rows[id]));
    };
    update(parameters);
    return { update, move: (by) => grid.move(by) };
  },
};
