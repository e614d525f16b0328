/**
 * Distinguishes events of a stream that are content from those that only say that a response has begun.
 *
 * Owns: the events that come before content in chat, Responses and Anthropic streams. Does not own: errors
 * (`stream-event.policy.ts`). Invariant: whatever is not known to come before content is content.
 */
import { isRecord, parseJson, stringAt } from './json.policy.ts';

const beginnings = new Set([
  'message_start',
  'ping',
  'response.created',
  'response.queued',
  'response.in_progress',
  'keepalive',
]);

/** `data` of one event. */
export function isContent(data: string): boolean {
  const body = parseJson(data);
  if (!isRecord(body)) return true;
  const type = stringAt(body, 'type');
  if (type !== null) return !beginnings.has(type);
  const { choices } = body;
  return !Array.isArray(choices) || choices.some(saysSomething);
}

/** Chat begins with a role and empty text; Azure's first chunk has no choice at all. */
function saysSomething(choice: unknown): boolean {
  if (!isRecord(choice) || !isRecord(choice['delta'])) return true;
  const isOver = (choice['finish_reason'] ?? null) !== null;
  const said = Object.entries(choice['delta']).some(
    ([name, value]) => name !== 'role' && value !== null && value !== '',
  );
  return isOver || said;
}
