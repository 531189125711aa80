// Words and keys.

import { h, replace } from '../dom.js';
import { card } from '../parts.js';

const WORDS = [
  ['use, reuse', 'Two touches of the same data, one after the other. The use is the earlier one.'],
  [
    'accesses apart (time distance)',
    'How many memory accesses the program makes from the use to the reuse.',
  ],
  [
    'distinct data between (stack distance)',
    'How many different words or lines are touched between use and reuse. A cache of that size, or a smaller one, has lost the data by then.',
  ],
  [
    'far, near',
    'A far reuse comes so late that the caches have lost the data. A near one is found in the first cache and needs no change.',
  ],
  [
    'miss ratio',
    'The share of touches whose line is not in a cache of some size. It is predicted for a fully associative cache that replaces the least recently used line.',
  ],
  [
    'data object',
    'A variable, a block on the heap (all blocks of one allocating call path are one), or a mapped file.',
  ],
  ['unused bytes', 'Bytes of a line that were loaded into a cache and not touched until the line left it.'],
  [
    'loop, stride',
    'A loop of the machine code. A stride is how many bytes its next access lies from the one before it.',
  ],
  [
    'cycles, and in brackets',
    'What an iteration takes; in brackets what it would take with all data in the first cache. The difference is waiting.',
  ],
  [
    '95 %',
    'About 95 of 100 such intervals contain the true value. "Seen" is how many events a number rests on. Numbers that say "counted" are exact.',
  ],
  ['weak', 'Seen at most three times: look for more evidence, or trace for longer.'],
  [
    'sample, pause',
    'A clock pauses a thread for about a millisecond; '
      + 'its next instructions are emulated on a private copy of its memory.',
  ],
  ['watchpoint', 'A debug register of the processor that reports the next touch of a word.'],
  ['withdrawn', 'A watchpoint that was needed elsewhere before its word was touched again.'],
];
const KEYS = [
  ['1 – 9', 'pages'],
  ['/', 'search'],
  ['j, k, ↓, ↑', 'next and previous row'],
  ['Enter', 'open the first result, or the selected row'],
  ['Esc', 'leave the search, or go back up'],
  ['t', 'light, dark, or as the system has it'],
  ['?', 'this page'],
];

export const help = {
  id: 'help',
  title: 'Help',
  isThere: () => true,
  render(root, parameters, doc) {
    replace(
      root,
      h('h1', { class: 'sr-only' }, 'Help'),
      h(
        'div',
        { class: 'columns' },
        card(
          'How to read this report',
          h(
            'ol',
            null,
            h(
              'li',
              null,
              'The verdict says how many accesses leave the caches, and how much of the CPU time waits for them.',
            ),
            h(
              'li',
              null,
              'What to do lists changes by how much faster the whole program becomes, each with what it rests on.',
            ),
            h(
              'li',
              null,
              'Where: data objects have the misses, loops have the time, and far pairs have both ends of a reuse.',
            ),
            h('li', null, 'The curve shows what a larger cache, or a smaller working set, would change.'),
            h('li', null, 'Cost & trust says how sure all of that is.'),
          ),
          h(
            'p',
            null,
            'This file needs no network and sends nothing: its policy forbids any request. It has names and, unless it was made with --no-source, source lines of the program. Each view has an address after the #, to pass on with the file.',
          ),
        ),
        card(
          'Keys',
          h(
            'dl',
            { class: 'facts' },
            KEYS.map(([key, text]) =>
              h('div', null, h('dt', null, h('kbd', null, key)), h('dd', null, text)),
            ),
          ),
        ),
        card(
          'Words',
          h(
            'dl',
            { class: 'words' },
            WORDS.map(([word, text]) => [h('dt', null, word), h('dd', null, text)]),
          ),
        ),
        card(
          'About',
          h(
            'p',
            null,
            `locality-bpf ${doc.report.tool_version}. The same numbers for programs: locality-bpf report FILE --format json.`,
          ),
        ),
      ),
    );
  },
};
