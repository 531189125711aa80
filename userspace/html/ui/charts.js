// Charts as SVG: drawn at the width that there is, so that letters keep their size, and again when it
// changes. Every chart has a table of its numbers.

import { h, replace, s } from './dom.js';
import { known } from './format.js';

/** Draws again whenever the width changes. */
export function responsive(height, label, draw) {
  const box = h('div', { class: 'chart' });
  let last = 0;
  const redraw = (width) => {
    if (!width || Math.abs(width - last) < 2) return;
    last = width;
    const svg = s('svg', {
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: 'img',
      'aria-label': label,
    });
    draw(svg, width, height);
    replace(box, svg);
  };
  new ResizeObserver(([entry]) => redraw(Math.floor(entry.contentRect.width))).observe(box);
  return box;
}

/** Round steps of a linear scale up to some value. */
export function ticks(most, about = 4) {
  if (!(most > 0)) return [0];
  const raw = most / about;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].find((of) => of * power >= raw) * power;
  const list = [];
  for (let at = 0; at < most + step * 0.999; at += step) list.push(at);
  return list;
}

/**
 * Lines with bands over a logarithmic axis. A series is {points: [{x, y, low, high}], series}; marks are
 * vertical lines {x, label}.
 */
export function curve({ label, series, marks = [], xText, yText, xTitle, isLog = false, height = 280 }) {
  return responsive(height, label, (svg, width) => {
    const edge = { left: 54, right: 14, top: marks.length ? 34 : 12, bottom: 44 };
    const points = series.flatMap((line) => line.points);
    if (!points.length) return;
    const xs = points.map((point) => Math.log2(point.x));
    const [x0, x1] = [Math.min(...xs), Math.max(...xs) + 1e-9];
    const tops = points.map((point) => (known(point.high) ? point.high : point.y));
    const steps = ticks(Math.max(...tops, 1e-9));
    const most = steps[steps.length - 1];
    const floor = isLog
      ? Math.max(1e-6, Math.min(...points.map((point) => point.y).filter((y) => y > 0), most)) / 2
      : 0;
    const x = (value) =>
      edge.left + ((Math.log2(value) - x0) / (x1 - x0)) * (width - edge.left - edge.right);
    const y = (value) => {
      const part = isLog ? Math.log(Math.max(value, floor) / floor) / Math.log(most / floor) : value / most;
      return height - edge.bottom - part * (height - edge.top - edge.bottom);
    };
    const grid = isLog
      ? [1, 2, 3, 4, 5, 6].map((at) => most / 10 ** (at - 1)).filter((value) => value >= floor)
      : steps;
    for (const at of grid) {
      svg.append(
        s('line', { class: 'grid', x1: edge.left, x2: width - edge.right, y1: y(at), y2: y(at) }),
        s('text', { class: 'tick', x: edge.left - 6, y: y(at) + 4, 'text-anchor': 'end' }, yText(at)),
      );
    }
    const every = Math.ceil((x1 - x0) / Math.max(2, Math.floor((width - 80) / 78)));
    for (let at = Math.ceil(x0); at <= x1; at += Math.max(1, every)) {
      svg.append(
        s(
          'text',
          { class: 'tick', x: x(2 ** at), y: height - edge.bottom + 18, 'text-anchor': 'middle' },
          xText(2 ** at),
        ),
      );
    }
    svg.append(
      s(
        'text',
        { class: 'tick', x: (edge.left + width - edge.right) / 2, y: height - 6, 'text-anchor': 'middle' },
        xTitle,
      ),
    );
    for (const line of series) {
      const banded = line.points.filter((point) => known(point.low) && known(point.high));
      if (banded.length > 1) {
        const above = banded.map((point) => `${x(point.x)},${y(point.high)}`);
        const below = banded.map((point) => `${x(point.x)},${y(point.low)}`).reverse();
        svg.append(
          s('polygon', { class: `band series-${line.series}`, points: [...above, ...below].join(' ') }),
        );
      }
    }
    const labels = [];
    for (const mark of marks) {
      const at = Math.max(edge.left, Math.min(width - edge.right, x(mark.x)));
      svg.append(s('line', { class: 'mark', x1: at, x2: at, y1: edge.top - 4, y2: height - edge.bottom }));
      // Labels of neighbours stand on two rows.
      const row = labels.some((other) => Math.abs(other - at) < 76) ? 0 : 1;
      if (row) labels.push(at);
      const anchor = at > width - 60 ? 'end' : at < edge.left + 30 ? 'start' : 'middle';
      svg.append(
        s(
          'text',
          { class: 'tick mark-label', x: at, y: row ? edge.top - 9 : edge.top - 22, 'text-anchor': anchor },
          mark.label,
        ),
      );
    }
    for (const line of series) {
      svg.append(
        s('polyline', {
          class: `line series-${line.series}`,
          points: line.points.map((point) => `${x(point.x)},${y(point.y)}`).join(' '),
        }),
      );
      for (const mark of marks) {
        const near = line.points.find((point) => Math.abs(Math.log2(point.x / mark.x)) < 0.01);
        if (near)
          svg.append(
            s('circle', { class: `dot series-${line.series}`, cx: x(near.x), cy: y(near.y), r: 4 }),
          );
      }
    }
  });
}

/** Bars with whiskers, one for each bin: {label, value, low, high}. */
export function bars({ label, bins, yText, xTitle, height = 200, isFar = () => false }) {
  return responsive(height, label, (svg, width) => {
    const edge = { left: 48, right: 8, top: 10, bottom: 44 };
    if (!bins.length) return;
    const steps = ticks(Math.max(...bins.map((bin) => (known(bin.high) ? bin.high : bin.value)), 1e-9), 3);
    const most = steps[steps.length - 1];
    const slot = (width - edge.left - edge.right) / bins.length;
    const y = (value) =>
      height - edge.bottom - (Math.max(0, value) / most) * (height - edge.top - edge.bottom);
    for (const at of steps) {
      svg.append(
        s('line', { class: 'grid', x1: edge.left, x2: width - edge.right, y1: y(at), y2: y(at) }),
        s('text', { class: 'tick', x: edge.left - 6, y: y(at) + 4, 'text-anchor': 'end' }, yText(at)),
      );
    }
    const every = Math.max(1, Math.ceil(52 / slot));
    bins.forEach((bin, at) => {
      const left = edge.left + at * slot;
      const middle = left + slot / 2;
      const top = y(bin.value);
      svg.append(
        s('rect', {
          class: isFar(bin) ? 'column is-far' : 'column',
          x: left + slot * 0.1,
          width: slot * 0.8,
          y: top,
          height: Math.max(0, height - edge.bottom - top),
        }),
      );
      if (known(bin.low) && known(bin.high) && bin.high > bin.low) {
        svg.append(
          s('path', {
            class: 'whisker',
            d: `M${middle} ${y(bin.low)}V${y(bin.high)}m-3 0h6M${middle - 3} ${y(bin.low)}h6`,
          }),
        );
      }
      if (at % every === 0)
        svg.append(
          s(
            'text',
            {
              class: 'tick',
              x: Math.min(middle, width - 2),
              y: height - edge.bottom + 18,
              'text-anchor': middle > width - 28 ? 'end' : 'middle',
            },
            bin.label,
          ),
        );
    });
    svg.append(
      s(
        'text',
        { class: 'tick', x: (edge.left + width - edge.right) / 2, y: height - 6, 'text-anchor': 'middle' },
        xTitle,
      ),
    );
  });
}

/** Shares that add up to one at each step: {values: [share by series]}; steps as wide as they last. */
export function stacked({ label, steps, xText, xTitle, yText, height = 220 }) {
  return responsive(height, label, (svg, width) => {
    const edge = { left: 48, right: 8, top: 10, bottom: 44 };
    if (!steps.length) return;
    const [from, to] = [steps[0].from, steps[steps.length - 1].to];
    const x = (value) => edge.left + ((value - from) / (to - from || 1)) * (width - edge.left - edge.right);
    const y = (value) => height - edge.bottom - value * (height - edge.top - edge.bottom);
    for (const at of [0, 0.5, 1])
      svg.append(
        s('text', { class: 'tick', x: edge.left - 6, y: y(at) + 4, 'text-anchor': 'end' }, yText(at)),
      );
    for (const step of steps) {
      let below = 0;
      step.values.forEach((value, series) => {
        if (value > 0) {
          svg.append(
            s('rect', {
              class: `area series-${series}`,
              x: x(step.from),
              width: Math.max(0.5, x(step.to) - x(step.from) - 0.5),
              y: y(below + value),
              height: Math.max(0, y(below) - y(below + value)),
            }),
          );
        }
        below += value;
      });
    }
    const about = Math.max(2, Math.floor((width - 60) / 90));
    for (let at = 0; at <= about; at += 1) {
      const value = from + ((to - from) * at) / about;
      svg.append(
        s(
          'text',
          {
            class: 'tick',
            x: x(value),
            y: height - edge.bottom + 18,
            'text-anchor': at === 0 ? 'start' : at === about ? 'end' : 'middle',
          },
          xText(value),
        ),
      );
    }
    svg.append(
      s(
        'text',
        { class: 'tick', x: (edge.left + width - edge.right) / 2, y: height - 6, 'text-anchor': 'middle' },
        xTitle,
      ),
    );
  });
}

/** Names of series with their colours. */
export const legend = (names) =>
  h(
    'ul',
    { class: 'legend' },
    names.map((name, at) =>
      h('li', null, h('span', { class: `swatch series-${at}`, 'aria-hidden': 'true' }), name),
    ),
  );
