import { once } from 'node:events';
import { request } from 'node:http';
import { afterEach, describe, expect, test } from '@jest/globals';
import type { PageState } from '../../src/page/page.ts';
import { skippingClock } from '../support/skipping-clock.ts';
import { type DrivenPage, drivenPage } from './driven-page.ts';
import { makeState, pageStates } from './states.ts';

/** Reads events of the page until `name` has come; its data, parsed. */
async function eventFrom(url: string, name: string): Promise<unknown> {
  const open = request(`${url}page/events`).end();
  const [response] = (await once(open, 'response')) as [NodeJS.ReadableStream];
  let text = '';
  for await (const chunk of response) {
    text += String(chunk);
    const found = new RegExp(`event: ${name}\\ndata: (.*)\\n\\n`).exec(text);
    if (found !== null) {
      open.destroy();
      return JSON.parse(found[1] ?? 'null');
    }
  }
  throw new Error(`no ${name} event came`);
}

let page: DrivenPage;
afterEach(() => page.close());

describe('the live page says', () => {
  test.each(Object.entries(pageStates))('what an operator must know: %s', async (_name, state) => {
    const clock = skippingClock();
    page = await drivenPage(clock, state.upstreams, state.observed);
    makeState(state, page, (ms) => clock.skip(ms));
    const { answer } = (await eventFrom(page.url, 'state')) as PageState;
    expect([answer.sentence, answer.rest].join(' ').trim()).toMatch(state.says);
    expect(answer.wrongNow).toMatch(state.wrongNow);
    if (state.heldBy !== undefined) expect(answer.heldBy).toMatch(state.heldBy);
    expect(answer.tone).toBe(state.tone);
    // `/activity` says the same.
    const all = await page.observation.activity.ofAll(3_600_000);
    const untimed = (text: string): string => text.replaceAll(/\d\d:\d\d:\d\d/g, 'T');
    expect(untimed(all.answer.sentence)).toBe(untimed(answer.sentence));
  });
});

describe('the live page', () => {
  test('serves only its own files, under a policy that allows nothing else', async () => {
    page = await drivenPage(skippingClock());
    const html = await fetch(page.url);
    const policy = html.headers.get('content-security-policy') ?? '';
    expect(policy).toContain("default-src 'none'");
    expect(policy).not.toContain('unsafe');
    const text = await html.text();
    expect(text).not.toMatch(/https?:\/\/|style="|\son\w+="|<script>/);
    const paths = [...text.matchAll(/(?:src|href)="(page\/[^"]+)"/g)].map(([, path]) => path ?? '');
    expect(paths).toHaveLength(3);
    // Nothing is asked from the root of its host, which is another's behind a reverse proxy.
    expect(text).not.toMatch(/(?:src|href)="\//);
    for (const path of paths) {
      const asset = await fetch(new URL(path, `${page.url}below/`));
      expect([path, asset.status]).toEqual([path, 200]);
      expect((await asset.text()).length).toBeGreaterThan(100);
    }
  });

  test('refuses readers above its bound', async () => {
    page = await drivenPage(skippingClock());
    const open = await Promise.all(
      Array.from({ length: 33 }, async () => {
        const each = request(`${page.url}page/events`).end();
        const [response] = (await once(each, 'response')) as [{ statusCode: number }];
        return { each, status: response.statusCode };
      }),
    );
    expect(open.filter(({ status }) => status === 503)).toHaveLength(1);
    for (const { each } of open) each.destroy();
  });
});
