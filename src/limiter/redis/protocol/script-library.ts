/**
 * The function library of bucket scheduler and ceilings on one connection. A script creates all its functions again with every
 * call, which is a third of its time; a library is loaded once (ADR 13).
 *
 * Owns: loading it, noticing that a server does not have it (another primary, another life). Does not own: the source
 * (`scripts.ts`), what runs instead (`commands.ts`): everything works without the library, at a higher cost. Keeps: a server that
 * has it is not sent it again with each connection. It is 65 KB, and a network that cut connections after 20 KB never let one
 * become usable: each replica connected nine times a second.
 */
import { primaryClients, type RedisClient } from '../../../redis/connection.ts';
import type { CommandForms, Scripts } from './scripts.ts';

/**
 * - `unknown`: nobody has loaded it yet, or a server lacks it.
 * - `loaded`: until a server replies that it does not know the function; also over a new connection.
 * - `refused`: the server is older than Redis 7, or its ACL does not let this user load or call functions. Valid until the next
 *   connection.
 */
type State = 'unknown' | 'loading' | 'loaded' | 'refused';

export class ScriptLibrary {
  readonly #client: RedisClient;
  readonly #source: string;
  #state: State = 'unknown';

  constructor(client: RedisClient, { library }: Pick<Scripts, 'library'>) {
    this.#client = client;
    this.#source = library;
    client.on('ready', () => {
      if (this.#state === 'refused') this.#state = 'unknown';
    });
  }

  /** What the function replied; `null`: there is none, nothing has run. Rejects as any command does. Words: keys first. */
  async run(
    { called, numberOfKeys }: CommandForms,
    words: readonly string[],
  ): Promise<{ readonly reply: unknown } | null> {
    if (this.#state === 'unknown') void this.#load();
    if (this.#state !== 'loaded') return null;
    try {
      return { reply: await this.#client.fcall(called, numberOfKeys, ...words) };
    } catch (failure) {
      if (isReply(failure, /^ERR Function not found/)) this.#state = 'unknown';
      else if (isReply(failure, /^(ERR unknown command|NOPERM)\b/)) this.#state = 'refused';
      else throw failure;
      return null;
    }
  }

  /** On every primary: a function that one of them lacks is missed when a call needs it. */
  async #load(): Promise<void> {
    this.#state = 'loading';
    try {
      await Promise.all(primaryClients(this.#client).map((primary) => loadInto(primary, this.#source)));
      this.#state = 'loaded';
    } catch (failure) {
      this.#state = isReply(failure, /^(ERR|NOPERM)\b/) ? 'refused' : 'unknown';
    }
  }
}

async function loadInto(primary: Pick<RedisClient, 'call'>, source: string): Promise<void> {
  try {
    await primary.call('FUNCTION', 'LOAD', source);
  } catch (failure) {
    if (!isReply(failure, /^ERR Library '.*' already exists/)) throw failure;
  }
}

const isReply = (failure: unknown, pattern: RegExp): boolean =>
  failure instanceof Error && failure.name === 'ReplyError' && pattern.test(failure.message);
