/** The shipped configurations of proxies in front of Sluice: an upstream cannot command them, even if Sluice let its fields pass. */
import { readFileSync } from 'node:fs';
import { expect, test } from '@jest/globals';

const read = (path: string): string => readFileSync(new URL(`../../${path}`, import.meta.url), 'utf8');

test.each(['Redirect', 'Expires', 'Limit-Rate', 'Buffering', 'Charset'])(
  'the shipped nginx does not obey X-Accel-%s',
  (name) => {
    const [, ignored = ''] =
      /^\s*proxy_ignore_headers ([^;]*);/m.exec(read('deploy/compose/nginx.conf')) ?? [];
    expect(ignored.split(' ')).toContain(`X-Accel-${name}`);
  },
);

test.each(['x-accel-', 'x-envoy-', 'surrogate-', 'sendfile'])('the shipped HAProxy drops %s', (name) => {
  const dropped = read('deploy/haproxy/haproxy.cfg').match(/^\s*http-response del-header .*$/gm) ?? [];
  expect(dropped.join('\n')).toContain(name);
});
