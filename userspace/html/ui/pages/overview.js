// The first page: verdict, what to do, curve and distances, the heaviest rows of all tables. Every number
// of it names the value of the JSON report that it shows (`data-json`); a test compares them.

import { curve, bars } from '../charts.js';
import { base, cacheName, FAR } from '../doc.js';
import { clean, h, link, name, muted } from '../dom.js';
import {
  approx,
  bytes,
  count,
  interval,
  known,
  nanoseconds,
  NONE,
  percent,
  plain,
  seconds,
  share,
  times,
} from '../format.js';
import { badge, bar, boundBy, card, choice, details, empty, hash, place, table } from '../parts.js';

/** The value at a pointer into the report, as a number that names it. */
function shown(doc, pointer, format, value) {
  return h('span', { 'data-json': pointer }, format(value ?? at(doc.report, pointer)));
}
const at = (value, pointer) =>
  pointer
    .split('/')
    .slice(1)
    .reduce((of, key) => of?.[key.replaceAll('~1', '/').replaceAll('~0', '~')], value);
const ends = (doc, pointer, format, value) =>
  h('span', { class: 'ci', 'data-json': pointer }, interval(value ?? at(doc.report, pointer), format));
/** A sentence of the report, as it is. */
const said = (pointer, text, tag = 'p', properties = {}) =>
  h(tag, { 'data-text': pointer, ...properties }, clean(text));

const GRADES = {
  good: 'Good data locality',
  fair: 'Fair data locality',
  poor: 'Poor data locality',
  unsure: 'Data locality: not sure yet',
};

function banner(doc) {
  const { report: r } = doc;
  const v = r.verdict;
  const grade = v?.grade ?? 'unsure';
  const title = v
    ? v.probably
      ? `Probably ${GRADES[grade].toLowerCase()}`
      : GRADES[grade]
    : r.empty
      ? 'This report is empty'
      : doc.isExact
        ? r.run.sample_lines
          ? `A whole run, estimated from one of ${r.run.sample_lines} cache lines`
          : 'Every access of the run, counted'
        : 'Distances and places of a trace';
  const kind = v ? grade : r.empty ? 'poor' : 'unknown';
  const shape = { good: '●', fair: '◆', poor: '▲', unsure: '?' }[kind] ?? 'ℹ';
  const host = r.run.host ?? {};
  return h(
    'section',
    { class: `banner is-${kind}` },
    h('span', { class: 'banner-shape', 'aria-hidden': 'true' }, shape),
    h(
      'div',
      null,
      h('h1', null, title),
      v && said('/verdict/sentence', v.sentence),
      r.empty && said('/empty', r.empty),
      h(
        'p',
        { class: 'muted' },
        said('/run/command', r.run.command, 'bdi', { class: 'command' }),
        ' · ',
        shown(doc, '/run/wall_s', seconds),
        doc.isExact ? ' of run, ' : ' traced, ',
        shown(doc, '/run/cpu_s', seconds),
        ' of CPU time',
        r.run.started ? [' · ', said('/run/started', r.run.started, 'span')] : null,
        host.cpu
          ? [
              ' · ',
              said('/run/host/cpu', host.cpu, 'span'),
              ' · ',
              said('/run/host/kernel', host.kernel, 'span'),
            ]
          : null,
      ),
    ),
  );
}

function tile(title, value, under, graph) {
  return h(
    'div',
    { class: 'tile' },
    h('div', { class: 'tile-title' }, title),
    h('div', { class: 'tile-value' }, value),
    graph,
    h('div', { class: 'tile-under' }, under),
  );
}

const WHERE = { L1: 'miss L1', L2: 'miss L2', LLC: 'go to memory' };

function tiles(doc) {
  const { report: r } = doc;
  const list = [];
  const levels = r.verdict?.per_mille ?? {};
  // One scale for all levels, so that bars can be compared.
  const most = Math.max(100, ...Object.values(levels).map((of) => of.ci95?.[1] || of.value || 0));
  for (const level of ['L1', 'L2', 'LLC']) {
    const value = levels[level];
    if (!value || !known(value.value)) continue;
    const pointer = `/verdict/per_mille/${level}`;
    list.push(
      tile(
        `of 1,000 line touches ${WHERE[level]}`,
        shown(doc, `${pointer}/value`, plain),
        ['95 %: ', ends(doc, `${pointer}/ci95`, plain)],
        bar(value.value, value.ci95, most),
      ),
    );
  }
  if (!list.length) {
    const points = at64(doc)?.at_caches ?? [];
    points.forEach((point, i) => {
      const pointer = `/reuse/${key64(doc)}/at_caches/${i}`;
      list.push(
        tile(
          `miss ratio, L${point.level} of ${bytes(point.bytes)}`,
          shown(doc, `${pointer}/ratio`, share),
          point.ci95 ? ['95 %: ', ends(doc, `${pointer}/ci95`, share)] : 'counted',
          bar(point.ratio, point.ci95),
        ),
      );
    });
  }
  const waits = r.verdict?.waits_share;
  if (waits)
    list.push(
      tile(
        'of the CPU time waits for data',
        shown(doc, '/verdict/waits_share/value', share),
        ['95 %: ', ends(doc, '/verdict/waits_share/ci95', share)],
        bar(waits.value, waits.ci95),
      ),
    );
  const lost = (r.cache_use?.levels ?? []).findIndex((row) => row.level === doc.useLevel);
  if (lost >= 0 && known(r.cache_use.levels[lost].lost_share)) {
    const row = r.cache_use.levels[lost];
    list.push(
      tile(
        `of the bytes loaded into ${cacheName(row.level)} are never used`,
        shown(doc, `/cache_use/levels/${lost}/lost_share`, share),
        row.lost_share_ci95
          ? ['95 %: ', ends(doc, `/cache_use/levels/${lost}/lost_share_ci95`, share)]
          : 'counted',
        bar(row.lost_share, row.lost_share_ci95),
      ),
    );
  }
  if (r.mix) {
    list.push(
      tile('accesses', shown(doc, '/mix/accesses', approx), [
        'of ',
        shown(doc, '/mix/instructions', approx),
        ' instructions',
      ]),
    );
    list.push(
      tile('loads for each instruction', shown(doc, '/mix/loads', plain), [
        'stores: ',
        shown(doc, '/mix/stores', plain),
      ]),
    );
  }
  if (known(r.run.samples))
    list.push(
      tile('samples', shown(doc, '/run/samples', count), [
        shown(doc, '/run/watches', count),
        ' watchpoints',
      ]),
    );
  if (r.overhead)
    list.push(
      tile("of the program's time was the cost", shown(doc, '/overhead/measured_percent', percent), [
        'budget ',
        shown(doc, '/overhead/budget_percent', percent),
        ', longest pause ',
        shown(doc, '/overhead/longest_stop_ns', nanoseconds),
      ]),
    );
  return h('div', { class: 'tiles' }, list);
}

export function notices(doc) {
  const { report: r } = doc;
  const list = r.notices.map((text, i) => said(`/notices/${i}`, text, 'li'));
  if (r.partial)
    list.unshift(
      h(
        'li',
        null,
        'This run was cut short, or rows were left out: what is missing is said here and on the page Cost & trust.',
      ),
    );
  if (!list.length) return null;
  return h(
    'details',
    { class: 'notices' },
    h(
      'summary',
      null,
      list.length === 1 ? 'One remark' : `${list.length} remarks`,
    ),
    h('ul', null, list),
  );
}

function advice(doc) {
  const { report: r } = doc;
  const list = r.advice ?? [];
  if (!list.length) {
    if (r.advice_none) return card('What to do', said('/advice_none', r.advice_none));
    if (doc.isExact) return null;
    return card(
      'What to do',
      empty('This profile has no loops, so nothing can be advised: trace the program again.'),
    );
  }
  return card(
    'What to do',
    h(
      'ol',
      { class: 'advice' },
      list.map((row, i) => {
        const pointer = `/advice/${i}`;
        const gain = row.gain.speedup;
        const most = Math.max(2, ...list.map((of) => of.gain.speedup.ci95[1] || 0));
        const object = (r.objects ?? []).findIndex((of) => of.name === row.object);
        return h(
          'li',
          null,
          h(
            'div',
            { class: 'gain' },
            h('div', { class: 'gain-value' }, shown(doc, `${pointer}/gain/speedup/value`, times)),
            bar(
              gain.value - 1,
              gain.ci95.map((end) => end - 1),
              most - 1,
            ),
            h(
              'div',
              { class: 'tile-under' },
              '[',
              ends(doc, `${pointer}/gain/speedup/ci95`, times),
              '] times as fast, for the whole program',
            ),
          ),
          h(
            'div',
            null,
            said(`${pointer}/title`, row.title, 'h3'),
            row.evidence.map((text, n) => said(`${pointer}/evidence/${n}`, text)),
            row.in_the_way.length
              ? h(
                  'div',
                  { class: 'in-the-way' },
                  h('strong', null, 'Check first: '),
                  row.in_the_way.map((text, n) => said(`${pointer}/in_the_way/${n}`, `${text} `, 'span')),
                )
              : null,
            h(
              'p',
              { class: 'muted' },
              h('span', { class: 'kind' }, name(row.kind.replaceAll('_', ' '), 40)),
              ' ',
              place(row.where),
              row.other ? [' and ', place(row.other)] : null,
              row.object
                ? [
                    ' · ',
                    object >= 0
                      ? link(hash('data', { id: object }), null, name(row.object))
                      : name(row.object),
                    row.field ? [' ', name(row.field)] : null,
                  ]
                : null,
              ' · ',
              shown(doc, `${pointer}/n`, count),
              ' samples',
            ),
          ),
        );
      }),
    ),
  );
}

const key64 = (doc) => (doc.report.reuse['64'] ? '64' : Object.keys(doc.report.reuse)[0]);
const at64 = (doc) => doc.report.reuse[key64(doc)];
const granulesName = (size) => (size === '64' ? 'lines' : size === '8' ? 'words' : 'granules');
const sizes = (doc) => Object.keys(doc.report.reuse).sort((a, b) => Number(b) - Number(a));
const granuleName = (size) =>
  size === '64' ? 'lines of 64 bytes' : size === '8' ? 'words of 8 bytes' : `granules of ${size} bytes`;

function missRatios(doc, state, redraw) {
  const keys = sizes(doc).filter((key) => doc.report.reuse[key].miss_ratio_curve?.length);
  if (!keys.length)
    return card(
      'Miss ratio by cache size',
      empty("No miss ratios: the program's rate of accesses is not known."),
    );
  const chosen = keys.includes(state.granule) ? state.granule : keys[0];
  const points = doc.report.reuse[chosen].miss_ratio_curve;
  const series = [
    {
      series: 0,
      points: points
        .filter((p) => p.bytes > 0 && known(p.ratio))
        .map((p) => ({ x: p.bytes, y: p.ratio, low: p.ci95?.[0], high: p.ci95?.[1] })),
    },
  ];
  const pointer = (i) => `/reuse/${chosen}/miss_ratio_curve/${i}`;
  const readout = h('output', { class: 'what-if' });
  const tell = (i) => {
    const point = points[i];
    readout.replaceChildren(
      'A cache of ',
      shown(doc, `${pointer(i)}/bytes`, bytes),
      ' would miss ',
      h('strong', null, shown(doc, `${pointer(i)}/ratio`, share)),
      ...(point.ci95 ? [' [', ends(doc, `${pointer(i)}/ci95`, share), ']'] : []),
      ' of the touches',
    );
  };
  const last = doc.caches[doc.caches.length - 1]?.bytes ?? points[points.length - 1].bytes;
  const start = Math.max(
    0,
    points.findIndex((point) => point.bytes >= last),
  );
  tell(start);
  return card(
    'Would a larger cache, or a smaller working set, help?',
    h(
      'div',
      { class: 'controls' },
      keys.length > 1
        ? choice(
            'granularity',
            keys.map((key) => [key, key === '64' ? 'lines' : key === '8' ? 'words' : `${key} B`]),
            chosen,
            (key) => redraw({ granule: key }),
          )
        : null,
      choice(
        'scale',
        [
          ['linear', 'linear'],
          ['log', 'log'],
        ],
        state.scale,
        (scale) => redraw({ scale }),
      ),
    ),
    curve({
      label: 'Miss ratio by cache size',
      series,
      isLog: state.scale === 'log',
      xText: bytes,
      yText: share,
      xTitle: `cache size (fully associative, LRU), ${granuleName(chosen)}`,
      marks: doc.caches.map((cache) => ({
        x: cache.bytes,
        label: `L${cache.level} ${bytes(cache.bytes)}`,
      })),
    }),
    h(
      'label',
      { class: 'slider' },
      h('span', null, 'What if'),
      h('input', {
        type: 'range',
        min: 0,
        max: points.length - 1,
        value: start,
        'aria-label': 'cache size',
        oninput: (event) => tell(Number(event.target.value)),
      }),
    ),
    readout,
    details(
      'Numbers',
      table(
        points,
        [
          { head: 'cache size', number: true, cell: (p, i) => shown(doc, `${pointer(i)}/bytes`, bytes) },
          { head: 'miss ratio', number: true, cell: (p, i) => shown(doc, `${pointer(i)}/ratio`, share) },
          {
            head: '95 %',
            number: true,
            cell: (p, i) => (p.ci95 ? ends(doc, `${pointer(i)}/ci95`, share) : 'counted'),
          },
        ],
        'miss ratios',
      ),
    ),
  );
}

function distances(doc, state, redraw) {
  const keys = sizes(doc).filter(
    (key) => doc.report.reuse[key].time?.bins?.length || doc.report.reuse[key].stack?.bins?.length,
  );
  if (!keys.length) return card('Distances between use and reuse', empty('No reuse was seen.'));
  const granule = keys.includes(state.granule) ? state.granule : keys[0];
  const reuse = doc.report.reuse[granule];
  const kind = reuse[state.distance]?.bins?.length
    ? state.distance
    : reuse.time?.bins?.length
      ? 'time'
      : 'stack';
  const histogram = reuse[kind];
  const { bins } = histogram;
  const lowText = (value) =>
    histogram.unit === 'granules'
      ? bytes(value * Number(granule))
      : histogram.unit === 'cpu_ns'
        ? nanoseconds(value)
        : approx(value);
  const title = {
    accesses: 'accesses between use and reuse',
    cpu_ns: 'CPU time between use and reuse',
    granules: 'bytes of distinct data between use and reuse',
  }[histogram.unit];
  const firstCache = doc.caches[0]?.bytes ?? 32768;
  const far = histogram.unit === 'granules' ? firstCache / Number(granule) : null;
  const pointer = (i) => `/reuse/${granule}/${kind}/bins/${i}`;
  const options = [
    ['time', histogram.unit === 'cpu_ns' ? 'time' : 'accesses'],
    ['stack', 'distinct data'],
  ].filter(([of]) => reuse[of]?.bins?.length);
  return card(
    'How far apart are use and reuse?',
    h(
      'div',
      { class: 'controls' },
      options.length > 1 ? choice('distance', options, kind, (distance) => redraw({ distance })) : null,
      keys.length > 1
        ? choice(
            'granularity',
            keys.map((key) => [key, key === '64' ? 'lines' : key === '8' ? 'words' : `${key} B`]),
            granule,
            (key) => redraw({ granule: key }),
          )
        : null,
    ),
    bars({
      label: `Histogram of ${title}`,
      yText: share,
      xTitle: `${title} (from), ${granuleName(granule)}`,
      height: 230,
      bins: bins.map((bin) => ({
        label: lowText(bin.low),
        value: bin.fraction,
        low: bin.ci95?.[0],
        high: bin.ci95?.[1],
        from: bin.low,
      })),
      isFar: (bin) => far != null && bin.from >= far,
    }),
    far != null
      ? h(
          'p',
          { class: 'muted' },
          h('span', { class: 'swatch is-far', 'aria-hidden': 'true' }),
          ' beyond the first cache',
        )
      : null,
    histogram.median
      ? h(
          'p',
          null,
          `Half of all reuses of ${granulesName(granule)} come within `,
          shown(doc, `/reuse/${granule}/${kind}/median/value`, lowText),
          histogram.unit === 'accesses' ? (histogram.median.value === 1 ? ' access' : ' accesses') : '',
          histogram.p90
            ? [', 90 % within ', shown(doc, `/reuse/${granule}/${kind}/p90/value`, lowText)]
            : null,
          '.',
        )
      : null,
    details(
      'Numbers',
      table(
        bins,
        [
          { head: 'from', number: true, cell: (bin, i) => shown(doc, `${pointer(i)}/low`, lowText) },
          { head: 'to below', number: true, cell: (bin, i) => shown(doc, `${pointer(i)}/high`, lowText) },
          {
            head: 'of all reuses',
            number: true,
            cell: (bin, i) => shown(doc, `${pointer(i)}/fraction`, share),
          },
          {
            head: '95 %',
            number: true,
            cell: (bin, i) => (bin.ci95 ? ends(doc, `${pointer(i)}/ci95`, share) : 'counted'),
          },
        ],
        'distances',
      ),
    ),
  );
}

function pairs(doc) {
  const far = doc.hasFar ? doc.order(FAR).filter((id) => doc.farWeight(id) >= 0.0005) : [];
  const order = (
    far.length ? far : doc.order().sort((a, b) => doc.pairs.weight[b] - doc.pairs.weight[a] || a - b)
  ).slice(0, 6);
  const title = far.length ? 'Reuses that come too late' : 'Heaviest reuses';
  if (!order.length) return card(title, empty('No reuse was seen.'));
  return card(
    title,
    h(
      'ol',
      { class: 'rows' },
      order.map((id) => {
        const pair = doc.pair(id);
        const pointer = `/pairs/${id}`;
        const unit = pair.unit === 'cpu_ns' ? nanoseconds : approx;
        return h(
          'li',
          null,
          h(
            'a',
            { href: hash('pairs', { id }), class: 'row-link' },
            far.length && known(pair.farTime)
              ? shown(doc, `${pointer}/far_weight`, share, pair.farWeight)
              : shown(doc, `${pointer}/weight`, share, pair.weight),
          ),
          h(
            'div',
            null,
            place(pair.use, 40, false),
            ' → ',
            place(pair.reuse, 40, false),
            h(
              'div',
              { class: 'muted' },
              badge(pair.class),
              known(pair.time)
                ? [
                    ' ',
                    far.length && known(pair.farTime)
                      ? shown(doc, `${pointer}/far_median/value`, unit, pair.farTime)
                      : shown(doc, `${pointer}/time_median/value`, unit, pair.time),
                    pair.unit === 'cpu_ns' ? ' apart' : ' accesses apart',
                  ]
                : null,
              pair.object ? [' · ', name(pair.object, 40)] : null,
              ' · ',
              shown(doc, `${pointer}/n`, count, pair.n),
              ' seen',
            ),
          ),
        );
      }),
    ),
    link(hash('pairs'), { class: 'more' }, 'All pairs'),
  );
}

function objects(doc) {
  const rows = (doc.report.objects ?? []).slice(0, 6);
  if (!rows.length) return null;
  const level = doc.ranked ?? 'L1';
  return card(
    'Data',
    table(
      rows,
      [
        {
          head: `${level} misses`,
          number: true,
          cell: (row, i) => [
            shown(doc, `/objects/${i}/miss_share/${level}`, share),
            bar(row.miss_share?.[level], row.miss_share_ci95?.[level]),
          ],
        },
        {
          head: 'accesses',
          number: true,
          cell: (row, i) => shown(doc, `/objects/${i}/access_share`, share),
        },
        { head: 'CPU time', number: true, cell: (row, i) => shown(doc, `/objects/${i}/cpu_share`, share) },
        {
          head: 'object',
          cell: (row, i) => [
            link(hash('data', { id: i }), null, name(row.name, 34)),
            h(
              'div',
              { class: 'muted' },
              name(row.kind, 20),
              known(row.bytes) ? [', ', shown(doc, `/objects/${i}/bytes`, bytes)] : null,
            ),
          ],
        },
      ],
      'data objects',
    ),
    link(hash('data'), { class: 'more' }, 'All data objects'),
  );
}

function loops(doc) {
  const rows = (doc.report.loops ?? []).slice(0, 6);
  if (!rows.length) return null;
  return card(
    'Loops',
    table(
      rows,
      [
        {
          head: 'CPU time',
          number: true,
          cell: (row, i) => [
            shown(doc, `/loops/${i}/share/value`, share),
            bar(row.share.value, row.share.ci95),
          ],
        },
        {
          head: 'cycles',
          number: true,
          cell: (row, i) => (row.cycles ? shown(doc, `/loops/${i}/cycles/value`, plain) : NONE),
        },
        {
          head: '(core)',
          number: true,
          cell: (row, i) => (row.core_cycles ? shown(doc, `/loops/${i}/core_cycles/value`, plain) : NONE),
        },
        {
          head: 'loop',
          cell: (row, i) => [
            link(hash('loops', { id: i }), null, name(row.place.function ?? 'unknown', 30)),
            ' ',
            muted(name(`${base(row.place.file) ?? ''}${row.place.line ? `:${row.place.line}` : ''}`, 30)),
            row.bound_by ? h('div', { class: 'muted' }, name(boundBy(row.bound_by), 40)) : null,
          ],
        },
      ],
      'loops',
    ),
    link(hash('loops'), { class: 'more' }, 'All loops'),
  );
}

export const overview = {
  id: 'overview',
  title: 'Overview',
  isThere: () => true,
  render(root, parameters, doc) {
    const state = { granule: parameters.get('g') ?? key64(doc), scale: 'linear', distance: 'time' };
    const draw = () => {
      root.replaceChildren(
        ...[
          banner(doc),
          tiles(doc),
          notices(doc),
          h(
            'div',
            { class: 'columns' },
            [
              advice(doc),
              missRatios(doc, state, redraw),
              distances(doc, state, redraw),
              pairs(doc),
              objects(doc),
              loops(doc),
            ].filter(Boolean),
          ),
        ].filter(Boolean),
      );
    };
    const redraw = (change) => {
      Object.assign(state, change);
      const top = document.scrollingElement.scrollTop;
      draw();
      document.scrollingElement.scrollTop = top;
    };
    draw();
  },
};
