/**
 * How a prompt begins: what distinguishes one conversation, agent or document from another and stays the same from turn to turn.
 * It is hashed with a key, and kept nowhere as it is.
 *
 * Owns: which part of a body that is: instructions, and the messages up to the first of the user. Invariant: bounded; of each
 * text its first 2,048 characters and its length.
 */
import { isRecord, stringAt, type JsonRecord } from './feedback/json.policy.ts';

const maxChars = 2_048;
const maxTexts = 64;
const maxDepth = 8;

/** `null`: there is no prompt in it. */
export function beginningOf(body: JsonRecord): string | null {
  const texts: string[] = [];
  for (const member of ['system', 'systemInstruction', 'instructions'] as const)
    gather(body[member], texts, maxDepth);
  for (const member of ['messages', 'contents', 'input', 'prompt'] as const) {
    const value = body[member];
    if (Array.isArray(value)) for (const message of firstMessages(value)) gather(message, texts, maxDepth);
    else gather(value, texts, maxDepth);
  }
  return texts.length === 0 ? null : texts.join('\n');
}

function firstMessages(messages: readonly unknown[]): readonly unknown[] {
  const user = messages.findIndex((message) => stringAt(message, 'role') === 'user');
  return messages.slice(0, Math.min(user < 0 ? 1 : user + 1, maxTexts));
}

function gather(value: unknown, texts: string[], depth: number): void {
  if (texts.length >= maxTexts || depth < 0) return;
  if (typeof value === 'string') texts.push(`${value.length}:${value.slice(0, maxChars)}`);
  else if (Array.isArray(value))
    for (const member of value.slice(0, maxTexts)) gather(member, texts, depth - 1);
  else if (isRecord(value))
    for (const name of ['text', 'content', 'parts']) gather(value[name], texts, depth - 1);
}
