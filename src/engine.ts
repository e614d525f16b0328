/**
 * What this process asks of its JavaScript engine. Owns: V8's flags, set before anything else runs.
 *
 * V8 puts what one place in the code allocates into the old generation at once when much of it survived a few
 * collections. Calls that wait or are in flight survive many, but none for long: each object placed there keeps
 * everything that its finished call allocated until the next full collection. Without this
 * guess of V8's a call costs less CPU, and fewer of its bytes are copied (`npm run bench:cost`).
 */
import { setFlagsFromString } from 'node:v8';

setFlagsFromString('--no-allocation-site-pretenuring');
