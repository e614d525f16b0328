import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect, test } from '@jest/globals';
import { startGateway } from '../support/gateway.ts';

/** Refuses what asks for too much without a word about its limits, as real providers do; answers everything else. */
const strict = () =>
  createServer((request, response) => {
    let body = '';
    request.on('data', (chunk: Buffer) => (body += chunk.toString()));
    request.on('end', () => {
      response.writeHead(body.includes('max_tokens') ? 400 : 200, { 'content-type': 'application/json' });
      response.end('{}');
    });
  });

test.each(['    limits: { tokensPerMinute: 30000 }\n', '    limits: { tokensPerDay: 30000 }\n'])(
  'a refused call that asked for a billion tokens delays no other call:%s',
  async (limits) => {
    const upstream = strict();
    await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
    const { port } = upstream.address() as AddressInfo;
    const gateway = await startGateway({
      upstreams: `  openai:\n    kind: language-model\n    origins: ["http://127.0.0.1:${port}"]\n    allowPrivateAddresses: true\n    credential: { header: authorization, value: "Bearer sk-sim" }\n${limits}`,
      workspaces: { greedy: '', modest: '' },
    });
    const chat = async (workspace: string, more: object): Promise<number> => {
      const response = await fetch(`${gateway.url}/via/openai/v1/chat/completions`, {
        method: 'POST',
        headers: {
          authorization: `Bearer ${gateway.keys[workspace] ?? ''}`,
          'content-type': 'application/json',
          prefer: 'wait=2',
        },
        body: JSON.stringify({ model: 'gpt', messages: [{ role: 'user', content: 'hello' }], ...more }),
      });
      await response.arrayBuffer();
      return response.status;
    };
    try {
      expect(await chat('greedy', { max_tokens: 1e9 })).toBe(400);
      expect(await chat('modest', {})).toBe(200);
    } finally {
      await gateway.close();
      await new Promise((resolve) => upstream.close(resolve));
    }
  },
);
