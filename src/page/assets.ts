/**
 * The page's static files, read once at start. Owns their names, types and the content security policy; nothing is
 * loaded from elsewhere, so that the page works without internet.
 */
import { readFileSync } from 'node:fs';

export interface Asset {
  readonly type: string;
  readonly body: Buffer;
}

/** Nothing but our own files, nothing inline, nobody may frame it. */
export const contentSecurityPolicy = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self'",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ');

const types = {
  html: 'text/html; charset=utf-8',
  css: 'text/css; charset=utf-8',
  js: 'text/javascript; charset=utf-8',
  svg: 'image/svg+xml',
};

/** Path on the admin port → file. */
export function loadAssets(): ReadonlyMap<string, Asset> {
  const own = (name: string): Buffer => readFileSync(new URL(`./static/${name}`, import.meta.url));
  return new Map<string, Asset>([
    ['/', { type: types.html, body: own('index.html') }],
    ['/page/page.css', { type: types.css, body: own('page.css') }],
    ['/page/page.js', { type: types.js, body: own('page.js') }],
    ['/page/icon.svg', { type: types.svg, body: own('icon.svg') }],
  ]);
}
