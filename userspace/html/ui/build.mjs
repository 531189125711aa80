// Bundles the script and the style of the report into the folder that is named, `../dist` by default.
import { build } from 'esbuild';
import { fileURLToPath } from 'node:url';

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const out = process.argv[2] ?? here('../dist');
const shared = { bundle: true, minify: true, charset: 'utf8', legalComments: 'none', logLevel: 'warning' };

// DecompressionStream for raw deflate and light-dark() set the oldest browsers.
const target = ['chrome123', 'firefox120', 'safari17.5'];
await build({
  ...shared,
  entryPoints: [here('main.js')],
  outfile: `${out}/report.js`,
  format: 'iife',
  target,
});
await build({ ...shared, entryPoints: [here('style.css')], outfile: `${out}/report.css`, target });
