/** httplint over answers of both ports: nothing is marked bad. It reads no answers to HEAD, which announce what they do not send. */
import { once } from 'node:events';
import { connect } from 'node:net';
import type { Report } from '../observability/report.ts';
import type { Demo } from './demo.ts';
import { fromPyPi, ran } from './tools.ts';

const maxMs = 30_000;

/** The bytes of one answer, on a connection of its own. */
async function answerTo(base: string, lines: readonly string[]): Promise<string> {
  const { hostname, port, host } = new URL(base);
  const socket = connect(Number(port), hostname);
  let answer = '';
  socket.setEncoding('latin1').on('data', (text: string) => (answer += text));
  socket.setTimeout(maxMs, () => socket.destroy());
  const [line = '', ...fields] = lines;
  socket.write([line, `Host: ${host}`, 'Connection: close', ...fields, '', ''].join('\r\n'));
  await once(socket, 'close');
  return answer;
}

export async function judgeByHttplint(report: Report, demo: Demo): Promise<void> {
  const tool = await fromPyPi('httplint');
  if ('why' in tool) return report.skipped('httplint', tool.why);
  const key = `Authorization: Bearer ${demo.key}`;
  const target = `/proxy?target=${encodeURIComponent(demo.targets[0] ?? '')}`;
  const asked: readonly (readonly [string, readonly string[]])[] = [
    [demo.admin, ['GET /livez HTTP/1.1']],
    [demo.admin, ['GET /readyz HTTP/1.1']],
    [demo.admin, ['GET /metrics HTTP/1.1']],
    [demo.admin, ['GET /activity HTTP/1.1']],
    [demo.admin, ['GET / HTTP/1.1']],
    [demo.admin, ['POST /upstreams/none/pause HTTP/1.1', 'Content-Length: 0']],
    [demo.data, [`GET ${target} HTTP/1.1`]],
    [demo.data, [`GET ${target} HTTP/1.1`, key]],
    [demo.data, ['GET /via/openai/v1/models HTTP/1.1', key]],
    [demo.data, ['GET /via/openai/v1/none HTTP/1.1', key]],
    [demo.data, ['GET /via/none/v1 HTTP/1.1', key]],
    [demo.data, ['GET /proxy HTTP/1.1', key]],
    [demo.data, ['GET /proxy?target=x HTTP/1.1', key]],
    [demo.data, ['GET /activity HTTP/1.1', key]],
    [demo.data, ['GET /none HTTP/1.1', key]],
    [demo.data, ['TRACE /proxy HTTP/1.1']],
    [demo.data, ['GET /proxy HTTP/1.1', 'Expect: x']],
    [demo.data, ['GET /proxy HTTP/1.1', 'Upgrade: websocket', 'Connection: upgrade']],
    [demo.data, ['GET /proxy HTTP/1.1', 'Transfer-Encoding: gzip']],
  ];
  for (const [base, lines] of asked) {
    const answer = await answerTo(base, lines);
    const { output } = await ran(tool.path, ['-n'], maxMs, answer);
    const bad = output.split('\n').filter((line) => line.includes('[BAD]'));
    const name = `httplint: ${lines[0]?.split('?')[0] ?? ''} ${answer.slice(9, 12)}`;
    report.check(name, output !== '' && bad.length === 0, bad.join('\n         ') || 'no answer judged');
  }
}
