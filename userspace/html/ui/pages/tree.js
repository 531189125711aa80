// Call tree as icicle: the outermost call on top, width by far reuses, lost bytes or CPU time.

import { base, cacheName, isStartUp } from '../doc.js';
import { h, link, muted, name, replace, clean } from '../dom.js';
import { bytes, share } from '../format.js';
import { bar, card, choice, details, empty, hash, select, table } from '../parts.js';

const ROW = 22;
const LEAST = 0.002;

class Node {
  constructor(key, frame, up) {
    Object.assign(this, { key, frame, up, self: 0, total: 0, children: new Map() });
  }
}

function add(root, frames, weight) {
  if (!(weight > 0)) return;
  let at = root;
  at.total += weight;
  for (const frame of frames) {
    const key = `${frame.function}\n${frame.file ?? frame.module ?? ''}`;
    let next = at.children.get(key);
    if (!next) at.children.set(key, (next = new Node(key, frame, at)));
    next.total += weight;
    at = next;
  }
  at.self += weight;
}

/** What the width can mean: only what the report has. */
function metrics(doc) {
  const list = [];
  const { pairs: p } = doc;
  const cut = doc.report.cache_use;
  const of = (column, isFar) => (root) => {
    const memo = new Map();
    for (let at = 0; at < doc.n; at += 1) {
      const weight = isFar ? doc.farWeight(at) : p.weight[at] || 0;
      if (!weight) continue;
      const node = column[at];
      memo.set(node, (memo.get(node) ?? 0) + weight);
    }
    for (const [node, weight] of memo) add(root, doc.path(node), weight);
  };
  if (doc.hasFar) {
    list.push(['far-reuse', 'far reuses, where they come back', of(p.reuseNode, true), share]);
    list.push(['far-use', 'far reuses, where they were used before', of(p.useNode, true), share]);
  } else if (doc.n) list.push(['reuse', 'all reuses', of(p.reuseNode, false), share]);
  for (const level of (cut?.levels ?? []).map((row) => row.level).reverse()) {
    list.push([
      `lost-${level}`,
      `bytes loaded into ${cacheName(level)} and never used`,
      (root) => {
        for (const row of cut.by_loading_line) {
          if (row.level !== level) continue;
          const own = { function: row.function, file: row.file, line: row.line, module: row.module };
          const contexts = row.contexts?.length
            ? row.contexts
            : [{ callers: row.callers, spatial_loss_bytes: row.spatial_loss_bytes }];
          for (const context of contexts)
            add(root, [...context.callers].reverse().concat(own), context.spatial_loss_bytes);
        }
      },
      bytes,
    ]);
  }
  if (doc.live?.samples?.node?.length) {
    list.push([
      'cpu',
      'CPU time',
      (root) => {
        const memo = new Map();
        doc.live.samples.node.forEach((node, at) =>
          memo.set(node, (memo.get(node) ?? 0) + doc.live.samples.cpuUs[at]),
        );
        const all = [...memo.values()].reduce((sum, x) => sum + x, 0) || 1;
        for (const [node, us] of memo) add(root, doc.path(node), us / all);
      },
      share,
    ]);
  }
  return list;
}

/** Start-up code with one callee is one row less for each. */
function top(root) {
  let at = root;
  const folded = [];
  while (at.children.size === 1 && at.self < at.total * 0.01) {
    const [next] = at.children.values();
    if (at.frame && !isStartUp(at.frame)) break;
    if (!at.frame && !isStartUp(next.frame)) break;
    if (isStartUp(next.frame)) folded.push(next.frame);
    at = next;
  }
  return { at, folded };
}

function hue(node) {
  let sum = 0;
  for (const c of (node.frame?.function ?? '').slice(0, 400)) sum = (sum * 31 + c.codePointAt(0)) >>> 0;
  return sum % 6;
}

export const tree = {
  id: 'tree',
  title: 'Call tree',
  isThere: (doc) => metrics(doc).length > 0,
  render(root, parameters, doc, { go }) {
    const list = metrics(doc);
    const cache = new Map();
    const update = (from) => {
      const metric = list.find(([key]) => key === from.get('m')) ?? list[0];
      const [key, title, fill, format] = metric;
      if (!cache.has(key)) {
        const made = new Node('', null, null);
        fill(made);
        cache.set(key, made);
      }
      const all = cache.get(key);
      const isUp = from.get('dir') === 'up';
      const whole = isUp ? inverted(all) : all;
      const { at: start, folded } = isUp ? { at: whole, folded: [] } : top(whole);
      let focus = start;
      const way = (from.get('at') ?? '')
        .split('/')
        .filter((part) => part !== '')
        .map(Number);
      for (const step of way) {
        const next = children(focus)[step];
        if (!next) break;
        focus = next;
      }
      const box = h('div', { class: 'icicle' });
      const status = h('p', { class: 'muted', role: 'status' });
      const steps = (node) => {
        const list = [];
        for (let at = node; at !== start && at.up; at = at.up) list.unshift(children(at.up).indexOf(at));
        return list.join('/');
      };
      const zoom = (node) => go('tree', { m: from.get('m'), dir: from.get('dir'), at: steps(node) });
      const crumbs = [];
      for (let at = focus; at; at = at.up) {
        crumbs.unshift(at);
        if (at === start) break;
      }
      let deepest = 0;
      let hidden = 0;
      const place = (node, left, depth) => {
        const width = node.total / (focus.total || 1);
        if (width < LEAST) {
          hidden += 1;
          return;
        }
        deepest = Math.max(deepest, depth);
        const label = node.frame ? (node.frame.function ?? 'unknown') : 'all';
        const text = `${format(node.total)}${format === share ? '' : `, ${share(node.total / (all.total || 1))}`}`;
        box.append(
          h(
            'button',
            {
              type: 'button',
              class: `frame hue-${node.frame ? hue(node) : 'all'}${node.frame && isStartUp(node.frame) ? ' is-start' : ''}`,
              style: {
                left: `${left * 100}%`,
                width: `calc(${width * 100}% - 1px)`,
                top: `${depth * ROW}px`,
              },
              title: `${clean(label.slice(0, 600))}\n${base(node.frame?.file) ?? base(node.frame?.module) ?? ''}\n${text} with callees, ${format(node.self)} itself`,
              onclick: () => zoom(node),
            },
            name(label, Math.max(8, Math.floor(width * 150))),
            width > 0.12 ? h('span', { class: 'frame-share' }, ` ${text}`) : null,
          ),
        );
        let next = left;
        for (const child of children(node)) {
          place(child, next, depth + 1);
          next += child.total / (focus.total || 1);
        }
      };
      place(focus, 0, 0);
      box.style.setProperty('height', `${(deepest + 1) * ROW}px`);
      replace(
        status,
        `${format(all.total)}${key.startsWith('lost') ? ' in the trace' : ' of all'}${hidden ? `; ${hidden} narrower calls are not drawn` : ''}. Enter or a click zooms in.`,
      );
      const rows = [];
      const flat = (node, depth) => {
        if (rows.length >= 400) return;
        rows.push({ node, depth });
        for (const child of children(node))
          if (child.total / (all.total || 1) >= LEAST / 2) flat(child, depth + 1);
      };
      flat(focus, 0);
      replace(
        root,
        h('h1', { class: 'sr-only' }, 'Call tree'),
        card(
          'Call tree',
          h(
            'div',
            { class: 'controls' },
            select(
              'width by',
              list.map(([of, text]) => [of, text]),
              key,
              (m) => go('tree', { m, dir: from.get('dir') }),
            ),
            choice(
              'direction',
              [
                ['', 'from callers'],
                ['up', 'from callees'],
              ],
              isUp ? 'up' : '',
              (dir) => go('tree', { m: from.get('m'), dir }),
            ),
          ),
          h(
            'nav',
            { 'aria-label': 'zoom', class: 'crumbs' },
            folded.length && focus === start ? muted(`${folded.length} start-up frames above · `) : null,
            crumbs.map((node, i) => [
              i ? ' › ' : '',
              node === focus
                ? h('strong', null, node.frame ? name(node.frame.function ?? 'unknown', 40) : 'all')
                : link(
                    hash('tree', { m: from.get('m'), dir: from.get('dir'), at: steps(node) }),
                    null,
                    node.frame ? name(node.frame.function ?? 'unknown', 24) : 'all',
                  ),
            ]),
          ),
          status,
          all.total > 0 ? box : empty('Nothing of this kind was seen.'),
          focus.frame?.file
            ? h(
                'p',
                null,
                link(
                  hash('code', { f: focus.frame.file, l: focus.frame.line }),
                  null,
                  'Source of ',
                  name(focus.frame.function ?? 'unknown', 50),
                ),
              )
            : null,
          details(
            'Table',
            table(
              rows,
              [
                {
                  head: 'with callees',
                  number: true,
                  cell: ({ node }) => [format(node.total), bar(node.total, null, all.total)],
                },
                { head: 'itself', number: true, cell: ({ node }) => format(node.self) },
                {
                  head: 'function',
                  cell: ({ node, depth }) =>
                    h(
                      'span',
                      { class: 'tree-cell', style: { 'padding-left': `${Math.min(depth, 40) * 12}px` } },
                      node.frame ? name(node.frame.function ?? 'unknown', 70) : 'all',
                      ' ',
                      muted(name(base(node.frame?.file) ?? base(node.frame?.module) ?? '', 30)),
                    ),
                },
              ],
              'call tree',
            ),
          ),
        ),
      );
    };
    update(parameters);
    return { update };
  },
};

const children = (node) => (node.sorted ??= [...node.children.values()].sort((a, b) => b.total - a.total));

/** From the innermost call outwards. */
function inverted(all) {
  if (all.inverted) return all.inverted;
  const made = new Node('', null, null);
  const walk = (node, way) => {
    const path = node.frame ? [node.frame, ...way] : way;
    if (node.self > 0) add(made, path, node.self);
    for (const child of node.children.values()) walk(child, path);
  };
  walk(all, []);
  all.inverted = made;
  return made;
}
