/**
 * From path and bytes to an endpoint and a JSON body.
 *
 * Owns: the paths of all dialects and multipart forms. Invariant: malformed input is a value (undefined), never a throw.
 */
import { objectOf, parseJson, type Json } from '../json.ts';
import type { Exchange } from '../exchange.ts';
import type { Endpoint } from './cost.ts';

export type RequestedEndpoint =
  | { readonly kind: 'call'; readonly endpoint: Endpoint; readonly deployment: string }
  | { readonly kind: 'models'; readonly id: string | null }
  | { readonly kind: 'unknown' };

const endpoints: ReadonlyMap<string, Endpoint> = new Map([
  ['chat/completions', 'chat'],
  ['responses', 'responses'],
  ['embeddings', 'embeddings'],
  ['images/generations', 'images'],
  ['images/edits', 'images'],
  ['messages', 'messages'],
]);

export function endpointOf(method: string, path: string): RequestedEndpoint {
  const azure = /^\/openai\/deployments\/([^/]+)\/(.+)$/.exec(path);
  const rest = azure?.[2] ?? /^(?:\/openai)?\/v1\/(.+)$/.exec(path)?.[1] ?? '';
  if (method === 'GET' && /^models(\/|$)/.test(rest)) {
    return { kind: 'models', id: rest === 'models' ? null : decode(rest.slice('models/'.length)) };
  }
  const endpoint = method === 'POST' ? endpoints.get(rest) : undefined;
  if (endpoint === undefined) return { kind: 'unknown' };
  return { kind: 'call', endpoint, deployment: decode(azure?.[1] ?? '') };
}

/** The body as an object; a form becomes its text fields, its pictures an `input` of image parts. */
export async function bodyOf(exchange: Exchange): Promise<Json | undefined> {
  const type = exchange.request.headers['content-type'] ?? '';
  if (!/^multipart\/form-data/i.test(type)) return objectOf(parseJson(exchange.body.toString('utf8')));
  try {
    const form = await new Response(new Uint8Array(exchange.body), {
      headers: { 'content-type': type },
    }).formData();
    const fields: Record<string, unknown> = {};
    const prompt: unknown[] = [];
    form.forEach((value, name) => {
      if (typeof value === 'string') fields[name] = value;
      else if (name.startsWith('image')) prompt.push({ type: 'input_image' });
    });
    return { ...fields, prompt: [fields['prompt'] ?? '', ...prompt] };
  } catch {
    return undefined;
  }
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
