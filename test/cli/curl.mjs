/** Stand-in for curl where there is none: the options that the demonstration prints, and no others. Prints the status. */
const options = { '-i': 0, '-H': 1, '-d': 1 };
const headers = {};
let body;
let url;
for (let at = 2; at < process.argv.length; at += 1) {
  const word = process.argv[at];
  if (!word.startsWith('-')) url = word;
  else if (!(word in options)) throw new Error(`curl.mjs does not know ${word}`);
  else if (options[word] === 1) {
    const value = process.argv[(at += 1)];
    const colon = value.indexOf(':');
    if (word === '-H') headers[value.slice(0, colon)] = value.slice(colon + 1).trim();
    else body = value;
  }
}
const response = await fetch(url, { headers, method: body === undefined ? 'GET' : 'POST', body });
await response.arrayBuffer();
process.stdout.write(String(response.status));
