/** Uploads a file of so many bytes as its argument says. The environment names `SLUICE_KEY` and `SLUICE_URL`; prints the response. */
import { GoogleGenAI } from '@google/genai';

const { SLUICE_KEY: apiKey, SLUICE_URL: baseUrl } = process.env;
const { files } = new GoogleGenAI({ apiKey, vertexai: false, httpOptions: { baseUrl } });
const file = new Blob([Buffer.alloc(Number(process.argv[2]), 'a')], { type: 'text/plain' });
process.stdout.write(JSON.stringify(await files.upload({ file, config: { mimeType: 'text/plain' } })));
