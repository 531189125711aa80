// A table of any length: only the rows in sight are elements. Rows are numbers of the document's tables.

import { h, replace } from './dom.js';

const SPARE = 6;

export class Grid {
  constructor({ label, columns, height = 46, onselect, onsort }) {
    Object.assign(this, { columns, height, onselect, onsort });
    this.rows = [];
    this.at = -1;
    this.sorted = null;
    const template = columns.map((column) => column.width).join(' ');
    this.template = template;
    this.head = h('div', {
      class: 'grid-row grid-head',
      role: 'row',
      'aria-rowindex': '1',
      style: { 'grid-template-columns': template },
    });
    this.space = h('div', { class: 'grid-space', role: 'rowgroup' });
    this.top = h('div', { role: 'rowgroup', class: 'grid-top' }, this.head);
    this.element = h(
      'div',
      { class: 'grid', role: 'grid', 'aria-label': label, tabindex: '0' },
      this.top,
      this.space,
    );
    this.element.addEventListener('scroll', () => this.draw(), { passive: true });
    new ResizeObserver(() => this.draw()).observe(this.element);
    this.element.addEventListener('keydown', (event) => this.key(event));
    this.#headers();
  }

  #headers() {
    replace(
      this.head,
      this.columns.map((column) => {
        const isSorted = this.sorted?.key === column.key;
        const sort = isSorted
          ? this.sorted.isUp
            ? 'ascending'
            : 'descending'
          : column.sort
            ? 'none'
            : null;
        const arrow = isSorted ? (this.sorted.isUp ? ' ▲' : ' ▼') : '';
        return h(
          'div',
          { role: 'columnheader', 'aria-sort': sort, class: column.number ? 'num' : null },
          column.sort
            ? h(
                'button',
                { type: 'button', class: 'head-button', onclick: () => this.onsort?.(column.key) },
                column.head,
                arrow,
              )
            : column.head,
        );
      }),
    );
  }

  setRows(rows, sorted) {
    this.rows = rows;
    this.sorted = sorted;
    this.#headers();
    this.element.setAttribute('aria-rowcount', String(rows.length + 1));
    this.space.style.setProperty('height', `${rows.length * this.height}px`);
    this.element.style.setProperty(
      'max-height',
      `calc(${Math.max(1, rows.length) * this.height + 2}px + 4.5em)`,
    );
    this.first = -1;
    this.draw(true);
  }

  draw(isAnew = false) {
    const from = Math.max(0, Math.floor(this.element.scrollTop / this.height) - SPARE);
    const seen = Math.ceil((this.element.clientHeight || 600) / this.height);
    const to = Math.min(this.rows.length, from + seen + 2 * SPARE);
    if (!isAnew && from === this.first && to === this.last) return;
    [this.first, this.last] = [from, to];
    const rows = [];
    for (let at = from; at < to; at += 1) rows.push(this.#row(at));
    replace(this.space, rows);
    this.#active();
  }

  #row(at) {
    const row = this.rows[at];
    return h(
      'div',
      {
        class: at === this.at ? 'grid-row is-selected' : 'grid-row',
        role: 'row',
        id: `row-${at}`,
        'aria-rowindex': String(at + 2),
        'aria-selected': String(at === this.at),
        style: {
          transform: `translateY(${at * this.height}px)`,
          'grid-template-columns': this.template,
          height: `${this.height}px`,
        },
        onclick: () => this.select(at),
      },
      this.columns.map((column) =>
        h('div', { role: 'gridcell', class: column.number ? 'num' : null }, column.cell(row)),
      ),
    );
  }

  #active() {
    const isDrawn = this.at >= this.first && this.at < this.last;
    if (isDrawn) this.element.setAttribute('aria-activedescendant', `row-${this.at}`);
    else this.element.removeAttribute('aria-activedescendant');
  }

  /** Selects the row at a place in the order that is shown. */
  select(at, isSilent = false) {
    if (!this.rows.length) return;
    this.at = Math.max(0, Math.min(this.rows.length - 1, at));
    const top = this.at * this.height;
    const seen = this.element.clientHeight - this.top.offsetHeight;
    if (top < this.element.scrollTop) this.element.scrollTop = top;
    else if (top + this.height > this.element.scrollTop + seen)
      this.element.scrollTop = top + this.height - seen;
    this.draw(true);
    if (!isSilent) this.onselect?.(this.rows[this.at]);
  }

  move(by) {
    this.select(this.at < 0 ? 0 : this.at + by);
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.height) - 2);
    const by = {
      ArrowDown: 1,
      ArrowUp: -1,
      PageDown: page,
      PageUp: -page,
      Home: -this.rows.length,
      End: this.rows.length,
    }[event.key];
    if (by == null || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.move(by);
  }
}
