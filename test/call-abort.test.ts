import { describe, expect, test } from '@jest/globals';
import { CallAbort } from '../src/call-abort.ts';

describe('the abort of a call', () => {
  test('runs each listener once, functions and objects, in the order of their registration', () => {
    const abort = new CallAbort();
    const heard: string[] = [];
    abort.addEventListener('abort', () => heard.push('function'));
    abort.addEventListener('abort', { handleEvent: () => heard.push('object') });
    abort.abort();
    abort.abort();
    expect(heard).toEqual(['function', 'object']);
  });

  test('runs no listener that was removed, even by another listener, and none that was added afterwards', () => {
    const abort = new CallAbort();
    const heard: string[] = [];
    const third = (): void => void heard.push('third');
    const second = (): void => {
      heard.push('second');
      abort.removeEventListener('abort', third);
    };
    const first = (): void => void heard.push('first');
    abort.addEventListener('abort', first);
    abort.addEventListener('abort', second);
    abort.addEventListener('abort', third);
    abort.removeEventListener('abort', first);
    abort.abort();
    abort.addEventListener('abort', first);
    expect(heard).toEqual(['second']);
  });

  test('has the same reason for all readers, and none before', () => {
    const abort = new CallAbort();
    expect(abort.aborted).toBe(false);
    expect(abort.reason).toBeUndefined();
    abort.throwIfAborted();
    abort.abort();
    const { reason } = abort;
    expect(reason).toMatchObject({ name: 'AbortError' });
    abort.abort();
    expect(abort.reason).toBe(reason);
    expect(() => abort.throwIfAborted()).toThrow(reason as Error);
  });

  test('runs the other listeners when one throws, and throws the error where it is not caught', () => {
    const abort = new CallAbort();
    const heard: string[] = [];
    const later: (() => void)[] = [];
    const { queueMicrotask } = globalThis;
    globalThis.queueMicrotask = (run) => void later.push(run);
    try {
      abort.addEventListener('abort', () => {
        throw new Error('planted');
      });
      abort.addEventListener('abort', () => heard.push('second'));
      abort.abort();
    } finally {
      globalThis.queueMicrotask = queueMicrotask;
    }
    expect(heard).toEqual(['second']);
    expect(later).toHaveLength(1);
    expect(later[0]).toThrow('planted');
  });
});
