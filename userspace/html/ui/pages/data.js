// Data objects: shares, how structures lie in cache lines, fields, code, allocation, what evicts what.

import { h, link, muted, name, replace } from '../dom.js';
import { approx, bytes, count, known, plain, share } from '../format.js';
import { Grid } from '../grid.js';
import { bar, card, choice, facts, hash, heat, place, table, withInterval } from '../parts.js';
import { cacheName, isStartUp } from '../doc.js';

const LINE = 64;

/** One row for each line of cache, from where the structure begins; a member across an edge has two parts. */
function layout(of) {
  const most = Math.max(...of.members.map((member) => member.access_share ?? 0), 1e-12);
  const rows = [];
  const lines = Math.min(64, Math.ceil(of.bytes / LINE));
  for (let line = 0; line < lines; line += 1) {
    const cells = [];
    for (const member of of.members) {
      const from = Math.max(member.offset, line * LINE);
      const to = Math.min(member.offset + member.bytes, (line + 1) * LINE);
      if (to <= from) continue;
      const part = member.access_share ?? 0;
      const width = ((to - from) / LINE) * 100;
      const step = member.hole ? 'hole' : `heat-${heat(part / most)}`;
      const value = member.hole ? 'padding' : known(part) && part > 0 ? share(part) : 'cold';
      cells.push(
        h(
          'div',
          {
            class: `member ${step}`,
            style: { width: `${width}%`, left: `${((from - line * LINE) / LINE) * 100}%` },
            title: `${member.path ?? 'padding'}: ${member.bytes} bytes at ${member.offset}, ${value}`,
          },
          width > 7 ? h('span', null, member.hole ? 'padding' : name(member.path ?? '?', 16)) : null,
          width > 9 && !member.hole ? h('span', { class: 'member-share' }, value) : null,
        ),
      );
    }
    rows.push(
      h(
        'div',
        { class: 'cache-line' },
        h('span', { class: 'offset' }, line * LINE),
        h('div', { class: 'cache-cells' }, cells),
      ),
    );
  }
  const change = (text, to) =>
    to &&
    to.bytes[0] > 0 &&
    (to.bytes[1] !== to.bytes[0] || to.lines_per_visit[1] < to.lines_per_visit[0] - 1e-6)
      ? h(
          'p',
          { class: 'hint' },
          `${text}: ${to.bytes[0]} → ${to.bytes[1]} bytes; cache lines a random visit ${plain(to.lines_per_visit[0])} → ${plain(to.lines_per_visit[1])}, for each element of a sweep ${plain(to.lines_per_sweep[0])} → ${plain(to.lines_per_sweep[1])}.`,
        )
      : null;
  return h(
    'div',
    { class: 'layout' },
    h(
      'h3',
      null,
      name(of.type, 50),
      `: ${of.bytes} bytes, ${of.hot_bytes} of them hot${of.padding_bytes ? `, ${of.padding_bytes} padding` : ''}`,
    ),
    h(
      'p',
      { class: 'muted' },
      'One row is one cache line, from where a structure begins. A stronger colour: a larger share of the accesses.',
    ),
    rows,
    of.bytes > 64 * LINE ? muted(`${Math.ceil(of.bytes / LINE) - 64} further lines`) : null,
    of.cold.length ? change('Moving the cold members elsewhere', of.split) : null,
    change('Hot members side by side', of.reorder),
    table(
      of.members.filter((member) => !member.hole),
      [
        { head: 'member', cell: (row) => name(row.path ?? '?', 40) },
        { head: 'type', cell: (row) => (row.type ? name(row.type, 40) : muted('–')) },
        { head: 'offset', number: true, cell: (row) => row.offset },
        { head: 'bytes', number: true, cell: (row) => row.bytes },
        { head: 'of its accesses', number: true, cell: (row) => share(row.access_share ?? 0) },
      ],
      'members',
    ),
  );
}

function path(doc, site) {
  const node = doc.stacks[site?.stack] ?? 0;
  const frames = doc.path(node).reverse();
  if (!frames.length) return null;
  return h(
    'ol',
    { class: 'path' },
    frames.map((frame) =>
      h('li', { class: isStartUp(frame) ? 'muted' : null }, place({ ...frame, via: null }, 70)),
    ),
  );
}

function detail(doc, at) {
  const row = doc.report.objects[at];
  const level = doc.ranked ?? doc.levels[0];
  const unnamed = doc.report.objects_summary?.unknown_share ?? 0;
  const conflicts = (doc.report.objects_summary?.conflicts ?? []).filter(
    (of) => of.object_id === row.id && row.id != null,
  );
  return card(
    h('h2', null, name(row.name, 80)),
    facts([
      [
        'kind',
        [
          row.kind,
          row.thread_local ? ', thread-local' : '',
          row.function ? [' of ', name(row.function, 40)] : '',
        ],
      ],
      ['type', row.type ? name(row.type, 80) : null],
      ['size', known(row.bytes) ? bytes(row.bytes) : null],
      ['declared', row.declared ? place({ function: null, ...row.declared }, 40) : null],
      ['file', row.module ? name(row.module, 60) : null],
      [
        'accesses',
        [
          withInterval(row.access_share, row.access_share_ci95),
          ' of all',
          known(row.accesses) ? `, about ${approx(row.accesses)}` : '',
          `; ${share(row.loads)} load, ${share(row.stores)} store`,
        ],
      ],
      ['CPU time', withInterval(row.cpu_share, row.cpu_share_ci95)],
      ...doc.levels.map((of) => [
        `misses of ${of}`,
        known(row.miss_share[of])
          ? [
              withInterval(row.miss_share[of], row.miss_share_ci95[of]),
              ` of all; ${share(row.miss_ratio[of])} of its own touches miss`,
            ]
          : null,
      ]),
      ['seen', `${count(row.n)} uses`],
    ]),
    row.inferred || row.name_inferred
      ? h(
          'p',
          { class: 'hint' },
          'The name or the type is concluded from the code that touches it, and was not recorded when it was allocated.',
        )
      : null,
    row.unknown ? h('p', { class: 'muted' }, name(row.unknown, 200)) : null,
    (row.layout ?? []).map((of) => layout(of)),
    unnamed > row.access_share
      ? h(
          'p',
          { class: 'muted' },
          'More accesses fall on memory without a name than on this object: members may be hotter than they look.',
        )
      : null,
    row.fields?.length
      ? [
          h('h3', null, 'Parts'),
          table(
            row.fields,
            [
              { head: 'part', cell: (of) => [name(of.path, 40), of.hot ? ' ●' : ''] },
              { head: 'type', cell: (of) => (of.type ? name(of.type, 30) : muted('–')) },
              { head: 'offset', number: true, cell: (of) => count(of.offset) },
              { head: 'bytes', number: true, cell: (of) => count(of.bytes) },
              {
                head: 'accesses',
                number: true,
                cell: (of) => [share(of.access_share), bar(of.access_share, of.access_share_ci95)],
              },
              { head: `${level} misses`, number: true, cell: (of) => share(of.miss_share[level]) },
            ],
            'parts',
          ),
          h(
            'p',
            { class: 'muted' },
            '● among the parts that take most of the accesses. Shares are of this object.',
          ),
        ]
      : null,
    row.lines?.length
      ? [
          h('h3', null, 'Code'),
          table(
            row.lines,
            [
              {
                head: `${level} misses`,
                number: true,
                cell: (of) => [
                  share(of.miss_share[level]),
                  bar(of.miss_share[level], of.miss_share_ci95[level]),
                ],
              },
              { head: 'accesses', number: true, cell: (of) => share(of.access_share) },
              { head: 'CPU time', number: true, cell: (of) => share(of.cpu_share) },
              { head: 'mostly', cell: (of) => of.kind },
              { head: 'line', cell: (of) => place(of, 40) },
            ],
            'lines of code',
          ),
        ]
      : null,
    conflicts.length
      ? [
          h('h3', null, 'Evicted by'),
          table(
            conflicts,
            [
              { head: 'of all misses', number: true, cell: (of) => [share(of.share), bar(of.share)] },
              { head: 'cache', cell: (of) => cacheName(of.level) },
              {
                head: 'object',
                cell: (of) => {
                  const to = doc.report.objects.findIndex((other) => other.id === of.displaced_by_id);
                  return to >= 0
                    ? link(hash('data', { id: to }), null, name(of.displaced_by, 40))
                    : name(of.displaced_by ?? '?', 40);
                },
              },
            ],
            'what evicts it',
          ),
        ]
      : null,
    row.site
      ? [
          h('h3', null, 'Allocated at'),
          row.site.cut ? muted(`Outer frames are missing: ${row.site.cut}`) : null,
          path(doc, row.site) ?? place(row.site.place, 60),
        ]
      : null,
    link(
      hash('pairs', { q: row.name.toLowerCase().split(/\s+/)[0] }),
      { class: 'more' },
      'Pairs on this object',
    ),
  );
}

/** Objects of an exact run: what is loaded of them, by level. */
function exactObjects(doc, root, level) {
  const rows = doc.report.cache_use.by_object;
  const levels = [...new Set(rows.map((row) => row.level))];
  const chosen = levels.includes(level) ? level : levels[levels.length - 1];
  replace(
    root,
    h('h1', { class: 'sr-only' }, 'Data'),
    card(
      'Data objects by the lines loaded of them',
      choice(
        'cache',
        levels.map((of) => [of, cacheName(of)]),
        chosen,
        (of) => exactObjects(doc, root, of),
      ),
      table(
        rows.filter((row) => row.level === chosen),
        [
          { head: 'of the bytes lost', number: true, cell: (row) => [share(row.share), bar(row.share)] },
          { head: 'of the lines loaded', number: true, cell: (row) => share(row.traffic_share) },
          { head: 'lines loaded', number: true, cell: (row) => approx(row.lines_loaded) },
          { head: 'bytes used of a line', number: true, cell: (row) => plain(row.used_bytes_per_line) },
          { head: 'accesses to a line', number: true, cell: (row) => plain(row.access_count) },
          {
            head: 'object',
            cell: (row) => [
              name(row.name, 60),
              h('div', { class: 'muted' }, row.kind, known(row.bytes) ? `, ${bytes(row.bytes)}` : ''),
            ],
          },
        ],
        'data objects',
      ),
    ),
  );
}

export const data = {
  id: 'data',
  title: 'Data',
  isThere: (doc) => !!(doc.report.objects?.length || doc.report.cache_use?.by_object?.length),
  render(root, parameters, doc, { go }) {
    if (!doc.report.objects?.length) {
      exactObjects(doc, root, parameters.get('level'));
      return null;
    }
    const rows = doc.report.objects;
    const level = doc.ranked ?? doc.levels[0];
    const panel = h('div', { class: 'panel' });
    const most = Math.min(1, 1.6 * Math.max(1e-9, ...rows.map((row) => row.miss_share?.[level] || 0)));
    const grid = new Grid({
      label: 'data objects',
      height: 50,
      onselect: (at) => go('data', { id: at }, true),
      columns: [
        {
          key: 'misses',
          head: level ? `${level} misses` : 'misses',
          width: '104px',
          number: true,
          cell: (at) =>
            h(
              'div',
              null,
              share(rows[at].miss_share?.[level]),
              bar(rows[at].miss_share?.[level], rows[at].miss_share_ci95?.[level], most),
            ),
        },
        {
          key: 'accesses',
          head: 'accesses',
          width: '82px',
          number: true,
          cell: (at) => share(rows[at].access_share),
        },
        { key: 'cpu', head: 'CPU', width: '70px', number: true, cell: (at) => share(rows[at].cpu_share) },
        {
          key: 'object',
          head: 'object',
          width: 'minmax(120px, 1fr)',
          cell: (at) =>
            h(
              'div',
              null,
              h('strong', null, name(rows[at].name, 30)),
              h('br'),
              muted(
                [rows[at].kind, known(rows[at].bytes) ? bytes(rows[at].bytes) : null]
                  .filter(Boolean)
                  .join(' · '),
              ),
            ),
        },
      ],
    });
    const heap = doc.report.objects_summary?.heap;
    const summary = doc.report.objects_summary;
    replace(
      root,
      h('h1', { class: 'sr-only' }, 'Data'),
      h(
        'div',
        { class: 'split is-narrow' },
        h(
          'div',
          null,
          h(
            'p',
            { class: 'muted' },
            `${count(rows.length)} ${rows.length === 1 ? 'object' : 'objects'}; ${share(summary?.unknown_share)} of the accesses have no known object.`,
            heap
              ? ` ${count(heap.allocations_seen)} of ${count(heap.allocations_made)} allocations were recorded.`
              : '',
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
      replace(panel, detail(doc, id));
    };
    update(parameters);
    return { update, move: (by) => grid.move(by) };
  },
};
