// The tables of the page: unpacking, and rows by number. Call paths are a tree from the outermost frame
// inwards; a path is the number of its innermost node, 0 of an empty one.

import { known } from './format.js';

function decoded(text) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at += 1) bytes[at] = raw.charCodeAt(at);
  return bytes;
}

export async function load() {
  const packed = decoded(document.getElementById('data').textContent.trim());
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('deflate-raw'));
  const tables = JSON.parse(await new Response(stream).text());
  if (tables.view !== 'locality-view/1')
    throw new Error(`the tables are ${tables.view}, which this script does not know`);
  return new Doc(tables);
}

export const FAR = 2;
const CLASSES = ['near', 'middle', 'far', 'unknown'];

export class Doc {
  constructor(tables) {
    Object.assign(this, tables);
    this.report = this.#whole(this.report);
    const r = this.report;
    this.isExact = r.run.mode === 'exact';
    this.#untangle();
    this.n = this.pairs.n;
    // Without pairs there are no columns of numbers.
    this.pairs.weight ??= new Array(this.n).fill(null);
    this.granule = this.isExact ? r.pairs_granularity || 64 : 8;
    // Levels of which misses are predicted, the last one first.
    this.levels = (r.objects_summary?.levels ?? []).map((level) => level.names[0]);
    this.ranked = r.objects_summary?.ranked_by ?? null;
    this.caches = r.run.host?.caches ?? [];
    // The last cache into which some line of code loads: beyond it there is nothing to show.
    const loaded = new Set((r.cache_use?.by_loading_line ?? []).map((row) => row.level));
    this.useLevel =
      (r.cache_use?.levels ?? [])
        .map((row) => row.level)
        .filter((level) => loaded.has(level))
        .at(-1) ?? r.cache_use?.levels?.at(-1)?.level;
    if (this.isExact) this.#classify();
    const far = this.pairs.far;
    this.hasFar = far.includes(FAR);
  }

  /** Long strings stand in their table alone. */
  #whole(value) {
    if (value === null || typeof value !== 'object') return value;
    if (Array.isArray(value)) return value.map((of) => this.#whole(of));
    if (typeof value['='] === 'number') return this.text(value['=']);
    for (const key of Object.keys(value)) value[key] = this.#whole(value[key]);
    return value;
  }

  #untangle() {
    const up = this.nodes.up;
    this.around = up.map((by, at) => at + 1 - by);
  }

  /** Classes of an exact report's pairs: by the share of their reuses that miss caches of two sizes. */
  #classify() {
    const sizes = Object.keys(this.pairs)
      .filter((key) => /^misses\d/.test(key))
      .map((key) => Number(key.slice(6)));
    sizes.sort((a, b) => a - b);
    this.missSizes = sizes;
    if (!sizes.length) return;
    const [small, large] = [sizes[0], sizes[Math.min(1, sizes.length - 1)]].map(
      (size) => this.pairs[`misses${size}`],
    );
    this.pairs.far = this.pairs.count.map((n, at) => (large[at] * 2 > n ? 2 : small[at] * 2 > n ? 1 : 0));
  }

  text(number) {
    return number > 0 ? this.strings[number - 1] : null;
  }

  frame(number) {
    if (!(number > 0)) return null;
    const f = this.frames;
    const at = number - 1;
    return {
      number,
      function: this.text(f.function[at]),
      file: this.text(f.file[at]),
      line: f.line[at] || null,
      module: this.text(f.module[at]),
      inlined: !!f.inlined[at],
      unknown: this.text(f.unknown[at]),
    };
  }

  place(number) {
    if (!(number > 0)) return { function: null, file: null, line: null, via: null };
    const p = this.places;
    const at = number - 1;
    return {
      function: this.text(p.function[at]),
      file: this.text(p.file[at]),
      line: p.line[at] || null,
      via: this.text(p.via[at]),
    };
  }

  /** Frames of a path, the outermost first. */
  path(node) {
    const frames = [];
    for (let at = node; at > 0; at = this.around[at - 1]) frames.push(this.nodes.frame[at - 1]);
    return frames.reverse().map((number) => this.frame(number));
  }

  pair(at) {
    const p = this.pairs;
    const of = (column) => (column ? column[at] : null);
    return {
      id: at,
      use: this.place(p.use[at]),
      reuse: this.place(p.reuse[at]),
      useNode: p.useNode[at],
      reuseNode: p.reuseNode[at],
      useCut: this.text(of(p.useCut)),
      reuseCut: this.text(of(p.reuseCut)),
      weight: p.weight[at],
      farWeight: this.farWeight(at),
      farTime: of(p.farTime),
      ci95: p.low ? [p.low[at], p.high[at]] : null,
      n: p.count[at],
      time: of(p.time),
      timeCi: p.timeLow ? [of(p.timeLow) ?? of(p.time), of(p.timeHigh) ?? of(p.time)] : null,
      p90: p.p90 ? (of(p.p90) ?? of(p.time)) : null,
      stack: of(p.stack),
      unit: p.unit ?? 'accesses',
      class: CLASSES[p.far[at]],
      cross: of(p.cross),
      kernel: of(p.kernel),
      object: this.text(p.object[at]),
      objectKind: this.text(p.objectKind[at]),
      objectShare: of(p.objectShare),
      ancestor: this.frame(p.ancestor[at]),
      contextsTotal: p.contextsTotal[at],
    };
  }

  contexts(at) {
    const c = this.pairs.contexts;
    const rows = [];
    for (let i = c.pair.indexOf(at); i >= 0 && c.pair[i] === at; i += 1) {
      rows.push({ use: c.use[i], reuse: c.reuse[i], n: c.count[i], weight: c.weight[i], time: c.time[i] });
    }
    return rows;
  }

  /** Share of all reuses that are far reuses of a pair; of an exact report, a far pair's whole weight. */
  farWeight(at) {
    const p = this.pairs;
    return (p.farWeight ? p.farWeight[at] : p.far[at] === FAR ? p.weight[at] : 0) || 0;
  }

  /** Far pairs by their far reuses, before those in between, before near ones, both by weight. */
  ranks() {
    this.rank ??= Float64Array.from(
      this.pairs.weight,
      (weight, at) =>
        (this.pairs.far[at] % 3) * 2 + (this.pairs.far[at] === FAR ? this.farWeight(at) : (weight ?? 0)),
    );
    return this.rank;
  }

  /** Numbers of all pairs, or of a class, by rank. */
  order(of = null) {
    const rows = Array.from(this.pairs.weight, (_, at) => at).filter(
      (at) => of == null || this.pairs.far[at] === of,
    );
    return rows.sort((a, b) => this.ranks()[b] - this.ranks()[a] || a - b);
  }

  source(file) {
    this.byFile ??= new Map(this.sources.map((source) => [source.file, source]));
    return this.byFile.get(file) ?? null;
  }

  lines(file) {
    const source = this.source(file);
    if (!source || source.text == null) return null;
    source.lines ??= source.text.split('\n');
    return source.lines;
  }

  /** Pairs by line of source: file, then line, then numbers of pairs. */
  pairsAt(file, line) {
    if (!this.pairLines) {
      this.pairLines = new Map();
      const of = (place) => `${this.places.file[place - 1]}:${this.places.line[place - 1]}`;
      for (let at = 0; at < this.n; at += 1) {
        const keys = new Set(
          [this.pairs.use[at], this.pairs.reuse[at]].filter((place) => place > 0).map(of),
        );
        for (const key of keys) {
          if (!this.pairLines.has(key)) this.pairLines.set(key, []);
          this.pairLines.get(key).push(at);
        }
      }
      this.fileNumber = new Map(this.strings.map((text, at) => [text, at + 1]));
    }
    return this.pairLines.get(`${this.fileNumber.get(file)}:${line}`) ?? [];
  }

  /** The last level of caches that a table by level has. */
  last(table) {
    if (!table) return null;
    for (const level of ['LLC', 'LL', 'L3', 'L2', 'L1']) if (known(table[level])) return level;
    return null;
  }
}

/** The last level has one name on all pages. */
export const cacheName = (level) => (level === 'LL' ? 'LLC' : level);

export const base = (path) => (path ? path.slice(path.lastIndexOf('/') + 1) || path : null);

/** Frames that a reader does not look for: start-up code and run-time libraries. */
const START =
  /^(_start|__libc_start_main.*|__libc_start_call_main|start_thread|clone3?|__clone3?|std::rt::|std::panic|std::sys|core::ops::function|__rust_begin_short|std::thread|<alloc::boxed::Box<F|lang_start)/;
export const isStartUp = (frame) =>
  START.test(frame.function ?? '') || /^\/rustc\/|^\/usr\/(include|src)\//.test(frame.file ?? '');
