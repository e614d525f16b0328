/** Uploads a file in parts. The environment names `SLUICE_KEY`, `SLUICE_URL` and `SIZE`; the response goes to stdout as JSON. */
import { GoogleGenAI } from '@google/genai';

const { SLUICE_KEY: apiKey, SLUICE_URL: baseUrl, SIZE } = process.env;
const { files } = new GoogleGenAI({ apiKey, vertexai: false, httpOptions: { baseUrl } });
const file = new Blob([Buffer.alloc(Number(SIZE), 'a')], { type: 'text/plain' });
process.stdout.write(JSON.stringify(await files.upload({ file, config: { mimeType: 'text/plain' } })));
