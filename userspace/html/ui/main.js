// Starts the page: unpacks the tables, shows the page that the address names, keys and search.

import { append, clean, h, link, muted, name, replace } from './dom.js';
import { base, load } from './doc.js';
import { hash } from './parts.js';
import { share } from './format.js';
import { overview } from './pages/overview.js';
import { pairs } from './pages/pairs.js';
import { data } from './pages/data.js';
import { code } from './pages/code.js';
import { loops } from './pages/loops.js';
import { tree } from './pages/tree.js';
import { timeline } from './pages/timeline.js';
import { threads } from './pages/threads.js';
import { parallelism } from './pages/parallelism.js';
import { trust } from './pages/trust.js';
import { help } from './pages/help.js';

// A page that a report has no data for is not there; a new section of the report is one more entry.
const PAGES = [overview, pairs, data, code, loops, tree, timeline, threads, parallelism, trust, help];
const THEMES = ['system', 'light', 'dark'];

function remembered(key, value) {
  // Storage may be forbidden for files.
  try {
    if (value == null) return localStorage.getItem(key);
    localStorage.setItem(key, value);
  } catch {
    return null;
  }
  return value;
}

function setTheme(theme) {
  if (theme === 'system') document.documentElement.removeAttribute('data-theme');
  else document.documentElement.setAttribute('data-theme', theme);
}

function address() {
  const [id, query = ''] = location.hash.replace(/^#\/?/, '').split('?');
  return { id: id || 'overview', parameters: new URLSearchParams(query) };
}

/** What a search finds: functions with their lines, objects, files. */
function results(doc, query) {
  const word = query.trim().toLowerCase();
  if (!word) return [];
  const list = [];
  const has = (text) => text != null && text.toLowerCase().includes(word);
  (doc.report.objects ?? []).forEach(
    (row, at) =>
      has(row.name) &&
      list.push({
        kind: 'data',
        text: row.name,
        more: share(row.access_share),
        to: hash('data', { id: at }),
      }),
  );
  doc.searchable ??= [
    ...new Map(
      doc.places.function.map((of, at) => [
        `${of}`,
        { function: doc.text(of), file: doc.text(doc.places.file[at]), line: doc.places.line[at] },
      ]),
    ).values(),
  ];
  for (const place of doc.searchable) {
    if (list.length > 40) break;
    if (has(place.function))
      list.push({
        kind: 'function',
        text: place.function,
        more: base(place.file) ?? '',
        to: place.file
          ? hash('code', { f: place.file, l: place.line })
          : hash('pairs', { q: place.function.toLowerCase().split(/\s+/)[0] }),
      });
  }
  for (const source of doc.sources)
    if (list.length < 60 && has(base(source.file)))
      list.push({ kind: 'file', text: base(source.file), more: '', to: hash('code', { f: source.file }) });
  return list
    .slice(0, 12)
    .concat(
      doc.n
        ? [{ kind: 'pairs', text: `pairs with “${query}”`, more: '', to: hash('pairs', { q: word }) }]
        : [],
    );
}

function start(doc) {
  const shown = PAGES.filter((page) => page.isThere(doc));
  const main = h('main', { id: 'main', tabindex: '-1' });
  let current = null;
  let page = null;

  const go = (id, parameters, isReplaced = false) => {
    const to = hash(id, parameters);
    if (to === location.hash) return;
    if (isReplaced) history.replaceState(null, '', to);
    else history.pushState(null, '', to);
    show();
  };

  const links = shown.map((of, at) =>
    link(
      hash(of.id),
      {
        'data-page': of.id,
        title: at < 9 && of.id !== 'help' ? `key ${at + 1}` : of.id === 'help' ? 'key ?' : null,
      },
      of.title,
    ),
  );
  const list = h('ul', {
    id: 'results',
    class: 'results',
    role: 'listbox',
    'aria-label': 'results',
    hidden: true,
  });
  const search = h('input', {
    type: 'search',
    id: 'search',
    placeholder: 'Search   /',
    'aria-label': 'Search functions, files and data',
    role: 'combobox',
    'aria-expanded': 'false',
    'aria-controls': 'results',
    'aria-autocomplete': 'list',
    autocomplete: 'off',
    spellcheck: 'false',
  });
  const theme = h(
    'button',
    { type: 'button', class: 'theme', 'aria-label': 'light or dark (t)', title: 'light or dark (t)' },
    '◐',
  );
  const program = clean(base((doc.report.run.command || '').split(' ')[0]) || 'report');
  const nav = h('nav', { 'aria-label': 'pages' }, links);
  const header = h(
    'header',
    { class: 'top' },
    link(
      '#main',
      {
        class: 'skip',
        onclick: (event) => {
          event.preventDefault();
          main.focus();
        },
      },
      'Skip to the page',
    ),
    h(
      'div',
      { class: 'brand' },
      h('strong', null, 'locality-bpf'),
      ' ',
      name(program, 24, { class: 'muted' }),
    ),
    nav,
    h('div', { class: 'tools' }, h('div', { class: 'search' }, search, list), theme),
  );
  const app = document.getElementById('app');
  replace(app, header, main);

  const show = () => {
    const { id, parameters } = address();
    const next = shown.find((of) => of.id === id) ?? shown[0];
    if (page === next && current?.update) current.update(parameters);
    else {
      const isFirst = !page;
      page = next;
      main.className = `page page-${next.id}`;
      current = next.render(main, parameters, doc, { go }) ?? null;
      for (const of of links) {
        if (of.dataset.page === next.id) {
          of.setAttribute('aria-current', 'page');
          nav.scrollLeft = Math.max(0, of.offsetLeft - nav.clientWidth / 2);
        } else of.removeAttribute('aria-current');
      }
      document.title = `${next.title} · ${program.slice(0, 80)} · locality-bpf`;
      if (!isFirst) scrollTo(0, 0);
    }
    document.body.dataset.ready = next.id;
  };
  addEventListener('hashchange', show);
  addEventListener('popstate', show);

  let chosen = -1;
  const close = () => {
    list.hidden = true;
    search.setAttribute('aria-expanded', 'false');
    search.removeAttribute('aria-activedescendant');
    chosen = -1;
  };
  const choose = (at) => {
    chosen = at;
    [...list.children].forEach((item, i) => item.setAttribute('aria-selected', String(i === at)));
    if (list.children[at]) search.setAttribute('aria-activedescendant', list.children[at].id);
  };
  search.addEventListener('input', () => {
    const rows = results(doc, search.value);
    replace(
      list,
      rows.map((row, at) =>
        h(
          'li',
          {
            role: 'option',
            id: `result-${at}`,
            'aria-selected': 'false',
            'data-to': row.to,
            onmousedown: (event) => {
              event.preventDefault();
              location.hash = row.to;
              close();
            },
          },
          h('span', { class: 'kind' }, row.kind),
          ' ',
          name(row.text, 60),
          ' ',
          muted(name(row.more, 30)),
        ),
      ),
    );
    list.hidden = !rows.length;
    search.setAttribute('aria-expanded', String(rows.length > 0));
    choose(rows.length ? 0 : -1);
  });
  search.addEventListener('blur', close);
  search.addEventListener('keydown', (event) => {
    const n = list.children.length;
    if (event.key === 'ArrowDown' && n) choose((chosen + 1) % n);
    else if (event.key === 'ArrowUp' && n) choose((chosen + n - 1) % n);
    else if (event.key === 'Enter' && list.children[Math.max(0, chosen)]) {
      location.hash = list.children[Math.max(0, chosen)].dataset.to;
      search.blur();
      main.focus();
    } else if (event.key === 'Escape' || event.key === 'Enter') search.blur();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });

  setTheme(remembered('locality-theme') ?? 'system');
  const turn = () => {
    const at = THEMES.indexOf(document.documentElement.getAttribute('data-theme') ?? 'system');
    const next = THEMES[(at + 1) % THEMES.length];
    setTheme(next);
    remembered('locality-theme', next);
    theme.setAttribute('title', `colours: ${next} (t)`);
  };
  theme.addEventListener('click', turn);

  addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isTyping = event.target.matches?.('input, select, textarea');
    if (isTyping) {
      if (event.key === 'Escape') event.target.blur();
      return;
    }
    const number = Number(event.key);
    if (number >= 1 && number <= 9 && shown[number - 1] && shown[number - 1].id !== 'help')
      go(shown[number - 1].id, {});
    else if (event.key === '/') (current?.search ?? search).focus();
    else if (event.key === '?') go('help', {});
    else if (event.key === 't') turn();
    else if (event.key === 'j') current?.move?.(1);
    else if (event.key === 'k') current?.move?.(-1);
    else if (event.key === 'Enter' && current?.move && event.target === document.body)
      document.querySelector('.panel a')?.focus();
    else if (event.key === 'Escape' && address().parameters.size) go(page.id, {});
    else return;
    event.preventDefault();
  });
  show();
}

load().then(start, (error) => {
  const app = document.getElementById('app');
  append(
    app,
    h(
      'main',
      { class: 'page' },
      h('h1', null, 'This report cannot be shown'),
      h(
        'p',
        null,
        `${error?.message ?? error}. A browser of 2024 or later shows it; locality-bpf report FILE prints it as text.`,
      ),
    ),
  );
  throw error;
});
