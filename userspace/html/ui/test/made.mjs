// Makes reports that no trace gives: node test/made.mjs EXACT.locality FOLDER
//
// `large`: 100,000 pairs. `hostile`: names that are markup, that turn the direction of text, of 64 kB.

import { readFileSync, writeFileSync } from 'node:fs';

const [base, folder] = process.argv.slice(2);
const whole = JSON.parse(readFileSync(base, 'utf8'));
whole.pairs = [];
if (whole.cache_use) delete whole.cache_use.costs;
// The two schemas differ in call paths alone, and these have none besides the pairs'.
whole.schema = 'locality-report/2';

let state = 12345;
const random = (below) => {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return Math.floor((state / 2 ** 32) * below);
};
const frame = (name, n) => ({
  address: 4096 + n * 16,
  file: `/src/module${n % 300}/file${n % 900}.cpp`,
  function: name,
  inlined: n % 3 === 0,
  line: (n % 997) + 1,
  module: '/usr/bin/large',
});

function large() {
  const frames = Array.from({ length: 20_000 }, (_, n) =>
    frame(`ns${n % 40}::Class${n % 600}::method${n}(int, std::vector<double> const&)`, n),
  );
  const stacks = Array.from({ length: 30_000 }, () => {
    const leaf = random(20_000);
    return Array.from({ length: 4 + random(5) }, (_, depth) =>
      depth === 0 ? leaf : (leaf * 31 + depth * 7919) % Math.max(2, Math.floor(20_000 / 8 ** depth)),
    );
  });
  const at = (stack) => ({
    stack,
    place: {
      file: frames[stacks[stack][0]].file,
      function: frames[stacks[stack][0]].function,
      line: frames[stacks[stack][0]].line,
    },
  });
  const pairs = Array.from({ length: 100_000 }, (_, n) => {
    const low = 2 ** random(34);
    const count = Math.max(1, Math.floor((2e6 / (n + 1)) * (0.5 + random(1000) / 1000)));
    const [use, reuse] = [at(random(30_000)), at(random(30_000))];
    const time_median = { unit: 'accesses', value: low * (1 + random(1000) / 1000), low, high: low * 2 };
    const stack_median = {
      unit: 'granules',
      value: Math.floor((low / (2 + random(5))) * (1 + random(1000) / 1000)),
      low: Math.floor(low / 4),
      high: low,
    };
    const misses = Object.fromEntries(
      [4096, 131_072, 4_194_304].map((limit, size) => [
        [32_768, 1_048_576, 33_554_432][size],
        low > limit ? count : 0,
      ]),
    );
    return {
      use,
      reuse,
      contexts: [],
      contexts_total: 1,
      n: count,
      weight: 0,
      common_ancestor: null,
      time_median,
      stack_median,
      misses,
    };
  }).sort((a, b) => b.n - a.n);
  const all = pairs.reduce((sum, pair) => sum + pair.n, 0);
  for (const pair of pairs) pair.weight = pair.n / all;
  return { ...whole, frames, stacks, pairs };
}

function hostile() {
  const names = [
    '</script><img src=x onerror="window.pwned=1">',
    '<svg onload=window.pwned=1>',
    '\u202Egnp.elif\u202C \u05D0\u05D1\u05D2 \u0645\u0631\u062D\u0628\u0627',
    `std::map<${'std::pair<int, std::vector<double>>, '.repeat(1800)}int>::operator[](int)`,
    '"><a href="javascript:window.pwned=1">x</a>',
    '${window.pwned=1}',
    '{{constructor.constructor("window.pwned=1")()}}',
    '',
    '\u0000\u0007\u001b[31mred',
    '..',
    '__proto__',
    'constructor',
    '-->',
    ']]>',
    '&lt;b&gt;',
    "' onmouseover='window.pwned=1",
  ];
  const frames = names.map((name, n) => ({
    ...frame(name, n),
    file: names[(n + 1) % names.length] || '/src/a.c',
    module: names[(n + 2) % names.length],
  }));
  const stacks = names.map((_, n) => [n, (n + 1) % names.length, (n + 2) % names.length]);
  const pairs = names.map((name, n) => ({
    use: {
      stack: n,
      place: { file: frames[n].file, function: name, line: 3, via: names[(n + 3) % names.length] },
    },
    reuse: {
      stack: (n + 1) % names.length,
      place: { file: frames[n].file, function: names[(n + 1) % names.length], line: 4 },
    },
    contexts: [],
    contexts_total: 1,
    n: 10,
    weight: 1 / names.length,
    common_ancestor: frames[n],
    object: { name, kind: 'heap', share: 1 },
    far: n % 2 === 0,
    near: n % 2 === 1,
    time_median: { unit: 'accesses', value: 1e6, ci95: [9e5, 2e6], n: 10 },
    weight_ci95: [0, 0.2],
  }));
  const estimate = (value) => ({ value, ci95: [value / 2, value * 2], n: 9 });
  const row = (name, n) => ({
    file: frames[n].file,
    function: name,
    line: n + 1,
    kind: 'load',
    access_share: 0.05,
    access_share_ci95: [0, 0.1],
    cpu_share: 0.05,
    cpu_share_ci95: [0, 0.1],
    miss_share: { L1: 0.1 },
    miss_share_ci95: { L1: [0, 0.2] },
    n: 3,
  });
  const objects = names.map((name, n) => ({
    id: n,
    name,
    kind: 'heap',
    type: names[(n + 1) % names.length],
    bytes: 96,
    access_share: 0.05,
    access_share_ci95: [0, 0.2],
    cpu_share: 0.05,
    cpu_share_ci95: [0, 0.1],
    loads: 1,
    stores: 0,
    n: 9,
    inferred: true,
    name_inferred: true,
    declared: { file: name, line: 3 },
    module: name,
    unknown: name,
    miss_ratio: { L1: 0.1 },
    miss_share: { L1: 0.06 },
    miss_share_ci95: { L1: [0, 0.2] },
    lines: [row(name, n)],
    fields: [
      {
        access_share: 1,
        access_share_ci95: [0.5, 1],
        bytes: 8,
        hot: true,
        miss_share: { L1: 1 },
        n: 3,
        offset: 0,
        path: name,
        type: name,
      },
    ],
    layout: [
      {
        bytes: 96,
        cold: [],
        hot: [],
        hot_bytes: 8,
        hot_span_bytes: 8,
        padding_bytes: 4,
        type: name,
        members: [
          { access_share: 1, bytes: 60, line: 0, offset: 0, path: name, type: name },
          { bytes: 4, hole: true, line: 0, offset: 60 },
          { access_share: 0, bytes: 32, line: 1, offset: 64, path: 'b', type: null },
        ],
        reorder: { bytes: [96, 96], lines_per_sweep: [1.5, 1.5], lines_per_visit: [2, 1] },
        split: { bytes: [96, 64], lines_per_sweep: [1.5, 1], lines_per_visit: [2, 1] },
      },
    ],
  }));
  const loops = names.map((name, n) => ({
    place: { file: frames[n].file, function: name, line: 2 },
    share: estimate(0.1),
    cycles: estimate(12),
    core_cycles: estimate(3),
    instructions: 9,
    iterations: estimate(1e8),
    lines_per_iteration: 1,
    n: 5,
    trips: { median: 9, n: 4 },
    bound_by: name || 'loads',
    accesses: [
      {
        bytes: 8,
        chased: false,
        indexed: false,
        inner_stride: 64,
        kind: 'load',
        line: 3,
        lines_per_access: 1,
        object: name,
        field: name,
        stride_share: 1,
      },
    ],
  }));
  return {
    ...whole,
    run: { ...whole.run, command: names[0] },
    frames,
    stacks,
    pairs,
    objects,
    loops,
    notices: names.filter(Boolean),
    objects_summary: {
      conflicts: [
        {
          displaced_by: names[1],
          displaced_by_id: 1,
          level: 'L1',
          n: 3,
          object: names[0],
          object_id: 0,
          share: 0.1,
        },
      ],
      levels: [{ bytes: 32_768, miss_ratio: 0.1, names: ['L1'] }],
      n: 9,
      ranked_by: 'L1',
      unknown_share: 0,
      unknown_share_ci95: [0, 0],
    },
    verdict: {
      grade: 'poor',
      probably: true,
      per_mille: { L1: estimate(100), LLC: estimate(50) },
      sentence: names[0],
      waits_share: estimate(0.3),
    },
    advice: names
      .slice(0, 5)
      .map((name, n) => ({
        kind: 'split',
        title: name,
        where: { file: frames[n].file, function: name, line: 3 },
        object: name,
        field: name,
        gain: { speedup: estimate(1.5) },
        evidence: names.slice(0, 3),
        in_the_way: names.slice(1, 3),
        n: 9,
      })),
  };
}

writeFileSync(`${folder}/large.locality`, JSON.stringify(large()));
writeFileSync(`${folder}/hostile.locality`, JSON.stringify(hostile()));
