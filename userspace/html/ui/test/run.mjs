// Opens HTML reports in a real browser, without network, and checks what docs/guide/html.md promises.
//
//   node test/run.mjs FOLDER [NAME]…
//
// FOLDER holds NAME.html, and NAME.json of the same report with all pairs. Prints one line a report with
// what was measured, and every fault; ends with 1 where there was one.

import { readFileSync, readdirSync, statSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { resolve } from 'node:path';
import { deflateRawSync, inflateRawSync } from 'node:zlib';
import { chromium } from 'playwright-core';

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const [folder, ...only] = process.argv.slice(2);
const names = readdirSync(folder)
  .filter((file) => /^[^.].*\.html$/.test(file))
  .map((file) => file.slice(0, -5))
  .filter((name) => !only.length || only.includes(name))
  .sort();
const LARGE = 20_000;
const TAGS = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa'];

let faults = 0;
const fault = (name, what) => {
  faults += 1;
  console.log(`FAULT ${name}: ${what}`);
};
/** Times are printed and judged: a factor allows for a machine that is busy with other work. */
const patience = Number(process.env.LOCALITY_PATIENCE ?? 1);

const DATA = /(<script type="text\/plain" id="data">)([^<]*)(<\/script>)/;
const unpack = (html) =>
  JSON.parse(inflateRawSync(Buffer.from(DATA.exec(html)[2], 'base64')).toString('utf8'));
const repack = (html, tables) =>
  html.replace(
    DATA,
    (_, open, __, close) => open + deflateRawSync(JSON.stringify(tables)).toString('base64') + close,
  );

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox'],
});

/** A page that records all that must not happen. */
async function open(name, file, { width = 1280, height = 800, theme = 'light', hash = '' } = {}) {
  const context = await browser.newContext({
    viewport: { width, height },
    colorScheme: theme,
    offline: true,
  });
  const page = await context.newPage();
  const url = `file://${resolve(file)}`;
  page.on('request', (request) => {
    if (request.url().split('#')[0] !== url && !request.url().startsWith('blob:'))
      fault(name, `request ${request.url().slice(0, 120)}`);
  });
  page.on('console', (message) =>
    fault(name, `console ${message.type()}: ${message.text().slice(0, 300)}`),
  );
  page.on('pageerror', (error) => fault(name, `error: ${error.message}\n${error.stack}`));
  page.on('dialog', (dialog) => {
    fault(name, `a dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  await page.addInitScript(() => {
    window.reports = 0;
    addEventListener('securitypolicyviolation', () => {
      window.reports += 1;
    });
    new MutationObserver((_, observer) => {
      if (!document.body?.dataset.ready) return;
      observer.disconnect();
      requestAnimationFrame(() =>
        setTimeout(() => {
          window.usable = performance.now();
        }),
      );
    }).observe(document, {
      subtree: true,
      attributes: true,
      childList: true,
      attributeFilter: ['data-ready'],
    });
  });
  await page.goto(url + hash);
  await page.waitForFunction(() => window.usable, null, { timeout: 15_000 });
  return { page, context, url };
}

async function close(name, { page, context }) {
  if (await page.evaluate(() => window.reports)) fault(name, 'the content security policy was violated');
  if (await page.evaluate(() => window.pwned)) fault(name, 'a name of the traced program ran as code');
  await context.close();
}

async function visit(page, id) {
  await page.evaluate((to) => {
    location.hash = to;
  }, `#/${id}`);
  await page.waitForFunction((of) => document.body.dataset.ready === of, id.split('?')[0]);
  await page.evaluate(
    () =>
      new Promise((done) => {
        requestAnimationFrame(() => requestAnimationFrame(done));
      }),
  );
}

async function accessible(name, page, what) {
  if (!(await page.evaluate(() => !!window.axe))) await page.evaluate(axe);
  const found = await page.evaluate(
    (tags) => window.axe.run(document, { runOnly: tags, resultTypes: ['violations'] }),
    TAGS,
  );
  for (const violation of found.violations) {
    fault(
      name,
      `axe, ${what}: ${violation.id} × ${violation.nodes.length}: ${violation.nodes[0].html.slice(0, 160)} ${violation.nodes[0].failureSummary.replaceAll('\n', ' ').slice(0, 240)}`,
    );
  }
}

/** A number that is shown, with the size of half of its last digit. */
function parsed(text) {
  const clean = text.replaceAll('\u00a0', ' ').replaceAll(',', '').replace(/^×\s*/, '').trim();
  const match = /^(<\s*)?(-?[\d.]+(?:e[-+]?\d+)?)\s*(.*)$/.exec(clean);
  if (!match) return null;
  const units = {
    '': 1,
    '%': 0.01,
    k: 1e3,
    M: 1e6,
    G: 1e9,
    T: 1e12,
    P: 1e15,
    B: 1,
    KiB: 1024,
    MiB: 1024 ** 2,
    GiB: 1024 ** 3,
    TiB: 1024 ** 4,
    PiB: 1024 ** 5,
    ns: 1,
    µs: 1e3,
    ms: 1e6,
    s: 1e9,
    min: 60e9,
  };
  const unit = units[match[3]];
  if (unit == null) return null;
  const decimals = (match[2].split('.')[1] ?? '').replace(/e.*/, '').length;
  // Zeros at the end are not printed: three digits are meant.
  const size = Math.abs(Number(match[2]));
  const meant = size >= 100 || size === 0 ? 0 : size >= 10 ? 1 : 2;
  const last = size === 0 ? 0.01 : 10 ** -Math.max(decimals, meant);
  return {
    below: !!match[1],
    value: Number(match[2]) * unit,
    half: last * 0.5 * unit,
    isTime: ['ns', 'µs', 'ms', 's', 'min'].includes(match[3]),
  };
}

const at = (value, pointer) =>
  pointer
    .split('/')
    .slice(1)
    .reduce((of, key) => of?.[key], value);

function fits(text, value, pointer, granule) {
  const shown = parsed(text);
  if (!shown || typeof value !== 'number') return false;
  const scales = [1];
  if (shown.isTime && /_s$/.test(pointer)) scales[0] = 1e9;
  if (/percent$/.test(pointer)) scales[0] = 0.01;
  if (/\/stack\//.test(pointer)) scales.push(granule);
  return scales.some((scale) => {
    const real = value * scale;
    if (shown.below) return Math.abs(real) < shown.value && real !== 0;
    if (shown.value === 0 && Math.abs(real) < 1e-9) return true;
    return Math.abs(real - shown.value) <= shown.half * 1.001 + Math.abs(real) * 1e-6;
  });
}

/** Every number of the overview is the report's, and no number stands there that names no value. */
async function numbers(name, page, report) {
  const seen = await page.evaluate(() => {
    document.querySelectorAll('details').forEach((of) => {
      of.open = true;
    });
    const main = document.getElementById('main');
    const bare = [];
    const walker = document.createTreeWalker(main, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const of = node.parentElement;
      if (
        /\d/.test(node.data) &&
        !of.closest('[data-json], [data-text], svg, bdi, th, h2, .tile-title, option, .choice, summary')
      )
        bare.push(node.data);
    }
    const rows = [...main.querySelectorAll('[data-json], [data-text]')].map((of) => ({
      json: of.dataset.json,
      text: of.dataset.text,
      shown: of.textContent,
    }));
    return { bare, rows };
  });
  let n = 0;
  for (const row of seen.rows) {
    if (row.text) {
      const text = String(at(report, row.text) ?? '').replace(
        /[\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c]/g,
        (c) => `⟨U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}⟩`,
      );
      if (text.trim() !== row.shown.trim() && !/[\u0000-\u001f]/.test(text))
        fault(name, `${row.text} is ${text.slice(0, 80)}, shown ${row.shown.slice(0, 80)}`);
      continue;
    }
    const value = at(report, row.json);
    if (row.shown === '–' || row.shown === '') {
      if (typeof value === 'number') fault(name, `${row.json} is ${value}, shown as missing`);
      continue;
    }
    n += 1;
    const granule = Number(row.json.split('/')[2]) || 1;
    if (Array.isArray(value)) {
      const [low, high] = row.shown.split('–');
      const unit = /[^\d.,\s-].*$/.exec(high.replaceAll('\u00a0', ' '))?.[0] ?? '';
      const lower =
        parsed(low)?.value === Number(low.replaceAll('\u00a0', ' ').replace(/[×,\s]/g, '')) && unit
          ? `${low}\u00a0${unit}`
          : low;
      const isLow = fits(lower, value[0], row.json, granule) || fits(low, value[0], row.json, granule);
      if (!isLow || !fits(high, value[1], row.json, granule))
        fault(name, `${row.json} is ${value}, shown ${row.shown}`);
    } else if (!fits(row.shown, value, row.json, granule))
      fault(name, `${row.json} is ${value}, shown ${row.shown}`);
  }
  // Texts between the numbers have some of their own.
  const allowed = /^(\s*[.,·:()[\]]*\s*)*(95 %:|of 1,000 line touches.*|, 90 % within|\s*95 %\s*)?\s*$/;
  for (const text of seen.bare)
    if (!allowed.test(text.replaceAll('\u00a0', ' ').trim()))
      fault(name, `a number without a source: ${text.trim().slice(0, 100)}`);
  return n;
}

/** An address names a view: opened anew it shows the same. */
async function links(name, file, addresses) {
  const view = (page) =>
    page.evaluate(async () => {
      for (let frames = 0; frames < 4; frames += 1)
        await new Promise((done) => {
          requestAnimationFrame(done);
        });
      return [
        location.hash,
        document.getElementById('main').innerText,
        document.querySelectorAll('.is-selected').length,
      ].join('\n');
    });
  const first = await open(name, file);
  for (const hash of addresses) {
    await visit(first.page, hash.slice(2));
    const before = await view(first.page);
    const again = await open(name, file, { hash });
    const after = await view(again.page);
    await close(name, again);
    if (before !== after) fault(name, `the address ${hash} does not come back as it was`);
  }
  await close(name, first);
}

async function keys(name, page) {
  const current = () => page.evaluate(() => document.body.dataset.ready);
  await page.evaluate(() => document.activeElement?.blur());
  await visit(page, 'overview');
  await page.keyboard.press('2');
  if ((await current()) !== 'pairs') fault(name, 'key 2 does not show the pairs');
  const n = await page.evaluate(() => document.querySelectorAll('[role=grid] [aria-selected]').length);
  if (n > 1) {
    await page.keyboard.press('j');
    await page.keyboard.press('j');
    await page.keyboard.press('k');
    const selected = await page.evaluate(() =>
      document.querySelector('[role=grid] [aria-selected=true]')?.getAttribute('aria-rowindex'),
    );
    if (selected !== '3') fault(name, `keys j, j, k select row ${selected} in place of 3`);
    await page.keyboard.press('/');
    if (!(await page.evaluate(() => document.activeElement?.matches('.filter'))))
      fault(name, 'key / does not go to the filter');
    await page.keyboard.press('Escape');
  }
  await page.keyboard.press('?');
  if ((await current()) !== 'help') fault(name, 'key ? does not show the help');
  const before = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await page.keyboard.press('t');
  await page.keyboard.press('t');
  const after = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  if (before === after) fault(name, 'key t does not change the colours');
  await page.keyboard.press('t');
  await page.keyboard.press('1');
  await page.keyboard.press('/');
  await page.keyboard.type('a');
  await page.keyboard.press('Enter');
  if (await page.evaluate(() => document.activeElement?.matches('input')))
    fault(name, 'Enter does not leave the search');
}

/** How long the table takes to answer. */
async function speed(name, page, isLarge) {
  await visit(page, 'pairs');
  const times = await page.evaluate(async () => {
    const settled = () =>
      new Promise((done) => {
        requestAnimationFrame(() => setTimeout(done));
      });
    const timed = async (act) => {
      const from = performance.now();
      act();
      await settled();
      return performance.now() - from;
    };
    const box = document.querySelector('.filter');
    const type = (text) => {
      box.value = text;
      box.dispatchEvent(new Event('input'));
    };
    const filter = [];
    for (const text of ['a', 'ab', 'a -b', '']) filter.push(await timed(() => type(text)));
    const sort = [];
    for (const button of [0, 1, 2, 2])
      sort.push(await timed(() => document.querySelectorAll('.head-button')[button]?.click()));
    const body = document.querySelector('.grid');
    body.scrollTop = body.scrollHeight / 2;
    await settled();
    const rows = [...document.querySelectorAll('.grid-space > .grid-row')];
    const [top, bottom] = [
      document.querySelector('.grid-top').getBoundingClientRect().bottom,
      Math.min(
        body.getBoundingClientRect().bottom,
        document.querySelector('.grid-space').getBoundingClientRect().bottom,
      ),
    ];
    const isFull =
      rows.some((row) => row.getBoundingClientRect().top <= top + 2) &&
      (rows.at(-1)?.getBoundingClientRect().bottom ?? 0) >= bottom - 4;
    return { filter: Math.max(...filter), sort: Math.max(...sort), rows: rows.length, isFull };
  });
  const limit = (isLarge ? 250 : 100) * patience;
  if (times.filter > limit) fault(name, `filter takes ${times.filter.toFixed(0)} ms, at most ${limit}`);
  if (times.sort > limit) fault(name, `sort takes ${times.sort.toFixed(0)} ms, at most ${limit}`);
  if (times.rows > 60) fault(name, `${times.rows} rows are elements, at most 60`);
  if (!times.isFull) fault(name, 'rows are blank after scrolling');
  return times;
}

async function withoutScripts(name, file, report) {
  const context = await browser.newContext({ javaScriptEnabled: false, offline: true });
  const page = await context.newPage();
  await page.goto(`file://${resolve(file)}`);
  const { text, rows, images } = await page
    .evaluate(() => ({
      text: document.body.innerText,
      rows: document.querySelectorAll('tr').length,
      images: document.querySelectorAll('img, iframe, object').length,
    }))
    .catch(() => ({}));
  const html = readFileSync(file, 'utf8');
  const plain = /<noscript>([^]*?)<\/noscript>/.exec(html)[1];
  const pairs = (plain.match(/<tr>/g) ?? []).length - 1;
  if (pairs !== Math.min(20, report.pairs.length)) fault(name, `${pairs} pairs without scripts`);
  if (images) fault(name, 'elements out of names, without scripts');
  if (text != null && rows !== pairs + 1) fault(name, 'pairs are not shown without scripts');
  const of = (sentence) => sentence.slice(0, 40).replace(/[^\p{L}\d ]/gu, '.');
  const words = (html_) => html_.replace(/&[#\w]+;/g, '.').replace(/[^\p{L}\d ]/gu, '.');
  if (report.verdict && !words(plain).includes(of(report.verdict.sentence)))
    fault(name, 'no verdict without scripts');
  for (const advice of report.advice ?? [])
    if (!words(plain).includes(of(advice.title))) fault(name, 'no advice without scripts');
  await context.close();
}

const kB = (n) => `${(n / 1000).toFixed(0)} kB`;

async function check(name) {
  const file = `${folder}/${name}.html`;
  const html = readFileSync(file, 'utf8');
  const report = JSON.parse(readFileSync(`${folder}/${name}.json`, 'utf8'));
  const tables = unpack(html);
  const n = tables.pairs.n;
  const isLarge = n >= LARGE;
  const bytes = statSync(file).size;
  const sources = (deflateRawSync(JSON.stringify(tables.sources)).length * 4) / 3;
  const most = isLarge ? 3e6 : 150e3 + 700 * n + sources;
  if (bytes - (isLarge ? sources : 0) > most) fault(name, `${kB(bytes)}, at most ${kB(most)}`);
  if (n !== report.pairs.length) fault(name, `${n} pairs, ${report.pairs.length} in JSON`);
  if ((statSync(file).mode & 0o777) !== 0o600) fault(name, 'others can read the file');

  const opened = await open(name, file);
  const { page } = opened;
  const usable = await page.evaluate(() => window.usable);
  const limit = (isLarge ? 1500 : 300) * patience;
  if (usable > limit) fault(name, `usable after ${usable.toFixed(0)} ms, at most ${limit}`);
  const shown = await numbers(name, page, report);
  const ids = await page.evaluate(() =>
    [...document.querySelectorAll('header nav a')].map((of) => of.dataset.page),
  );
  const elements = await page.evaluate(() => [
    document.scripts.length,
    document.querySelectorAll('img, iframe, object, embed, link').length,
  ]);
  // The data, the packed script, the loader, and the script that the loader starts.
  if (elements[0] !== 4 || elements[1] !== 0)
    fault(name, `${elements[0]} scripts, ${elements[1]} foreign elements`);
  for (const id of ids) {
    await visit(page, id);
    await accessible(name, page, `${id}, light`);
    await page.emulateMedia({ colorScheme: 'dark' });
    await accessible(name, page, `${id}, dark`);
    await page.emulateMedia({ colorScheme: 'light' });
    for (const [width, height] of [
      [360, 720],
      [1920, 1080],
      [1280, 800],
    ]) {
      await page.setViewportSize({ width, height });
      await page.evaluate(
        () =>
          new Promise((done) => {
            requestAnimationFrame(() => requestAnimationFrame(done));
          }),
      );
      const over = await page.evaluate(
        () => document.documentElement.scrollWidth - document.documentElement.clientWidth,
      );
      if (over > 0) fault(name, `the page ${id} scrolls sideways by ${over} px at ${width}`);
    }
  }
  const times = n > 1 ? await speed(name, page, isLarge) : null;
  await keys(name, page);
  await close(name, opened);

  // Each kind of address, and those pages that differ most.
  const addresses = [
    '#/overview',
    ...(ids.includes('tree') ? ['#/tree?dir=up'] : []),
    ...(n > 1 ? ['#/pairs?id=1', '#/pairs?only=far&sort=time&up=1', '#/pairs?by=function'] : []),
    ...(report.objects?.length ? ['#/data?id=0'] : []),
    ...(report.loops?.length ? ['#/loops?id=0'] : []),
    '#/code',
  ];
  await links(name, file, isLarge ? addresses.slice(0, 4) : addresses);
  await withoutScripts(name, file, report);
  const of = times
    ? `, filter ${times.filter.toFixed(0)} ms, sort ${times.sort.toFixed(0)} ms, ${times.rows} rows drawn`
    : '';
  console.log(
    `${name}: ${n} pairs, ${kB(bytes)} of ${kB(most)}, usable after ${usable.toFixed(0)} ms${of}, ${ids.length} pages, ${shown} numbers compared`,
  );
}

/** Sections that a report of this version may lack get their page where they are there. */
async function laterSections(name) {
  const html = readFileSync(`${folder}/${name}.html`, 'utf8');
  const tables = unpack(html);
  const over_time = Array.from({ length: 40 }, (_, step) => ({
    from: step * 1000,
    ilp: 2 + Math.sin(step / 5),
  }));
  const by_parallelism = [1, 2, 4, 8, 16].map((low, step) => ({
    low,
    high: low * 2,
    cycles: 900 - step * 120,
    instructions: low * 300,
    by_class: { integer: low * 200, load: low * 100 },
  }));
  tables.report.parallelism = {
    view: 'values',
    ignored: [],
    latency: 'unit',
    predictor: 'perfect',
    instructions: 40_000,
    resolution: 1000,
    windows: [64, 512, 'inf'].map((window, step) => ({
      window,
      cycles: 9000 / (step + 1),
      ilp: 4.4 * (step + 1),
      by_parallelism,
      over_time,
    })),
  };
  tables.report.self_parallelism = {
    ignored: [],
    latency: 'unit',
    processors: 4,
    regions: [
      {
        instances: 1,
        iterations: 199,
        kind: 'loop',
        parts: 398,
        place: { function: 'sum_up', line: 7 },
        self_parallelism: 199,
        share: 0.5,
        span: 2,
        speed_up: 1.6,
        speed_up_unlimited: 1.99,
        unmeasured: 0,
        work: 1000,
      },
    ],
    regions_total: 1,
    view: 'values',
    work: 2000,
  };
  const file = `${folder}/.later.html`;
  writeFileSync(file, repack(html, tables));
  for (const theme of ['light', 'dark']) {
    const opened = await open('later sections', file, { theme, hash: '#/parallelism?w=512' });
    const { text, lines } = await opened.page.evaluate(() => ({
      text: document.getElementById('main').innerText,
      lines: document.querySelectorAll('polyline').length,
    }));
    const isByClass = ['integer', 'load', 'sum_up', '199'].every((part) => text.includes(part));
    if (!text.includes('8.8') || !text.includes('13.2') || lines < 2 || !isByClass)
      fault('later sections', `parallelism is not drawn: ${text.slice(0, 200)}`);
    await accessible('later sections', opened.page, theme);
    await close('later sections', opened);
  }
}

/** Two pages of paper hold the overview. */
async function printed(name) {
  const opened = await open(name, `${folder}/${name}.html`);
  const pdf = await opened.page.pdf({
    format: 'A4',
    printBackground: true,
    margin: { top: '10mm', bottom: '10mm', left: '10mm', right: '10mm' },
  });
  const pages = (pdf.toString('latin1').match(/\/Type\s*\/Page[^s]/g) ?? []).length;
  if (pages > 2) fault(name, `the overview takes ${pages} pages of paper, at most 2`);
  await close(name, opened);
  return pages;
}

try {
  for (const name of names) await check(name);
  const first = names.find((name) => name === 'live') ?? names[0];
  await laterSections(first);
  console.log(`${first}: the overview takes ${await printed(first)} pages of paper`);
} finally {
  await browser.close();
}
console.log(`${names.length} reports, ${faults} faults, ${process.uptime().toFixed(0)} s`);
process.exitCode = faults || !names.length ? 1 : 0;
