import { stripTypeScriptTypes } from 'node:module';

/** Jest transform: blanks out type syntax in place, so line and column numbers stay exact. */
export default {
  process: (source) => ({ code: stripTypeScriptTypes(source, { mode: 'strip' }) }),
};
