// Photographs of the page in every width and both schemes, for people to look at:  node look.mjs FOLDER
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { launch, open, until } from './browser.mjs';
import { Fake } from './fake.mjs';
import { busy } from './states.mjs';

const folder = process.argv[2];
if (!folder) throw new Error('node look.mjs FOLDER');
mkdirSync(folder, { recursive: true });
const fake = await new Fake().start();
busy(fake);
fake.every = 10;
const { context, stop } = await launch();
for (const colorScheme of ['light', 'dark']) {
  for (const width of [400, 1280, 2000]) {
    const page = await open(context, fake.url, { colorScheme, width, height: width === 400 ? 860 : 1100 });
    await until(page, () => document.querySelectorAll('#rows tr').length > 5 && document.querySelector('#plot canvas'));
    await page.locator('#threshold').fill('22');
    await page.waitForTimeout(3_000);
    await page.evaluate(() => scrollTo(0, 0));
    await page.screenshot({ path: join(folder, `${colorScheme}-${width}.png`), fullPage: true });
    await page.locator('#rows button:visible').first().click();
    await page.screenshot({ path: join(folder, `${colorScheme}-${width}-dialog.png`) });
    if (page.faults.length) console.log(colorScheme, width, page.faults);
    await page.close();
  }
}
await stop();
await fake.stop();
