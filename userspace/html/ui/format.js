// Numbers as text: three significant digits, and a unit on every number.

export const known = (x) => typeof x === 'number' && Number.isFinite(x);
export const NONE = '–';
const NBSP = '\u00a0';

/** Three significant digits of a number below a thousand, without zeros at the end. */
export function digits(x) {
  const size = Math.abs(x);
  // Less is what sums of rounded numbers leave over.
  if (size < 1e-9) return '0';
  const text =
    size >= 100 ? x.toFixed(0) : size >= 10 ? x.toFixed(1) : size >= 0.01 ? x.toFixed(2) : x.toPrecision(1);
  return text.includes('.') && !text.includes('e') ? text.replace(/\.?0+$/, '') : text;
}

function scaled(x, units, by) {
  let at = 0;
  let size = x;
  while (Math.abs(size) >= by * 0.9995 && at < units.length - 1) {
    size /= by;
    at += 1;
  }
  // Between 999.5 and 1024 there are four digits of bytes.
  return `${digits(size)}${units[at] ? NBSP + units[at] : ''}`;
}

export const approx = (x) => (known(x) ? scaled(x, ['', 'k', 'M', 'G', 'T', 'P'], 1000) : NONE);
export const bytes = (x) => (known(x) ? scaled(x, ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'], 1024) : NONE);
/** A counted number, to the last digit. */
export const count = (x) => (known(x) ? x.toLocaleString('en-US', { maximumFractionDigits: 2 }) : NONE);
export const share = (x) => {
  if (!known(x)) return NONE;
  const percent = x * 100;
  return Math.abs(percent) >= 1e-9 && Math.abs(percent) < 0.01
    ? `<${NBSP}0.01${NBSP}%`
    : `${digits(percent)}${NBSP}%`;
};
export const percent = (x) => (known(x) ? share(x / 100) : NONE);
export const plain = (x) => {
  if (!known(x)) return NONE;
  const size = Math.abs(x);
  return size >= 1000 ? approx(x) : size >= 1e-9 && size < 0.001 ? `<${NBSP}0.001` : digits(x);
};
/** A factor of speed. */
export const times = (x) => (known(x) ? (x >= 10 ? digits(x) : x.toFixed(2)) : NONE);
export const nanoseconds = (x) => {
  if (!known(x)) return NONE;
  if (Math.abs(x) < 1e-9) return '0';
  const units = [
    [1e9, 's'],
    [1e6, 'ms'],
    [1e3, 'µs'],
    [1, 'ns'],
  ];
  const [by, unit] = units.find(([limit]) => Math.abs(x) >= limit * 0.9995) ?? [1, 'ns'];
  return `${digits(x / by)}${NBSP}${unit}`;
};
export const seconds = (x) =>
  known(x) ? (x >= 120 ? `${digits(x / 60)}${NBSP}min` : nanoseconds(x * 1e9)) : NONE;

/** An interval in one format: the unit stands once where both ends have it. */
export function interval(ends, format = share) {
  if (!ends || !known(ends[0]) || !known(ends[1])) return '';
  const [low, high] = ends.map(format);
  const cut = low.lastIndexOf(NBSP);
  const unit = cut >= 0 ? low.slice(cut) : '';
  const short = unit && high.endsWith(unit) && !low.startsWith('<') ? low.slice(0, cut) : low;
  return `${short}–${high}`;
}

/** A distance in its own unit; granules become bytes. */
export function distance(value, unit, granule = 8) {
  if (unit === 'cpu_ns') return nanoseconds(value);
  if (unit === 'granules') return bytes(value * granule);
  return approx(value);
}
