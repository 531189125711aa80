// Takes a picture of one report: node test/pictures.mjs REPORT.html FOLDER

import { resolve } from 'node:path';
import { chromium } from 'playwright-core';

const [report, folder] = process.argv.slice(2);
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox'],
});
const page = await browser.newPage({ viewport: { width: 1280, height: 860 }, colorScheme: 'light' });
for (const [name, hash] of [['overview', '#/overview']]) {
  await page.goto(`file://${resolve(report)}${hash}`);
  await page.waitForSelector('body[data-ready]');
  await page.waitForTimeout(300);
  const shot = await page.screenshot({ path: `${folder}/${name}.png` });
  console.log(`${folder}/${name}.png: ${shot.length} bytes`);
}
await browser.close();
