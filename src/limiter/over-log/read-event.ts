/**
 * Events of the log as they come from Redis. The log's name carries the version of the fold, so that what is read was written by this
 * very code; what somebody else put there is found by its form, and by the fold where only that can tell.
 */
import type { LogEvent } from './state.ts';

/** @throws TypeError for a value that no replica appends */
export function readEvent(value: unknown): LogEvent {
  if (!isEvent(value)) throw new TypeError('what a log has is no event of the limiter');
  return value;
}

function isEvent(value: unknown): value is LogEvent {
  if (!isRecord(value)) return false;
  switch (value['kind']) {
    case 'tick':
    case 'leave':
      return true;
    case 'in':
      return typeof value['bucket'] === 'string' && isRecord(value['event']);
    case 'admit':
      return typeof value['bucket'] === 'string' && isRecord(value['admission']);
    case 'report':
      return Array.isArray(value['held']) && Array.isArray(value['used']);
    case 'here':
      return typeof value['term'] === 'number';
    default:
      return false;
  }
}

const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);
