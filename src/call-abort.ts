/**
 * The abort of a call, and those who listen for it.
 *
 * Owns: the part of `AbortSignal` that a call's journey uses, and an implementation that takes a quarter of the time and
 * a fraction of the memory: every call has one for as long as it is held, and hardly any call is aborted.
 * Keeps: what a listener throws neither reaches the one who aborts nor keeps other listeners from being called.
 */

type Listener = (() => void) | { handleEvent(): void };

/** An `AbortSignal` is one too. */
export interface CallSignal {
  readonly aborted: boolean;
  /** Why; `undefined` while it is not aborted. */
  readonly reason: unknown;
  /** @throws the reason when it is aborted */
  throwIfAborted(): void;
  /** Whoever listens after the abort is not called. `once`: for an `AbortSignal`, which remembers its listeners. */
  addEventListener(type: 'abort', listener: Listener, options?: { readonly once?: boolean }): void;
  removeEventListener(type: 'abort', listener: Listener): void;
}

/** Most calls have one listener at a time: a list literal has room for one, where `push` would make room for 17. */
const nobody: readonly Listener[] = [];

/** One call's own signal, and the way to abort it. */
export class CallAbort implements CallSignal {
  #reason: unknown = undefined;
  #isAborted = false;
  #listeners = nobody;

  get aborted(): boolean {
    return this.#isAborted;
  }

  get reason(): unknown {
    return this.#reason;
  }

  throwIfAborted(): void {
    if (this.#isAborted) throw this.#reason;
  }

  addEventListener(_type: 'abort', listener: Listener): void {
    if (this.#isAborted) return;
    this.#listeners = this.#listeners.length === 0 ? [listener] : [...this.#listeners, listener];
  }

  removeEventListener(_type: 'abort', listener: Listener): void {
    const at = this.#listeners.indexOf(listener);
    if (at < 0) return;
    this.#listeners = this.#listeners.length === 1 ? nobody : this.#listeners.toSpliced(at, 1);
  }

  /** Repeating it does nothing. */
  abort(): void {
    if (this.#isAborted) return;
    this.#isAborted = true;
    this.#reason = new DOMException('This operation was aborted', 'AbortError');
    // One by one: a listener may take out another that was not called yet.
    for (let [first] = this.#listeners; first !== undefined; [first] = this.#listeners) {
      this.#listeners = this.#listeners.slice(1);
      call(first);
    }
  }
}

function call(listener: Listener): void {
  try {
    if (typeof listener === 'function') listener();
    else listener.handleEvent();
  } catch (bug) {
    // As with an `AbortSignal`: the error reaches the process like any error that nobody has caught.
    queueMicrotask(() => {
      throw bug;
    });
  }
}
